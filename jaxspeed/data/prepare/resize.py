"""Smaller copies of a folder of images, made once, so that no epoch decodes the large ones.

resize("imagenet", "copies", sizes=(160, 352)) reads imagenet/train/CLASS/NAME and writes
copies/160/train/CLASS/NAME and copies/352/train/CLASS/NAME; likewise for the other split. A copy's
short side is its size; the formula, the filter and the quality are those of the sz/160 and sz/352
folders of imagenet18 (diux-dev/cluster, pytorch/training/resize_images.py).

Every file appears whole or not at all, by a rename, and is a function of its original, the sizes
and the quality alone: a run that was killed is started again and ends in the same bytes.
"""

import dataclasses
import io
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

from PIL import Image

from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.folders import list_folders
from jaxspeed.data.formats.pixels import reason_of
from jaxspeed.data.prepare.index import Broken
from jaxspeed.data.prepare.writing import (
  finished_files,
  holding,
  in_processes,
  refuse_inside,
  write_whole,
  writing,
)
from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json, expanded, load_json, open_regular

# libjpeg decodes to 1/2, 1/4 or 1/8 in the DCT. From twice the copy's size on, that loses 44 dB
# where JPEG's own loss at quality 75 is 31 dB; from once its size, 37 dB and 3 % of the sharpness.
_DECODED = 2
# Images that a worker takes at a time: 0.1 s of work.
_CHUNK = 32
_SETTINGS = "resize.json"


@dataclasses.dataclass(frozen=True)
class Resized:
  """What a run of `resize` did."""

  images: int  # of the source
  read: int  # in this run; all copies of the others were there
  broken: tuple[Broken, ...]  # sorted by name
  seconds: float


def copy_shape(width: int, height: int, size: int) -> tuple[int, int]:
  """(width, height) of an image's copy whose short side is `size`, in imagenet18's formula."""
  ratio = size / min(width, height)
  return max(math.floor(width * ratio), size), max(math.floor(height * ratio), size)


def make_copies(encoded: bytes, sizes: Sequence[int], *, quality: int) -> dict[int, bytes]:
  """The encoded copy of an image for each of `sizes`: a JPEG, grey or RGB, without metadata.

  An image that is as small as a size, or smaller, is its own copy, byte for byte. The image is
  decoded once, at the largest of JPEG's scales that has twice the width of the largest copy. A
  rotation in its EXIF header is applied, and transparency is dropped.

  Raises:
    Exception: of whatever type Pillow raises; it is no image, or a damaged one.
  """
  with pixels.open_image(io.BytesIO(encoded)) as image:
    width, height, orientation = pixels.header_of(image)
    smaller = [size for size in sizes if size < min(width, height)]
    # The copies' shapes as the image is stored, from which they are turned.
    stored = (height, width) if pixels.TURNS[orientation][0] else (width, height)
    shapes = {size: copy_shape(*stored, size) for size in smaller}
    box = None
    if smaller:
      decoded = (_DECODED * each for each in shapes[max(smaller)])
      drafted = image.draft(None, tuple(decoded))  # type: ignore[arg-type]
      box = drafted[1] if drafted else None
    loaded = pixels.load(image)
  copies = dict.fromkeys(sizes, encoded)
  for size, shape in shapes.items():
    resized = loaded.resize(shape, Image.Resampling.BILINEAR, box)
    copies[size] = _encode(pixels.upright(resized, orientation), quality)
  return copies


def _encode(image: Image.Image, quality: int) -> bytes:
  image.info = {}  # an original's comment would be in every copy
  buffer = io.BytesIO()
  image.save(buffer, "JPEG", quality=quality)
  return buffer.getvalue()


def resize(
  source: str | os.PathLike[str],
  destination: str | os.PathLike[str],
  *,
  sizes: Sequence[int],
  quality: int = 75,
  workers: int = 1,
  raise_broken: bool = False,
  show: Callable[[int, int], None] | None = None,
) -> Resized:
  """Writes DESTINATION/SIZE/SPLIT/CLASS/NAME for every image of a folder and each of `sizes`.

  Copies that are there already stay. Images that cannot be read have no copies; their names and the
  reasons are listed in DESTINATION/SIZE/broken.txt.

  Args:
    source: a folder of train/CLASS/NAME and val/, validation/ or test/CLASS/NAME.
    destination: outside the source.
    sizes: short sides, in pixels.
    quality: of the JPEGs, 1 ... 100.
    workers: processes.
    raise_broken: whether the first broken image ends the run.
    show: called now and then with the images that are done, and all.

  Raises:
    UserError: an argument is out of its range, a folder cannot be read or written, the disk is
      full, or, with `raise_broken`, an image is broken.
  """
  _check(sizes, quality, workers)
  began = time.perf_counter()
  source, destination = expanded(source, "SRC"), expanded(destination, "DST")
  refuse_inside(destination, source)
  for size in sizes:
    if source.resolve().is_relative_to((destination / str(size)).resolve()):
      raise UserError(
        f"the copies of {size} pixels would be written into {destination / str(size)}, where the "
        f"images of {source} are read: name another folder."
      )
  folders = _list_source(source)
  with holding(destination), writing(destination):
    for size in sizes:
      _keep_settings(destination / str(size), quality)
    template = _Chunk("", "", (), tuple(sizes), quality, raise_broken, ())
    chunks = list(_chunks(source, destination, folders, template))
    images = sum(map(len, folders.values()))
    read = sum(len(chunk.names) for chunk in chunks)
    broken: list[Broken] = []
    done = images - read
    for count, found in in_processes(_resize_chunk, chunks, workers=workers):
      done += count
      broken += found
      if show is not None:
        show(done, images)
    broken.sort(key=lambda each: each.name)
    for size in sizes:
      _list_broken(destination / str(size) / "broken.txt", broken)
  return Resized(images, read, tuple(broken), time.perf_counter() - began)


