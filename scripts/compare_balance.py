"""Class weights and balanced sampling on three classes of CIFAR-10 with 2,000, 200 and 20 images.

    python scripts/compare_balance.py --path=PATH --workdir=runs/balance --out=results/balance.json

PATH is CIFAR-10 in any form that recipes take. Each seed draws its own training images, and trains
on them without balance, with class weights and with balanced sampling; the 3,000 test images of the
three classes, 1,000 of each, give the macro accuracy: the mean of the accuracies of the classes.
The same command resumes after a kill.
"""

import argparse
import pathlib
from typing import Any

import benchmarking
import numpy as np

import jaxspeed
from jaxspeed.data.memory.arrays import open_arrays
from jaxspeed.files import dump_json, write_atomically
from jaxspeed.records.statistics import interval, p_value_of_at_most

COUNTS = {"cat": 2000, "dog": 200, "deer": 20}
TUNED = "nothing: the settings are those of the first run"
ARMS = ("none", "weights", "sampling")
# ResNet-9 with an eighth of its channels on images of 16 px: half a minute of CPU time a run.
RECIPE = "cifar10_resnet9:early_pooling"
CHANGES = {
  "epochs": 16,
  "batch_size": 64,
  "precision": "float32",
  "model.width": 8,
  "schedule.peak": 0.1,
  "augment.crop_padding": 2,
  "augment.cutout": 0,
  "checkpoint.every_seconds": 20.0,
  "eval.every_epochs": 16,
}


def subset(path: str, seed: int) -> jaxspeed.Arrays:
  """The training images that a seed draws, and all test images of the three classes."""
  whole = open_arrays(name="cifar10", path=path, cache="", classes=10)
  random = np.random.default_rng(seed)
  train, test = [], []
  for name, count in COUNTS.items():
    label = whole.class_names.index(name)
    train.append(random.permutation(np.flatnonzero(whole.train_labels == label))[:count])
    test.append(np.flatnonzero(whole.eval_labels == label))
  return jaxspeed.Arrays(
    halved(whole.train_images[np.concatenate(train)]),
    np.repeat(np.arange(3), [len(part) for part in train]),
    halved(whole.eval_images[np.concatenate(test)]),
    np.repeat(np.arange(3), [len(part) for part in test]),
    class_names=tuple(COUNTS),
  )


def halved(images: np.ndarray) -> np.ndarray:
  """uint8 images [n, h, w, 3] at half their size, the means of 2 x 2 pixels."""
  n, h, w, _ = images.shape
  return np.rint(images.reshape(n, h // 2, 2, w // 2, 2, 3).mean(axis=(2, 4))).astype(np.uint8)


def train(arm: str, seed: int, data: jaxspeed.Arrays, workdir: pathlib.Path) -> dict[str, Any]:
  """Trains one run, or resumes it; returns its accuracies."""
  changes = CHANGES | {"seed": seed, "data.balance": arm}
  recipe = jaxspeed.recipe(RECIPE, **changes)
  run = jaxspeed.fit(recipe, data, workdir / f"{arm}_{seed}")
  guessed = run.predict(data.x_val).argmax(axis=1)
  of_class = [float(np.mean(guessed[data.y_val == label] == label)) for label in range(3)]
  return {
    "seed": seed,
    "macro": float(np.mean(of_class)),
    "classes": dict(zip(COUNTS, of_class, strict=True)),
    "train_seconds": run.result["seconds"]["train"],
  }


def summed_up(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
  """Mean, spread and interval of each arm, and of its differences from training without balance."""
  found: dict[str, Any] = {}
  macro = {arm: [row["macro"] for row in rows[arm]] for arm in ARMS}
  for arm in ARMS:
    figures = dict(zip(("mean", "sd", "ci95"), interval(macro[arm]), strict=True))
    means = {name: float(np.mean([r["classes"][name] for r in rows[arm]])) for name in COUNTS}
    found[arm] = {"macro": figures | {"n": len(rows[arm])}, "classes": means, "runs": rows[arm]}
    if arm != "none":
      gained = [a - b for a, b in zip(macro[arm], macro["none"], strict=True)]
      difference = dict(zip(("mean", "sd", "ci95"), interval(gained), strict=True))
      p_value = p_value_of_at_most(gained, 0.0)
      found[arm]["gain_over_none"] = difference | {"p_value_of_no_gain": p_value}
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--path", required=True, help="CIFAR-10")
  parser.add_argument("--workdir", type=pathlib.Path, required=True)
  parser.add_argument("--out", type=pathlib.Path, required=True)
  parser.add_argument("--seeds", type=int, default=3, help="at least two")
  parser.add_argument("--first-seed", type=int, default=100)
  arguments = parser.parse_args()
  if arguments.seeds < 2:
    parser.error(f"--seeds={arguments.seeds}: an interval needs at least 2")
  rows: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
  for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
    data = subset(arguments.path, seed)
    for arm in ARMS:
      rows[arm].append(train(arm, seed, data, arguments.workdir))
      row = rows[arm][-1]
      print(f"seed {seed} {arm:>8}: macro {row['macro']:.4f}", row["classes"], flush=True)
  result = {
    "what": "macro accuracy on 3,000 test images of three classes of CIFAR-10",
    "images": COUNTS,
    "recipe": RECIPE,
    "changes": CHANGES | {"data.image_size": 16},
    "test": "one-sided paired t-test over the seeds, which share their images",
    "tuned": TUNED,
    **summed_up(rows),
    **benchmarking.environment(),
  }
  write_atomically(arguments.out, dump_json(result, indent=2) + "\n")


if __name__ == "__main__":
  main()
