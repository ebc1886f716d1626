"""Data sets that TensorFlow Datasets (TFDS) has prepared, or downloads."""

import contextlib
import contextvars
import importlib.util
import logging
import os
import pathlib
from collections.abc import Iterator

from jaxspeed.data.formats.tfrecord import find_tfds
from jaxspeed.errors import UserError
from jaxspeed.files import expanded

_log = logging.getLogger("jaxspeed")

_may_download = contextvars.ContextVar("may_download", default=True)


@contextlib.contextmanager
def no_downloads() -> Iterator[None]:
  """A block in which data sets are only looked for: a stranger's config may name them."""
  before = _may_download.set(False)
  try:
    yield
  finally:
    _may_download.reset(before)


def prepare_with_tfds(name: str, accepted: str) -> pathlib.Path:
  """Return the folder of the version of `name` in TFDS_DATA_DIR; let TFDS prepare it if needed.

  Raises:
    UserError: TFDS is missing or failed, or a download is needed in a block of `no_downloads`; the
      message says what config.data.path accepts (`accepted`).
  """
  root = expanded(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets"), "TFDS_DATA_DIR")
  if found := find_tfds(root / name.replace(":", "/"), ""):
    return found
  if not _may_download.get():
    raise UserError(
      f"config.data.path is not set, no {name} is in {root}, and evaluate downloads nothing: name "
      f"{accepted}."
    )
  if importlib.util.find_spec("tensorflow_datasets") is None:
    raise UserError(
      f"config.data.path is not set: name {accepted}; or install TFDS, which downloads {name} "
      "(pip install 'jaxspeed[images]')."
    )
  _log.info("config.data.path is not set: TensorFlow Datasets prepares %s", name)
  try:
    tfds = importlib.import_module("tensorflow_datasets")
    builder = tfds.builder(name, file_format="tfrecord")
    builder.download_and_prepare()
    return pathlib.Path(builder.data_dir)
  # Builders raise whatever their network, file system and TensorFlow raise.
  except Exception as error:
    reason = next(iter(str(error).splitlines()), "")
    raise UserError(
      f"config.data.path is not set, and TFDS could not prepare {name} "
      f"({type(error).__name__}: {reason}): name {accepted}."
    ) from error
