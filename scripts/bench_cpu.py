"""Time a training step of ResNet-9 on a CPU, here and in PyTorch, turn by turn in one process.

A step is forward, backward, SGD with Nesterov momentum and weight decay, in float32, with its data
already in memory. Needs PyTorch:

    python scripts/bench_cpu.py --batch=512 --width=64 --steps=10
"""

import argparse
import functools
import json
import os
import statistics
import time
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rich.table
import torch

from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.records import provenance

RATE, MOMENTUM, DECAY, CELU_ALPHA = 0.01, 0.9, 5e-4, 0.3


class TorchBlock(torch.nn.Module):
  """Convolution, norm and activation, followed by an optional pool."""

  def __init__(self, inputs: int, features: int, activation: torch.nn.Module, pool: bool = False):
    super().__init__()
    layers = [
      torch.nn.Conv2d(inputs, features, 3, padding=1, bias=False),
      torch.nn.BatchNorm2d(features),
      activation,
    ]
    self.body = torch.nn.Sequential(*layers, *([torch.nn.MaxPool2d(2)] if pool else []))

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return self.body(x)


class TorchResNet9(torch.nn.Module):
  """The first rung of cifar10-fast's ladder: pools after the activations."""

  def __init__(self, width: int, activation: torch.nn.Module):
    super().__init__()
    w, block = width, functools.partial(TorchBlock, activation=activation)
    self.stem = torch.nn.Sequential(block(3, w), block(w, 2 * w, pool=True))
    self.residual1 = torch.nn.Sequential(block(2 * w, 2 * w), block(2 * w, 2 * w))
    self.middle = torch.nn.Sequential(
      block(2 * w, 4 * w, pool=True), block(4 * w, 8 * w, pool=True)
    )
    self.residual2 = torch.nn.Sequential(block(8 * w, 8 * w), block(8 * w, 8 * w))
    self.pool = torch.nn.MaxPool2d(4)
    self.head = torch.nn.Linear(8 * w, 10, bias=False)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    x = self.stem(x)
    x = x + self.residual1(x)
    x = self.middle(x)
    x = x + self.residual2(x)
    return self.head(self.pool(x).flatten(1)) * 0.125


@torch.no_grad()
def copy_weights(params, net: TorchResNet9):
  """Copies our initial weights to `net`, so that both begin with the same loss."""
  blocks = [module for module in net.modules() if isinstance(module, TorchBlock)]
  residuals = [f"layer{group}_residual{i}" for group in (1, 3) for i in (1, 2)]
  names = ["prep", "layer1", *residuals[:2], "layer2", "layer3", *residuals[2:]]
  for name, block in zip(names, blocks, strict=True):
    kernel = np.array(params[name]["conv"]["kernel"])
    block.body[0].weight.copy_(torch.from_numpy(kernel).permute(0, 3, 1, 2))
  net.head.weight.copy_(torch.from_numpy(np.array(params["head"]["kernel"])).T)


def make_torch_step(params, images, labels, width, activation):
  """A function that takes one step and returns its loss when it is done."""
  module = torch.nn.ReLU() if activation == "relu" else torch.nn.CELU(CELU_ALPHA)
  net = TorchResNet9(width, module)
  copy_weights(params, net)
  net = net.to(memory_format=torch.channels_last)
  optimizer = torch.optim.SGD(
    net.parameters(), RATE, MOMENTUM, weight_decay=DECAY, nesterov=True, foreach=True
  )
  x = torch.from_numpy(images).permute(0, 3, 1, 2)
  assert x.is_contiguous(memory_format=torch.channels_last)
  y = torch.from_numpy(labels).long()

  def step():
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()

  return step


def make_model(width, activation):
  return ResNet9(width=width, activation=activation, celu_alpha=CELU_ALPHA)


def make_jax_step(variables, images, labels, width, activation):
  """As `make_torch_step`, in JAX on the CPU."""
  model = make_model(width, activation)
  optimizer = optax.chain(
    optax.add_decayed_weights(DECAY), optax.sgd(RATE, MOMENTUM, nesterov=True)
  )
  x, y = jnp.asarray(images), jnp.asarray(labels)

  @functools.partial(jax.jit, donate_argnums=0)
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

  params = variables["params"]
  state = (params, variables["batch_stats"], optimizer.init(params))

  def step():
    nonlocal state
    state, loss = jax.block_until_ready(update(state, x, y))
    return float(loss)

  return step


def seconds(step) -> float:
  start = time.perf_counter()
  step()
  return time.perf_counter() - start


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--batch", type=int, default=512)
  parser.add_argument("--width", type=int, default=64)
  parser.add_argument("--steps", type=int, default=10, help="timed steps of each framework")
  parser.add_argument("--activation", choices=["relu", "celu"], default="relu")
  parser.add_argument("--out", type=Path, help="a JSON file for the figures and the machine")
  flags = parser.parse_args()

  torch.set_num_threads(os.cpu_count() or 1)
  rng = np.random.default_rng(0)
  images = rng.standard_normal((flags.batch, 32, 32, 3), dtype=np.float32)
  labels = rng.integers(0, 10, flags.batch, dtype=np.int32)
  net = (images, labels, flags.width, flags.activation)
  init = jax.jit(functools.partial(make_model(*net[2:]).init, train=False))
  variables = init(jax.random.key(0), images[:1])
  steps = {
    # PyTorch's first: it copies the initial weights, which jaxspeed's step then donates.
    "torch": make_torch_step(variables["params"], *net),
    "jaxspeed": make_jax_step(variables, *net),
  }
  times: dict[str, list[float]] = {name: [] for name in steps}
  # These compile, and fill PyTorch's caches.
  first_losses = {name: step() for name, step in steps.items()}
  for step in steps.values():
    step()
  for _ in range(flags.steps):
    for name, step in steps.items():
      times[name].append(seconds(step))

  report = {
    "batch": flags.batch,
    "width": flags.width,
    "activation": flags.activation,
    "device": provenance.describe_device(),
    "torch_threads": torch.get_num_threads(),
    "versions": {m.__name__: m.__version__ for m in (jax, flax, optax, torch, np)},
    "n": flags.steps,
    "first_losses": first_losses,
    "median_s": {name: statistics.median(values) for name, values in times.items()},
    "min_s": {name: min(values) for name, values in times.items()},
  }
  report["ratio_of_medians"] = report["median_s"]["jaxspeed"] / report["median_s"]["torch"]
  table = rich.table.Table("", "median s", "least s", "images/s", title=report["device"])
  for name in steps:
    median, least = report["median_s"][name], report["min_s"][name]
    table.add_row(name, f"{median:.3f}", f"{least:.3f}", f"{flags.batch / median:.0f}")
  rich.print(table)
  print(
    f"width {flags.width}, batch {flags.batch}, {flags.activation}, n={flags.steps}: "
    f"jaxspeed takes {report['ratio_of_medians']:.2f} x torch's time"
  )
  if flags.out:
    flags.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
  main()
