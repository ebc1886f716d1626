"""Images per second that one core decodes and crops, here and in other pipelines, in turns.

    python scripts/bench_input.py --data=imagenet --data=imagenet-sz/160 --image_size=128

All read the same JPEG files from the page cache and make batches of random crops of `image_size`:

  antialiased, as Pillow does:
  jaxspeed          this package's TrainStream: crops of torchvision's distribution, bilinear,
                    uint8; the GPU mirrors
  tfdata_antialias  bare tf.data, their yardstick: sample_distorted_bounding_box,
                    decode_and_crop_jpeg, tf.image.resize(antialias=True), uint8; not mirrored
  dataloader        PyTorch's DataLoader with one worker: Pillow decodes, RandomResizedCrop,
                    mirrored, uint8
  libjpeg_area      a plain loop: libjpeg-turbo decodes whole images, OpenCV resizes the crop with
                    INTER_AREA, a box filter instead of Pillow's triangle, uint8

  between the nearest pixels, without antialiasing:
  jaxspeed_nearest  TrainStream with config.data.antialias=False
  tfdata            bare tf.data, their yardstick
  flax              as Flax's ImageNet example: tfdata, but bicubic, mirrored, normalised to float32
  libjpeg           libjpeg_area, but with INTER_LINEAR

A pipeline whose packages are missing is left out. Every round starts each pipeline in a process
of its own on one core, one after the other, and times it after a few batches. CPU time decides,
because wall time on a shared machine includes its neighbours' work.
"""

import dataclasses
import itertools
import math
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import benchmarking
import numpy as np
import PIL.Image
import psutil
import rich
import rich.table
from absl import flags
from input_pipelines import IMAGENET_MEAN, IMAGENET_STD, PIPELINES, Task, missing_module

from jaxspeed.cluster.signals import exit_on_sigterm
from jaxspeed.config import flags as command_line
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
# Pipelines that antialias are compared with each other, and so are those that do not.
_ANTIALIASED = ("jaxspeed", "tfdata_antialias", "dataloader", "libjpeg_area")
_YARDSTICKS = {True: "tfdata_antialias", False: "tfdata"}


@dataclasses.dataclass(frozen=True)
class Timing:
  """Seconds of `images` images, and what they were made with."""

  images: int
  cpu_s: float
  wall_s: float
  mean_pixel: float  # of the last untimed batch, 0 ... 255
  versions: dict[str, str]


def cpu_seconds() -> float:
  """User and system time of this process and its living children, including their threads."""
  times = [child.cpu_times() for child in psutil.Process().children()]  # in steps of 10 ms
  return time.process_time() + sum(each.user + each.system for each in times)


def measure(task: Task) -> Timing:
  """Times one pipeline in this process, which must be a fresh one."""
  # Set before the pipeline's imports: thread pools are as large as the number of allowed cores.
  os.sched_setaffinity(0, {task.core})
  batches = PIPELINES[task.pipeline][0](task)
  for _ in range(task.warm_batches):
    batch = next(batches)
  if batch.shape != (task.batch, task.size, task.size, 3):
    raise ValueError(f"{task.pipeline} makes batches of shape {batch.shape}")
  if batch.dtype == np.float32:
    batch = batch * IMAGENET_STD + IMAGENET_MEAN
  cpu, wall = cpu_seconds(), time.perf_counter()
  for _ in range(task.batches):
    next(batches)
  return Timing(
    images=task.batches * task.batch,
    cpu_s=cpu_seconds() - cpu,
    wall_s=time.perf_counter() - wall,
    mean_pixel=float(batch.mean()),
    versions=_imported_versions(),
  )


def _imported_versions() -> dict[str, str]:
  names = ("tensorflow", "torch", "torchvision", "PIL", "simplejpeg", "cv2", "numpy")
  return {name: sys.modules[name].__version__ for name in names if name in sys.modules}


