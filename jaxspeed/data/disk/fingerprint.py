"""A checksum of the images of a data set on disk, by which a run knows them again."""

import os
import zlib

from jaxspeed.data.disk.imageset import ImageSet, Split


def fingerprint(images: ImageSet) -> str:
  """The kind and the CRC-32 of names and labels, in their order, in two words.

  Names are relative to the data set's folder and without their ending, so that a moved data set and
  its resized copies have the same. Contents do not count. The kind is "files", "csv", "shards" or
  "noise"; checksums of two kinds cannot be compared.
  """
  if images.is_noise:
    return "noise 0"
  checksum = 0
  for split in (images.train, images.eval):
    for part in (_names(split), split.label.tobytes()):
      checksum = zlib.crc32(part, checksum)
  if images.train.digest is None:
    return f"files {checksum:08x}"
  return f"{'csv' if images.train.whole_files else 'shards'} {checksum:08x}"


def _names(split: Split) -> bytes:
  if split.digest is not None:
    return split.digest.tobytes()
  # os.path.relpath would take seconds for ImageNet.
  names = [os.path.splitext(file.removeprefix(split.root))[0] for file in split.files]
  return os.fsencode("\0".join(names[file] for file in split.file.tolist()))
