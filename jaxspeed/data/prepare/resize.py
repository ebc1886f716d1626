"""Smaller copies of a folder of images, made once, so that no epoch decodes the large originals.

resize("imagenet", "copies", sizes=(160, 352)) reads imagenet/train/CLASS/NAME and writes
copies/160/train/CLASS/NAME and copies/352/train/CLASS/NAME, and the same for the other split;
CLASS/NAME without splits likewise. A copy's short side is its size. It depends only on its
original, the sizes and the quality. Formula, filter and quality are those of the sz/160 and sz/352
folders of imagenet18 (diux-dev/cluster, pytorch/training/resize_images.py).
"""

import functools
import io
import math
import os
import pathlib
from collections.abc import Mapping, Sequence

from PIL import Image

from jaxspeed.data.disk.index import Show
from jaxspeed.data.disk.prepared import is_current
from jaxspeed.data.disk.sources import list_images
from jaxspeed.data.formats import pixels
from jaxspeed.data.prepare.writing import Broken, Done, Made, follow
from jaxspeed.errors import UserError
from jaxspeed.files import expanded, open_regular, write_atomically

QUALITY = 75  # the default
# libjpeg scales by 1/2, 1/4 or 1/8 in the DCT. Decoding to at least twice the copy's size has an
# error of 44 dB (JPEG's own at quality 75: 31 dB); to once its size, 37 dB and 3 % less sharpness.
_DECODED = 2
# Images of one job of a worker: 0.1 s of work.
_CHUNK = 16


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
    stored = pixels.swapped(width, height, orientation)
    shapes = {size: copy_shape(*stored, size) for size in smaller}
    box = None
    if smaller:
      decoded = (_DECODED * each for each in shapes[max(smaller)])
      drafted = image.draft(None, tuple(decoded))  # type: ignore[arg-type]
      box = drafted[1] if drafted else None
    loaded = pixels.load(image)
  copies = dict.fromkeys(sizes, encoded)
  for size, shape in shapes.items():
    resized = pixels.upright(loaded.resize(shape, Image.Resampling.BILINEAR, box), orientation)
    resized.info = {}  # otherwise the original's comment would be in every copy
    buffer = io.BytesIO()
    resized.save(buffer, "JPEG", quality=quality)
    copies[size] = buffer.getvalue()
  return copies


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
    source: a folder with train/CLASS/NAME and val/, validation/ or test/CLASS/NAME, or CLASS/NAME.
    destination: a folder outside the source.
    sizes: short sides, in pixels.
    quality: quality of the JPEGs, 1 ... 100.
    workers, show: as in `follow`.

  Raises:
    UserError: as in `follow`.
  """
  table = list_images(expanded(source, "SRC"))
  folders = [expanded(destination, "DST") / str(size) for size in sizes]
  flags = [f"--sizes={','.join(map(str, sizes))}", *[f"--quality={quality}"] * (quality != QUALITY)]
  jobs = [*table.names.lists(_CHUNK)]
  roots = dict(zip(sizes, map(str, folders), strict=True))
  work = functools.partial(_resize, table.root, roots, quality)
  return follow(folders, "resize", table, flags, jobs, work, workers=workers, show=show)


def _resize(source: str, roots: Mapping[int, str], quality: int, names: Sequence[str]) -> Made:
  """Make copies of images in the folders by size, and remove those of images now broken."""
  pixels.drop_warnings()
  folder_of = functools.cache(_folder)  # for a moment: others may put links there
  read, newest, broken = 0, 0, list[Broken]()
  for name in names:
    below, file_name = os.path.split(name)
    places = {s: os.path.join(folder_of(root, below), file_name) for s, root in roots.items()}
    copies: dict[int, bytes] = {}
    try:
      path = os.path.join(source, name)
      # Taken before reading: a file that changes meanwhile is then newer than its copies.
      time = os.stat(path).st_mtime_ns
      newest = max(newest, time)
      if all(is_current(place, time) for place in places.values()):
        continue
      with open_regular(path) as file:
        copies = make_copies(file.read(), [*places], quality=quality)
      read += 1
    # Damaged images make Pillow raise almost anything: OSError, SyntaxError, struct.error, ...
    except Exception as error:
      broken.append((name, pixels.reason_of(error)))
    for size, place in places.items():
      if copies:
        write_atomically(place, copies[size], sync=False)
        os.utime(place, ns=(time, time))
      else:
        pathlib.Path(place).unlink(missing_ok=True)
  return len(names), read, newest, broken


def _folder(root: str, below: str) -> str:
  """Return the real path of a folder of copies, after making it.

  Raises:
    UserError: a link leads out of `root`, where it could be others' images that are written over.
  """
  place = os.path.join(os.path.realpath(root), below)
  if os.path.realpath(place) != place:
    raise UserError(f"{place} is or lies behind a link: replace it by a folder.")
  os.makedirs(place, exist_ok=True)
  return place
