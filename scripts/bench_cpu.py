"""Time a training step of ResNet-9 on a CPU, here and in PyTorch, turn by turn.

A step is forward, backward, SGD with Nesterov momentum and weight decay, in float32, with its data
already in memory. Each framework has a process of its own, as its users have it: jaxspeed's keeps
its memory from step to step; PyTorch is timed without and with that. Needs PyTorch:

    python scripts/bench_cpu.py --batch=512 --width=64 --steps=10
"""

import functools
import os
import pathlib
import statistics
from typing import Any

import benchmarking
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from absl import flags
from side_by_side import Prepared, process, time_in_turns
from torch import Tensor
from torch.nn import functional

from jaxspeed.devices import options
from jaxspeed.devices.mesh import keep_host_memory
from jaxspeed.errors import UserError
from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.records import provenance

RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-4
TORCH, KEPT, OURS = "torch", "torch, memory kept", "jaxspeed"


def convolve(x: Tensor, part: Any) -> Tensor:
  # Our kernels are OHWI: seen as OIHW they are in PyTorch's channels-last order, its fastest.
  kernel = part["kernel"].permute(0, 3, 1, 2)
  return functional.conv2d(x, kernel, padding=kernel.shape[-1] // 2)


def norm(x: Tensor, part: Any, stats: Any) -> Tensor:
  moving = stats["mean"], stats["var"]
  return functional.batch_norm(x, *moving, part.get("scale"), part["bias"], training=True)


def resnet9(params: Any, stats: Any, x: Tensor) -> Tensor:
  """The net in PyTorch on our parameters: the first rung of cifar10-fast's ladder."""

  def block(x, name):
    x = norm(convolve(x, params[name]["conv"]), params[name]["norm"], stats[name]["norm"])
    return functional.relu(x)

  def residual(x, name):
    return x + block(block(x, f"{name}_residual1"), f"{name}_residual2")

  x = residual(functional.max_pool2d(block(block(x, "prep"), "layer1"), 2), "layer1")
  x = functional.max_pool2d(block(x, "layer2"), 2)
  x = residual(functional.max_pool2d(block(x, "layer3"), 2), "layer3")
  return functional.max_pool2d(x, 4).flatten(1) @ params["head"]["kernel"] * 0.125


def make_step(name: str, width: int, batch: int) -> Prepared:
  """The step of one framework on noise, all from the same first weights."""
  if name != TORCH:
    keep_host_memory()
  torch.set_num_threads(os.cpu_count() or 1)
  model = ResNet9(width=width, activation="relu")
  rng = np.random.default_rng(0)
  images = rng.standard_normal((batch, 32, 32, 3), dtype=np.float32)
  labels = rng.integers(0, 10, batch, dtype=np.int32)
  init = jax.jit(functools.partial(model.init, train=False))
  variables = init(jax.random.key(0), images[:1])
  if name == OURS:
    step = make_jax_step(model, variables, images, labels)
  else:
    step = make_torch_step(variables, images, labels)
  return lambda steps: [step() for _ in range(steps)][-1], {}


def make_torch_step(variables, images, labels):
  """A function that takes one step and returns its loss when it is done."""

  def tensors(tree, trained):
    return jax.tree.map(lambda x: torch.tensor(np.array(x), requires_grad=trained), tree)

  params, stats = tensors(variables["params"], True), tensors(variables["batch_stats"], False)
  optimizer = torch.optim.SGD(
    jax.tree.leaves(params), RATE, MOMENTUM, weight_decay=DECAY, nesterov=True, foreach=True
  )
  x, y = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels).long()
  assert x.is_contiguous(memory_format=torch.channels_last)

  def step():
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(resnet9(params, stats, x), y)
    loss.backward()
    optimizer.step()
    return loss.item()

  return step


def make_jax_step(model, variables, images, labels):
  """As `make_torch_step`, in JAX with the options that jaxspeed's runs have."""
  optimizer = optax.chain(
    optax.add_decayed_weights(DECAY), optax.sgd(RATE, MOMENTUM, nesterov=True)
  )

  @functools.partial(jax.jit, donate_argnums=0, compiler_options=options.libraries("cpu"))
  def update(state, x, y):
    params, stats, opt_state = state

    def loss(params):
      logits, updated = model.apply(
        {"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"]
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
      return losses.mean(), updated["batch_stats"]

    (mean, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), stats, opt_state), mean

  x, y, params = jnp.asarray(images), jnp.asarray(labels), variables["params"]
  state = (params, variables["batch_stats"], optimizer.init(params))

  def step():
    nonlocal state
    state, loss = jax.block_until_ready(update(state, x, y))
    return float(loss)

  return step


def main() -> None:
  batch = flags.DEFINE_integer("batch", 512, "Images a step.", lower_bound=1)
  width = flags.DEFINE_integer("width", 64, "Channels of the first layer or group.", lower_bound=1)
  steps = flags.DEFINE_integer("steps", 10, "Timed steps of each framework.", lower_bound=1)
  out = benchmarking.define_out()

  def bench(scratch: pathlib.Path) -> None:
    sizes = (width.value, batch.value)
    makes = {name: functools.partial(make_step, name, *sizes) for name in (TORCH, KEPT, OURS)}
    timings = time_in_turns(makes, process, turns=steps.value, turn_seconds=0)
    for name, timing in timings.items():
      if timing.failed:
        raise UserError(f"{name}: {timing.failed}.")
    medians = {name: statistics.median(timing.step_s) for name, timing in timings.items()}
    report: dict[str, Any] = {
      **{flag.name: flag.value for flag in (batch, width)},
      "device": provenance.describe_device(),
      **benchmarking.environment(),
      "n": steps.value,
      "first_losses": {name: timing.prepared["loss"] for name, timing in timings.items()},
      "median_s": medians,
      "min_s": {name: min(timing.step_s) for name, timing in timings.items()},
      "ratio_of_medians": {name: medians[OURS] / medians[name] for name in (TORCH, KEPT)},
    }
    for name, median in medians.items():
      what = f"a step of ResNet-9, width {width.value}, batch {batch.value}, {name}"
      ratio = report["ratio_of_medians"].get(name)
      beside = "" if ratio is None else f"; jaxspeed takes {ratio:.2f} of it"
      benchmarking.say(report, what, f"{median:.3f} s, n = {steps.value}{beside}")
    benchmarking.write_report(out.value, report)

  benchmarking.run(bench)


if __name__ == "__main__":
  main()