def _check(sizes: Sequence[int], quality: int, workers: int) -> None:
  if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
    raise UserError(
      f"--sizes={','.join(map(str, sizes))}: name different short sides in pixels, as in "
      "--sizes=160,352."
    )
  if not 1 <= quality <= 100:
    raise UserError(f"--quality={quality}: JPEG's quality is 1 ... 100; 75 is usual.")
  if workers < 1:
    raise UserError(f"--workers={workers}: at least one process is needed.")


def _list_source(source: pathlib.Path) -> dict[str, list[str]]:
  """The names of the images of each class's folder, train/n01440764 for one."""
  if not (source / "train").is_dir():
    raise UserError(
      f"{source} has no train/: name a folder of train/CLASS/*.jpg and val/CLASS/*.jpg."
    )
  try:
    listed = list_folders(source)
  except OSError as error:
    raise UserError(
      f"{error.filename or source} cannot be read ({error.strerror or error})."
    ) from error
  return {
    f"{split}/{name}": files for split, classes in listed.items() for name, files in classes.items()
  }


def _keep_settings(folder: pathlib.Path, quality: int) -> None:
  """Keeps the copies of one folder to one quality."""
  path = folder / ".jaxspeed" / _SETTINGS
  for each in (folder, path.parent):
    finished_files(each)
  try:
    stored = load_json(path)["quality"]
  except FileNotFoundError:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [dump_json({"quality": quality}).encode()])
  except (ValueError, KeyError, TypeError) as error:
    raise UserError(f"{path} is damaged ({error}): remove it and run again.") from error
  else:
    if stored != quality:
      raise UserError(
        f"{folder} holds copies of quality {stored}, not {quality}: write --quality={stored}, "
        "remove it, or name another folder."
      )


@dataclasses.dataclass(frozen=True)
class _Chunk:
  """A part of the images of one class, and where their copies go."""

  name: str  # of the class's folder, below the source's: train/n01440764
  source: str  # the class's folder
  targets: tuple[str, ...]  # the class's folders of the sizes
  sizes: tuple[int, ...]
  quality: int
  raise_broken: bool
  names: tuple[tuple[str, tuple[bool, ...]], ...]  # of files, and which copies are missing


def _chunks(
  source: pathlib.Path,
  destination: pathlib.Path,
  folders: dict[str, list[str]],
  template: _Chunk,
) -> Iterator[_Chunk]:
  """What is left to do; the folders that it needs are made."""
  for name, files in folders.items():
    targets = [destination / str(size) / name for size in template.sizes]
    finished = [finished_files(target) for target in targets]
    missing = [(file, tuple(file not in each for each in finished)) for file in files]
    missing = [each for each in missing if any(each[1])]
    if not missing:
      continue
    for target in targets:
      target.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(missing), _CHUNK):
      yield dataclasses.replace(
        template,
        name=name,
        source=str(source / name),
        targets=tuple(map(str, targets)),
        names=tuple(missing[first : first + _CHUNK]),
      )


def _resize_chunk(chunk: _Chunk) -> tuple[int, list[Broken]]:
  """Number of images, and those of them that are broken."""
  broken = []
  for name, missing in chunk.names:
    try:
      # Large images and strange metadata are no news to the user of a million images.
      with pixels.without_warnings():
        with open_regular(os.path.join(chunk.source, name)) as file:
          copies = make_copies(file.read(), chunk.sizes, quality=chunk.quality)
    # Damaged images make Pillow raise almost anything: OSError, SyntaxError, struct.error, ...
    except Exception as error:
      broken.append(Broken(f"{chunk.name}/{name}", reason_of(error)))
      if chunk.raise_broken:
        raise UserError(
          f"{broken[-1].name} is broken ({broken[-1].reason}): mend or remove it, or leave out "
          "--on_error=raise."
        ) from error
      continue
    for size, target, is_missing in zip(chunk.sizes, chunk.targets, missing, strict=True):
      if is_missing:
        with writing(target):
          write_whole(os.path.join(target, name), [copies[size]])
  return len(chunk.names), broken


def _list_broken(path: pathlib.Path, broken: Sequence[Broken]) -> None:
  """Writes a line for each broken image, or no file where there is none."""
  if broken:
    lines = (f"{printable(each.name)}\t{each.reason}\n" for each in broken)
    write_whole(path, [line.encode() for line in lines])
  else:
    path.unlink(missing_ok=True)
