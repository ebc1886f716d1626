"""Images per second that one core decodes and crops, here and in other pipelines, in turns.

    python scripts/bench_input.py --data=imagenet --data=imagenet-sz/160 --image_size=128

All read the same JPEG files from the page cache and make uint8 batches of random crops of
`image_size`, antialiased as Pillow does (`input_pipelines.py`):

  jaxspeed    this package's TrainStream: crops of torchvision's distribution, bilinear
  tfdata      bare tf.data, the yardstick: sample_distorted_bounding_box, decode_and_crop_jpeg,
              tf.image.resize(antialias=True)
  dataloader  PyTorch's DataLoader: Pillow decodes, RandomResizedCrop, mirrored

A pipeline whose packages are missing is left out. Every round starts each pipeline in a process
of its own on one core, one after the other, and times it after a few batches. CPU time decides,
because wall time on a shared machine includes its neighbours' work.
"""

import dataclasses
import itertools
import os
import pathlib
import statistics
import time
from typing import Any

import benchmarking
import numpy as np
import PIL.Image
from absl import flags
from input_pipelines import PIPELINES, Task, missing_module
from side_by_side import SideFailed, ask, process

from jaxspeed.errors import UserError
from jaxspeed.records import provenance

_YARDSTICK = "tfdata"
# Set before the pipelines import their libraries, which start as many threads as these say.
_ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "OMP_NUM_THREADS": "1",
  "OPENBLAS_NUM_THREADS": "1",
  "TF_CPP_MIN_LOG_LEVEL": "3",
  "TF_ENABLE_ONEDNN_OPTS": "0",  # as jaxspeed sets it
}


def measure(task: Task) -> tuple[float, float]:
  """Images per second of CPU time in this process, which must be a fresh one; and the mean pixel.

  That is of the last untimed batch, 0 ... 255: all pipelines should have about the same.
  """
  # Set before the pipeline's imports: thread pools are as large as the number of allowed cores.
  os.sched_setaffinity(0, {task.core})
  batches = PIPELINES[task.pipeline][0](task)
  for _ in range(task.warm_batches):
    batch = next(batches)
  if (batch.shape, batch.dtype) != ((task.batch, task.size, task.size, 3), np.uint8):
    raise ValueError(f"{task.pipeline} makes batches of {batch.dtype} of shape {batch.shape}")
  start = time.process_time()
  for _ in range(task.batches):
    next(batches)
  return task.batches * task.batch / (time.process_time() - start), float(batch.mean())


def _size_of(file: pathlib.Path) -> tuple[int, int] | None:
  """Width and height of a JPEG that every pipeline reads; None for others."""
  try:
    with PIL.Image.open(file) as image:
      return image.size if image.format == "JPEG" and image.mode in ("RGB", "L") else None
  except OSError:
    return None


def link_source(data: str, limit: int, root: pathlib.Path) -> dict[str, Any]:
  """Links at most `limit` files of `data`, drawn at random, to root/train/CLASS; reads them once.

  The first file of a class is also its validation set, because jaxspeed requires one. Returns what
  there is; `left_out` files are no JPEG, or neither RGB nor grey, which not every pipeline reads.

  Raises:
    UserError: there is no JPEG.
  """
  given = pathlib.Path(data).expanduser()
  folder, pattern = (given / "train", "*/*") if (given / "train").is_dir() else (given, "*")
  found = sorted(f for f in folder.glob(pattern) if f.suffix.lower() in (".jpg", ".jpeg"))
  chosen = [found[i] for i in np.random.RandomState(0).permutation(len(found))[:limit]]
  sizes = {file: size for file in chosen if (size := _size_of(file)) is not None}
  if not sizes:
    raise UserError(f"--data={data} holds no JPEG, RGB or grey, as train/CLASS/*.jpg or *.jpg.")
  for file in sizes:
    train, val = (root / split / file.parent.name for split in ("train", "val"))
    if not train.is_dir():
      train.mkdir(parents=True)
      val.mkdir(parents=True)
      (val / file.name).symlink_to(file.resolve())
    (train / file.name).symlink_to(file.resolve())
  width, height = np.mean([*sizes.values()], axis=0).tolist()
  return {
    "data": data,
    "files": len(sizes),
    "left_out": len(chosen) - len(sizes),
    "mean_bytes": statistics.mean(len(file.read_bytes()) for file in sizes),
    "mean_width": width,
    "mean_height": height,
  }


