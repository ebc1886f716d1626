"""Whether copies and shards that a training reads still fit the images that they were made of."""

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from jaxspeed.data.disk import copies, shard_records
from jaxspeed.data.disk.copies import Difference
from jaxspeed.data.formats.folders import has_splits
from jaxspeed.data.formats.tfrecord import find_tfds, only_tfds, open_tfds
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded


def copies_of(config: ConfigDict, side: int) -> str:
  """The folder of the resized copies with this short side."""
  return str(pathlib.Path(config.data.copies or f"{config.data.path.rstrip('/')}-sz") / str(side))


def require_up_to_date(config: ConfigDict, sides: Sequence[int]) -> list[str]:
  """Compares copies and shards with their originals, where there are both; lines on the unknown.

  Names are listed and each original is asked for its size and time: 10 us of CPU an image, of
  100,000 copies on a local disk.

  Args:
    config: its `data` and `tune_on` count.
    sides: short sides of the copies that are read; 0: the originals, which may be copies of others.

  Raises:
    UserError: copies or shards are not complete, or do not fit.
  """
  notes = []
  tune = config.tune_on == "validation"
  path = config.data.path
  originals = expanded(path, "config.data.path") if path else pathlib.Path()
  copies_by_source: dict[str, list[pathlib.Path]] = {}
  for side in sides:
    name = copies_of(config, side) if side else path
    folder = expanded(name, "config.data.copies") if name else pathlib.Path()
    if not name or not folder.is_dir():
      continue
    # Shards may hold copies, which are compared with their own originals.
    packed = _shards_in(folder, config.data.name)
    if packed is not None:
      folder = _require_fitting_shards(packed, tune=tune)
    settings = copies.read_settings(folder)
    if settings is not None:
      beside = side and path and packed is None and originals.is_dir()
      source = str(originals) if beside else settings.source
      copies.require_mark(folder, source)
      copies_by_source.setdefault(source, []).append(folder)
    elif side and packed is None:
      notes.append(
        f"{printable(name)} was not written by prepare resize: whether its copies fit the "
        "originals is not known"
      )
  for source, folders in copies_by_source.items():
    if source and (pathlib.Path(source) / "train").is_dir():
      _require_fitting_copies(pathlib.Path(source), folders, tune=tune)
  return notes


def _shards_in(folder: pathlib.Path, name: str) -> pathlib.Path | None:
  """Where the shards lie that are read of a folder; None where that is a folder of images."""
  if has_splits(folder):
    return None
  return find_tfds(folder, name) or only_tfds(folder)


def _require_fitting_shards(folder: pathlib.Path, *, tune: bool) -> pathlib.Path:
  """Raises a UserError where images have changed since shards were made; returns their folder.

  Shards of others, or whose images are not on this machine, are not looked at.
  """
  settings = shard_records.read_settings(folder)
  source = pathlib.Path(settings.source if settings else "")
  if settings is None or not source.is_dir() or source == pathlib.Path():
    return folder
  info = open_tfds(folder, tune=tune)
  files = [shard.path.name for shard in info.train + info.eval]
  try:
    difference = shard_records.shard_differences(folder, settings, files, tune=tune)
  except OSError as error:
    raise _unreadable(error, source) from error
  if difference:
    raise UserError(
      f"the shards in {folder} do not fit the images in {source}: {difference}; run "
      f"{shard_records.mending(folder, settings)}."
    )
  return source


def _require_fitting_copies(
  source: pathlib.Path, folders: Sequence[pathlib.Path], *, tune: bool
) -> None:
  """Raises a UserError where originals have changed since their copies were made."""
  try:
    found = copies.differences(source, folders, tune=tune)
  except OSError as error:
    raise _unreadable(error, source) from error
  stale = {folder: each for folder, each in zip(folders, found, strict=True) if each}
  if stale:
    folder, difference = next(iter(stale.items()))
    raise UserError(
      f"{folder} does not fit its originals in {source}: {difference}; run "
      f"{_mend_all(stale, source)}."
    )


def _mend_all(stale: dict[pathlib.Path, Difference], source: pathlib.Path) -> str:
  """One command for the first stale folder and all sizes beside it that have its quality."""
  first = next(iter(stale))

  def quality(folder: pathlib.Path) -> int | None:
    settings = copies.read_settings(folder)
    return settings.quality if settings else None

  together = [
    each for each in stale if each.parent == first.parent and quality(each) == quality(first)
  ]
  return copies.mending(
    first,
    str(source),
    prune=any(stale[each].removed for each in together),
    sizes=[each.name for each in together],
  )


def _unreadable(error: OSError, source: pathlib.Path) -> UserError:
  return UserError(
    f"{error.filename or source} cannot be read ({error.strerror or error}): the originals are "
    "not complete, or not readable for you."
  )
