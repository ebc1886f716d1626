"""Images that a run does without: which, why, in which file, and when they are too many."""

import itertools
import json
import pathlib
from collections.abc import Callable, Collection, Mapping

import numpy as np
from ml_collections import ConfigDict

from jaxspeed.cluster import processes
from jaxspeed.data.disk.repair import why_broken
from jaxspeed.data.disk.sets import NAMED, ImageSets
from jaxspeed.errors import UserError, printable
from jaxspeed.feeds.evaluation import Broken
from jaxspeed.files import read_bytes, write_atomically

FILE = "broken_images.tsv"
_TITLES = "split\tname\treason\n"
_WORDS = {"train": "training", "eval": "evaluation"}


def allowed(images: int, max_broken: float) -> int:
  """How many of a split's images may be broken: of few images one may, unless none is to be.

  Args:
    images: of the split.
    max_broken: `config.data.max_broken`.
  """
  return max(1, int(images * max_broken)) if max_broken else 0


def check_headers(
  sets: ImageSets, config: ConfigDict, splits: Collection[str] = ("train", "eval")
) -> None:
  """Makes sure that few enough headers of a set's images could not be read.

  Args:
    sets: opened.
    config: its `data` counts; with on_error="raise" the stream refuses the first image.
    splits: of "train" and "eval".

  Raises:
    UserError: there are more than `allowed`.
  """
  if config.data.on_error == "raise":
    return
  for images in {id(each): each for each in sets.sets.values()}.values():
    for kind in splits:
      split = images.train if kind == "train" else images.eval
      broken = np.flatnonzero(split.width == 0).tolist()
      if len(broken) > allowed(len(split), config.data.max_broken):
        named = [f"{split.name(i)} ({why_broken(split, i)})" for i in broken[:NAMED]]
        raise _too_many(
          kind,
          named,
          len(broken),
          len(split),
          config.data.max_broken,
          where=f"in {split.root} ",
          after=f"{FILE} in the workdir of such a run lists all",
        )


def check_evaluated(broken: Mapping[str, str], images: int, config: ConfigDict) -> list[str]:
  """A line on images that an evaluation went without; none where there are none.

  Args:
    broken: reasons by name.
    images: of the split.
    config: its `data` counts.

  Raises:
    UserError: there are more than `allowed`.
  """
  if len(broken) > allowed(images, config.data.max_broken):
    raise _too_many("eval", _named(broken), len(broken), images, config.data.max_broken)
  return _describe({("eval", name): reason for name, reason in broken.items()})


def _named(broken: Mapping[str, str]) -> list[str]:
  return [f"{name} ({reason})" for name, reason in itertools.islice(broken.items(), NAMED)]