def time_in_turns(tasks: list[Task], rounds: int) -> list[dict[str, Any]]:
  """The rows of the tasks' pipelines, each timed in a fresh process in every round."""
  rates: dict[str, list[float]] = {task.pipeline: [] for task in tasks}
  pixels = {}
  for number, task in benchmarking.turns(tasks, rounds):
    with process() as side:
      try:
        rate, mean = ask(side, measure, dataclasses.replace(task, seed=number))
      except SideFailed as error:
        raise UserError(f"{task.pipeline} fails ({error}): leave it out of --pipelines.") from None
    rates[task.pipeline].append(rate)
    pixels[task.pipeline] = mean
  return rows_of(rates, pixels)


def rows_of(rates: dict[str, list[float]], pixels: dict[str, float]) -> list[dict[str, Any]]:
  """A row for each pipeline, with the ratios of its rates to tf.data's in the same round."""
  rows: list[dict[str, Any]] = []
  for name, each in rates.items():
    row = {
      "pipeline": name,
      "images_per_core_s": benchmarking.interval(each),
      "mean_pixel": pixels[name],
    }
    if name != _YARDSTICK and _YARDSTICK in rates:
      row["ratio"] = benchmarking.ratio_of_rounds(each, rates[_YARDSTICK])
    rows.append(row)
  return rows


def said(row: dict[str, Any]) -> str:
  """The figure of a row."""
  figure = f"{benchmarking.show(row['images_per_core_s'], '.0f')} images/s a core"
  if "ratio" in row:
    figure += f", {benchmarking.show(row['ratio'], '.2f')} of {_YARDSTICK}'s"
  return figure


def bench(scratch: pathlib.Path) -> None:
  """Times the pipelines on each source at each size.

  Raises:
    UserError: no pipeline can run here, or a source has no JPEG.
  """
  given: Any = flags.FLAGS
  os.environ.update(_ENVIRONMENT)
  missing = {name: missing_module(name) for name in given.pipelines}
  for name, module in missing.items():
    if module:
      print(f"{name} is left out: {module} is not installed")
  names = [name for name in given.pipelines if not missing[name]]
  if not names:
    raise UserError("--pipelines: none of them can run here; install 'jaxspeed[images]'.")
  roots = [scratch / str(i) for i in range(len(given.data))]
  named = zip(given.data, roots, strict=True)
  sources = [link_source(data, given.files, root) for data, root in named]
  report: dict[str, Any] = {
    "device": provenance.describe_device(),
    **benchmarking.environment(),
    **{n: given[n].value for n in ("batch", "images", "rounds", "warm_batches", "min_scale")},
    "left_out": {name: module for name, module in missing.items() if module},
    "sources": sources,
    "rows": [],
  }
  for (source, root), size in itertools.product(zip(sources, roots, strict=True), given.image_size):
    shape = {"size": size, "batch": given.batch, "core": given.core, "min_scale": given.min_scale}
    length = {"warm_batches": given.warm_batches, "batches": -(-given.images // given.batch)}
    tasks = [Task(pipeline=n, root=str(root), seed=0, **shape, **length) for n in names]
    for row in time_in_turns(tasks, given.rounds):
      report["rows"].append({"data": source["data"], "image_size": size, **row})
      what = f"{source['data']} to {size} px, {row['pipeline']}"
      benchmarking.say(report, what, said(row))
    benchmarking.write_report(given.out, report)


def main() -> None:
  flags.DEFINE_multi_string(
    "data", None, "A folder with train/CLASS/*.jpg, or of JPEGs; repeatable.", required=True
  )
  flags.DEFINE_multi_integer("image_size", [224], "Of the crops; repeatable.", lower_bound=1)
  benchmarking.define_choices("pipelines", list(PIPELINES), list(PIPELINES), "What is timed.")
  flags.DEFINE_integer("files", 1000, "At most so many of each --data.", lower_bound=1)
  flags.DEFINE_integer("images", 2000, "Timed in a round.", lower_bound=1)
  flags.DEFINE_integer("rounds", 5, "Of each pipeline.", lower_bound=1)
  flags.DEFINE_integer("batch", 64, "Images of a batch.", lower_bound=1)
  flags.DEFINE_integer("warm_batches", 3, "Before the clock starts.", lower_bound=1)
  flags.DEFINE_float("min_scale", 0.08, "Least area of a crop.")
  flags.DEFINE_integer("core", max(os.sched_getaffinity(0)), "Which one is used.")
  benchmarking.define_out()
  benchmarking.run(bench)


if __name__ == "__main__":
  main()
