"""Images per second that one core decodes and crops, here and in other pipelines, in turns.

    python scripts/bench_input.py --data=imagenet --data=imagenet-sz/160 --image_size=128

All read the same JPEG files from the page cache and make uint8 batches of random crops of
`image_size` (`input_pipelines.py`):

  antialiased, as Pillow does:
  jaxspeed          this package's TrainStream: crops of torchvision's distribution, bilinear
  tfdata_antialias  bare tf.data, their yardstick: sample_distorted_bounding_box,
                    decode_and_crop_jpeg, tf.image.resize(antialias=True)
  dataloader        PyTorch's DataLoader: Pillow decodes, RandomResizedCrop, mirrored

  between the nearest pixels, without antialiasing:
  jaxspeed_nearest  TrainStream with config.data.antialias=False
  tfdata            bare tf.data, their yardstick

A pipeline whose packages are missing is left out. Every round starts each pipeline in a process
of its own on one core, one after the other, and times it after a few batches. CPU time decides,
because wall time on a shared machine includes its neighbours' work.
"""

import dataclasses
import itertools
import os
import pathlib
import statistics
import sys
import time
from typing import Any

import benchmarking
import numpy as np
import PIL.Image
from absl import flags
from input_pipelines import PIPELINES, YARDSTICKS, Task, missing_module
from side_by_side import SideFailed, ask, process

from jaxspeed.errors import UserError
from jaxspeed.records import provenance
from jaxspeed.run.folder import check_output

# Set before the pipelines import their libraries, which start as many threads as these say.
_ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "OMP_NUM_THREADS": "1",
  "OPENBLAS_NUM_THREADS": "1",
  "TF_CPP_MIN_LOG_LEVEL": "3",
  "TF_ENABLE_ONEDNN_OPTS": "0",  # as jaxspeed sets it
}


@dataclasses.dataclass(frozen=True)
class Timing:
  """Seconds of `images` images, and what they were made with."""

  images: int
  cpu_s: float
  wall_s: float
  mean_pixel: float  # of the last untimed batch, 0 ... 255
  versions: dict[str, str]


def measure(task: Task) -> Timing:
  """Times one pipeline in this process, which must be a fresh one."""
  # Set before the pipeline's imports: thread pools are as large as the number of allowed cores.
  os.sched_setaffinity(0, {task.core})
  batches = PIPELINES[task.pipeline].open(task)
  for _ in range(task.warm_batches):
    batch = next(batches)
  if (batch.shape, batch.dtype) != ((task.batch, task.size, task.size, 3), np.uint8):
    raise ValueError(f"{task.pipeline} makes batches of {batch.dtype} of shape {batch.shape}")
  cpu, wall = time.process_time(), time.perf_counter()
  for _ in range(task.batches):
    next(batches)
  names = ("tensorflow", "torch", "PIL", "numpy")
  return Timing(
    images=task.batches * task.batch,
    cpu_s=time.process_time() - cpu,
    wall_s=time.perf_counter() - wall,
    mean_pixel=float(batch.mean()),
    versions={name: sys.modules[name].__version__ for name in names if name in sys.modules},
  )


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


def summarise(timings: dict[str, list[Timing]]) -> list[dict[str, Any]]:
  """A row per pipeline: rates over the rounds, and ratios to its yardstick's in the same round."""
  core = {name: [t.images / t.cpu_s for t in each] for name, each in timings.items()}
  rows = []
  for name, each in timings.items():
    antialiased = PIPELINES[name].antialiased
    yardstick = YARDSTICKS[antialiased]
    row = {
      "pipeline": name,
      "antialiased": antialiased,
      "n": len(each),
      "images_per_core_s": benchmarking.interval(core[name]),
      "images_per_wall_s": benchmarking.interval([t.images / t.wall_s for t in each]),
      "ratio": None,
      "mean_pixel": statistics.mean(t.mean_pixel for t in each),
    }
    if yardstick in core:
      row["ratio"] = {"to": yardstick} | benchmarking.ratio_of_rounds(core[name], core[yardstick])
    rows.append(row)
  return rows


def said(row: dict[str, Any]) -> str:
  """The figure of a row."""
  figure = f"{benchmarking.show(row['images_per_core_s'], '.0f')} images/s a core"
  if row["ratio"] is not None:
    figure += f", {benchmarking.show(row['ratio'], '.2f')} of {row['ratio']['to']}'s"
  return figure


def time_in_turns(tasks: list[Task], rounds: int) -> dict[str, list[Timing]]:
  """Timings of each task's pipeline, one per round, each in a fresh process."""
  timings: dict[str, list[Timing]] = {task.pipeline: [] for task in tasks}
  for number, task in benchmarking.turns(tasks, rounds):
    with process() as side:
      try:
        timings[task.pipeline].append(ask(side, measure, dataclasses.replace(task, seed=number)))
      except SideFailed as error:
        raise UserError(f"{task.pipeline} fails ({error}): leave it out of --pipelines.") from None
  return timings


def bench(scratch: pathlib.Path) -> None:
  """Times the pipelines on each source at each size.

  Raises:
    UserError: no pipeline can run here, or a source has no JPEG.
  """
  given: Any = flags.FLAGS
  if given.out:
    check_output(pathlib.Path(given.out))
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
    timings = time_in_turns(tasks, given.rounds)
    for timing in itertools.chain(*timings.values()):
      report["versions"] |= timing.versions
    for row in summarise(timings):
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
