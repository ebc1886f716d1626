"""Times the decoding of a sample of images; the doctor runs it as a process of its own.

It reads {"SIDE": [[FILE, FIRST_BYTE, LENGTH], ...], ...} from standard input, and prints a JSON
object for each side. TensorFlow's import and threads, and images that crash it, stay in here.
"""

import io
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspeed.data.disk.imageset import Split
from jaxspeed.data.disk.streams import TrainStream
from jaxspeed.data.formats import pixels
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, parse_json

_BATCH = 32
# Batches before the clock starts: the first ones wait for TensorFlow's threads.
_WARM = 3
_SECONDS = 0.8

Image = tuple[str, int, int]


def split_of(images: Sequence[Image]) -> tuple[Split, int]:
  """The images with a header as a split, and the number of those without."""
  rows: list[tuple[int, ...]] = []
  files: list[str] = []
  for path, offset, length in images:
    try:
      with open(path, "rb") as file:
        length = length or os.fstat(file.fileno()).st_size
        file.seek(offset)
        encoded = file.read(length)
      with pixels.open_image(io.BytesIO(encoded)) as image:
        header = pixels.header_of(image)
    except Exception:  # Pillow raises any type
      continue
    files.append(path)
    rows.append((len(rows), offset, length, *header))
  table = np.array(rows, np.int64).reshape(-1, 6)
  split = Split(
    files=tuple(files),
    file=table[:, 0].astype(np.int32),
    offset=table[:, 1],
    length=table[:, 2],
    label=np.zeros(len(rows), np.int32),
    width=table[:, 3].astype(np.int32),
    height=table[:, 4].astype(np.int32),
    orientation=table[:, 5].astype(np.int8),
    whole_files=all(offset == 0 for _, offset, *_ in rows),
    root="/",
  )
  return split, len(images) - len(rows)


def rate_of(images: Sequence[Image], side: int, *, seconds: float = _SECONDS) -> dict[str, Any]:
  """The images per second of a training stream over the sample, and its broken images."""
  split, broken = split_of(images)
  if not len(split):
    raise UserError("no sampled image can be decoded")
  batch = min(_BATCH, len(split))
  an_epoch = -(-len(split) // batch)
  stream = TrainStream(
    split,
    seed=0,
    image_size=side,
    batch_size=batch,
    min_scale=0.08,
    flip="random",
    steps=[divmod(step, an_epoch) for step in range(100_000)],
  )
  try:
    for _ in range(_WARM):
      next(stream)
    start, done = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
      done += len(next(stream).label)
    took = time.perf_counter() - start
  finally:
    stream.close()
  unreadable = broken + len(stream.broken)
  return {"side": side, "images_per_s": done / took, "broken": unreadable, "images": len(images)}


def main() -> None:
  """Answers the job on standard input."""
  job = parse_json(sys.stdin.read(), dict[str, list[Any]])
  for side, images in job.items():
    try:
      row = rate_of([(str(path), int(first), int(size)) for path, first, size in images], int(side))
    except UserError as error:
      row = {"error": str(error)}
    print(dump_json(row), flush=True)


if __name__ == "__main__":
  main()
