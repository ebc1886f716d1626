"""Smaller copies of a folder of images, made once, so that no epoch decodes the large originals.

resize("imagenet", "copies", sizes=(160, 352)) reads imagenet/train/CLASS/NAME and writes
copies/160/train/CLASS/NAME and copies/352/train/CLASS/NAME, and the same for the other split. A
copy's short side is its size (`copies.py`).

Every file appears whole or not at all, by a rename, and depends only on its original, the sizes
and the quality: run a killed command again to get the same bytes. A copy has the modification time
of its original when that was read, and is made again if the original's is later.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from jaxspeed.data.disk.index import own_index
from jaxspeed.data.disk.prepared import (
  QUALITY,
  SPLITS,
  STAT_THREADS,
  Prepared,
  modified,
  names_of,
  not_before,
  read_prepared,
  some,
  write_prepared,
)
from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.folders import left_out, list_folder, list_folders
from jaxspeed.data.formats.pixels import reason_of
from jaxspeed.data.prepare.copies import make_copies
from jaxspeed.data.prepare.index import Broken
from jaxspeed.data.prepare.writing import (
  finished_files,
  locked,
  refuse_inside,
  remove_file,
  write_whole,
  writing,
)
from jaxspeed.data.workers import in_processes
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded, open_regular

# Images of one task of a worker: 0.1 s of work.
_CHUNK = 32


@dataclasses.dataclass(frozen=True)
class Resized:
  """What a run of `resize` did."""

  images: int  # images of the source
  read: int  # images read in this run; the others had all their copies
  broken: tuple[Broken, ...]  # sorted by name
  seconds: float
  pruned: int = 0  # removed images without originals
  notes: tuple[str, ...] = ()  # notes about files of the source that were left out


def resize(
  source: str | os.PathLike[str],
  destination: str | os.PathLike[str],
  *,
  sizes: Sequence[int],
  quality: int = QUALITY,
  workers: int = 1,
  raise_broken: bool = False,
  prune: bool = False,
  show: Callable[[int, int], None] | None = None,
) -> Resized:
  """Write DESTINATION/SIZE/SPLIT/CLASS/NAME for every image of a folder and each of `sizes`.

  Images that cannot be read have no copies and are listed with the reason in
  DESTINATION/SIZE/broken.txt.

  Args:
    source: a folder with train/CLASS/NAME and val/, validation/ or test/CLASS/NAME.
    destination: a folder outside the source.
    sizes: short sides, in pixels.
    quality: quality of the JPEGs, 1 ... 100.
    workers: number of processes.
    raise_broken: whether the first broken image ends the run.
    prune: whether to remove images without originals from the folders of copies.
    show: called now and then with the number of images done and the total.

  Raises:
    UserError: an argument is out of range, a folder cannot be read or written, the disk is full,
      an image is broken and `raise_broken` is true, or a folder of copies holds other images.
  """
  _check(sizes, quality, workers)
  began = time.perf_counter()
  source, destination = expanded(source, "SRC"), expanded(destination, "DST")
  folders = [destination / str(size) for size in sizes]
  _refuse_folders(source, destination, folders)
  others: collections.Counter[str] = collections.Counter()
  classes = _list_source(source, others)
  originals = {
    split: names_of([f"{name}/{file}" for name, files in listed.items() for file in files])
    for split, listed in classes.items()
  }
  with locked(destination), writing(destination):
    for folder in folders:
      _refuse_other(folder, source, quality)
    files = {f"{split}/{name}": each for split in classes for name, each in classes[split].items()}
    newest, missing = _plan(source, folders, files)
    made = Prepared("resize", str(source.absolute()), quality, originals, newest)
    for folder in folders:
      for each in (folder, folder / ".jaxspeed"):
        finished_files(each)
      write_prepared(folder, made)
      own_index(folder).unlink(missing_ok=True)
    pruned = sum(_remove_others(folder, files, prune) for folder in folders)
    chunks = list(_chunks(source, folders, missing, sizes, quality, raise_broken))
    images, read = sum(map(len, files.values())), sum(len(chunk.names) for chunk in chunks)
    broken: list[Broken] = []
    done = images - read
    for count, damaged in in_processes(_resize_chunk, chunks, workers=workers):
      done += count
      broken += damaged
      if show is not None:
        show(done, images)
    broken.sort(key=lambda each: each.name)
    lost = collections.Counter(each.name.partition("/")[0] for each in broken)
    written = {split: count - lost[split] for split, (count, _) in originals.items()}
    for folder in folders:
      _list_broken(folder / "broken.txt", broken)
      write_prepared(folder, dataclasses.replace(made, images=written))
  seconds = time.perf_counter() - began
  return Resized(images, read, tuple(broken), seconds, pruned, left_out(others))


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


def _refuse_folders(
  source: pathlib.Path, destination: pathlib.Path, folders: Iterable[pathlib.Path]
) -> None:
  """Raise a UserError where copies would lie among their originals, or originals among copies."""
  refuse_inside(destination, source)
  for folder in folders:
    if source.resolve().is_relative_to(folder.resolve()):
      raise UserError(
        f"the copies of {folder.name} pixels would be written into {folder}, where the images of "
        f"{source} are read: name another folder."
      )
    refuse_inside(folder, source)  # a link may lead there


def _refuse_other(folder: pathlib.Path, source: pathlib.Path, quality: int) -> None:
  """Raise a UserError where a folder holds other images than copies of `source` and `quality`."""
  stored = read_prepared(folder, "resize")
  if stored is None:
    if any((folder / split).exists() for split in SPLITS):
      raise UserError(
        f"{folder} holds images that prepare resize did not write: train on them as they are, or "
        "name another folder for the copies."
      )
    return
  if stored.setting != quality:
    raise UserError(
      f"{folder} holds copies of quality {stored.setting}, not {quality}: write "
      f"--quality={stored.setting}, remove it, or name another folder."
    )
  # Names and times cannot tell two folders' images apart; a folder that was moved is the same.
  if os.path.isdir(stored.source) and not os.path.samefile(stored.source, source):
    raise UserError(
      f"{folder} holds copies of {stored.source}, not of {source}: remove it, or name another "
      "folder."
    )


def _list_source(
  source: pathlib.Path, others: collections.Counter[str]
) -> dict[str, dict[str, list[str]]]:
  """Return the names of each class's images, by split and class; count other files in `others`."""
  try:
    if not (source / "train").is_dir():
      flat = "; prepare shards takes class folders without a split" * bool(
        list_folder(source).folders
      )
      raise UserError(
        f"{source} has no train/: name a folder of train/CLASS/*.jpg and val/CLASS/*.jpg{flat}."
      )
    return list_folders(source, others)
  except OSError as error:
    raise UserError(
      f"{error.filename or source} cannot be read ({error.strerror or error})."
    ) from error


