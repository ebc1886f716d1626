"""How fast a data path feeds GPUs: reading from its disk, and decoding as a run does."""

import dataclasses
import itertools
import math
import os
import pathlib
import shlex
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jaxspeed.data.formats.folders import EVAL_FOLDERS
from jaxspeed.data.formats.pixels import SUFFIXES
from jaxspeed.data.formats.tfrecord import find_tfds, only_tfds, open_tfds, parse_example
from jaxspeed.doctor import child
from jaxspeed.doctor.part import Advice, Part, amount
from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json, parse_json

SIDES = (128, 224, 288)
# Short sides of the copies that recipes read at each size (configs/imagenet18.py).
COPIES = {128: 160, 224: 352, 288: 352}
# The sample of a data path, and the folders that are looked into for it.
_IMAGES, _FOLDERS, _LISTED = 256, 32, 4096
# Bytes read from the beginning of a shard for its sample.
_SHARD_BYTES = 32 * 10**6
_THREADS = 16
# Seconds of reading.
_READING = 1.0
# A measurement that lacks time is no defect.
_LATE = "decoding did not end"


@dataclasses.dataclass(frozen=True)
class Sample:
  """Some encoded images of a data path.

  Attributes:
    what: what they are, for messages.
    images: file, first byte and length of each; length 0: the whole file.
    problem: why there are none, or the data set is not whole; "" if all is well.
  """

  what: str
  images: tuple[tuple[str, int, int], ...] = ()
  problem: str = ""


def sample_of(root: pathlib.Path, what: str = "originals") -> Sample:
  """Some images of a folder of class folders, of splits of them, or of TFDS's shards.

  Unlike a run, it lists only some folders, so it takes no longer for a large data set.
  """
  try:
    shards = find_tfds(root, root.name) or only_tfds(root)
    images = _of_shards(shards) if shards else _of_folders(root)
  except (OSError, UserError, ValueError, IndexError) as error:
    return Sample(what, problem=printable(str(error)))
  if not images:
    return Sample(what, problem=f"{printable(str(root))} holds no image ({', '.join(SUFFIXES)})")
  return Sample("shards" if shards else what, tuple(images))


def _of_folders(root: pathlib.Path) -> list[tuple[str, int, int]]:
  split = next((name for name in ("train", *EVAL_FOLDERS) if (root / name).is_dir()), "")
  top = root / split
  folders = [top, *_spread(sorted(_names(top, folders=True)), _FOLDERS)]
  each = math.ceil(_IMAGES / max(1, len(folders) - 1))
  found = [
    (str(folder / name), 0, 0)
    for folder in folders
    for name in itertools.islice(_names(folder, folders=False), each)
  ]
  return found[:_IMAGES]


def _spread(names: Sequence[Any], most: int) -> Sequence[Any]:
  """At most `most` of the names, spread evenly."""
  step = max(1, math.ceil(len(names) / most))
  return names[::step]


def _names(folder: pathlib.Path, *, folders: bool) -> Iterator[pathlib.Path]:
  """Paths of the folders, or of the image files, among the first entries of a folder."""
  with os.scandir(folder) as entries:
    for entry in itertools.islice(entries, _LISTED):
      if entry.name.startswith("."):
        continue
      if entry.is_dir() if folders else entry.name.lower().endswith(SUFFIXES) and entry.is_file():
        yield pathlib.Path(entry.path)


def _of_shards(folder: pathlib.Path) -> list[tuple[str, int, int]]:
  """Images at the beginning of a data set's first shard of training images."""
  info = open_tfds(folder, tune=True)
  path = info.train[0].path
  with open(path, "rb") as file:
    content = memoryview(file.read(_SHARD_BYTES))
  found: list[tuple[str, int, int]] = []
  place = 0
  while len(found) < _IMAGES and place + 12 <= len(content):
    # A record: length, checksum, content, checksum (TFRecord).
    (length,) = struct.unpack_from("<Q", content, place)
    first, place = place + 12, place + 12 + length + 4
    if place > len(content):
      break
    image = parse_example(content[first : first + length], info.image_key, info.label_key).image
    offset = bytes(content[first : first + length]).find(bytes(image))
    found.append((str(path), first + offset, len(image)))
  return found


@dataclasses.dataclass(frozen=True)
class Reading:
  """Images read from the disk: their number, bytes, seconds, and how many could not be read."""

  images: int
  size: int
  seconds: float
  failed: int
  uncached: bool


def read(sample: Sample, *, seconds: float = _READING) -> Reading:
  """Reads the sample once by 16 threads, for at most `seconds`.

  The kernel is asked to forget the files first, so that the disk is timed and not the memory.
  """
  forgets = hasattr(os, "posix_fadvise")

  def forget(path: str) -> None:
    try:
      with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
      pass

  if forgets:
    for path in dict.fromkeys(file for file, _, _ in sample.images):
      forget(path)
  until = time.perf_counter() + seconds

  def one(image: tuple[str, int, int]) -> int | None:
    if time.perf_counter() > until:
      return None
    path, offset, length = image
    try:
      with open(path, "rb") as file:
        file.seek(offset)
        return len(file.read(length or -1))
    except OSError:
      return -1

  start = time.perf_counter()
  with ThreadPoolExecutor(_THREADS) as pool:
    sizes = [size for size in pool.map(one, sample.images) if size is not None]
  took = time.perf_counter() - start
  good = [size for size in sizes if size >= 0]
  return Reading(len(good), sum(good), max(took, 1e-6), len(sizes) - len(good), forgets)


