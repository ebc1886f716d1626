"""Records of the original of each resized copy, and checks that a folder of copies is complete.

COPIES is the folder of one size, and COPIES/.jaxspeed holds its records:

    resize.json            the quality of the copies and the folder of their originals
    originals/train/CLASS  the size and time of each copy's original when it was read
    complete.json          the number of copies in each split; written last, removed before any work

Folders without resize.json were not written by `prepare resize` and are not checked.
"""

import dataclasses
import itertools
import os
import pathlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jaxspeed.data.formats.folders import EVAL_FOLDERS, list_folder
from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json, load_json, write_atomically

# Size in bytes and modification time in ns of an original; AWAY for a missing one (a dead link).
Facts = tuple[int, int]
AWAY = (-1, 0)

SPLITS = ("train", *EVAL_FOLDERS)
_QUALITY = 75  # the default of `prepare resize`
_THREADS = 32
_CHUNK = 500  # files of one thread's job
_NAMED = 3  # the most names of images in a message


@dataclasses.dataclass
class Record:
  """The originals of one class, by file name.

  Attributes:
    copies: originals with a copy.
    broken: originals that could not be read and have no copy.
    pending: names of copies that are being made, or were when the work was killed.
  """

  copies: dict[str, Facts] = dataclasses.field(default_factory=dict)
  broken: dict[str, Facts] = dataclasses.field(default_factory=dict)
  pending: set[str] = dataclasses.field(default_factory=set)

  @property
  def names(self) -> set[str]:
    """The files that `prepare resize` may have written."""
    return self.copies.keys() | self.pending


@dataclasses.dataclass(frozen=True)
class Settings:
  """How copies are made: the JPEG quality, and the originals' folder ('' if unknown)."""

  quality: int
  source: str


def _own(copies: pathlib.Path) -> pathlib.Path:
  return copies / ".jaxspeed"


def records_folder(copies: pathlib.Path) -> pathlib.Path:
  """Return the folder of the records, one file for each SPLIT/CLASS."""
  return _own(copies) / "originals"


def read_record(copies: pathlib.Path, name: str) -> Record:
  """Return the record of a class, empty where it is missing or damaged.

  Args:
    copies: the folder of one size.
    name: the class, SPLIT/CLASS.
  """
  try:
    stored = load_json(records_folder(copies) / name)
    # Without a `kind`: pydantic refuses the escapes of names that are not UTF-8.
    return Record(
      _facts_by_name(stored["copies"]), _facts_by_name(stored["broken"]), set(stored["pending"])
    )
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return Record()


def _facts_by_name(stored: Mapping[str, Any]) -> dict[str, Facts]:
  return {name: (int(size), int(time)) for name, (size, time) in stored.items()}


def write_record(copies: pathlib.Path, name: str, record: Record) -> None:
  """Write the record of a class, whole or not at all.

  Raises:
    OSError: the record cannot be written.
  """
  path = records_folder(copies) / name
  path.parent.mkdir(parents=True, exist_ok=True)
  content = {
    "copies": dict(sorted(record.copies.items())),
    "broken": dict(sorted(record.broken.items())),
    "pending": sorted(record.pending),
  }
  write_atomically(path, dump_json(content), sync=False)


def recorded_classes(copies: pathlib.Path) -> list[str]:
  """Return SPLIT/CLASS of each class that has a record."""
  return [
    f"{split}/{file}"
    for split in SPLITS
    for file in sorted(_names_in(records_folder(copies) / split))
    if not file.startswith(".")
  ]


def _names_in(folder: pathlib.Path) -> list[str]:
  try:
    return os.listdir(folder)
  except (FileNotFoundError, NotADirectoryError):
    return []


def read_settings(copies: pathlib.Path) -> Settings | None:
  """Return a folder's settings, or None where `prepare resize` did not write it.

  Raises:
    UserError: the settings are damaged.
  """
  path = _own(copies) / "resize.json"
  if not path.parent.is_dir():
    return None
  try:
    stored = load_json(path)
    quality = stored["quality"]
    if type(quality) is not int or not 1 <= quality <= 100:
      raise ValueError("its quality is not 1 ... 100")
    return Settings(quality, str(stored.get("source", "")))
  except FileNotFoundError:
    return None
  except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
    why = f" ({error})" if isinstance(error, ValueError) else ""
    raise UserError(
      f"{path} is damaged{why}: remove {copies} and make the copies again."
    ) from error