def _too_many(
  kind: str,
  named: list[str],
  broken: int,
  images: int,
  max_broken: float,
  *,
  where: str = "",
  after: str = "",
) -> UserError:
  more = f" and {broken - NAMED:,} more" if broken > NAMED else ""
  # Rounded up, so that this share lets them pass.
  enough = min(1.0, -(-10_000 * broken // images) / 10_000)
  return UserError(
    f"{broken:,} of {images:,} {_WORDS[kind]} images {where}could not be read, and "
    f"config.data.max_broken={max_broken:g} lets {allowed(images, max_broken):,} pass: "
    f"{', '.join(named[:NAMED])}{more}; mend them, or go on without them with "
    f"--config.data.max_broken={enough:g}{f' ({after})' if after else ''}."
  )


class BrokenImages:
  """The broken images of one run, of all its processes."""

  def __init__(
    self,
    folder: pathlib.Path,
    images: Mapping[str, int],
    config: ConfigDict,
    keep_folder: Callable[[], None],
  ) -> None:
    """Reads what earlier starts of the run have found.

    Args:
      folder: of the run, in which process 0 keeps `FILE`.
      images: how many "train" and "eval" have.
      config: resolved.
      keep_folder: called when `FILE` holds what the end of the run refers to.
    """
    self._path = folder / FILE
    self._images, self._keep_folder = images, keep_folder
    self._max_broken = config.data.max_broken
    self._all: Broken = _read(self._path) if processes.is_primary() else {}
    self._found: Broken = {}  # in this start, of all processes
    self._own: Broken = dict(self._all)  # of this process, not yet known to the others
    self._settled: set[tuple[str, str]] = set()  # in this start
    self._written = len(self._all)

  def count(self, kind: str) -> int:
    """Different images of "train" or "eval" that were broken in the run so far."""
    return sum(split == kind for split, _ in self._all)

  def note(self, broken: Broken) -> None:
    """Takes in what this process has found.

    Raises:
      UserError: it is alone, and they are too many. Several processes find that out in `settle`,
        where all of them end.
    """
    broken = {key: reason for key, reason in broken.items() if key not in self._settled}
    if broken:
      self._own |= broken
      self._found |= broken
      if not processes.several():
        self._all = self._all | broken
        self._check()

  def settle(self) -> list[str]:
    """Makes what any process has found known to all, and writes it down. All must call it.

    Returns:
      Lines on what is new.

    Raises:
      UserError: they are too many, in all processes.
    """
    own = [[*key, reason, key in self._found] for key, reason in self._own.items()]
    self._own = {}
    new: Broken = {}
    for part in processes.gather_bytes(json.dumps(own).encode() if own else b""):
      for kind, name, reason, is_found in json.loads(part or b"[]"):
        if is_found:
          new.setdefault((kind, name), reason)
        self._all.setdefault((kind, name), reason)
    self._found = new | self._found
    self._settled |= new.keys()
    lines = self._write() if processes.is_primary() else []
    self._check()
    return _describe(new, self._path.name) + lines

  def _write(self) -> list[str]:
    """Writes the file where it lacks something; a line where that fails."""
    if len(self._all) == self._written:
      return []
    rows = sorted(
      (kind, printable(name), printable(why)) for (kind, name), why in self._all.items()
    )
    try:
      write_atomically(self._path, _TITLES + "".join("\t".join(row) + "\n" for row in rows))
    except OSError as error:
      reason = error.strerror or error
      return [f"{self._path} could not be written ({reason}): it is tried again later"]
    self._written = len(self._all)
    return []

  def _check(self) -> None:
    for kind, images in self._images.items():
      found = {name: reason for (split, name), reason in self._found.items() if split == kind}
      if len(found) > allowed(images, self._max_broken):
        if processes.is_primary():
          self._write()
        self._keep_folder()
        listed = f"{self._path} lists all"
        raise _too_many(kind, _named(found), len(found), images, self._max_broken, after=listed)


def _describe(new: Broken, file: str = "") -> list[str]:
  """A line a split on images that are newly known to be broken, and the file that lists all."""
  lines = []
  for kind, effect in (
    ("train", "the next one takes the place of each"),
    ("eval", "they do not count"),
  ):
    broken = {name: reason for (split, name), reason in new.items() if split == kind}
    if broken:
      more = f" and {len(broken) - NAMED:,} more" if len(broken) > NAMED else ""
      lines.append(
        f"{len(broken):,} {_WORDS[kind]} image{'s' * (len(broken) > 1)} could not be read, "
        f"{effect}: {', '.join(_named(broken))}{more}{f' ({file})' if file else ''}"
      )
  return lines


def _read(path: pathlib.Path) -> Broken:
  """What the file of an earlier start lists; lines that are none of ours are left out."""
  try:
    lines = read_bytes(path).decode(errors="replace").splitlines()[1:]
  except (FileNotFoundError, ValueError):
    return {}
  rows = [line.split("\t") for line in lines]
  return {(row[0], row[1]): row[2] for row in rows if len(row) == 3 and row[0] in _WORDS}
