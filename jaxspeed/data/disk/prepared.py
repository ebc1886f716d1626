"""What `prepare` made from a folder of images, and whether that still fits the images.

FOLDER/.jaxspeed/prepared.json says how the copies or shards in FOLDER are made, and from what.
Folders without it were not written by `prepare` and are not checked.

A file is current, as with `make`, if its modification time is not before its original's. `prepare`
compares all times. When training starts, it compares the names of the images, and the times of a
sample.
"""

import collections
import dataclasses
import hashlib
import os
import pathlib
import random
import shlex
import stat
import urllib.parse
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import pydantic
from ml_collections import ConfigDict

from jaxspeed.data.formats.folders import EVAL_FOLDERS, list_folder, readable
from jaxspeed.errors import UserError, printable, some
from jaxspeed.files import dump_json, read_json, write_atomically

# The version folder that TFDS's layout needs; `prepare shards` writes no other.
VERSION = "1.0.0"
# A network disk is slow to answer, but answers many at once.
STAT_THREADS = 32
QUALITY = 75  # the default of `prepare resize`
_SAMPLE = 1_000
NAMED = 3  # the most names of images in a message

_Whole = Annotated[int, pydantic.Field(ge=0)]


@dataclasses.dataclass(frozen=True)
class Prepared:
  """How the files of a folder are made.

  Attributes:
    kind: the command.
    uri: the folder of the originals; a URI, because its name need not be UTF-8.
    setting: quality of the copies; number of shards requested, 0 for the default.
    sizes: short sides of the copies that are made together; () for shards.
    originals: number of originals and digest of their names, by split; "" without splits.
    newest: latest modification time of an original, in ns.
    images: number of images written, by split; empty until the folder is complete.
  """

  kind: Literal["resize", "shards"]
  uri: str
  setting: _Whole
  sizes: tuple[_Whole, ...]
  originals: Mapping[str, tuple[_Whole, str]]
  newest: _Whole = 0
  images: Mapping[str, _Whole] = dataclasses.field(default_factory=dict)

  @property
  def source(self) -> str:
    return os.fsdecode(urllib.parse.unquote_to_bytes(self.uri.removeprefix("file://")))


def _file_of(folder: pathlib.Path) -> pathlib.Path:
  return folder / ".jaxspeed" / "prepared.json"


def read_prepared(folder: pathlib.Path) -> Prepared | None:
  """Return how a folder is made, or None where `prepare` did not write it.

  Raises:
    UserError: the file that says so is damaged.
  """
  path = _file_of(folder)
  if not path.parent.is_dir():
    return None
  stored = read_json(path, Prepared, f"remove {folder} and make it again")
  return None if stored is None else pydantic.TypeAdapter(Prepared).validate_python(stored)


def write_prepared(folder: pathlib.Path, made: Prepared) -> None:
  """Store how the files of a folder are made.

  Raises:
    OSError: it cannot be written.
  """
  path = _file_of(folder)
  path.parent.mkdir(parents=True, exist_ok=True)
  write_atomically(path, dump_json(dataclasses.asdict(made)), sync=False)


def digests_of(paths: Iterable[str]) -> dict[str, tuple[int, str]]:
  """Return the number of names and their digest by split; paths are [SPLIT/]CLASS/FILE, sorted."""
  names = collections.defaultdict(list)
  for path in paths:
    *split, name, file = path.split("/")
    names["".join(split)].append(f"{name}/{file}")
  return {
    split: (len(each), hashlib.sha256(os.fsencode("\0".join(each))).hexdigest())
    for split, each in names.items()
  }


def modified(path: str) -> int:
  """Return the modification time of a file in ns; 0 where it is missing.

  Raises:
    OSError: the file exists, but its time cannot be read.
  """
  try:
    return os.stat(path).st_mtime_ns
  except FileNotFoundError:
    return 0


def is_current(path: str, original: int) -> bool:
  """Return whether a file is there, no link, and not before `original`, a modification time."""
  try:
    found = os.lstat(path)
  except (FileNotFoundError, NotADirectoryError):
    return False
  # Archives keep whole seconds.
  return stat.S_ISREG(found.st_mode) and found.st_mtime_ns // 10**9 >= original // 10**9