def decode(
  samples: Mapping[int, Sample], *, seconds: float
) -> tuple[dict[int, dict[str, Any]], str]:
  """Decodes samples in another process, each for about a second, with the code of a run.

  Args:
    samples: the images for each size.
    seconds: the time of all of it; what is not done by then is left out.

  Returns:
    images_per_s, broken and images of each size that was timed; and why there are not all.
  """
  job = {str(side): list(sample.images) for side, sample in samples.items() if sample.images}
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    "TF_CPP_MIN_LOG_LEVEL": "3",
  }
  command = [sys.executable, "-m", "jaxspeed.doctor.decode"]
  try:
    done = child.run(command, seconds=seconds, text=dump_json(job), environment=environment)
  except OSError as error:
    return {}, str(error)
  found, problem = {}, ""
  for line in done.out.splitlines():
    try:
      row = parse_json(line, dict[str, Any])
      if "error" in row:
        problem = str(row["error"])
      else:
        found[int(row["side"])] = row
    except (ValueError, KeyError, TypeError):
      continue
  if done.code is None:
    problem = problem or f"{_LATE} within {seconds:.0f} s, as on a busy machine"
  elif len(found) < len(job) and not problem:
    last = done.error.strip().splitlines()[-1:] or [f"exit code {done.code}"]
    problem = f"decoding failed: {printable(last[0][:200])}"
  return found, problem


def copies_in(root: pathlib.Path) -> dict[int, pathlib.Path]:
  """The folders of resized copies beside a data path, as `prepare resize` makes them."""
  folder = root.parent / f"{root.name}-sz"
  return {side: folder / str(side) for side in (160, 352) if (folder / str(side)).is_dir()}


def samples_for(root: pathlib.Path) -> dict[int, Sample]:
  """The images that a run reads at each size: copies where there are some, else the originals."""
  originals = sample_of(root)
  copies = {side: sample_of(path, f"copies of {side} px") for side, path in copies_in(root).items()}
  return {side: copies.get(COPIES[side], originals) for side in SIDES}


def examine(
  root: pathlib.Path,
  samples: Mapping[int, Sample],
  readings: Mapping[str, Reading],
  rates: Mapping[int, Mapping[str, Any]],
  problem: str,
  *,
  gpu: str,
  gpu_rates: Mapping[int, float],
  kind: str,
) -> Part:
  """Lines on disk and decoding, and how many GPUs that feeds.

  Args:
    root: the data path.
    samples: the sample for each size.
    readings: the disk's figures, by what was read.
    rates: `decode`'s figures for each size.
    problem: why not all sizes were decoded; "" if they were.
    gpu: the kind of GPU to feed.
    gpu_rates: images/s that one of them trains, by size.
    kind: the type of file system.
  """
  disk = f" ({kind})" if kind else ""
  lines, advice = [f"{printable(str(root))}{disk}"], []
  for sample in dict.fromkeys(samples.values()):
    if sample.problem:
      name = sample.what
      what = f"{name}: {sample.problem}"
      advice.append(Advice(what, f"python -m jaxspeed.prepare index {shlex.quote(str(root))}"))
  for what, each in readings.items():
    cold = "" if each.uncached else ", perhaps from memory"
    lines.append(
      f"disk, {what}: {each.images / each.seconds:,.0f} images/s, "
      f"{amount(each.size / each.seconds)}/s by {_THREADS} threads{cold} "
      f"({each.images} images read once)"
    )
  for side, row in rates.items():
    rate, sample = float(row["images_per_s"]), samples[side]
    reading = readings.get(sample.what)
    bound = min(rate, reading.images / reading.seconds) if reading else rate
    limit = " (the disk is slower)" if bound < rate else ""
    lines.append(
      f"{side} px, {sample.what}: {rate:,.0f} images/s decoded{limit}; feeds "
      f"{bound / gpu_rates[side]:.2g} of {gpu}, which trains {gpu_rates[side]:,.0f} images/s"
    )
  broken = {samples[side].what: row for side, row in rates.items() if row["broken"]}
  for name, row in broken.items():
    what = f"{row['broken']} of {row['images']} sampled images ({name}) cannot be decoded."
    advice.append(Advice(what, f"python -m jaxspeed.prepare index {shlex.quote(str(root))}"))
  if problem:
    lacks = "TensorFlow" in problem
    line = (
      "pip install 'jaxspeed[imagenet]'"
      if lacks
      else f"python -m jaxspeed.doctor --data={shlex.quote(str(root))}"
    )
    late = problem.startswith(_LATE)
    advice.append(Advice(f"Not all was decoded: {problem}", line, mend=not late))
  facts = {
    "path": str(root),
    "file_system": kind,
    "disk": {
      what: dataclasses.asdict(each) | {"images_per_s": each.images / each.seconds}
      for what, each in readings.items()
    },
    "decoded": [dict(row) | {"gpus_fed": row["images_per_s"] / gpu_rates[int(row["side"])]}
                for row in rates.values()],
    "gpu": gpu,
  }  # fmt: skip
  return Part("data", lines, facts, advice)
