"""Checks that the copies and shards of a run still fit the images that they were made from."""

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from jaxspeed.data.disk import copies, shard_records
from jaxspeed.data.disk.copies import Difference
from jaxspeed.data.formats.folders import has_splits, list_folder
from jaxspeed.data.formats.tfrecord import find_tfds, only_tfds, open_tfds
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded


def copies_of(config: ConfigDict, side: int) -> str:
  """Return the folder of the resized copies with this short side."""
  return str(pathlib.Path(config.data.copies or f"{config.data.path.rstrip('/')}-sz") / str(side))


def require_up_to_date(config: ConfigDict, sides: Sequence[int]) -> list[str]:
  """Compare copies and shards with their originals, where both exist.

  This lists the names and calls stat on each original.

  Args:
    config: the run's config; `data` and `tune_on` are used.
    sides: short sides of the copies to read; 0: the originals, which may be copies themselves.

  Returns:
    Lines about copies that cannot be checked.

  Raises:
    UserError: copies or shards are incomplete, or do not fit their originals.
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
    # Shards may hold copies, which must fit their own originals.
    packed = _shards_in(folder, config.data.name)
    if packed is not None:
      folder = _require_fitting_shards(packed, tune=tune)
    settings = copies.read_settings(folder)
    if settings is not None:
      beside = side and path and packed is None and originals.is_dir()
      source = str(originals) if beside else settings.source
      copies_by_source.setdefault(source, []).append(folder)
    elif side and packed is None:
      notes.append(
        f"{printable(name)} was not written by prepare resize, so it is not known whether its "
        "copies fit the originals"
      )
  if not any(sides) and path:
    notes += _unread_copies(expanded(copies_of(config, 0), "config.data.copies").parent)
  for source, folders in copies_by_source.items():
    for folder in folders:
      copies.require_mark(folder, source, sizes=_alike(folder, folders))
    if source and (pathlib.Path(source) / "train").is_dir():
      _require_fitting_copies(pathlib.Path(source), folders, tune=tune)
  return notes


def _shards_in(folder: pathlib.Path, name: str) -> pathlib.Path | None:
  """Return the folder of the shards in `folder`, or None where it is a folder of images."""
  if has_splits(folder):
    return None
  return find_tfds(folder, name) or only_tfds(folder)


def _require_fitting_shards(folder: pathlib.Path, *, tune: bool) -> pathlib.Path:
  """Return the folder of the shards' images, or raise a UserError where images have changed.

  Shards without records, or without their images on this machine, are not checked; an empty folder
  counts as missing, because a disk may not be mounted there.
  """
  settings = shard_records.read_settings(folder)
  source = pathlib.Path(settings.source if settings else "")
  if settings is None or not settings.source or not _has_images(source):
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


def _has_images(source: pathlib.Path) -> bool:
  """Return whether a folder has sub-folders, or cannot be read, which is reported later."""
  try:
    return source.is_dir() and bool(list_folder(source).folders)
  except OSError:
    return True


def _require_fitting_copies(
  source: pathlib.Path, folders: Sequence[pathlib.Path], *, tune: bool
) -> None:
  """Raise a UserError where originals have changed since their copies were made."""
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
  """Return one command that updates the first stale folder and those beside it of its quality."""
  first = next(iter(stale))
  sizes = _alike(first, list(stale))
  together = [each for each in stale if each.parent == first.parent and each.name in sizes]
  prune = any(stale[each].removed for each in together)
  return copies.mending(first, str(source), prune=prune, sizes=sizes)


def _alike(folder: pathlib.Path, folders: Sequence[pathlib.Path]) -> list[str]:
  """Return the names of the sizes beside `folder` with its quality, itself included."""

  def quality(folder: pathlib.Path) -> int | None:
    settings = copies.read_settings(folder)
    return settings.quality if settings else None

  return [
    each.name
    for each in folders
    if each.parent == folder.parent and quality(each) == quality(folder)
  ]


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


def _unreadable(error: OSError, source: pathlib.Path) -> UserError:
  return UserError(
    f"{error.filename or source} cannot be read ({error.strerror or error}): the originals are "
    "not complete, or not readable for you."
  )
