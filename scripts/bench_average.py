"""Which average of the weights is worth evaluating in runs of few epochs: rules on the same steps.

    python scripts/bench_average.py --out=results/average.json

Trains a recipe without an average, and keeps one average by each rule beside it: averages change no
step. After each epoch the live weights and all the averages are evaluated.
"""

import argparse
import pathlib
from collections.abc import Callable

import benchmarking
import jax
import numpy as np
from bench_checkpoint import load_config

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.feeds.protocol import Feed
from jaxspeed.planning import schedules
from jaxspeed.planning.plan import Plan
from jaxspeed.records import provenance
from jaxspeed.run.setup import make_feed, open_data, plan_of, resolve
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.state import Carry

Rule = Callable[[int, int], np.ndarray]  # (steps of a run, of an epoch) -> kept shares


def fixed(total: int, epoch: int) -> np.ndarray:
  """myrtle's rule: the same share at every update, beginning with the first weights."""
  return schedules.average_keep(np.arange(total) % epoch, decay=0.99, every=5)


def corrected(keep: np.ndarray) -> np.ndarray:
  """The average by `keep` without the share of the first state, as Adam corrects its averages."""
  left = np.cumprod(keep)
  before = np.concatenate([[1.0], left[:-1]])
  return np.where(keep < 1, keep * (1 - before) / (1 - left), 1.0)


def of_the_end(total: int, epoch: int) -> np.ndarray:
  """The live weights in the first half of a run, then a corrected average."""
  half = total // 2
  return np.concatenate([np.zeros(half), corrected(np.full(total - half, 0.99))])


def reaching(reach: float) -> Rule:
  return lambda total, epoch: schedules.average_keep(
    np.arange(total) % epoch, decay=0.99, every=1, reach=reach
  )


RULES: dict[str, Rule] = {
  "old": fixed,
  "new": reaching(0.2),
  "corrected": lambda total, epoch: corrected(fixed(total, epoch)),
  "a fifth of the run, corrected": lambda total, epoch: corrected(
    np.full(total, 1 - 1 / (0.2 * total))
  ),
  "second half": of_the_end,
  "reach 0.05": reaching(0.05),
  "reach 0.1": reaching(0.1),
}


def accuracies(feed: Feed, plan: Plan, seed: int) -> dict[str, list[float]]:
  """top-1 after each epoch of a run: of the live weights, and of the average by each rule."""
  carry = Carry(feed.init(seed), mesh_lib.replicate(MetricSums.zero(), mesh_lib.make_mesh(1)))
  keeps = {
    name: rule(plan.total_steps, plan.phases[0].steps_per_epoch) for name, rule in RULES.items()
  }
  averages = dict.fromkeys(RULES, weights_of(carry))
  rows: dict[str, list[float]] = {"live": [], **{name: [] for name in RULES}}
  first = 0
  while first < plan.total_steps:
    end = plan.end_of_epoch(first)
    for steps in feed.train(carry, seed, first, end):
      carry = steps.carry
      live, number = weights_of(carry), int(carry.state.step) - 1
      for name, keep in keeps.items():
        averages[name] = mixed(averages[name], live, np.float32(keep[number]))
    for name, weights in (averages | {"live": live}).items():
      placed = mesh_lib.replicate(weights, mesh_lib.make_mesh(1))
      rows[name].append(round(float(feed.evaluate(placed, end).sums.means(10)["top1"]), 4))
    first = end
  return rows


def weights_of(carry: Carry) -> dict:
  """Copies of the parameters and running statistics on the host."""
  return jax.tree.map(np.array, jax.device_get(carry.state.evaluated()))


def mixed(average: dict, live: dict, keep: np.float32) -> dict:
  """`averaging.ema` on the host."""
  if keep == 1:
    return average
  return jax.tree.map(lambda a, b: a * keep + b * (1 - keep), average, live)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--config", type=pathlib.Path, default="configs/quickstart.py")
  parser.add_argument("--epochs", type=float, nargs="+", default=[3, 5, 10, 20])
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--out", type=pathlib.Path)
  arguments = parser.parse_args()

  report = {
    "what": f"scripts/bench_average.py, {arguments.config}: top-1 on the test images after each "
    "epoch, of the live weights and of an average by each rule over the same steps. old: 0.99 a "
    "step, every 5 steps, from the first weights on; new: 0.99 a step and at most a fifth of the "
    "steps so far (average.reach); the rest was tried.",
    "device": provenance.describe_device(),
    "versions": provenance.versions(),
    "commit": provenance.commit(),
    "runs": [],
  }
  for epochs in arguments.epochs:
    config = load_config(arguments.config).copy_and_resolve_references()
    config.epochs, config.average.kind = float(epochs), "none"
    data = open_data(config)
    config = resolve(config, data)
    spec = make_train_spec(config, plan_of(config, data), mesh_lib.make_mesh(1))
    feed = make_feed(data, spec)
    feed.place()
    for seed in range(arguments.seeds):
      rows = accuracies(feed, spec.plan, seed)
      report["runs"].append({"epochs": epochs, "seed": seed, "top1": rows})
      benchmarking.write_report(arguments.out, report)
      last = ", ".join(f"{name} {100 * values[-1]:.1f}" for name, values in rows.items())
      print(f"{epochs:g} epochs, seed {seed}: {last}", flush=True)


if __name__ == "__main__":
  main()
