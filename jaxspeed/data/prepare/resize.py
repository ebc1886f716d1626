"""Smaller copies of a folder of images, made once, so that no epoch decodes the large originals.

resize("imagenet", "copies", sizes=(160, 352)) reads imagenet/train/CLASS/NAME and writes
copies/160/train/CLASS/NAME and copies/352/train/CLASS/NAME, and the same for the other split. A
copy's short side is its size; formula, filter and quality are those of the sz/160 and sz/352
folders of imagenet18 (diux-dev/cluster, pytorch/training/resize_images.py).

Every file appears whole or not at all, by a rename, and depends only on its original, the sizes
and the quality: run a killed command again to get the same bytes. Copies of changed originals are
made again (`following.py`).
"""

import collections
import contextlib
import dataclasses
import io
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from PIL import Image

from jaxspeed.data.disk.copies import AWAY, Facts, facts_at, facts_of, originals_facts
from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.folders import left_out, list_folder, list_folders
from jaxspeed.data.formats.pixels import reason_of
from jaxspeed.data.prepare.following import Follower, remove_copy
from jaxspeed.data.prepare.index import Broken
from jaxspeed.data.prepare.writing import (
  in_processes,
  locked,
  refuse_inside,
  write_whole,
  writing,
)
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded, open_regular

# libjpeg scales by 1/2, 1/4 or 1/8 in the DCT. Decoding to at least twice the copy's size has an
# error of 44 dB (JPEG's own at quality 75: 31 dB); to once its size, 37 dB and 3 % less sharpness.
_DECODED = 2
# Images of one task of a worker: 0.1 s of work.
_CHUNK = 32


@dataclasses.dataclass(frozen=True)
class Resized:
  """What a run of `resize` did."""

  images: int  # images of the source
  read: int  # images read in this run; the others had all their copies
  broken: tuple[Broken, ...]  # sorted by name
  seconds: float
  unrecorded: int = 0  # copies made again because they had no record
  pruned: int = 0  # removed copies without originals
  orphans: tuple[str, ...] = ()  # SIZE/SPLIT/CLASS/NAME of remaining copies without originals
  strangers: tuple[str, ...] = ()  # images in the folders that `resize` did not write
  empty: tuple[str, ...] = ()  # SPLIT/CLASS of classes with broken images only
  notes: tuple[str, ...] = ()  # notes about files of the source that were left out


def copy_shape(width: int, height: int, size: int) -> tuple[int, int]:
  """Return (width, height) of a copy with short side `size`, by imagenet18's formula."""
  ratio = size / min(width, height)
  return max(math.floor(width * ratio), size), max(math.floor(height * ratio), size)


