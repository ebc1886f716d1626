"""A training step as a run compiles it, on noise: for the scripts that time or count one."""

import collections
import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any

import described_gpus
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.data.batch import Batch, Order, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Phase, StepRange
from jaxspeed.records import provenance
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh, resident_step, resident_steps
from jaxspeed.steps.spec import TrainSpec, make_train_spec
from jaxspeed.steps.state import Carry

# A step of a run that no profile reaches.
_NEVER = 2**30


@dataclasses.dataclass(frozen=True)
class Step:
  """What a script that compiles a step is asked for.

  Attributes:
    config: resolved.
    mesh: of the devices, or of some that are not there.
    phase: the image size and batch size.
    described: what kind those are (`described_gpus`); '': the devices are there.
  """

  config: ConfigDict
  mesh: Mesh
  phase: Phase
  described: str

  def spec(self, *options: str) -> TrainSpec:
    """The training of the config, with more NAME=VALUE: options of XLA, or config.FIELD=VALUE."""
    config = self.config.copy_and_resolve_references()
    for option in options:
      if option.startswith("config."):
        config.update_from_flattened_dict(command_line.parse_overrides([f"--{option}"])[0])
      else:
        config.compiler_options = (*config.compiler_options, option)
    return make_train_spec(config, make_plan(config), self.mesh)

  def describe(self) -> dict[str, Any]:
    """The step in a report."""
    device = self.mesh.devices.flat[0].device_kind
    gpu = described_gpus.GPUS.get(self.described)
    return {
      "config": self.config.name,
      "device": (gpu.name if gpu else device) if self.described else provenance.describe_device(),
      "devices": self.mesh.size,
      "image_size": self.phase.image_size,
      "batch_size": self.phase.batch_size // self.mesh.size,
      "precision": self.config.precision,
    }


def define_flags() -> Callable[[str], Step]:
  """Defines the flags of a recipe and its sizes; returns what makes a `Step` of their values.

  Its argument names described devices; '': those that are there.
  """
  config_flag = command_line.define_config_flag()
  devices = flags.DEFINE_integer(
    "devices", 0, "How many; 0: all that are there, or one that is described.", lower_bound=0
  )
  image_size = flags.DEFINE_integer(
    "image_size", 0, "Side in pixels; 0: of the first phase.", lower_bound=0
  )
  batch_size = flags.DEFINE_integer(
    "batch_size", 0, "Images a device; 0: the phase's batch, divided by the devices.", lower_bound=0
  )

  def make_step(described: str) -> Step:
    if (config := config_flag.value) is None:
      raise UserError("--config is missing: name a recipe, as in --config=configs/cifar10.py.")
    sizes = {"image_size": image_size.value, "batch_size": batch_size.value}
    return step_of(config, described, devices=devices.value, **sizes)

  return make_step


def step_of(config: ConfigDict, described: str, *, devices: int = 0, **sizes: int) -> Step:
  """The step of a config on this machine's devices, or on described ones if a kind is named.

  Args:
    sizes: as for `choose_phase`.

  Raises:
    UserError: as `described_mesh` and `choose_phase`.
  """
  if described:
    mesh = described_gpus.described_mesh(described, devices or 1)
    config = resolve(config, "bfloat16")
  else:
    mesh = mesh_lib.make_mesh(devices)
    config = resolve(config, precision.resolve(config.precision, mesh.devices.flat[0]))
  return Step(config, mesh, choose_phase(config, devices=mesh.size, **sizes), described)


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


def resolve(config: ConfigDict, dtype: str) -> ConfigDict:
  """The config with `dtype` for "auto", and placeholders for the statistics of a set not read."""
  config = config.copy_and_resolve_references()
  if config.precision == "auto":
    config.precision = dtype
  if not len(config.data.mean):
    config.data.update(mean=(127.5,) * 3, std=(64.0,) * 3)
  return config


def choose_phase(
  config: ConfigDict, *, devices: int, image_size: int = 0, batch_size: int = 0
) -> Phase:
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
  whole = batch_size * devices or phase.batch_size
  if whole % (devices * config.accumulate):
    raise UserError(
      f"{config.name}: a batch of {whole} does not divide over {devices} devices and "
      f"config.accumulate={config.accumulate}: give the images a device with --batch_size."
    )
  return dataclasses.replace(phase, image_size=image_size or phase.image_size, batch_size=whole)


