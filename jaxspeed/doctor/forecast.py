"""The time and memory that a recipe takes on this machine, predicted from measured ceilings.

The work of a step is its model's matrix products and convolutions, forward three times (the
backward pass has two products for each of the forward pass). How fast a device does them follows
from a published run, or a published rate of ResNet-50, on a GPU with a data sheet:

  rate here = published rate * the smaller of (matrix ceiling here / data sheet there) and
              (memory ceiling here / data sheet there)

The all-reduce, validation and input are those of `jaxspeed.scaling`.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxspeed.config.recipe import Published
from jaxspeed.devices.flops import count_flops
from jaxspeed.devices.precision import DTYPES
from jaxspeed.doctor.ceilings import Ceiling, Exchanged
from jaxspeed.doctor.part import Advice, Part, amount, figure
from jaxspeed.doctor.sheets import sheet_of
from jaxspeed.models.make import make_model
from jaxspeed.planning.plan import Plan
from jaxspeed.records.durations import duration, estimate
from jaxspeed.scaling.allreduce_time import exchange_of
from jaxspeed.scaling.hardware import DEVICES, LAUNCH_S, REFERENCE_SIDE, Cluster, large_batch_rate
from jaxspeed.scaling.predict import Prediction, decoded_per_core, predict

# Operations of ResNet-50's forward pass for an image of 224 px, two for each product.
RESNET50 = 8.18e9
# A training step has three forward passes' worth of products.
PASSES = 3
# Share of a CPU's matrix ceiling that a step of ResNet-9 of width 64 reaches: 99 GFLOP/s
# (results/bench_cpu_width64.json) of the 237 of two cores with 32 operations a cycle at 3.7 GHz.
CPU_SHARE = 0.4
# Bytes of activations that are kept for the backward pass, over those of the outputs of products:
# a step of ResNet-50 compiled for an H100 has 1.8 GB for 40 images, whose outputs have 0.89 GB.
KEPT = 2.0


@dataclasses.dataclass(frozen=True)
class Work:
  """A model's work for an image.

  Attributes:
    forward: operations of the forward pass.
    outputs: numbers that its products and convolutions return.
    parameters: numbers in its parameters.
  """

  forward: float
  outputs: int
  parameters: int


def work_of(config: ConfigDict, side: int) -> Work:
  """Traces a config's model for an image; nothing is computed."""
  config = config.copy_and_resolve_references()
  config.precision = "float32"
  return _traced(make_model(config), side)


@functools.cache
def _traced(model: nn.Module, side: int) -> Work:
  image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
  variables = jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False), image)
  jaxpr = jax.make_jaxpr(lambda v, x: model.apply(v, x, train=False))(variables, image)
  parameters = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
  return Work(count_flops(jaxpr), _outputs(jaxpr), parameters)


def _outputs(jaxpr: Any) -> int:
  """The numbers that the products of a jaxpr return; of several branches, the largest counts."""
  total = 0
  for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
    name = equation.primitive.name
    if name in ("dot_general", "conv_general_dilated"):
      total += equation.outvars[0].aval.size
      continue
    values = [v if isinstance(v, tuple | list) else [v] for v in equation.params.values()]
    inner = [
      _outputs(each)
      for each in itertools.chain(*values)
      if hasattr(each, "eqns") or hasattr(each, "jaxpr")
    ]
    total += max(inner, default=0) if name == "cond" else sum(inner)
  return total


@dataclasses.dataclass(frozen=True)
class Basis:
  """What a prediction of compute rests on.

  Attributes:
    flops: operations/s of the products of a step on one device here.
    launch_s: seconds of a step that do not depend on the batch.
    words: the sentence on it.
  """

  flops: float
  launch_s: float
  words: str


