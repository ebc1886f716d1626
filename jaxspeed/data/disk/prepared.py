"""What `prepare` made from a folder of images, and whether that still fits the images.

FOLDER/.jaxspeed/resize.json or shards.json says how the copies or shards in FOLDER were made, and
from what. Folders without such a file were not written by `prepare` and are not checked.

`prepare` compares modification times, as `make` does. When training starts, it compares the names
of the images, and the times of a sample.
"""

import dataclasses
import hashlib
import os
import pathlib
import random
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.data.formats.folders import EVAL_FOLDERS, has_splits, list_folder
from jaxspeed.data.formats.tfrecord import find_tfds, only_tfds
from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json, expanded, load_json, write_atomically

SPLITS = ("train", *EVAL_FOLDERS)
# The version folder that TFDS's layout needs; `prepare shards` writes no other.
VERSION = "1.0.0"
# A network disk is slow to answer, but answers many at once.
STAT_THREADS = 32
QUALITY = 75  # the default of `prepare resize`
_SAMPLE = 1_000
_NAMED = 3  # the most names of images in a message
# By kind: the name of the setting that a folder keeps.
_SETTINGS = {"resize": "quality", "shards": "shards"}


@dataclasses.dataclass(frozen=True)
class Prepared:
  """How the files of a folder were made.

  Attributes:
    kind: the command, "resize" or "shards".
    source: the folder of the originals; "" where an older version did not store it.
    setting: quality of the copies; number of shards requested, 0 for the default.
    originals: number of originals and digest of their names, by folder below the source.
    newest: latest modification time of an original, in ns.
    content: digest of what belongs in each shard.
    images: number of images written, by split; empty until the folder is complete.
  """

  kind: str
  source: str
  setting: int
  originals: Mapping[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
  newest: int = 0
  content: str = ""
  images: Mapping[str, int] = dataclasses.field(default_factory=dict)


def read_prepared(folder: pathlib.Path, *kinds: str) -> Prepared | None:
  """Return how a folder was made, or None where `prepare` did not write it.

  Raises:
    UserError: the file that says so is damaged.
  """
  for kind in kinds or _SETTINGS:
    path = folder / ".jaxspeed" / f"{kind}.json"
    if not path.parent.is_dir():
      continue
    try:
      # Without a `kind`: pydantic refuses the escapes of names that are not UTF-8.
      stored = load_json(path)
      originals = stored.get("originals", {})
      found = Prepared(
        kind=kind,
        source=str(stored.get("source", "")),
        setting=_whole(stored[_SETTINGS[kind]]),
        originals={str(name): (_whole(n), str(digest)) for name, (n, digest) in originals.items()},
        newest=_whole(stored.get("newest", 0)),
        content=str(stored.get("content", "")),
        images={str(split): _whole(n) for split, n in stored.get("images", {}).items()},
      )
      return found
    except FileNotFoundError:
      continue
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      why = f" ({error})" if isinstance(error, ValueError) else ""
      raise UserError(f"{path} is damaged{why}: remove {folder} and make it again.") from error
  return None


def _whole(value: Any) -> int:
  if type(value) is not int or value < 0:
    raise TypeError
  return value


def write_prepared(folder: pathlib.Path, made: Prepared) -> None:
  """Store how the files of a folder are made.

  Raises:
    OSError: it cannot be written.
  """
  content = dataclasses.asdict(made)
  content[_SETTINGS[content.pop("kind")]] = content.pop("setting")
  (folder / ".jaxspeed").mkdir(parents=True, exist_ok=True)
  path = folder / ".jaxspeed" / f"{made.kind}.json"
  write_atomically(path, dump_json(content), sync=False)


def names_of(names: Collection[str]) -> tuple[int, str]:
  """Return the number and a digest of names, CLASS/FILE, in the order of a listing."""
  return len(names), hashlib.sha256(os.fsencode("\0".join(names))).hexdigest()


def modified(path: str) -> int:
  """Return the modification time of a file in ns; 0 where it is missing.

  Raises:
    OSError: the file exists, but its time cannot be read.
  """
  try:
    return os.stat(path).st_mtime_ns
  except FileNotFoundError:
    return 0


def not_before(time: int, original: int) -> bool:
  """Return whether a modification time is not before an original's; archives keep whole seconds."""
  return time // 10**9 >= original // 10**9


def mending(folder: pathlib.Path, made: Prepared, source: str = "") -> str:
  """Return the command that updates a folder, and the copies of other sizes beside it.

  Args:
    folder: the folder of one size, or NAME/VERSION of shards.
    made: how it was made.
    source: the folder of the originals, if it is another now.
  """
  words = [shlex.quote(source or made.source or "SRC")]
  if made.kind == "shards":
    words += [shlex.quote(str(folder.parent.parent)), f"--name={folder.parent.name}"]
    words += [f"--shards={made.setting}"] * bool(made.setting)
  else:
    beside = folder.parent.glob("*/.jaxspeed/resize.json")
    found = {each.parents[1].name: read_prepared(each.parents[1], "resize") for each in beside}
    alike = {
      name
      for name, other in found.items()
      if other and (other.source, other.setting) == (made.source, made.setting)
    }
    sizes = sorted((each for each in alike | {folder.name} if each.isdecimal()), key=int)
    words += [shlex.quote(str(folder.parent)), f"--sizes={','.join(sizes)}"]
    words += [f"--quality={made.setting}"] * (made.setting != QUALITY)
  return f"python -m jaxspeed.prepare {made.kind} {' '.join(words)}"


def require_complete(folder: pathlib.Path, source: str = "") -> Prepared | None:
  """Return how a folder was made; None where `prepare` did not write it.

  Args:
    folder: as in `mending`, like `source`.

  Raises:
    UserError: files are missing.
  """
  made = read_prepared(folder)
  if made is not None and not made.images:
    what = "resized copies" if made.kind == "resize" else "shards"
    raise UserError(
      f"{folder} holds {what} that are not complete: run {mending(folder, made, source)}, which "
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
    if number != made.images.get(split, 0):
      advice = "names the others" if number > made.images.get(split, 0) else "makes the others"
      raise UserError(
        f"{folder / split} holds {number:,} images, and {made.images.get(split, 0):,} copies were "
        f"written there: run {mending(folder, made)}, which {advice}."
      )


def copies_of(config: ConfigDict, side: int) -> str:
  """Return the folder of the resized copies with this short side."""
  return str(pathlib.Path(config.data.copies or f"{config.data.path.rstrip('/')}-sz") / str(side))


def require_up_to_date(config: ConfigDict, sides: Sequence[int]) -> list[str]:
  """Compare copies and shards with their originals, where both exist.

  Args:
    config: the run's config; `data` and `tune_on` are used.
    sides: short sides of the copies to read; 0: the originals, which may be copies themselves.

  Returns:
    Lines about copies that are not checked or not read.

  Raises:
    UserError: copies or shards are incomplete, or do not fit their originals.
  """
  notes = []
  path, tune = config.data.path, config.tune_on == "validation"
  for side in sides:
    name = copies_of(config, side) if side else path
    folder = expanded(name, "config.data.copies") if name else pathlib.Path()
    if not name or not folder.is_dir():
      continue
    packed = None if has_splits(folder) else _shards_in(folder, config.data.name)
    source = path if side and path and not packed and os.path.isdir(expanded(path, "path")) else ""
    if side and not packed and read_prepared(folder) is None:
      notes.append(
        f"{printable(name)} was not written by prepare resize, so it is not known whether its "
        "copies fit the originals"
      )
    _require_fitting(packed or folder, source, tune=tune)
  if not any(sides) and path:
    notes += _unread_copies(expanded(copies_of(config, 0), "config.data.copies").parent)
  return notes


def _shards_in(folder: pathlib.Path, name: str) -> pathlib.Path | None:
  return find_tfds(folder, name) or only_tfds(folder)


def _require_fitting(folder: pathlib.Path, source: str, *, tune: bool) -> None:
  """Compare a folder with its originals, then these with theirs: shards may hold copies.

  Originals that are not on this machine are not compared; an empty folder counts as missing,
  because a disk may not be mounted there.
  """
  for _ in range(len(_SETTINGS)):
    made = require_complete(folder, source)
    if made is None:
      return
    root = expanded(source or made.source, "config.data.path")
    try:
      if not (source or made.source) or not root.is_dir() or not list_folder(root).folders:
        return
      difference = _difference(made, root, tune=tune)
    except OSError as error:
      raise UserError(
        f"{error.filename or root} cannot be read ({error.strerror or error}): the originals are "
        "not complete, or not readable for you."
      ) from error
    if difference:
      raise UserError(
        f"{folder} does not fit the images in {root}: {difference}; run "
        f"{mending(folder, made, source)}."
      )
    folder, source = root, ""


def _difference(made: Prepared, root: pathlib.Path, *, tune: bool) -> str:
  """Return how the originals differ from those that a folder was made from, or ''."""
  files: list[str] = []
  for split, (before, digest) in made.originals.items():
    if tune and split in EVAL_FOLDERS:
      continue
    names = list(_names_in(root / split))
    if names_of(names) != (before, digest):
      other = f"{len(names):,}" if len(names) != before else "others"
      return f"{root / split} held {before:,} images then, and now {other}"
    files += [os.path.join(split, name) for name in names]
  sample = random.Random(0).sample(files, min(len(files), _SAMPLE))
  with ThreadPoolExecutor(STAT_THREADS) as pool:
    times = list(pool.map(modified, [os.path.join(root, name) for name in sample]))
  changed = [name for name, time in zip(sample, times, strict=True) if time > made.newest]
  if not changed:
    return ""
  return (
    f"{len(changed):,} of {len(sample):,} sampled images have changed ({some(sorted(changed))})"
  )


def _names_in(folder: pathlib.Path) -> Iterable[str]:
  """Yield CLASS/FILE of each image in a folder of classes; nothing where it is missing."""
  if folder.is_dir():
    for name in list_folder(folder).folders:
      yield from (f"{name}/{file}" for file in list_folder(folder / name).images)


def some(names: Sequence[str]) -> str:
  """Return the first names for a message."""
  more = f", and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
  return f"{', '.join(map(printable, names[:_NAMED]))}{more}"


def _unread_copies(root: pathlib.Path) -> list[str]:
  """Return a note about copies where a run looks for them but that no phase reads, if any."""
  folders = sorted(root.glob("*/.jaxspeed/resize.json"), key=lambda path: len(str(path)))
  names = [path.parent.parent.name for path in folders]
  if not names:
    return []
  return [
    f"{printable(str(root))} holds resized copies ({', '.join(map(printable, names))}) that this "
    "recipe does not read: name one of these folders in --config.data.path, or, for a recipe with "
    "phases, all in --config.phases.copies"
  ]
