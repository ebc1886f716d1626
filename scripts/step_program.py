"""A training step as a run compiles it, on noise: for `profile_step.py` and `bench_options.py`."""

import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import described_gpus
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.data.batch import Batch, Order, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Phase, StepKind, Stretch
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh, resident_step, resident_steps
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry

# A step of a run that no profile reaches.
_NEVER = 2**30


@dataclasses.dataclass(frozen=True)
class StepFlags:
  """The flags of a script that compiles a step: a recipe, its sizes, a file for the figures."""

  config: command_line.ConfigFlag
  devices: flags.FlagHolder[int]
  image_size: flags.FlagHolder[int]
  batch_size: flags.FlagHolder[int]
  steps: flags.FlagHolder[int]
  out: flags.FlagHolder[str]

  def required_config(self) -> ConfigDict:
    """The config.

    Raises:
      UserError: no recipe is given.
    """
    if (config := self.config.value) is None:
      raise UserError("--config is missing: name a recipe, as in --config=configs/cifar10.py.")
    return config

  def report_file(self) -> pathlib.Path | None:
    """The file for the figures; None: none."""
    return pathlib.Path(self.out.value) if self.out.value else None


def define_flags() -> StepFlags:
  """Defines the flags."""
  return StepFlags(
    config=command_line.define_config_flag(),
    devices=flags.DEFINE_integer(
      "devices", 0, "How many; 0: all that are there, or one that is described.", lower_bound=0
    ),
    image_size=flags.DEFINE_integer(
      "image_size", 0, "Side in pixels; 0: of the first phase.", lower_bound=0
    ),
    batch_size=flags.DEFINE_integer(
      "batch_size",
      0,
      "Images a device; 0: the phase's batch, divided by the devices.",
      lower_bound=0,
    ),
    steps=flags.DEFINE_integer("steps", 5, "Steps of a program.", lower_bound=1),
    out=flags.DEFINE_string("out", "", "A JSON file for the figures."),
  )


@dataclasses.dataclass(frozen=True)
class StepProgram:
  """A compiled program of training steps.

  Attributes:
    compiled: takes a carry and what `arguments` describe, and returns the next carry and losses.
    arguments: shapes and shardings, the carry first.
    steps: number in one call. A program of several is told where to stop, by its last argument.
  """

  compiled: Any
  arguments: tuple[Any, ...]
  steps: int


def resolve(config: ConfigDict, device: jax.Device | None, gpu: str) -> ConfigDict:
  """The config with its precision, and placeholders for the statistics of a set not read."""
  config = config.copy_and_resolve_references()
  if config.precision == "auto" and gpu:
    config.precision = described_gpus.GPUS[gpu].precision
  elif device is not None:
    config.precision = precision.resolve(config.precision, device)
  if not len(config.data.mean):
    # Placeholders: the data set is not read.
    config.data.update(mean=(127.5,) * 3, std=(64.0,) * 3)
  return config


def choose_phase(config: ConfigDict, *, devices: int, image_size: int, batch_size: int) -> Phase:
  """The phase to profile: the first of this image size, or else the first phase at this size.

  Args:
    config: resolved.
    devices: number that share its batch.
    image_size: side in pixels; 0: that of the first phase.
    batch_size: images per device; 0: the phase's.

  Raises:
    UserError: the batch does not divide over the devices, or over the micro-batches of a step.
  """
  phases = make_plan(config).phases
  phase = next((p for p in phases if p.image_size == image_size), phases[0])
  if not batch_size and phase.batch_size % devices:
    raise UserError(
      f"{config.name}: the batch of {phase.batch_size} does not divide over {devices} devices; "
      f"give the images a device with --batch_size."
    )
  local = batch_size or phase.batch_size // devices
  if local % config.accumulate:
    raise UserError(
      f"--batch_size={local}: it must be a multiple of config.accumulate={config.accumulate}."
    )
  return dataclasses.replace(
    phase, image_size=image_size or phase.image_size, batch_size=local * devices
  )


def usual_kind(spec: TrainSpec) -> StepKind:
  """The kind of most steps of a run."""
  plan = spec.plan
  kinds = collections.Counter(plan.kind_of(number) for number in range(plan.total_steps))
  return kinds.most_common(1)[0][0]