def basis_of(ceiling: Ceiling, published: Published, total: float, *, on_cpu: bool) -> Basis:
  """The operations/s of a step on a device, from the nearest published figure.

  Args:
    ceiling: the device's measured ceilings.
    published: what is published of the recipe.
    total: the operations of the whole recipe.
    on_cpu: whether the device is a CPU.
  """
  if on_cpu:
    words = (
      f"{CPU_SHARE:.0%} of the matrix ceiling measured here, the share that ResNet-9 reached on an "
      "EPYC (results/bench_cpu_width64.json)"
    )
    return Basis(CPU_SHARE * ceiling.tflops * 1e12, 0.0, words)
  single = re.fullmatch(r"1 (.+)", published.hardware)
  there = sheet_of(single[1]) if single else None
  if there and published.seconds:
    rate, launch, name = total / published.seconds, 0.0, published.hardware.removeprefix("1 ")
    source = f"the recipe's published {published.seconds:g} s on {published.hardware}"
    peak, memory = there.tflops, there.gb_s
  else:
    kind = (ceiling.sheet and ceiling.sheet.kind) or "a100"
    device, launch, name = DEVICES[kind], LAUNCH_S, kind.upper()
    rate = large_batch_rate(device.images_per_s, device.batch) * PASSES * RESNET50
    source = f"{device.images_per_s:,.0f} images/s of ResNet-50 on {name}: {device.source}"
    peak, memory = device.tflops, device.memory_gb_s
  matrix, bandwidth = ceiling.tflops / peak, ceiling.gb_s / memory
  smaller = "matrix" if matrix < bandwidth else "memory"
  words = (
    f"{source}; that is {rate / peak / 1e12:.0%} of {name}'s data sheet, times "
    f"{min(matrix, bandwidth):.2g}, the {smaller} ceiling measured here over that data sheet"
  )
  return Basis(rate * min(matrix, bandwidth), launch, words)


def operations(plan: Plan, work: Work, side: int) -> float:
  """Operations of all training steps; a model's work goes with the pixels, as a convolution's."""
  images = sum(
    min(phase.epochs * phase.steps_per_epoch, plan.total_steps - phase.first_step)
    * phase.batch_size
    * (phase.image_size / side) ** 2
    for phase in plan.phases
  )
  return PASSES * work.forward * images


@dataclasses.dataclass(frozen=True)
class Here:
  """What this machine has for the recipe.

  Attributes:
    devices: the number of devices that share a batch.
    hosts: the number of hosts with these devices.
    memory: bytes that one device can use; 0: unknown.
    cores: a host's CPU cores.
    exchanged: the all-reduces that were measured.
    decoded: measured images/s of decoding by size; {} if none.
  """

  ceiling: Ceiling
  devices: int
  hosts: int
  memory: int
  cores: int
  on_cpu: bool
  exchanged: Sequence[Exchanged] = ()
  decoded: dict[int, float] = dataclasses.field(default_factory=dict)