# The names of a class's originals that lack copies, and which of the copies.
_Missing = list[tuple[str, tuple[bool, ...]]]


def _plan(
  source: pathlib.Path, folders: Sequence[pathlib.Path], files: Mapping[str, Sequence[str]]
) -> tuple[int, dict[str, _Missing]]:
  """Return the latest time of an original, and what is to be made of each SPLIT/CLASS."""

  def plan(name: str) -> tuple[int, _Missing]:
    for folder in folders:
      _refuse_originals(folder / name, source)
    there = [_times_in(folder / name) for folder in folders]
    newest, missing = 0, []
    for file in files[name]:
      original = modified(f"{source}{os.sep}{name}{os.sep}{file}")
      newest = max(newest, original)
      # An original that is missing is a link to nowhere.
      lacking = [
        not (original and file in copies and not_before(copies[file], original)) for copies in there
      ]
      if any(lacking):
        missing.append((file, tuple(lacking)))
    return newest, missing

  with ThreadPoolExecutor(STAT_THREADS) as pool:
    planned = dict(zip(files, pool.map(plan, files), strict=True))
  return (
    max(newest for newest, _ in planned.values()),
    {name: missing for name, (_, missing) in planned.items() if missing},
  )


def _times_in(folder: pathlib.Path) -> dict[str, int]:
  """Return the modification times of the files in a folder that are no links, which copies are."""
  finished_files(folder)
  try:
    with os.scandir(folder) as entries:
      return {
        entry.name: entry.stat(follow_symlinks=False).st_mtime_ns
        for entry in entries
        if entry.is_file(follow_symlinks=False)
      }
  except (FileNotFoundError, NotADirectoryError):
    return {}


