"""Compare fine-tuning with training from scratch, on 100 images of each of five classes.

    python scripts/compare_finetune.py --data=imagenette2-320 --out=results/finetune.json

Trains a small ResNet-18 on half of Imagenette's classes, exports its weights, and then trains on
100 images of each of the other classes with configs/finetune.py: once from these weights, once from
random ones, with the same images and seeds. From scratch, the first seed tries `SCRATCH_RATES`, as
the learning rate of fine-tuning would be unfair, and all seeds take the best of them. Accuracies
are those of the last epoch on all evaluation images of these classes. The same command resumes.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
from typing import Any

from jaxspeed.files import write_atomically

IMAGES = 100
SIDE = 64
MODEL = {"model.depth": 18, "model.width": 32}
SOURCE_EPOCHS = 16
SCRATCH_RATES = (0.03, 0.1)


def make_folders(data: pathlib.Path, work: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  """Makes a folder of Imagenette's first five classes, and one of a few images of the others."""
  classes = sorted(path.name for path in (data / "train").iterdir() if path.is_dir())
  half = len(classes) // 2
  parts = {"source": (classes[:half], None), "target": (classes[half:], IMAGES)}
  for name, (chosen, count) in parts.items():
    if (work / name).exists():
      continue
    building = work / f"{name}.building"
    shutil.rmtree(building, ignore_errors=True)
    for split, most in (("train", count), ("val", None)):
      for each in chosen:
        (building / split / each).mkdir(parents=True)
        for path in sorted((data / split / each).iterdir())[:most]:
          shutil.copy(path, building / split / each / path.name)
    building.rename(work / name)
  return work / "source", work / "target"


def train_source(folder: pathlib.Path, work: pathlib.Path) -> tuple[pathlib.Path, float]:
  """Trains on the first classes; returns the file of the weights and the accuracy."""
  import jaxspeed

  weights, done = work / "source.safetensors", work / "source.json"
  if done.exists():
    return weights, json.loads(done.read_text())["top1"]
  changes = {
    "phases.first_epoch": (),
    "data.image_size": SIDE,
    "augment.min_scale": 0.35,
    "schedule.peak": 0.1,
  }
  config = jaxspeed.recipe("imagenette", epochs=SOURCE_EPOCHS, batch_size=64, **MODEL, **changes)
  run = jaxspeed.fit(config, folder, work / "run_source", progress=True)
  command = [sys.executable, "-m", "jaxspeed.evaluate", f"--workdir={run.folder}"]
  subprocess.run([*command, f"--export={weights}"], check=True)
  done.write_text(json.dumps({"top1": run.result["top1"]}))
  return weights, run.result["top1"]


def train_target(
  folder: pathlib.Path, work: pathlib.Path, seed: int, changes: dict[str, Any], name: str
) -> float:
  """Trains on the other classes; returns the accuracy of the last epoch."""
  import jaxspeed

  changes = {
    "data.image_size": SIDE,
    "augment.min_scale": 0.35,
    "eval.every_epochs": 100,  # the last epoch is always evaluated
    **MODEL,
    **changes,
  }
  config = jaxspeed.recipe("finetune", seed=seed, **changes)
  run = jaxspeed.fit(config, folder, work / f"run_{name}_{seed}", progress=True)
  return run.result["top1"]


def compare(flags: argparse.Namespace) -> dict[str, Any]:
  """Trains everything; returns the accuracies and their summary."""
  from jaxspeed.records.provenance import commit, describe_device, versions

  work = pathlib.Path(flags.work)
  work.mkdir(parents=True, exist_ok=True)
  source, target = make_folders(pathlib.Path(flags.data), work)
  weights, source_top1 = train_source(source, work)
  changes: dict[str, dict[str, Any]] = {"finetune": {"pretrained.path": str(weights)}}
  changes |= {
    f"scratch_{rate}": {
      "pretrained.path": "",
      "schedule.peak": rate,
      "optimizer.head_rate": 1.0,
    }
    for rate in SCRATCH_RATES
  }

  def top1(name: str, seed: int) -> float:
    return train_target(target, work, seed, changes[name], name)

  tried = {name: top1(name, 0) for name in changes if name != "finetune"}
  best = max(tried, key=lambda name: tried[name])
  found = {name: [top1(name, seed) for seed in range(flags.seeds)] for name in ("finetune", best)}
  means = {name: statistics.mean(values) for name, values in found.items()}
  return {
    "what": f"top-1 after training on {IMAGES} images of each of five classes of Imagenette, "
    f"{SIDE} px, ResNet-18 of half width; the weights are from the other five classes",
    "source_top1": source_top1,
    "from_scratch_with_seed_0": tried,
    "top1": found,
    "mean": means,
    "sd": {name: statistics.stdev(values) for name, values in found.items()},
    "gain": means["finetune"] - means[best],
    "device": describe_device(),
    "versions": versions(),
    "commit": commit(),
    "command": " ".join(["python", *sys.argv]),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--data", required=True, help="imagenette's folder with train/ and val/")
  parser.add_argument("--work", default="runs/finetune", help="folder of the runs")
  parser.add_argument("--seeds", type=int, default=3, help="number of seeds of each arm")
  parser.add_argument("--out", default="results/finetune.json")
  flags = parser.parse_args()
  if flags.seeds < 2:
    parser.error(f"--seeds={flags.seeds}: a spread needs at least 2")
  result = compare(flags)
  write_atomically(flags.out, json.dumps(result, indent=2) + "\n")
  print(json.dumps(result["mean"], indent=2))


if __name__ == "__main__":
  main()
