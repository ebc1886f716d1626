"""Lets TensorFlow Datasets (TFDS) download and prepare a data set."""

import importlib
import logging
import pathlib
import socket
import urllib.parse
import urllib.request
from typing import Any

from jaxspeed.errors import UserError

_log = logging.getLogger("jaxspeed")

# How long a host is waited for before nothing is downloaded from it.
_REACHED_SECONDS = 10.0


def prepare_with_tfds(name: str, accepted: str) -> pathlib.Path:
  """Lets TFDS download and prepare `name`, unless it has; the folder of the version.

  Raises:
    UserError: TFDS could not; `accepted` says what config.data.path may name in its place.
  """
  _log.info("config.data.path is not set: TensorFlow Datasets prepares %s", name)
  try:
    tfds = importlib.import_module("tensorflow_datasets")
    builder = tfds.builder(name, file_format="tfrecord")
    _ensure_reachable(builder)
    builder.download_and_prepare()
    return pathlib.Path(builder.data_dir)
  # Builders raise whatever their network, file system and TensorFlow raise.
  except Exception as error:
    reason = next(iter(str(error).splitlines()), "")
    raise UserError(
      f"config.data.path is not set, and TFDS could not prepare {name} "
      f"({type(error).__name__}: {reason}): name {accepted}."
    ) from error


def _ensure_reachable(builder: Any) -> None:
  """Fails at once without a network, where TFDS would try its downloads again for minutes.

  Raises:
    OSError: a host of the builder's downloads, which are needed, cannot be reached.
  """
  version = pathlib.Path(builder.data_dir)
  downloads = version.parents[1] / "downloads"
  # Whole ones; names with .tmp are what an earlier attempt has left.
  downloaded = any(
    each.is_file() and each.suffix != ".INFO" and ".tmp" not in str(each.relative_to(downloads))
    for each in downloads.rglob("*")
  )
  if version.is_dir() or downloaded or urllib.request.getproxies():
    return
  urls = [urllib.parse.urlsplit(url) for url in getattr(builder, "url_infos", None) or ()]
  ports = {"http": 80, "https": 443}
  for host, port in dict.fromkeys((u.hostname, u.port or ports.get(u.scheme)) for u in urls):
    if host and port:
      try:
        socket.create_connection((host, port), timeout=_REACHED_SECONDS).close()
      except OSError as error:
        raise OSError(f"{host} cannot be reached, {error.strerror or error}") from error