def _remove_others(folder: pathlib.Path, files: Mapping[str, Sequence[str]], prune: bool) -> int:
  """Remove images without originals; return their number.

  Nothing is removed behind a link.

  Raises:
    UserError: there are such images, and they may not be removed.
  """
  others: list[str] = []
  classes = [
    f"{split}/{name}"
    for split in SPLITS
    if (folder / split).is_dir()
    for name in list_folder(folder / split).folders
  ]
  for name in classes:
    images = list_folder(folder / name, refuse=False).images
    others += [f"{name}/{image}" for image in sorted(set(images) - set(files.get(name, ())))]
  left = others
  if prune:
    left = [each for each in others if not remove_file(folder, each)]
    for name in set(classes) - files.keys():
      with contextlib.suppress(OSError):
        (folder / name).rmdir()
  if left:
    advice = "remove these links yourself" if prune else "--prune removes them, or move them away"
    raise UserError(
      f"{folder} holds {len(left):,} images without originals in the source ({some(left)}): "
      f"{advice}."
    )
  return len(others)


def _refuse_originals(folder: pathlib.Path, source: pathlib.Path) -> None:
  """Raise a UserError where a link would let copies overwrite originals."""
  if (target := folder.resolve()).is_relative_to(source.resolve()):
    raise UserError(
      f"{folder} leads to {target}, among the originals: remove that link and run again."
    )


@dataclasses.dataclass(frozen=True)
class _Chunk:
  """Some images of one class, and the places of their copies."""

  name: str  # the class's folder below the source: train/n01440764
  source: str  # the class's folder
  targets: tuple[str, ...]  # the class's folder for each size
  sizes: tuple[int, ...]
  quality: int
  raise_broken: bool
  names: _Missing


def _chunks(
  source: pathlib.Path,
  folders: Sequence[pathlib.Path],
  missing: Mapping[str, _Missing],
  sizes: Sequence[int],
  quality: int,
  raise_broken: bool,
) -> Iterator[_Chunk]:
  """Yield the work to do, and make the folders that it needs."""
  for name, files in missing.items():
    targets = [folder / name for folder in folders]
    for target in targets:
      target.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(files), _CHUNK):
      yield _Chunk(
        name=name,
        source=str(source / name),
        targets=tuple(map(str, targets)),
        sizes=tuple(sizes),
        quality=quality,
        raise_broken=raise_broken,
        names=files[first : first + _CHUNK],
      )


def _resize_chunk(chunk: _Chunk) -> tuple[int, list[Broken]]:
  """Make the missing copies of a chunk, and remove those of images that are now broken.

  Returns:
    The number of images, and those that are broken.
  """
  broken = []
  for name, missing in chunk.names:
    original, copies = 0, dict[int, bytes]()
    try:
      # Users of a million images need no warnings of large images and strange metadata.
      with pixels.without_warnings(), open_regular(os.path.join(chunk.source, name)) as file:
        # Taken before reading: a file that changes meanwhile is then newer than its copies.
        original = os.fstat(file.fileno()).st_mtime_ns
        copies = make_copies(file.read(), chunk.sizes, quality=chunk.quality)
    # Damaged images make Pillow raise almost anything: OSError, SyntaxError, struct.error, ...
    except Exception as error:
      broken.append(Broken(f"{chunk.name}/{name}", reason_of(error)))
      if chunk.raise_broken:
        raise UserError(
          f"{chunk.name}/{name} is broken ({reason_of(error)}): repair or remove it, or leave out "
          "--on_error=raise."
        ) from error
    for size, target, lacking in zip(chunk.sizes, chunk.targets, missing, strict=True):
      with writing(target):
        if copies and lacking:
          path = os.path.join(target, name)
          write_whole(path, [copies[size]])
          os.utime(path, ns=(original, original))
        elif lacking:
          remove_file(pathlib.Path(target), name)
  return len(chunk.names), broken


def _list_broken(path: pathlib.Path, broken: Sequence[Broken]) -> None:
  """Write a line for each broken image, or remove the file where there is none."""
  if broken:
    lines = (f"{printable(each.name)}\t{each.reason}\n" for each in broken)
    write_whole(path, [line.encode() for line in lines])
  else:
    path.unlink(missing_ok=True)
