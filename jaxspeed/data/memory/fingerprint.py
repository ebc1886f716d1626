"""A checksum of the images of a data set in memory, by which a run knows them again."""

import zlib

from jaxspeed.data.memory.arrays import Arrays


def fingerprint(arrays: Arrays) -> str:
  """The word "arrays", and the CRC-32 of all labels and of the middle row of each image.

  All of CIFAR-10's pixels would take 0.2 s at each start, their middle rows a hundredth of that.
  """
  checksum = 0
  for images, labels in (
    (arrays.train_images, arrays.train_labels),
    (arrays.eval_images, arrays.eval_labels),
  ):
    rows = images[:, images.shape[1] // 2]
    for part in (rows.tobytes(), labels.astype("<i4").tobytes()):
      checksum = zlib.crc32(part, checksum)
  return f"arrays {checksum:08x}"
