"""Shards in buckets and on servers (s3://, gs://, az://, https://), read and written with fsspec.

Each function raises a UserError with one sentence on what was lost, missing or not allowed.
"""

import contextlib
import importlib
import os
import pathlib
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.files import write_atomically

INFO = "dataset_info.json"
_LABELS = "label.labels.txt"
# What training needs besides the shards; the last two may be missing.
_SMALL = (INFO, _LABELS, ".jaxspeed/images.npz")
# Seconds before each further attempt to read or write; the libraries try several times themselves.
_PAUSES = (1.0, 5.0)


def is_remote(path: str | os.PathLike[str]) -> bool:
  return "://" in os.fspath(path)


class Missing(UserError):
  """An object that does not exist."""


def read(url: str, begin: int | None = None, end: int | None = None) -> bytes:
  """Return the bytes of an object, or those from `begin` up to `end`.

  Raises:
    UserError: it cannot be read.
  """
  content = _call(url, "read", lambda files, path: files.cat_file(path, start=begin, end=end))
  if begin is not None and end is not None and len(content) > end - begin:
    raise UserError(
      f"{url} cannot be read: the server sends whole files only, and training reads parts of 2 MB."
    )
  return content


def fetch_about(url: str, cache: pathlib.Path) -> pathlib.Path:
  """Copy what describes a set of shards into the cache, and return its folder there.

  Raises:
    UserError: `url` is not the folder of a set, or cannot be read.
  """
  url = url.rstrip("/")
  folder = cache / f"remote-{sha256(url.encode()).hexdigest()[:16]}" / url.rpartition("/")[2]
  for name in _SMALL:
    content = None
    with contextlib.suppress(*[Missing] * (name != INFO)):
      content = read(f"{url}/{name}")
    try:
      # The processes and jobs that share the cache do the same: no file may be gone in between.
      if content is None:
        (folder / name).unlink(missing_ok=True)
      else:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content, sync=False)
    except OSError as error:
      raise UserError(
        f"{folder} cannot be written ({error.strerror or error}): set --config.data.cache to a "
        "writable folder."
      ) from error
  return folder


def upload(folder: pathlib.Path, url: str, *, show: Callable[[int, int], None]) -> None:
  """Write a set of shards to a bucket; its description goes first and comes back last.

  Until then nothing trains on a mixture of two uploads.

  Args:
    folder: the set.
    url: its address.
    show: called with the number of files done and the total.

  Raises:
    UserError: it cannot be written, or a set with other classes is there.
  """
  shards = sorted(path.name for path in folder.glob("*.tfrecord-*"))
  names = [*shards, "features.json", *reversed(_SMALL)]
  with contextlib.suppress(Missing):
    if read(f"{url}/{_LABELS}") != (folder / _LABELS).read_bytes():
      raise UserError(f"{url} holds a data set with other classes: name another address.")
  with contextlib.suppress(Missing):
    _call(f"{url}/{INFO}", "written", lambda files, path: files.rm_file(path))
  for number, name in enumerate(names):
    local = str(folder / name)
    _call(f"{url}/{name}", "written", lambda files, path, local=local: files.put_file(local, path))
    show(number + 1, len(names))


def _call(url: str, verb: str, call: Callable[..., Any]) -> Any:
  """Call a function with fsspec's file system and a path; after an error of the network, again.

  Raises:
    UserError: it raised; `Missing` if the object does not exist.
  """
  try:
    files, path = importlib.import_module("fsspec").core.url_to_fs(url)
    for pause in _PAUSES:
      try:
        return call(files, path)
      except (FileNotFoundError, PermissionError):
        raise
      except Exception:  # libraries of clouds raise almost anything
        time.sleep(pause)
    return call(files, path)
  except ImportError as error:
    raise UserError(f"{url} needs a package ({error}): pip install 'jaxspeed[cloud]'.") from error
  except FileNotFoundError as error:
    raise Missing(
      f"{url} does not exist: name the folder that holds {INFO}, and upload what is missing with "
      "python -m jaxspeed.prepare shards."
    ) from error
  except Exception as error:
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    raise UserError(
      f"{url} cannot be {verb} ({reason[:200]}): check the address, the credentials and the "
      "network."
    ) from error
