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
  tfboxes           the same with crops of torchvision's distribution, drawn beforehand;
                    TensorFlow's are 15 % smaller on average (66 against 78 kilopixels in 100
                    ImageNet photographs, least area 0.08)
  flax              as Flax's ImageNet example: tfdata, but bicubic, mirrored, normalised to float32
  libjpeg           libjpeg_area, but with INTER_LINEAR

A pipeline whose packages are missing is left out. Every round starts each pipeline in a process
of its own on one core, one after the other, and times it after a few batches. CPU time decides,
because wall time on a shared machine includes its neighbours' work.
"""

import argparse
import dataclasses
import itertools
import math
import multiprocessing
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import benchmarking
import numpy as np
import PIL.Image
import rich.console
import rich.table
from input_pipelines import IMAGENET_MEAN, IMAGENET_STD, PIPELINES, Task, missing_module

from jaxspeed.cluster.signals import exit_on_sigterm
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


@dataclasses.dataclass(frozen=True)
class Source:
  """The files of one --data: at most --files of them, linked into a folder of classes."""

  data: str
  root: str
  files: int
  left_out: int  # files that not every pipeline can read: no JPEG, or neither RGB nor grey
  mean_bytes: float
  mean_width: float
  mean_height: float


def cpu_seconds() -> float:
  """User and system time of this process and its living children, including their threads."""
  usage = resource.getrusage(resource.RUSAGE_SELF)
  ticks = 0
  for child in multiprocessing.active_children():
    # RUSAGE_CHILDREN leaves children out until they have ended.
    stat = pathlib.Path(f"/proc/{child.pid}/stat").read_text()
    # utime and stime are fields 14 and 15 of proc(5); the second one, a name, may hold blanks.
    ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
  return usage.ru_utime + usage.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


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


def measure_apart(task: Task) -> Timing:
  """Runs `measure` in a fresh process."""
  spawn = multiprocessing.get_context("spawn")
  with ProcessPoolExecutor(1, mp_context=spawn) as pool:
    return pool.submit(measure, task).result()


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


def link_source(data: str, limit: int, root: pathlib.Path) -> Source:
  """Links at most `limit` files of `data`, drawn at random, to root/train/CLASS; reads them once.

  The first file of a class is also its validation set, because jaxspeed requires one.

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
  return Source(data, str(root), len(sizes), left_out, statistics.mean(lengths), width, height)


def _mean_and_sd(values: Sequence[float]) -> dict[str, float | None]:
  sd = statistics.stdev(values) if len(values) > 1 else None
  return {"mean": statistics.mean(values), "sd": sd}


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
      "images_per_core_s": _mean_and_sd(core[name]),
      "images_per_wall_s": _mean_and_sd([t.images / t.wall_s for t in each]),
      "ratio": None,
      "mean_pixel": statistics.mean(t.mean_pixel for t in each),
    }
    if yardstick in core:
      pairs = zip(core[name], core[yardstick], strict=True)
      row["ratio"] = {"to": yardstick} | _mean_and_sd([a / b for a, b in pairs])
    rows.append(row)
  return rows


def _show(value: dict | None, digits: int) -> str:
  if value is None:
    return "-"
  spread = "" if value["sd"] is None else f" ± {value['sd']:.{digits}f}"
  return f"{value['mean']:.{digits}f}{spread}"


def print_rows(console: rich.console.Console, source: Source, size: int, rows: list[dict]):
  title = (
    f"{source.data} -> {size}: {source.files} files of {source.mean_bytes / 1000:.0f} kB, "
    f"{source.mean_width:.0f} x {source.mean_height:.0f}; n={rows[0]['n']}"
  )
  columns = ("", "antialiased", "images/s a core", "images/s, wall", "to tf.data's")
  table = rich.table.Table(*columns, title=title)
  for row in rows:
    rates = _show(row["images_per_core_s"], 0), _show(row["images_per_wall_s"], 0)
    antialiased = "yes" if row["antialiased"] else "no"
    table.add_row(row["pipeline"], antialiased, *rates, _show(row["ratio"], 2))
  console.print(table)