def compile_step(spec: TrainSpec, phase: Phase, *, platform: str, steps: int) -> StepProgram:
  """The training program that a run would use for a phase, as an epoch of `steps` steps.

  Args:
    spec: with the mesh of the devices to compile for.
    phase: its image size and batch size.
    platform: "cpu" or "gpu".
    steps: per call, for a data set in memory on a GPU; otherwise a call is one step.
  """
  everywhere, parts = mesh_lib.replicated(spec.mesh), mesh_lib.sharded(spec.mesh)
  size, n = phase.image_size, spec.plan.train_images
  streams, kind = spec.config.data.feed == "stream", usual_kind(spec)

  def array(shape: tuple[int, ...], dtype: Any, sharding: Any = everywhere) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  def batch(n: int, sharding: Any) -> Batch:
    return Batch(
      image=array((n, size, size, 3), jnp.uint8, sharding),
      label=array((n,), jnp.int32, sharding),
      mask=array((n,), jnp.bool_, sharding),
    )

  init = on_mesh(init_state, spec)
  image = array((1, size, size, 3), jnp.uint8)
  data = batch(phase.batch_size, parts) if streams else batch(n, everywhere)
  state = jax.eval_shape(init, array((2,), jnp.uint32), image if streams else data.image)
  carry = mesh_lib.abstract(Carry(state, jax.eval_shape(MetricSums.zero)), everywhere)
  table = {name: array(column.shape, jnp.float32) for name, column in spec.plan.table.items()}
  if streams:
    steps = 1
    function = batch_step(spec, kind)
    arguments = (carry, data.replace(flip=data.mask), table)
  else:
    order = Order(array((n,), jnp.int32), array((n,), jnp.bool_))
    arguments = (carry, data, order, table)
    if platform == "cpu":
      steps = 1
      function = on_mesh(resident_step, spec, phase=phase, kind=kind)
    else:
      # An epoch may have any number of steps, whatever the data set's size gives.
      phase = dataclasses.replace(phase, steps_per_epoch=max(steps, phase.steps_per_epoch))
      stretches = (Stretch(_NEVER, (kind,)),)
      function = on_mesh(resident_steps, spec, phase=phase, stretches=stretches)
      arguments = (*arguments, array((), jnp.int32))
  options = spec.compiler_options(platform)
  lowered = jax.jit(function, donate_argnums=(0,)).lower(*arguments)
  return StepProgram(lowered.compile(compiler_options=options), arguments, steps)


def noise(program: StepProgram, spec: TrainSpec) -> tuple[Any, ...]:
  """Arguments of a program: a first state, and noise in place of images."""
  rng = np.random.default_rng(0)
  _, data, *order = (each for each in program.arguments if isinstance(each, Batch | Carry | Order))
  image = mesh_lib.replicate(np.zeros(data.image.shape, np.uint8), spec.mesh)
  key = mesh_lib.replicate(np.asarray(seed_key(0)), spec.mesh)
  first = image[:1] if spec.config.data.feed == "stream" else image
  state = jax.jit(on_mesh(init_state, spec))(key, first)

  def fill(like: Any, high: int) -> Any:
    values = rng.integers(high, size=like.shape).astype(like.dtype)
    return jax.device_put(values, like.sharding)

  batch = Batch(
    image=fill(data.image, 256),
    label=fill(data.label, spec.config.data.classes),
    mask=jax.device_put(np.ones(data.mask.shape, bool), data.mask.sharding),
    flip=None if data.flip is None else fill(data.flip, 2),
  )
  if order:
    n = order[0].index.shape[0]
    orders = Order(rng.permutation(n).astype(np.int32), np.zeros(n, bool))
    order = [mesh_lib.replicate(orders, spec.mesh)]
  carry = Carry(state, mesh_lib.replicate(MetricSums.zero(), spec.mesh))
  return carry, batch, *order, mesh_lib.replicate(spec.plan.table_in(np.float32), spec.mesh)


def caller(program: StepProgram, arguments: tuple[Any, ...]) -> Callable[[Carry], Carry]:
  """A function that runs a program on the carry that it is given, and returns the next carry."""
  _, *rest = arguments
  stops = itertools.count(program.steps, program.steps)
  # One argument more than `noise` gives: the step at which to stop.
  takes_stop = len(program.arguments) > len(arguments)

  def call(carry: Carry) -> Carry:
    stop = [jnp.int32(next(stops))] if takes_stop else []
    return program.compiled(carry, *rest, *stop)[0]

  return call
