"""Digests of images' names, which decide the images that are held out (`hold_out.py`)."""

import hashlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from jaxspeed.data.disk.headers import name_digest
from jaxspeed.errors import UserError


def path_digests(names: Sequence[str]) -> Int64[np.ndarray, "n"]:
  """Return a digest of each whole name: images of a CSV in two folders may share a file name."""
  found = [hashlib.blake2b(os.fsencode(name), digest_size=8).digest() for name in names]
  # The lowest bit is set, because 0 stands for no name.
  return np.frombuffer(b"".join(found), "<i8") | 1


def member_digests(
  files: Sequence[str],
  file: Int32[np.ndarray, "n"],
  digest: Int64[np.ndarray, "n"] | None,
  label: Int32[np.ndarray, "n"],
  class_names: Sequence[str],
) -> Iterator[bytes]:
  """Yield eight bytes for each image, the same for its copies in every folder and shard.

  Args:
    files: as in `imageset.Split`, like `file`, `digest` and `label`.
    file: the index in `files` of each image's file.
    digest: a digest of each image's name, 0 without a name; None: of its file's name.
    label: the class number of each image.
    class_names: the names of the classes.

  Raises:
    UserError: an image has no name.
  """
  if digest is None:
    digest = np.array([name_digest(os.fsencode(os.path.basename(files[i]))) for i in file])
  elif nameless := int((digest == 0).sum()):
    raise UserError(
      f"{nameless:,} of {len(digest):,} images in the shards of {os.path.dirname(files[0])} have "
      "no file_name, which decides the images to hold out: evaluate on the data set's own split "
      "(--config.tune_on=test), or make shards with names (python -m jaxspeed.prepare shards)."
    )
  prefixes = [hashlib.blake2b(os.fsencode(name), digest_size=8) for name in class_names]
  for number, name in zip(label.tolist(), digest.astype("<i8"), strict=True):
    found = prefixes[number].copy()
    found.update(name.tobytes())
    yield found.digest()
