"""The index of a data set: where its images lie and how large they are, in one .npz file.

Headers are read once. The index is in the cache, or beside the images: ROOT/.jaxspeed/images.npz,
which takes precedence. It is never used if it does not hold the names that are listed now, or if
shards have another size or time.
"""

import contextlib
import functools
import logging
import os
import pathlib
import shlex
from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

from jaxspeed.data import remote
from jaxspeed.data.disk import headers
from jaxspeed.data.formats import npz
from jaxspeed.data.table import Listed, Table
from jaxspeed.data.workers import in_processes
from jaxspeed.errors import UserError
from jaxspeed.files import locked_folder

_log = logging.getLogger("jaxspeed")

_NAMES_PER_JOB = 500
# Columns of the index and their dtypes: those that a header gives and the image's size in bytes,
# and those of images in shards.
_HEADER: dict[str, type[np.signedinteger]] = {
  "width": np.int32,
  "height": np.int32,
  "orientation": np.int8,
  "length": np.int64,
}
_IN_SHARD: dict[str, type[np.signedinteger]] = {
  "offset": np.int64,
  "label": np.int32,
  "digest": np.int64,
}
Show = Callable[[int, int], None]
Columns = dict[str, np.ndarray]


def own_index(place: pathlib.Path) -> pathlib.Path:
  """Return the file of the index beside the images of a folder."""
  return place / ".jaxspeed" / "images.npz"


def open_table(
  listed: Listed,
  cache: pathlib.Path,
  *,
  show: Show | None = None,
  anew: bool = False,
  beside: bool = False,
) -> Table:
  """Return the table of listed images, from an index, or from their headers.

  Args:
    listed: the files.
    cache: the folder of indices that are not beside their images.
    show: called with the number of headers read and the total.
    anew: whether to read the headers despite an index, because files may have changed, and to
      verify the checksums of shards.
    beside: whether to write the index beside the images.

  Raises:
    UserError: a file cannot be opened, a shard is damaged, or the index beside the images cannot be
      written.
  """
  own, entry = own_index(listed.place), npz.entry_of(cache, "images", listed.place)
  # The processes of a host wait for the first, which reads the headers.
  with locked_folder(cache):
    for path in () if anew or beside else (own, entry):
      try:
        if path.is_file():
          return _table(listed, _fitting(listed, path), path)
      except ValueError as error:
        command = f"python -m jaxspeed.prepare index {shlex.quote(str(listed.place))}"
        if remote.is_remote(listed.root):
          command = "python -m jaxspeed.prepare shards"
        advice = f"{command} writes it again" if path == own else "it is made again"
        _log.warning("the index %s is not used (%s): %s", path, error, advice)
    columns = _scan(listed, show, verify=anew or beside)
    arrays = columns | {"names": listed.names.text, "stats": _stats(listed)}
    path = own if beside else entry
    try:
      (npz.write if beside else npz.store)(path, arrays, {})
    except OSError as error:
      raise UserError(
        f"{path} cannot be written ({error.strerror or error}): make its folder writable, or train "
        "without an index there."
      ) from error
  return _table(listed, columns, path)


def _fitting(listed: Listed, path: pathlib.Path) -> Columns:
  """Return the columns of an index of these files, and perhaps of others after them.

  Raises:
    ValueError: the index must not be used; the message says why.
  """
  found, _ = npz.read(path)
  names, stats = listed.names.text, _stats(listed)
  if not (
    np.array_equal(found.get("names", names[:0])[: len(names)], names)
    and np.array_equal(found.get("stats", stats)[: len(stats)], stats)
  ):
    raise ValueError("it was made from other files, or an older state of these")
  wanted = _HEADER | (_IN_SHARD if listed.records else {})
  columns = {name: found[name][: listed.images] for name in wanted if name in found}
  if {name: (column.dtype, column.shape) for name, column in columns.items()} != {
    name: (np.dtype(dtype), (listed.images,)) for name, dtype in wanted.items()
  }:
    raise ValueError("its columns are not those that this version reads")
  for number in () if listed.records else np.flatnonzero(columns["width"] == 0).tolist():
    name = os.path.join(listed.root, os.fsdecode(listed.names[number]))
    with contextlib.suppress(OSError):
      if os.stat(name).st_size != columns["length"][number]:
        raise ValueError(f"{name} had no header then, and is another file now")
  return columns


def _stats(listed: Listed) -> Int64[np.ndarray, "shards 2"]:
  """Return sizes and times of shards on this machine, in whole seconds, as in tar."""
  local = listed.records and not remote.is_remote(listed.root)
  names = listed.names.decoded() if local else []
  stats = [os.stat(os.path.join(listed.root, name)) for name in names]
  rows = [(stat.st_size, int(stat.st_mtime)) for stat in stats]
  return np.array(rows, np.int64).reshape(-1, 2)


def _scan(listed: Listed, show: Show | None, *, verify: bool) -> Columns:
  _log.info("reading the headers of %s images of %s", f"{listed.images:,}", listed.place)
  names = listed.names.decoded()
  jobs: list[headers.Job]
  if listed.records:
    jobs = [
      functools.partial(
        headers.scan_shard, os.path.join(listed.root, name), *listed.keys, records, verify
      )
      for name, records in zip(names, listed.records, strict=True)
    ]
  else:
    jobs = [
      functools.partial(headers.scan_files, listed.root, names[i : i + _NAMES_PER_JOB])
      for i in range(0, len(names), _NAMES_PER_JOB)
    ]
  rows, done = [], 0
  workers = headers.workers_for(listed.images)
  with contextlib.closing(in_processes(headers.run, jobs, workers=workers)) as answers:
    for answer in answers:
      rows.append(answer)
      done += len(answer)
      if show:
        show(done, listed.images)
  wanted = _HEADER | (_IN_SHARD if listed.records else {})
  columns = {}
  for number, (name, dtype) in enumerate(wanted.items()):
    # Clipped, not wrapped: a label too large for int32 must not become a valid one.
    info = np.iinfo(dtype)
    column = np.concatenate([row[:, number] for row in rows])
    columns[name] = np.clip(column, info.min, info.max).astype(dtype)
  return columns


def _table(listed: Listed, columns: Columns, index: pathlib.Path) -> Table:
  if listed.labels is not None:
    columns["label"] = np.asarray(listed.labels, np.int32)
    columns["file"] = np.arange(len(listed.names), dtype=np.int32)
    if listed.digest is not None:
      columns["digest"] = listed.digest
  else:
    columns["file"] = np.repeat(np.arange(len(listed.records), dtype=np.int32), listed.records)
  return Table(root=listed.root, names=listed.names, index=str(index), **columns)