def parse_flags() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument(
    "--data",
    action="append",
    required=True,
    help="a folder with train/CLASS/*.jpg, or of JPEGs; may be given several times",
  )
  parser.add_argument(
    "--image_size", type=int, action="append", help="of the crops (224); may be given several times"
  )
  parser.add_argument("--pipelines", default=",".join(PIPELINES), help="which, with commas")
  parser.add_argument("--files", type=int, default=1000, help="at most so many of each --data")
  parser.add_argument("--images", type=int, default=2000, help="timed in a round")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--batch", type=int, default=64)
  parser.add_argument("--warm_batches", type=int, default=3, help="before the clock starts")
  parser.add_argument("--min_scale", type=float, default=0.08, help="least area of a crop")
  parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
  parser.add_argument("--output", type=pathlib.Path, help="a JSON file for figures and versions")
  flags = parser.parse_args()
  flags.image_size = flags.image_size or [224]
  flags.pipelines = flags.pipelines.split(",")
  if unknown := set(flags.pipelines) - set(PIPELINES):
    parser.error(f"--pipelines: {', '.join(sorted(unknown))}; there are {', '.join(PIPELINES)}")
  for name in ("files", "images", "rounds", "batch", "warm_batches"):
    if getattr(flags, name) < 1:
      parser.error(f"--{name}={getattr(flags, name)}: give at least 1")
  return flags


def time_in_turns(tasks: list[Task], rounds: int) -> dict[str, list[Timing]]:
  """Timings of each task's pipeline, one per round; every other round goes backwards."""
  timings: dict[str, list[Timing]] = {task.pipeline: [] for task in tasks}
  for number in range(rounds):
    for task in tasks if number % 2 == 0 else reversed(tasks):
      timing = measure_apart(dataclasses.replace(task, seed=number))
      timings[task.pipeline].append(timing)
  return timings


def run(flags: argparse.Namespace, scratch: pathlib.Path):
  console = rich.console.Console()
  missing = {name: missing_module(name) for name in flags.pipelines}
  for name, module in missing.items():
    if module:
      print(f"{name} is left out: {module} is not installed")
  names = [name for name in flags.pipelines if not missing[name]]
  if not names:
    raise UserError("--pipelines: none of them can run here; install 'jaxspeed[imagenet]'.")
  sources = [link_source(data, flags.files, scratch / str(i)) for i, data in enumerate(flags.data)]
  rows: list[dict] = []
  versions: dict[str, str] = {}
  for source, size in itertools.product(sources, flags.image_size):
    shape = {"size": size, "batch": flags.batch, "core": flags.core, "min_scale": flags.min_scale}
    length = {"warm_batches": flags.warm_batches, "batches": math.ceil(flags.images / flags.batch)}
    tasks = [Task(pipeline=n, root=source.root, seed=0, **shape, **length) for n in names]
    timings = time_in_turns(tasks, flags.rounds)
    for timing in itertools.chain(*timings.values()):
      versions |= timing.versions
    found = summarise(timings)
    print_rows(console, source, size, found)
    rows += [{"data": source.data, "image_size": size, **row} for row in found]
  if flags.output:
    report = {
      "device": provenance.describe_device(),
      "commit": provenance.commit(),
      "versions": provenance.versions() | versions,
      **{n: getattr(flags, n) for n in ("batch", "images", "rounds", "warm_batches", "min_scale")},
      "left_out": {name: module for name, module in missing.items() if module},
      "sources": [{k: v for k, v in vars(s).items() if k != "root"} for s in sources],
      "rows": rows,
    }
    benchmarking.write_report(flags.output, report)


def main():
  flags = parse_flags()
  os.environ.update(_ENVIRONMENT)
  try:
    if flags.output:
      check_output(flags.output)
    with exit_on_sigterm(), tempfile.TemporaryDirectory() as scratch:
      run(flags, pathlib.Path(scratch))
  except UserError as error:
    print(f"jaxspeed: {error}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
  main()