def make_copies(encoded: bytes, sizes: Sequence[int], *, quality: int) -> dict[int, bytes]:
  """Return an encoded copy of an image for each of `sizes`: a grey or RGB JPEG, without metadata.

  An image no larger than a size is its own copy, byte for byte. Others are turned as EXIF says.

  Raises:
    Exception: any type that Pillow raises; it is not an image, or is damaged.
  """
  with pixels.open_image(io.BytesIO(encoded)) as image:
    width, height, orientation = pixels.header_of(image)
    smaller = [size for size in sizes if size < min(width, height)]
    # The copies' shapes before they are turned.
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
  image.info = {}  # otherwise the original's comment would be in every copy
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
  prune: bool = False,
  show: Callable[[int, int], None] | None = None,
) -> Resized:
  """Write DESTINATION/SIZE/SPLIT/CLASS/NAME for every image of a folder and each of `sizes`.

  Copies stay if their originals have the recorded size and time; others are made again. Images that
  cannot be read have no copies and are listed with the reason in DESTINATION/SIZE/broken.txt.

  Args:
    source: a folder with train/CLASS/NAME and val/, validation/ or test/CLASS/NAME.
    destination: a folder outside the source.
    sizes: short sides, in pixels.
    quality: quality of the JPEGs, 1 ... 100.
    workers: number of processes.
    raise_broken: whether the first broken image ends the run.
    prune: whether to remove copies without originals.
    show: called now and then with the number of images done and the total.

  Raises:
    UserError: an argument is out of range, a folder cannot be read or written, the disk is full,
      or an image is broken and `raise_broken` is true.
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
    refuse_inside(destination / str(size), source)  # a link may lead there
  others: collections.Counter[str] = collections.Counter()
  classes = _list_source(source, others)
  with locked(destination), writing(destination):
    folders = [Follower(destination / str(size), source, quality) for size in sizes]
    for folder in folders:
      folder.begin()
    template = _Chunk("", "", (), tuple(sizes), quality, raise_broken, ())
    chunks = list(_chunks(source, folders, classes, template))
    for folder in folders:
      folder.plan_others(list(classes))
      if prune:
        folder.prune()
    images = sum(map(len, classes.values()))
    broken = _resize_chunks(chunks, folders, images, workers, show)
    for folder in folders:
      _list_broken(folder.folder / "broken.txt", broken)
      folder.finish(list(dict.fromkeys(name.partition("/")[0] for name in classes)))
  lost = collections.Counter(each.name.rpartition("/")[0] for each in broken)
  return Resized(
    images=images,
    read=sum(len(chunk.names) for chunk in chunks),
    broken=tuple(broken),
    seconds=time.perf_counter() - began,
    unrecorded=sum(folder.unrecorded for folder in folders),
    pruned=sum(folder.pruned for folder in folders),
    orphans=tuple(
      f"{folder.folder.name}/{name}/{file}"
      for folder in folders
      for name, files in folder.orphans.items()
      for file in files
    ),
    strangers=tuple(
      f"{folder.folder.name}/{each}" for folder in folders for each in folder.strangers
    ),
    empty=tuple(name for name, files in classes.items() if lost[name] == len(files)),
    notes=left_out(others),
  )


def _resize_chunks(
  chunks: Sequence["_Chunk"],
  folders: Sequence[Follower],
  images: int,
  workers: int,
  show: Callable[[int, int], None] | None,
) -> list[Broken]:
  """Make the copies, and return the broken images, sorted by name.

  Args:
    chunks: the work to do.
    folders: the folder of each size, which records the facts of the originals.
    images: number of images of the source.
    workers: number of processes.
    show: progress function, as in `resize`.
  """
  broken: list[Broken] = []
  done = images - sum(len(chunk.names) for chunk in chunks)
  try:
    # Closed before the records are flushed: on a full disk, workers would take the records' space.
    with contextlib.closing(in_processes(_resize_chunk, chunks, workers=workers)) as results:
      for made in results:
        for folder, whole, damaged in zip(folders, made.copies, made.broken, strict=True):
          folder.add(made.name, whole, damaged)
        if made.failure:
          raise UserError(made.failure)
        done += made.images
        broken += made.reasons
        if show is not None:
          show(done, images)
  finally:
    for folder in folders:
      folder.flush()
  return sorted(broken, key=lambda each: each.name)


def _check(sizes: Sequence[int], quality: int, workers: int) -> None:
  if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
    raise UserError(
      f"--sizes={','.join(map(str, sizes))}: name different short sides in pixels, as in "
      "--sizes=160,352."
    )
  if not 1 <= quality <= 100:
    raise UserError(f"--quality={quality}: the quality of a JPEG is 1 ... 100; 75 is usual.")
  if workers < 1:
    raise UserError(f"--workers={workers}: at least one process is needed.")


def _list_source(source: pathlib.Path, others: collections.Counter[str]) -> dict[str, list[str]]:
  """Return the names of each class's images, by the class's folder (train/n01440764, say).

  Args:
    source: a folder with train/CLASS/NAME and the other split.
    others: receives the number of files that are not images, by name ending.
  """
  try:
    if not (source / "train").is_dir():
      # Copies of a folder without splits would need records of another layout.
      flat = "; prepare shards takes class folders without a split" * bool(
        list_folder(source).folders
      )
      raise UserError(
        f"{source} has no train/: name a folder of train/CLASS/*.jpg and val/CLASS/*.jpg{flat}."
      )
    listed = list_folders(source, others)
  except OSError as error:
    raise UserError(
      f"{error.filename or source} cannot be read ({error.strerror or error})."
    ) from error
  return {
    f"{split}/{name}": files for split, classes in listed.items() for name, files in classes.items()
  }


@dataclasses.dataclass(frozen=True)
class _Chunk:
  """Some images of one class, and the places of their copies."""

  name: str  # the class's folder below the source: train/n01440764
  source: str  # the class's folder
  targets: tuple[str, ...]  # the class's folder for each size
  sizes: tuple[int, ...]
  quality: int
  raise_broken: bool
  names: tuple[tuple[str, tuple[bool, ...]], ...]  # file names, and which of the copies are missing


@dataclasses.dataclass(frozen=True)
class _Made:
  """The result of a chunk: for each size, the facts of its originals when they were read.

  Attributes:
    failure: why the rest was not done; "" where all was.
  """

  name: str
  images: int
  copies: tuple[dict[str, Facts], ...]
  broken: tuple[dict[str, Facts], ...]
  reasons: list[Broken]
  failure: str = ""


def _chunks(
  source: pathlib.Path,
  folders: Sequence[Follower],
  classes: Mapping[str, Sequence[str]],
  template: _Chunk,
) -> Iterator[_Chunk]:
  """Yield the work to do, and make the folders that it needs."""
  for name, originals in originals_facts(source, classes.items()):
    wanted = [folder.plan(name, originals) for folder in folders]
    missing = [
      (file, tuple(file in each for each in wanted))
      for file in classes[name]
      if any(file in each for each in wanted)
    ]
    for first in range(0, len(missing), _CHUNK):
      yield dataclasses.replace(
        template,
        name=name,
        source=str(source / name),
        targets=tuple(str(folder.folder / name) for folder in folders),
        names=tuple(missing[first : first + _CHUNK]),
      )


def _resize_chunk(chunk: _Chunk) -> _Made:
  """Make the missing copies of a chunk, and remove those of images that are now broken."""
  whole: tuple[dict[str, Facts], ...] = tuple({} for _ in chunk.sizes)
  damaged: tuple[dict[str, Facts], ...] = tuple({} for _ in chunk.sizes)
  made = _Made(chunk.name, len(chunk.names), whole, damaged, [])
  for name, missing in chunk.names:
    path = os.path.join(chunk.source, name)
    facts = AWAY
    copies: dict[int, bytes] = {}
    try:
      # Users of a million images need no warnings of large images and strange metadata.
      with pixels.without_warnings():
        with open_regular(path) as file:
          # Taken before reading: a file that changes meanwhile then differs from its record.
          facts = facts_of(os.fstat(file.fileno()))
          copies = make_copies(file.read(), chunk.sizes, quality=chunk.quality)
    # Damaged images make Pillow raise almost anything: OSError, SyntaxError, struct.error, ...
    except Exception as error:
      made.reasons.append(Broken(f"{chunk.name}/{name}", reason_of(error)))
      if chunk.raise_broken:
        raise UserError(
          f"{chunk.name}/{name} is broken ({reason_of(error)}): repair or remove it, or leave out "
          "--on_error=raise."
        ) from error
      if facts == AWAY:  # it could not be opened
        with contextlib.suppress(OSError):
          facts = facts_at(path)
    for i, (size, target) in enumerate(zip(chunk.sizes, chunk.targets, strict=True)):
      if not missing[i]:
        continue
      try:
        with writing(target):
          if copies:
            write_whole(os.path.join(target, name), [copies[size]])
          else:
            remove_copy(pathlib.Path(target, name))
      except UserError as error:
        # The copies made before it are kept.
        return dataclasses.replace(made, failure=str(error))
      (whole if copies else damaged)[i][name] = facts
  return made


def _list_broken(path: pathlib.Path, broken: Sequence[Broken]) -> None:
  """Write a line for each broken image, or remove the file where there is none."""
  if broken:
    lines = (f"{printable(each.name)}\t{each.reason}\n" for each in broken)
    write_whole(path, [line.encode() for line in lines])
  else:
    path.unlink(missing_ok=True)
