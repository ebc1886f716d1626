"""The broken images of a run: the file that lists them, and the limit on their number."""

import pathlib

from jaxspeed.cluster import processes
from jaxspeed.errors import printable
from jaxspeed.feeds.broken import FILE, WORDS, allowed, describe, named_in, too_many
from jaxspeed.feeds.protocol import Broken
from jaxspeed.files import dump_json, parse_json, read_bytes, write_atomically
from jaxspeed.run.run import Run


class BrokenImages:
  """The broken images of one run, as all its processes find them; process 0 keeps `FILE`."""

  def __init__(self, run: Run) -> None:
    self._path, self._max_broken = run.folder / FILE, run.config.data.max_broken
    self._images = {"train": run.plan.train_images, "eval": run.plan.eval_images}
    # All processes know those of earlier starts, and those that any has found in this one.
    self._earlier = _gather(_read(self._path) if processes.is_primary() else {})
    self._found: Broken = {}
    self._own: Broken = {}  # found by this process, not yet sent to the others
    self._written = len(self._earlier)

  def count(self, kind: str) -> int:
    """The number of "train" or "eval" images found broken in the run so far, each counted once."""
    return sum(split == kind for split, _ in self._earlier | self._found)

  def note(self, broken: Broken) -> None:
    """Adds the images that this process found broken.

    Raises:
      UserError: too many images are broken. With several processes, `settle` raises this instead,
        so that all of them end.
    """
    self._own |= {key: reason for key, reason in broken.items() if key not in self._found}
    if not processes.several():
      self._check(self._found | self._own)

  def settle(self) -> list[str]:
    """Tells all processes what any of them found, and writes it to `FILE`. All must call it.

    Returns:
      Lines on newly found images.

    Raises:
      UserError: too many images are broken; raised in all processes.
    """
    gathered, self._own = _gather(self._own), {}
    new = {key: reason for key, reason in gathered.items() if key not in self._found}
    self._found |= new
    lines = self._write(self._found)
    self._check(self._found)
    return describe(new, self._path.name) + lines

  def _write(self, found: Broken) -> list[str]:
    """Writes `FILE` in process 0 if it lacks something; returns a line if that fails."""
    everything = found | self._earlier
    if len(everything) == self._written or not processes.is_primary():
      return []
    rows = [(kind, printable(name), printable(why)) for (kind, name), why in everything.items()]
    lines = ["\t".join(row) + "\n" for row in [("split", "name", "reason"), *sorted(rows)]]
    try:
      write_atomically(self._path, "".join(lines))
    except OSError as error:
      reason = error.strerror or error
      return [f"{self._path} could not be written ({reason}): it will be tried again later"]
    self._written = len(everything)
    return []

  def _check(self, found: Broken) -> None:
    for kind, images in self._images.items():
      named = {name: reason for (split, name), reason in found.items() if split == kind}
      if len(named) > allowed(images, self._max_broken):
        self._write(found)
        listed = f"{self._path} lists all"
        raise too_many(kind, named_in(named), len(named), images, self._max_broken, after=listed)


def _gather(own: Broken) -> Broken:
  """The images of all processes; of two reasons the first process's. All must call it."""
  rows = [[*key, reason] for key, reason in own.items()]
  found: Broken = {}
  for part in processes.gather_bytes(dump_json(rows).encode()):
    found |= {
      (kind, name): why for kind, name, why in parse_json(part) if (kind, name) not in found
    }
  return found


def _read(path: pathlib.Path) -> Broken:
  """The images that `FILE` lists from earlier starts; malformed lines are left out."""
  try:
    lines = read_bytes(path).decode(errors="replace").splitlines()[1:]
  except (FileNotFoundError, ValueError):
    return {}
  rows = [line.split("\t") for line in lines]
  return {(row[0], row[1]): row[2] for row in rows if len(row) == 3 and row[0] in WORDS}