def write_settings(copies: pathlib.Path, settings: Settings) -> None:
  """Write the settings of a folder of copies.

  Raises:
    OSError: the settings cannot be written.
  """
  _own(copies).mkdir(parents=True, exist_ok=True)
  content = dump_json(dataclasses.asdict(settings))
  write_atomically(_own(copies) / "resize.json", content, sync=False)


def write_mark(copies: pathlib.Path, images: Mapping[str, int], orphans: int) -> None:
  """Mark a folder of copies as complete.

  Args:
    copies: the folder of one size.
    images: number of copies by split.
    orphans: number of further copies, without originals.
  """
  content = {"images": dict(images), "orphans": orphans}
  write_atomically(_own(copies) / "complete.json", dump_json(content), sync=False)


def remove_mark(copies: pathlib.Path) -> None:
  """Mark a folder of copies as incomplete."""
  (_own(copies) / "complete.json").unlink(missing_ok=True)


def mending(
  copies: pathlib.Path, source: str = "", *, prune: bool = False, sizes: Sequence[str] = ()
) -> str:
  """Return the command that completes a folder of copies or updates it to its originals.

  Args:
    copies: the folder of one size.
    source: the originals' folder; '' means the recorded one.
    prune: whether the command removes copies without originals.
    sizes: folder names of all sizes to update; () means this one only.
  """
  settings = read_settings(copies) or Settings(_QUALITY, "")
  source = source or settings.source
  words = [shlex.quote(source) if source else "SRC", shlex.quote(str(copies.parent))]
  words.append(f"--sizes={','.join(sizes) or copies.name}")
  words += [f"--quality={settings.quality}"] * (settings.quality != _QUALITY)
  words += ["--prune"] * prune
  return f"python -m jaxspeed.prepare resize {' '.join(words)}"


def require_mark(
  copies: pathlib.Path, source: str = "", *, sizes: Sequence[str] = ()
) -> dict[str, int] | None:
  """Return the number of copies in each split, or None where `prepare resize` wrote none.

  Args:
    copies: a folder of images.
    source: the originals' folder, if known.
    sizes: sizes to update, as in `mending`.

  Raises:
    UserError: copies are missing, or the originals of some are gone.
  """
  if read_settings(copies) is None:
    return None
  try:
    mark = load_json(_own(copies) / "complete.json")
    images = {str(split): int(number) for split, number in mark["images"].items()}
    orphans = int(mark["orphans"])
    if min(orphans, *images.values()) < 0:
      raise ValueError
  except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
    run = f"run {mending(copies, source, sizes=sizes)}, which resumes where it was"
    raise UserError(f"{copies} holds resized copies that are not complete: {run}.") from None
  if orphans:
    run = f"run {mending(copies, source, prune=True, sizes=sizes)}, which removes them"
    raise UserError(f"{copies} holds {orphans:,} copies without originals: {run}.")
  return images


def check_counts(copies: pathlib.Path, marked: Mapping[str, int], found: Mapping[str, int]) -> None:
  """Compare the number of images in each split with the number of copies written.

  Raises:
    UserError: there are fewer or more images than copies.
  """
  for split, number in found.items():
    written = marked.get(split, 0)
    if number != written:
      more = number > written
      advice = "removes or names the others" if more else "makes the missing ones"
      found_there = f"{copies / split} holds {number:,} images, and {written:,} copies were written"
      raise UserError(f"{found_there} there: run {mending(copies, prune=more)}, which {advice}.")


# Originals


def facts_of(stat: os.stat_result) -> Facts:
  return stat.st_size, stat.st_mtime_ns