def _find_files(data: pathlib.Path) -> list[pathlib.Path]:
  """JPEGs of data/train/CLASS, or of the folder itself."""
  folder, pattern = (data / "train", "*/*") if (data / "train").is_dir() else (data, "*")
  found = sorted(f for f in folder.glob(pattern) if f.suffix.lower() in (".jpg", ".jpeg"))
  if not found:
    raise UserError(f"--data: {data} holds no train/CLASS/*.jpg and no *.jpg (or .jpeg, .JPEG).")
  return found


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
  found = _find_files(pathlib.Path(data).expanduser())
  chosen = np.random.RandomState(0).permutation(len(found))[:limit]
  sizes, lengths, left_out = [], [], 0
  for file in (found[i] for i in chosen):
    if (size := _size_of(file)) is None:
      left_out += 1
      continue
    sizes.append(size)
    lengths.append(len(file.read_bytes()))
    train, val = (root / split / file.parent.name for split in ("train", "val"))
    if not train.is_dir():
      train.mkdir(parents=True)
      val.mkdir(parents=True)
      (val / file.name).symlink_to(file.resolve())
    (train / file.name).symlink_to(file.resolve())
  if not sizes:
    raise UserError(f"--data: none of the files of {data} is a JPEG, RGB or grey.")
  width, height = np.mean(sizes, axis=0).tolist()
  found = {"data": data, "files": len(sizes), "left_out": left_out}
  return found | {
    "mean_bytes": statistics.mean(lengths),
    "mean_width": width,
    "mean_height": height,
  }


def summarise(timings: dict[str, list[Timing]]) -> list[dict]:
  """A row per pipeline: rates over the rounds, and ratios to its yardstick's in the same round."""
  core = {name: [t.images / t.cpu_s for t in each] for name, each in timings.items()}
  rows = []
  for name, each in timings.items():
    antialiased = name in _ANTIALIASED
    yardstick = _YARDSTICKS[antialiased]
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


def print_rows(source: dict[str, Any], size: int, rows: list[dict]) -> None:
  title = (
    f"{source['data']} -> {size}: {source['files']} files of {source['mean_bytes'] / 1000:.0f} kB, "
    f"{source['mean_width']:.0f} x {source['mean_height']:.0f}; n={rows[0]['n']}"
  )
  columns = ("", "antialiased", "images/s a core", "images/s, wall", "to tf.data's")
  table = rich.table.Table(*columns, title=title)
  for row in rows:
    names = "images_per_core_s", "images_per_wall_s"
    rates = (benchmarking.show(row[name], ".0f") for name in names)
    antialiased = "yes" if row["antialiased"] else "no"
    ratio = "-" if row["ratio"] is None else benchmarking.show(row["ratio"], ".2f")
    table.add_row(row["pipeline"], antialiased, *rates, ratio)
  rich.print(table)


def time_in_turns(tasks: list[Task], rounds: int) -> dict[str, list[Timing]]:
  """Timings of each task's pipeline, one per round, each in a fresh process."""
  timings: dict[str, list[Timing]] = {task.pipeline: [] for task in tasks}
  spawn = multiprocessing.get_context("spawn")
  for number, task in benchmarking.turns(tasks, rounds):
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
      timed = pool.submit(measure, dataclasses.replace(task, seed=number)).result()
    timings[task.pipeline].append(timed)
  return timings


def run(given: Any, scratch: pathlib.Path) -> None:
  """Times the pipelines on each source at each size.

  Args:
    given: the values of the flags.
    scratch: an empty folder.

  Raises:
    UserError: no pipeline can run here, or a source has no JPEG.
  """
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
  rows: list[dict] = []
  versions: dict[str, str] = {}
  for (source, root), size in itertools.product(zip(sources, roots, strict=True), given.image_size):
    shape = {"size": size, "batch": given.batch, "core": given.core, "min_scale": given.min_scale}
    length = {"warm_batches": given.warm_batches, "batches": math.ceil(given.images / given.batch)}
    tasks = [Task(pipeline=n, root=str(root), seed=0, **shape, **length) for n in names]
    timings = time_in_turns(tasks, given.rounds)
    for timing in itertools.chain(*timings.values()):
      versions |= timing.versions
    found = summarise(timings)
    print_rows(source, size, found)
    rows += [{"data": source["data"], "image_size": size, **row} for row in found]
  report = {
    "device": provenance.describe_device(),
    "commit": provenance.commit(),
    "versions": provenance.versions() | versions,
    **{n: given[n].value for n in ("batch", "images", "rounds", "warm_batches", "min_scale")},
    "left_out": {name: module for name, module in missing.items() if module},
    "sources": sources,
    "rows": rows,
  }
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

  def bench(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    if flags.FLAGS.out:
      check_output(pathlib.Path(flags.FLAGS.out))
    os.environ.update(_ENVIRONMENT)
    with exit_on_sigterm(), tempfile.TemporaryDirectory() as scratch:
      run(flags.FLAGS, pathlib.Path(scratch))

  command_line.run(bench)


if __name__ == "__main__":
  main()