def abstract_arguments(spec: TrainSpec, phase: Phase) -> tuple[Any, ...]:
  """What a training step takes, as shapes and shardings: the carry, its data and the table.

  The data are a batch, for a stream; else the whole data set and its order.
  """
  everywhere, parts = mesh_lib.replicated(spec.mesh), mesh_lib.sharded(spec.mesh)
  size, n = phase.image_size, spec.plan.train_images
  streams = spec.config.data.feed == "stream"

  def array(shape: tuple[int, ...], dtype: Any, sharding: Any = everywhere) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  def batch(n: int, sharding: Any) -> Batch:
    image = array((n, size, size, 3), jnp.uint8, sharding)
    label, mask = array((n,), jnp.int32, sharding), array((n,), jnp.bool_, sharding)
    return Batch(image=image, label=label, mask=mask, flip=mask if streams else None)

  data = batch(phase.batch_size, parts) if streams else batch(n, everywhere)
  order = () if streams else (Order(array((n,), jnp.int32), array((n,), jnp.bool_)),)
  first = array((1, size, size, 3), jnp.uint8) if streams else data.image
  state = jax.eval_shape(on_mesh(init_state, spec), array((2,), jnp.uint32), first)
  carry = mesh_lib.abstract(Carry(state, jax.eval_shape(MetricSums.zero)), everywhere)
  table = {name: array(column.shape, jnp.float32) for name, column in spec.plan.table.items()}
  return (carry, data, *order, table)


def compile_step(spec: TrainSpec, phase: Phase, *, steps: int = 1) -> StepProgram:
  """The training program that a run would use for a phase, as an epoch of `steps` steps.

  Args:
    spec: with the mesh of the devices to compile for.
    phase: its image size and batch size.
    steps: per call, for a data set in memory on a GPU; otherwise a call is one step.
  """
  plan, platform = spec.plan, spec.mesh.devices.flat[0].platform
  platform = platform if platform in ("cpu", "tpu") else "gpu"
  arguments = abstract_arguments(spec, phase)
  kinds = collections.Counter(plan.kind_of(number) for number in range(plan.total_steps))
  kind = kinds.most_common(1)[0][0]  # of most steps of a run
  if spec.config.data.feed == "stream":
    steps, function = 1, batch_step(spec, kind)
  elif platform == "cpu":
    steps, function = 1, on_mesh(resident_step, spec, phase=phase, kind=kind)
  else:
    # An epoch may have any number of steps, whatever the data set's size gives.
    phase = dataclasses.replace(phase, steps_per_epoch=max(steps, phase.steps_per_epoch))
    step_ranges = (StepRange(_NEVER, (kind,)),)
    function = on_mesh(resident_steps, spec, phase=phase, step_ranges=step_ranges)
    stop = jax.ShapeDtypeStruct((), jnp.int32, sharding=mesh_lib.replicated(spec.mesh))
    arguments = (*arguments, stop)
  lowered = jax.jit(function, donate_argnums=(0,)).lower(*arguments)
  compiled = lowered.compile(compiler_options=spec.compiler_options(platform))
  return StepProgram(compiled, arguments, steps)


def runner(program: StepProgram, spec: TrainSpec) -> Callable[[int], float]:
  """A function that makes calls of a program, on noise, and returns the loss of the last one."""
  rng = np.random.default_rng(0)
  _, data, *order = (each for each in program.arguments if isinstance(each, Batch | Carry | Order))
  image = mesh_lib.replicate(np.zeros(data.image.shape, np.uint8), spec.mesh)
  key = mesh_lib.replicate(np.asarray(seed_key(0)), spec.mesh)
  first = image[:1] if spec.config.data.feed == "stream" else image
  state = jax.jit(on_mesh(init_state, spec))(key, first)
  carry = Carry(state, mesh_lib.replicate(MetricSums.zero(), spec.mesh))

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
  rest = [batch, *order, mesh_lib.replicate(spec.plan.table_in(np.float32), spec.mesh)]
  stops = itertools.count(program.steps, program.steps)
  # One argument more: the step at which to stop.
  takes_stop = len(program.arguments) > 1 + len(rest)

  def run(calls: int) -> float:
    nonlocal carry
    for _ in range(calls):
      stop = [jnp.int32(next(stops))] if takes_stop else []
      carry, losses = program.compiled(carry, *rest, *stop)
    return float(losses.ravel()[0])

  return run


def held_gigabytes(compiled: Any) -> float | None:
  """10^9 bytes of a program's arguments, results and temporaries on a device; None: not known."""
  if (memory := compiled.memory_analysis()) is None:
    return None
  results = memory.output_size_in_bytes - memory.alias_size_in_bytes
  return (memory.argument_size_in_bytes + memory.temp_size_in_bytes + results) / 1e9


def prepare(
  step: Step, *options: str, steps: int = 1
) -> tuple[Callable[[int], float], dict[str, Any]]:
  """`runner` of the step with more options (`Step.spec`), and what it cost."""
  spec, start = step.spec(*options), time.perf_counter()
  program = compile_step(spec, step.phase, steps=steps)
  compile_s = time.perf_counter() - start
  return runner(program, spec), {
    "compile_s": compile_s,
    "memory_gb": held_gigabytes(program.compiled),
    "parameters": sum(x.size for x in jax.tree.leaves(program.arguments[0].state.params)),
    "steps": program.steps,
    "implementation": f"jaxspeed, jax {jax.__version__}",
  }