def same(one: Facts, other: Facts) -> bool:
  """Return whether an original is unchanged; a time in whole seconds, as from tar, is enough."""
  if one == other:
    return True
  second = 10**9
  whole = not (one[1] % second and other[1] % second)
  return whole and (one[0], one[1] // second) == (other[0], other[1] // second)


def originals_facts(
  root: pathlib.Path, classes: Iterable[tuple[str, Sequence[str]]]
) -> Iterator[tuple[str, dict[str, Facts]]]:
  """Yield each class's name and the facts of its images, in order.

  32 threads ask for them: a network disk is slow to answer, but answers many at once.

  Args:
    root: the originals' folder.
    classes: SPLIT/CLASS and the names of its images.

  Raises:
    UserError: the size and time of an existing image cannot be read.
  """

  def ask(folder: str, names: Sequence[str]) -> list[Facts]:
    try:
      return [facts_at(f"{folder}{os.sep}{name}") for name in names]
    except OSError as error:
      raise UserError(
        f"{error.filename or folder} cannot be read ({error.strerror or error}): the originals are "
        "not complete, or not readable for you."
      ) from error

  def parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[first : first + _CHUNK] for first in range(0, len(names), _CHUNK)]

  with ThreadPoolExecutor(_THREADS, thread_name_prefix="originals") as pool:
    for some in _groups(classes):
      asked = [
        (name, names, [pool.submit(ask, str(root / name), part) for part in parts(names)])
        for name, names in some
      ]
      for name, names, futures in asked:
        facts = itertools.chain.from_iterable(future.result() for future in futures)
        yield name, dict(zip(names, facts, strict=True))


def _groups(
  classes: Iterable[tuple[str, Sequence[str]]],
) -> Iterator[list[tuple[str, Sequence[str]]]]:
  """Group classes: enough in a group for all threads, few enough for the memory."""
  group: list[tuple[str, Sequence[str]]] = []
  jobs = 0
  for each in classes:
    group.append(each)
    jobs += -(-len(each[1]) // _CHUNK)
    if jobs >= 4 * _THREADS:
      yield group
      group, jobs = [], 0
  yield group


def facts_at(path: str) -> Facts:
  """Return the facts of a file, or AWAY where it is missing or its name cannot be a file's.

  Raises:
    OSError: the file exists, but its size and time cannot be read.
  """
  try:
    return facts_of(os.stat(path))
  except (FileNotFoundError, ValueError):  # ValueError: a zero byte or half a surrogate pair
    return AWAY


@dataclasses.dataclass
class Difference:
  """Names of originals (SPLIT/CLASS/NAME) that do not fit the copies in a folder."""

  new: list[str] = dataclasses.field(default_factory=list)
  changed: list[str] = dataclasses.field(default_factory=list)
  removed: list[str] = dataclasses.field(default_factory=list)

  def __bool__(self) -> bool:
    return bool(self.new or self.changed or self.removed)

  def __str__(self) -> str:
    kinds = {"new": self.new, "changed": self.changed, "removed": self.removed}
    parts = (f"{len(names):,} {kind} ({_some(names)})" for kind, names in kinds.items() if names)
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
  more = f", and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
  return f"{', '.join(map(printable, names[:_NAMED]))}{more}"


def differences(
  originals: pathlib.Path, copies: Sequence[pathlib.Path], *, tune: bool
) -> list[Difference]:
  """Return how the originals on disk differ from those recorded, for each folder of copies.

  Originals that were broken and have not changed do not count.

  Args:
    originals: a folder with train/CLASS/NAME and the other split.
    copies: folders of one size each, with records.
    tune: whether to check 'train' only.

  Raises:
    UserError: the size and time of an image cannot be read.
    OSError: a folder cannot be read.
  """
  splits = ["train"]
  if not tune:
    splits += [each for each in EVAL_FOLDERS if (originals / each).is_dir()][:1]
  found = [Difference() for _ in copies]
  seen = set()
  for name, facts in originals_facts(originals, _classes_in(originals, splits)):
    seen.add(name)
    for folder, difference in zip(copies, found, strict=True):
      _compare(name, facts, read_record(folder, name), difference)
  for folder, difference in zip(copies, found, strict=True):
    for name in recorded_classes(folder):
      if name not in seen and (not tune or name.startswith("train/")):
        _compare(name, {}, read_record(folder, name), difference)
  return found


def _classes_in(root: pathlib.Path, splits: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
  for split in splits:
    for name in list_folder(root / split).folders:
      yield f"{split}/{name}", list_folder(root / split / name).images


def _compare(name: str, facts: Mapping[str, Facts], record: Record, difference: Difference) -> None:
  known = record.copies | record.broken
  for file, now in facts.items():
    if file not in known:
      difference.new.append(f"{name}/{file}")
    elif not same(known[file], now):
      difference.changed.append(f"{name}/{file}")
  difference.removed += [f"{name}/{file}" for file in record.copies if file not in facts]