def mending(folder: pathlib.Path, made: Prepared) -> str:
  """Return the command that updates a folder: that of one size, or NAME/VERSION of shards."""
  words = [shlex.quote(made.source)]
  if made.kind == "shards":
    words += [shlex.quote(str(folder.parent.parent)), f"--name={shlex.quote(folder.parent.name)}"]
    words += [f"--shards={made.setting}"] * bool(made.setting)
  else:
    words += [shlex.quote(str(folder.parent)), f"--sizes={','.join(map(str, made.sizes))}"]
    words += [f"--quality={made.setting}"] * (made.setting != QUALITY)
  return f"python -m jaxspeed.prepare {made.kind} {' '.join(words)}"


def require_complete(folder: pathlib.Path) -> Prepared | None:
  """Return how a folder, as in `mending`, was made; None where `prepare` did not write it.

  Raises:
    UserError: files are missing.
  """
  made = read_prepared(folder)
  if made is not None and not made.images:
    what = "resized copies" if made.kind == "resize" else "shards"
    raise UserError(
      f"{folder} holds {what} that are not complete: run {mending(folder, made)}, which "
      "resumes where it was."
    )
  return made


def refuse_shards_below(root: pathlib.Path) -> None:
  """Raise a UserError where incomplete shards lie in NAME/VERSION of `root`, or in VERSION."""
  for folder in (root, root / VERSION, *sorted(root.glob(f"*/{VERSION}"))):
    require_complete(folder)


def check_counts(folder: pathlib.Path, made: Prepared, found: Mapping[str, int]) -> None:
  """Compare the number of images in each split with the number of copies written.

  Raises:
    UserError: there are fewer or more images than copies.
  """
  for split, number in found.items():
    written = made.images.get(split, 0)
    if number != written:
      advice = "names the others" if number > written else "makes the others"
      raise UserError(
        f"{folder / split} holds {number:,} images, and {written:,} copies were written there: run "
        f"{mending(folder, made)}, which {advice}."
      )


def copies_of(config: ConfigDict, side: int) -> str:
  """Return the folder of the resized copies with this short side."""
  return str(pathlib.Path(config.data.copies or f"{config.data.path.rstrip('/')}-sz") / str(side))


def require_fitting(folder: pathlib.Path, *, tune: bool) -> None:
  """Compare a folder with its originals, then these with theirs: shards may hold copies.

  Originals that are not on this machine are not compared; an empty folder counts as missing,
  because a disk may not be mounted there.

  Args:
    folder: a folder as in `mending`, or anything that `prepare` did not write.
    tune: whether only the images for training count.

  Raises:
    UserError: the folder is incomplete, or does not fit its originals.
  """
  for _ in ("shards", "copies"):
    made = require_complete(folder)
    if made is None:
      return
    root = pathlib.Path(made.source)
    with readable(root, "originals are"):
      if not root.is_dir() or not list_folder(root).folders:
        return
      difference = _difference(made, root, tune=tune)
    if difference:
      raise UserError(
        f"{folder} does not fit the images in {root}: {difference}; run {mending(folder, made)}."
      )
    folder = root


def _difference(made: Prepared, root: pathlib.Path, *, tune: bool) -> str:
  """Return how the originals differ from those that a folder was made from, or ''."""
  files: list[str] = []
  for split, before in made.originals.items():
    if tune and split in EVAL_FOLDERS:
      continue
    paths = list(_paths_in(root, split))
    now = digests_of(paths).get(split, (0, ""))
    if now != before:
      other = f"{now[0]:,}" if now[0] != before[0] else "others"
      return f"{root / split} held {before[0]:,} images then, and now {other}"
    files += paths
  sample = random.Random(0).sample(files, min(len(files), _SAMPLE))
  with ThreadPoolExecutor(STAT_THREADS) as pool:
    times = list(pool.map(modified, [os.path.join(root, name) for name in sample]))
  changed = [name for name, time in zip(sample, times, strict=True) if time > made.newest]
  if not changed:
    return ""
  named = some([*map(printable, sorted(changed))], NAMED)
  return f"{len(changed):,} of {len(sample):,} sampled images have changed ({named})"


def _paths_in(root: pathlib.Path, split: str) -> Iterable[str]:
  """Yield the path below `root` of each image of a split; nothing where it is missing."""
  if (folder := root / split).is_dir():
    for name in list_folder(folder).folders:
      for file in list_folder(folder / name).images:
        yield os.path.join(split, name, file)
