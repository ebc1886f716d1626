"""Smaller copies of a folder of images, made once, so that no epoch decodes the large originals.

resize("imagenet", "copies", sizes=(160, 352)) reads imagenet/train/CLASS/NAME and writes
copies/160/train/CLASS/NAME and copies/352/train/CLASS/NAME, and the same for the other split. A
copy's short side is its size. It depends only on its original, the sizes and the quality. Formula,
filter and quality are those of the sz/160 and sz/352 folders of imagenet18 (diux-dev/cluster,
pytorch/training/resize_images.py).
"""

import collections
import dataclasses
import functools
import io
import math
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from PIL import Image

from jaxspeed.data.disk.prepared import NAMED, QUALITY, Prepared, digests_of, is_current
from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.folders import (
  EVAL_FOLDERS,
  has_splits,
  left_out,
  list_folder,
  list_folders,
)
from jaxspeed.data.prepare.writing import (
  Broken,
  Done,
  Show,
  begin,
  locked,
  refuse_inside,
  refuse_other,
  remove_temporary,
  update,
  write_whole,
)
from jaxspeed.errors import UserError, printable, some
from jaxspeed.files import expanded, open_regular

# libjpeg scales by 1/2, 1/4 or 1/8 in the DCT. Decoding to at least twice the copy's size has an
# error of 44 dB (JPEG's own at quality 75: 31 dB); to once its size, 37 dB and 3 % less sharpness.
_DECODED = 2
# Images of one task of a worker: 0.1 s of work.
_CHUNK = 32


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
  quality: int = QUALITY,
  workers: int = 1,
  show: Show | None = None,
) -> Done:
  """Write DESTINATION/SIZE/SPLIT/CLASS/NAME for every image of a folder and each of `sizes`.

  Images that cannot be read have no copies and are listed with the reason in
  DESTINATION/SIZE/broken.txt.

  Args:
    source: a folder with train/CLASS/NAME and val/, validation/ or test/CLASS/NAME.
    destination: a folder outside the source.
    sizes: short sides, in pixels.
    quality: quality of the JPEGs, 1 ... 100.
    workers: number of processes.
    show: called now and then with the number of images done and the total.

  Raises:
    UserError: a folder cannot be written, the disk is full, or a folder of copies holds other
      images.
  """
  source, destination = expanded(source, "SRC"), expanded(destination, "DST")
  folders = [destination / str(size) for size in sizes]
  _refuse_folders(source, destination, folders)
  if not has_splits(source):
    flat = "; prepare shards takes class folders without a split"
    raise UserError(
      f"{source} has no train/: name a folder of train/CLASS/*.jpg and val/CLASS/*.jpg"
      f"{flat * bool(list_folder(source).folders)}."
    )
  others: collections.Counter[str] = collections.Counter()
  files = {
    f"{split}/{name}": names
    for split, classes in list_folders(source, others).items()
    for name, names in classes.items()
  }
  originals = digests_of(f"{name}/{file}" for name, names in files.items() for file in names)
  made = Prepared("resize", source.absolute().as_uri(), quality, tuple(sizes), originals)
  with locked(destination):
    for folder in folders:
      refuse_other(folder, made)
    begin(folders, made)
    for folder in folders:
      _match_folders(folder, files)
    tasks = [
      _Task(str(source), tuple(map(str, folders)), name, names[i : i + _CHUNK], made)
      for name, names in files.items()
      for i in range(0, len(names), _CHUNK)
    ]
    done = update(
      folders,
      made,
      tasks,
      look=_left_of,
      work=_resize,
      finish=functools.partial(_list_broken, folders),
      workers=workers,
      show=show,
    )
  return dataclasses.replace(done, notes=left_out(others))


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


def _match_folders(folder: pathlib.Path, files: Mapping[str, Collection[str]]) -> None:
  """Make the folders of the classes.

  Raises:
    UserError: images there have no originals, or a link leads out of `folder`, where it could be
      others' images that are written over.
  """
  there = {
    f"{split}/{name}"
    for split in ("train", *EVAL_FOLDERS)
    if (folder / split).is_dir()
    for name in list_folder(folder / split).folders
  }
  others: list[str] = []
  for name in sorted(there | files.keys()):
    if (folder / name).resolve() != folder.resolve() / name:
      raise UserError(f"{folder / name} is or lies behind a link: replace it by a folder.")
    if name in files:
      (folder / name).mkdir(parents=True, exist_ok=True)
    remove_temporary(folder / name)
    images = list_folder(folder / name).images
    others += [f"{name}/{image}" for image in sorted({*images} - {*files.get(name, ())})]
  if others:
    raise UserError(
      f"{folder} holds {len(others):,} images without originals in the source "
      f"({some([*map(printable, others)], NAMED)}): remove them or move them away, or remove "
      f"{folder} and make all copies again."
    )


@dataclasses.dataclass(frozen=True)
class _Task:
  """Some images of one class, and the folders of their copies, one for each size."""

  source: str
  folders: tuple[str, ...]
  name: str  # the class's folder below the source: train/n01440764
  files: Sequence[str]
  made: Prepared

  @property
  def originals(self) -> list[str]:
    return [os.path.join(self.source, self.name, file) for file in self.files]

  def copies(self, file: str) -> Iterator[str]:
    """Yield the path of each copy of a file."""
    return (os.path.join(folder, self.name, file) for folder in self.folders)


def _left_of(task: _Task, times: Sequence[int]) -> _Task | None:
  left = [
    file
    for file, time in zip(task.files, times, strict=True)
    # An original that is missing is a link to nowhere.
    if not (time and all(is_current(copy, time) for copy in task.copies(file)))
  ]
  return dataclasses.replace(task, files=left) if left else None


def _resize(task: _Task) -> tuple[int, list[Broken]]:
  """Make copies, and remove those of images that are now broken."""
  pixels.drop_warnings()
  broken = []
  sizes, quality = task.made.sizes, task.made.setting
  for file, path in zip(task.files, task.originals, strict=True):
    copies: dict[int, bytes] = {}
    try:
      with open_regular(path) as opened:
        # Taken before reading: a file that changes meanwhile is then newer than its copies.
        original = os.fstat(opened.fileno()).st_mtime_ns
        copies = make_copies(opened.read(), sizes, quality=quality)
    # Damaged images make Pillow raise almost anything: OSError, SyntaxError, struct.error, ...
    except Exception as error:
      broken.append(Broken(f"{task.name}/{file}", pixels.reason_of(error)))
    for size, copy in zip(sizes, task.copies(file), strict=True):
      if copies:
        write_whole(copy, [copies[size]])
        os.utime(copy, ns=(original, original))
      else:
        pathlib.Path(copy).unlink(missing_ok=True)
  return len(task.files), broken


def _list_broken(folders: Iterable[pathlib.Path], broken: Sequence[Broken]) -> None:
  """Write a line for each broken image, or remove the file where there is none."""
  lines = [f"{printable(each.name)}\t{each.reason}\n".encode() for each in broken]
  for path in (folder / "broken.txt" for folder in folders):
    if lines:
      write_whole(path, lines)
    else:
      path.unlink(missing_ok=True)
