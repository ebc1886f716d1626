"""Time a training step on a CPU, here and in PyTorch, turn by turn.

A step is forward, backward, SGD with Nesterov momentum and weight decay, in float32, with its data
already in memory. Each framework has a process of its own, as its users have it: jaxspeed's keeps
its memory from step to step; PyTorch is timed without and with that. Needs PyTorch:

    python scripts/bench_cpu.py --model=resnet9 --batch=512 --width=64 --steps=10
"""

import argparse
import functools
import os
import statistics
from typing import Any

import benchmarking
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rich.table
import torch
import torch_peers
from side_by_side import Prepared, process, time_in_turns

from jaxspeed.devices import options
from jaxspeed.devices.mesh import keep_host_memory
from jaxspeed.models.airbench import Airbench
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.records import provenance

RATE, MOMENTUM, DECAY, CELU_ALPHA = 0.01, 0.9, 5e-4, 0.3
TORCH, KEPT, OURS = "torch", "torch, memory kept", "jaxspeed"


def make_nets(flags: argparse.Namespace):
  """The flax module, a function of parameters, statistics and images in PyTorch, the side."""
  if flags.model == "resnet9":
    alpha = CELU_ALPHA if flags.activation == "celu" else None
    ours = ResNet9(width=flags.width, activation=flags.activation, celu_alpha=CELU_ALPHA)
    return ours, functools.partial(torch_peers.resnet9, celu_alpha=alpha), 32
  if flags.model == "94_muon":
    widths = (flags.width, 4 * flags.width, 4 * flags.width)
    return Airbench(widths=widths, whiten_bias="uniform"), torch_peers.airbench, 32
  return ResNet(18, classes=10, width=flags.width), torch_peers.resnet18, 128


def make_step(name: str, flags: argparse.Namespace) -> Prepared:
  """The step of one framework on noise, all from the same first weights."""
  if name != TORCH:
    keep_host_memory()
  torch.set_num_threads(os.cpu_count() or 1)
  model, theirs, side = make_nets(flags)
  rng = np.random.default_rng(0)
  images = rng.standard_normal((flags.batch, side, side, 3), dtype=np.float32)
  labels = rng.integers(0, 10, flags.batch, dtype=np.int32)
  init = jax.jit(functools.partial(model.init, train=False))
  variables = init(jax.random.key(0), images[:1])
  if name == OURS:
    step = make_jax_step(model, variables, images, labels)
  else:
    step = make_torch_step(theirs, variables, images, labels)
  return lambda steps: [step() for _ in range(steps)][-1], {}


def make_torch_step(theirs, variables, images, labels):
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
    loss = torch.nn.functional.cross_entropy(theirs(params, stats, x), y)
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


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--model", choices=["resnet9", "94_muon", "resnet18"], default="resnet9")
  parser.add_argument("--batch", type=int, default=512)
  parser.add_argument("--width", type=int, default=64, help="channels of the first layer or group")
  parser.add_argument("--steps", type=int, default=10, help="timed steps of each framework")
  parser.add_argument("--activation", choices=["relu", "celu"], default="relu", help="of resnet9")
  parser.add_argument("--out", default="", help="a JSON file for the figures and the machine")
  flags = parser.parse_args()

  makes = {name: functools.partial(make_step, name, flags) for name in (TORCH, KEPT, OURS)}
  timings = time_in_turns(makes, process, turns=flags.steps, turn_seconds=0)
  for name, timing in timings.items():
    if timing.failed:
      raise SystemExit(f"{name}: {timing.failed}")
  medians = {name: statistics.median(timing.step_s) for name, timing in timings.items()}
  report: dict[str, Any] = {
    **{name: getattr(flags, name) for name in ("model", "batch", "width", "activation")},
    "device": provenance.describe_device(),
    "commit": provenance.commit(),
    "versions": {m.__name__: m.__version__ for m in (jax, flax, optax, torch, np)},
    "n": flags.steps,
    "first_losses": {name: timing.prepared["loss"] for name, timing in timings.items()},
    "median_s": medians,
    "min_s": {name: min(timing.step_s) for name, timing in timings.items()},
    "ratio_of_medians": {name: medians[OURS] / medians[name] for name in (TORCH, KEPT)},
  }
  table = rich.table.Table("", "median s", "least s", "images/s", title=report["device"])
  for name, median in medians.items():
    least = report["min_s"][name]
    table.add_row(name, f"{median:.3f}", f"{least:.3f}", f"{flags.batch / median:.0f}")
  rich.print(table)
  ratios = report["ratio_of_medians"]
  print(
    f"{flags.model}, width {flags.width}, batch {flags.batch}, n={flags.steps}: jaxspeed takes "
    f"{ratios[TORCH]:.2f} x torch's time, {ratios[KEPT]:.2f} x where torch keeps its memory too"
  )
  benchmarking.write_report(flags.out, report)


if __name__ == "__main__":
  main()