def cluster_for(plan: Plan, work: Work, side: int, basis: Basis, here: Here) -> Cluster:
  """This machine as `jaxspeed.scaling` describes one, for a recipe's model."""
  a_second = basis.flops / (PASSES * work.forward)
  bandwidth = {each.processes: each.gb_s for each in here.exchanged}
  usual = (here.ceiling.sheet and here.ceiling.sheet.kind) or "a100"
  local = bandwidth.get(1, DEVICES[usual].local_gb_s)
  cores = 0.0
  if plan.streams:
    phase = plan.phases[0]
    nearest = min(here.decoded, key=lambda s: abs(s - phase.image_size), default=0)
    cores = here.decoded[nearest] / decoded_per_core(phase) if nearest else float(here.cores)
  return Cluster(
    images_per_s=a_second * (side / REFERENCE_SIDE) ** 2,
    launch_s=basis.launch_s,
    per_host=max(1, here.devices // here.hosts),
    local_gb_s=local,
    network_gb_s=next((rate for count, rate in bandwidth.items() if count > 1), local),
    cores=cores,
  )


def memory_of(config: ConfigDict, plan: Plan, work: Work, side: int, here: Here) -> int:
  """Bytes that a training step needs on one device, of the phase that needs most.

  Parameters, momentum (AdamW: two moments) and the average in float32, gradients for the largest
  part, activations, and a data set in memory.
  """
  copies = 2 + (config.optimizer.name == "adamw") + bool(config.average.get("decay", 0))
  dtype = config.precision if config.precision != "auto" else here.ceiling.dtype
  width = jnp.dtype(DTYPES[dtype]).itemsize
  images = max(
    phase.batch_size / here.devices / max(1, config.accumulate) * (phase.image_size / side) ** 2
    for phase in plan.phases
  )
  activations = KEPT * width * work.outputs * images
  resident = 0 if plan.streams else (plan.train_images + plan.eval_images) * 3 * side**2
  return int(4 * copies * work.parameters + activations + resident)


def examine(config: ConfigDict, plan: Plan, published: Published, here: Here) -> Part:
  """Lines on the recipe's predicted time, what it rests on, and its memory."""
  side = plan.phases[0].image_size
  work = work_of(config, side)
  basis = basis_of(here.ceiling, published, operations(plan, work, side), on_cpu=here.on_cpu)
  cluster = cluster_for(plan, work, side, basis, here)
  found = predict(config, plan, cluster, exchange_of(config), devices=here.devices)
  need = memory_of(config, plan, work, side, here)
  lines = [
    f"{config.name} on {here.devices} device{'s' * (here.devices > 1)}: predicted "
    f"{estimate(found.seconds)} for all {plan.epochs} epochs, {estimate(found.validation)} of it "
    "validation",
    *_phase_lines(plan, found),
    f"rests on {basis.words}",
    f"and on jaxspeed.scaling's constants: {1e3 * basis.launch_s:g} ms of launches a step, a "
    f"validation image at a third of a training image, {_input_words(plan, here)}",
  ]
  lines += _published_lines(published)
  there = f"{amount(here.memory)} there" if here.memory else "what is there is unknown"
  lines.append(f"memory: about {amount(need)} needed on each device, {there}")
  facts = {
    "recipe": config.name,
    "devices": here.devices,
    "seconds": found.seconds,
    "training_s": found.training,
    "validation_s": found.validation,
    "steps_s": [step.seconds for step in found.steps],
    "input_bound": [step.input_bound for step in found.steps],
    "rests_on": basis.words,
    "flops_per_s": basis.flops,
    "forward_flops": work.forward,
    "memory_needed_bytes": need,
    "memory_bytes": here.memory,
  }
  return Part("recipe", lines, facts, _memory_advice(config, plan, need, here))


def _phase_lines(plan: Plan, found: Prediction) -> Iterator[str]:
  for phase, step in zip(plan.phases, found.steps, strict=True):
    bound = ", bound by decoding" if step.input_bound else ""
    exchange = f", {estimate(step.exposed)} of it waiting for all-reduces" if step.exposed else ""
    yield (
      f"epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}, {phase.image_size} px, "
      f"batch {phase.batch_size}: {estimate(step.seconds)} a step{bound}{exchange}, "
      f"{figure(phase.batch_size / step.seconds)} images/s"
    )


def _input_words(plan: Plan, here: Here) -> str:
  if not plan.streams:
    return "no input from disk"
  if here.decoded:
    return "and decoding as measured here"
  return f"and the decoding of {here.cores} cores (results/input.json); --data=DIR measures it"


def _published_lines(published: Published) -> list[str]:
  if not published.seconds:
    return []
  seconds = duration(published.seconds, as_published=True)
  return [f"published: {seconds} on {published.hardware}"]


def _memory_advice(config: ConfigDict, plan: Plan, need: int, here: Here) -> list[Advice]:
  """What to do if the recipe needs more memory than there is."""
  if not here.memory or need <= here.memory:
    return []
  what = f"{config.name} needs about {amount(need)} on a device with {amount(here.memory)}."
  parts = [phase.batch_size // here.devices for phase in plan.phases]
  fits = -(-need // here.memory) * max(1, config.accumulate)
  for number in range(int(fits), min(parts) + 1):
    if all(part % number == 0 for part in parts):
      return [Advice(what, f"add --config.accumulate={number}")]
  return [Advice(what, f"add --config.batch_size={max(1, min(parts) * here.devices // int(fits))}")]
