"""Broken images of a table: the reason for each, and the image that takes its place."""

import functools
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Int64, UInt8

from jaxspeed.data import remote
from jaxspeed.data.disk.images import describe_failure, describe_unreadable
from jaxspeed.data.table import Table
from jaxspeed.errors import UserError

# Images tried in the place of a broken one: if all are broken too, the disk is.
_TRIED = 64
# A name of a file that does not end as JPEGs do.
_NO_JPEG = re.compile(rb"(?i)(?<!\.jpg)(?<!\.jpeg)\0")

Windows = Sequence[np.ndarray]


def why_broken(split: Table, number: int) -> str:
  """Read an image and return why it is broken."""
  try:
    return describe_failure(split.read(number))
  except OSError as error:
    return describe_unreadable(error)


class Repair:
  """What a stream does about the broken images of its table.

  Attributes:
    mixed: whether the table has images other than JPEGs.
  """

  def __init__(
    self,
    split: Table,
    decode: Callable[..., UInt8[np.ndarray, "h w 3"]],
    *,
    failures: tuple[type[Exception], ...],
    on_error: str,
  ) -> None:
    """Look for images without a readable header.

    Args:
      split, on_error: as in the streams.
      decode: function that decodes a part, given an encoded image and its windows.
      failures: exceptions of `decode` that mean a broken image.

    Raises:
      UserError: a header could not be read and on_error is "raise".
    """
    self.mixed = split.offset is None and _NO_JPEG.search(split.names.text.data) is not None
    self._split, self._decode = split, decode
    self._failures, self._on_error = failures, on_error
    self._reasons: dict[int, str] = {}
    self._with_header = np.flatnonzero(split.width)
    if on_error == "raise" and len(self._with_header) < len(split):
      self._refuse(int((split.width == 0).argmax()))

  def first_with_header(self, numbers: Int64[np.ndarray, "b"]) -> Int64[np.ndarray, "b"]:
    """Return, for each number, the first image from it on that has a readable header."""
    if len(self._with_header) == len(self._split):
      return numbers
    places = np.searchsorted(self._with_header, numbers)
    return self._with_header[places % len(self._with_header)]

  def repaired(
    self,
    images: UInt8[np.ndarray, "b h w 3"],
    used: Int64[np.ndarray, "b"],
    broken: Int64[np.ndarray, "r"],
    windows: Callable[..., Windows],
    *,
    replace: bool,
  ) -> tuple[UInt8[np.ndarray, "b h w 3"], Int64[np.ndarray, "b"]]:
    """Return a batch's images and their numbers, after `mend` of the rows in `broken`.

    Args:
      images, used: the batch.
      broken: the rows that could not be decoded.
      windows: function that returns the parts of images, given their rows and numbers.
      replace: as in `mend`.
    """
    images, used = np.array(images), used.copy()
    for row in broken.tolist():
      part_of = functools.partial(windows, np.array([row]))
      used[row], part = self.mend(int(used[row]), part_of, replace=replace)
      if part is not None:
        images[row] = part
    return images, used

  def mend(
    self, number: int, windows_of: Callable[[np.ndarray], Windows], *, replace: bool
  ) -> tuple[int, Any]:
    """Return the first image, from `number` on, whose part can be decoded, and that part.

    Args:
      number: number of an image that could not be decoded.
      windows_of: function that returns the parts of images.
      replace: whether other images are tried; else -1 and None stand for a broken one.

    Raises:
      UserError: the image has changed since it was indexed, is broken with on_error="raise", or no
        image near it can be decoded.
    """
    split, tried = self._split, min(len(self._split), _TRIED)
    for candidate in ((number + i) % len(split) for i in range(tried if replace else 1)):
      if split.width[candidate]:
        part = self._try(candidate, [each[0] for each in windows_of(np.array([candidate]))])
        if part is not None:
          return candidate, part
    if not replace:
      return -1, None
    raise UserError(
      f"none of {tried} images in a row can be decoded, the first of them {split.name(number)} in "
      f"{split.root} ({self.reason(number)}): repair the data set, or name another."
    )

  def reason(self, number: int) -> str:
    """Return why an image is broken."""
    if number not in self._reasons:
      self._reasons[number] = why_broken(self._split, number)
    return self._reasons[number]

  def check_length(self, number: int, length: int) -> None:
    """Check that an image's size in bytes has not changed since it was indexed.

    Raises:
      UserError: it has changed; the index is removed if it may be.
    """
    split = self._split
    if length == split.length[number]:
      return
    advice = "its index was removed, and the same command makes it again"
    try:
      if remote.is_remote(split.root):
        advice = "upload the set again with python -m jaxspeed.prepare shards"
      elif split.index:
        pathlib.Path(split.index).unlink(missing_ok=True)  # by another process
    except OSError:
      advice = f"remove its index {split.index}"
    raise UserError(
      f"{split.name(number)} in {split.root} has changed since the images were indexed "
      f"({split.length[number]:,} bytes then, {length:,} now): {advice}."
    )

  def _try(self, number: int, windows: Windows) -> UInt8[np.ndarray, "h w 3"] | None:
    """Return a part of an image, or None if it is broken.

    Raises:
      UserError: as in `mend`.
    """
    try:
      encoded = self._split.read(number)
    except OSError as error:
      self._reasons[number] = describe_unreadable(error)
    else:
      self.check_length(number, len(encoded))
      try:
        return self._decode(encoded, *windows)
      except self._failures:
        self._reasons[number] = describe_failure(encoded)
    if self._on_error == "raise":
      self._refuse(number)
    return None

  def _refuse(self, number: int) -> NoReturn:
    raise UserError(
      f"{self._split.name(number)} in {self._split.root} cannot be decoded "
      f"({self.reason(number)}): replace or remove it, or set config.data.on_error=skip."
    )
