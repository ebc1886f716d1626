"""The broken images of a run: the file that lists them, and the limit on their number."""

import pathlib
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from jaxspeed.cluster import processes
from jaxspeed.errors import printable
from jaxspeed.feeds.broken import FILE, WORDS, allowed, describe, named_in, too_many
from jaxspeed.feeds.protocol import Broken
from jaxspeed.files import dump_json, parse_json, read_bytes, write_atomically

_TITLES = "split\tname\treason\n"


class BrokenImages:
  """The broken images of one run, as all its processes find them."""

  def __init__(
    self,
    folder: pathlib.Path,
    images: Mapping[str, int],
    config: ConfigDict,
    keep_folder: Callable[[], None],
  ) -> None:
    """Reads what earlier starts of the run found.

    Args:
      folder: the run's folder, where process 0 keeps `FILE`.
      images: the number of "train" and of "eval" images.
      config: the resolved config.
      keep_folder: called before an error refers to `FILE`, so that the folder is not removed.
    """
    self._path = folder / FILE
    self._images, self._keep_folder = images, keep_folder
    self._max_broken = config.data.max_broken
    self._all: Broken = _read(self._path) if processes.is_primary() else {}
    self._found: Broken = {}  # in this start, by any process
    self._own: Broken = dict(self._all)  # by this process, not yet sent to the others
    self._settled: set[tuple[str, str]] = set()  # sent to all processes in this start
    self._written = len(self._all)

  def count(self, kind: str) -> int:
    """The number of "train" or "eval" images found broken in the run so far, each counted once."""
    return sum(split == kind for split, _ in self._all)

  def note(self, broken: Broken) -> None:
    """Adds the images that this process found broken.

    Raises:
      UserError: too many images are broken. With several processes, `settle` raises this instead,
        so that all of them end.
    """
    broken = {key: reason for key, reason in broken.items() if key not in self._settled}
    if broken:
      self._own |= broken
      self._found |= broken
      if not processes.several():
        self._all = self._all | broken
        self._check()

  def settle(self) -> list[str]:
    """Tells all processes what any of them found, and writes it to `FILE`. All must call it.

    Returns:
      Lines on newly found images.

    Raises:
      UserError: too many images are broken; raised in all processes.
    """
    own = [[*key, reason, key in self._found] for key, reason in self._own.items()]
    self._own = {}
    new: Broken = {}
    for part in processes.gather_bytes(dump_json(own).encode() if own else b""):
      for kind, name, reason, is_found in parse_json(part or b"[]"):
        if is_found:
          new.setdefault((kind, name), reason)
        self._all.setdefault((kind, name), reason)
    self._found = new | self._found
    self._settled |= new.keys()
    lines = self._write() if processes.is_primary() else []
    self._check()
    return describe(new, self._path.name) + lines

  def _write(self) -> list[str]:
    """Writes `FILE` if it lacks something; returns a line if that fails."""
    if len(self._all) == self._written:
      return []
    rows = sorted(
      (kind, printable(name), printable(why)) for (kind, name), why in self._all.items()
    )
    try:
      write_atomically(self._path, _TITLES + "".join("\t".join(row) + "\n" for row in rows))
    except OSError as error:
      reason = error.strerror or error
      return [f"{self._path} could not be written ({reason}): it will be tried again later"]
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
        raise too_many(kind, named_in(found), len(found), images, self._max_broken, after=listed)


def _read(path: pathlib.Path) -> Broken:
  """The images that `FILE` lists from earlier starts; malformed lines are left out."""
  try:
    lines = read_bytes(path).decode(errors="replace").splitlines()[1:]
  except (FileNotFoundError, ValueError):
    return {}
  rows = [line.split("\t") for line in lines]
  return {(row[0], row[1]): row[2] for row in rows if len(row) == 3 and row[0] in WORDS}
