"""Time LARS on ResNet-50's parameters, here and in optax, turn by turn in one process.

    python scripts/bench_lars.py --depth=50 --turns=20 --out=lars.json

Each is compiled as a whole: gradients and parameters in, new parameters out. A turn is one program
of several steps. Their gradients differ by a factor, so that no step can reuse another's norms.
"""

import argparse
import functools
import json
import pathlib
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rich.table
from jax import lax
from jaxtyping import PyTree

from jaxspeed.config import fields
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.models.resnet import ResNet
from jaxspeed.optim.make import make_optimizer
from jaxspeed.records import provenance

RATE, MOMENTUM, DECAY, ETA = 1.0, 0.9, 1e-4, 1e-3


def make_params(depth: int, width: int) -> PyTree:
  """Random arrays in the shapes of a ResNet's parameters."""
  net = ResNet(depth=depth, width=width)
  image = jnp.zeros((1, 32, 32, 3))
  shapes = jax.eval_shape(functools.partial(net.init, train=False), jax.random.key(0), image)
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(0.05 * rng.standard_normal(x.shape, np.float32)), shapes["params"]
  )


def ours() -> optax.GradientTransformationExtraArgs:
  config = fields.base()
  config.optimizer.update(
    name="lars", momentum=MOMENTUM, nesterov=False, weight_decay=DECAY, lars_eta=ETA
  )
  return make_optimizer(config, groups_by_name)


def optaxs(params: PyTree) -> optax.GradientTransformationExtraArgs:
  """optax.lars, which skips the same parameters as ours: all but kernels."""
  kernels = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)

  def make(learning_rate):
    return optax.lars(
      learning_rate,
      DECAY,
      kernels,
      trust_coefficient=ETA,
      trust_ratio_mask=kernels,
      momentum=MOMENTUM,
    )

  def update(updates, state, params, *, learning_rate):
    return make(learning_rate).update(updates, state, params)

  return optax.GradientTransformationExtraArgs(make(RATE).init, update)


def make_turn(optimizer, params: PyTree, gradients: PyTree, steps: int) -> Callable[[], None]:
  """A function that takes `steps` steps in one program and returns when they are done."""
  factors = jnp.linspace(1.0, 1.1, steps)

  @functools.partial(jax.jit, donate_argnums=0)
  def run(carry, gradients, rate):
    def step(carry, factor):
      params, state = carry
      scaled = jax.tree.map(lambda g: factor * g, gradients)
      updates, state = optimizer.update(scaled, state, params, learning_rate=rate)
      return (optax.apply_updates(params, updates), state), None

    return lax.scan(step, carry, factors)[0]

  params = jax.tree.map(jnp.copy, params)
  carry = (params, optimizer.init(params))
  rate = jnp.float32(RATE)

  def turn():
    nonlocal carry
    carry = jax.block_until_ready(run(carry, gradients, rate))

  return turn


def seconds(turn: Callable[[], None]) -> float:
  start = time.perf_counter()
  turn()
  return time.perf_counter() - start


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--depth", type=int, default=50)
  parser.add_argument("--width", type=int, default=64, help="of the net; 64 is ResNet's own")
  parser.add_argument("--steps", type=int, default=5, help="in a turn")
  parser.add_argument("--turns", type=int, default=20, help="timed, of each")
  parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the figures")
  flags = parser.parse_args()

  params = make_params(flags.depth, flags.width)
  gradients = jax.tree.map(lambda x: 0.01 * x[..., ::-1], params)
  optimizers = {"jaxspeed": ours(), "optax": optaxs(params)}
  turns = {n: make_turn(o, params, gradients, flags.steps) for n, o in optimizers.items()}
  for turn in turns.values():
    turn()  # compiles
  times: dict[str, list[float]] = {name: [] for name in turns}
  for _ in range(flags.turns):
    for name, turn in turns.items():
      times[name].append(seconds(turn) / flags.steps)

  report = {
    "net": f"ResNet-{flags.depth}, width {flags.width}",
    "tensors": len(jax.tree.leaves(params)),
    "device": provenance.describe_device(),
    "versions": {m.__name__: m.__version__ for m in (jax, optax)},
    "n": flags.turns,
    "steps_a_turn": flags.steps,
    "median_s": {name: statistics.median(values) for name, values in times.items()},
    "min_s": {name: min(values) for name, values in times.items()},
  }
  report["ratio_of_medians"] = report["median_s"]["jaxspeed"] / report["median_s"]["optax"]
  table = rich.table.Table("", "median ms a step", "least ms", title=report["device"])
  for name in times:
    median, least = report["median_s"][name], report["min_s"][name]
    table.add_row(name, f"{median * 1e3:.2f}", f"{least * 1e3:.2f}")
  rich.print(table)
  print(
    f"{report['net']}, {report['tensors']} tensors, n={flags.turns}: "
    f"jaxspeed takes {report['ratio_of_medians']:.2f} x optax's time"
  )
  if flags.out:
    flags.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
  main()
