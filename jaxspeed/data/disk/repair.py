"""Broken images of a table: the reason for each, and the image that takes its place."""

import dataclasses
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from jaxspeed.data.disk.images import describe_failure, describe_unreadable
from jaxspeed.data.disk.index import outdated
from jaxspeed.data.formats import pixels
from jaxspeed.data.table import Table
from jaxspeed.errors import UserError

# A batch of at least this many images that are all broken means that the disk is broken.
_HOPELESS = 8
# A name of a file that does not end as JPEGs do.
_NO_JPEG = re.compile(rb"(?i)(?<!\.jpg)(?<!\.jpeg)\0")

Windows = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """A batch before it is decoded; `used` is `index` with images without a header replaced."""

  place: tuple[int, int]  # epoch, and place in its order
  index: Int64[np.ndarray, "b"]
  used: Int64[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]
  flip: Bool[np.ndarray, "b"]
  windows: tuple[np.ndarray, ...]


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

  def mend(
    self, number: int, windows_of: Callable[[int], Windows], *, replace: bool
  ) -> tuple[int, Any]:
    """Return the first image, from `number` on, whose part can be decoded, and that part.

    Args:
      number: number of an image that could not be decoded.
      windows_of: function that returns the part of each image.
      replace: whether other images are tried; else -1 and None stand for a broken one.

    Raises:
      UserError: the image has changed since it was indexed, is broken with on_error="raise", or no
        image can be decoded.
    """
    split, images = self._split, len(self._split)
    for candidate in (further % images for further in range(number, number + images)):
      if split.width[candidate]:
        part = self._try(candidate, windows_of(candidate))
        if part is not None:
          return candidate, part
      if not replace:
        return -1, None
    raise UserError(
      f"none of the {images} images of {split.root} can be decoded; "
      f"{split.name(number)}: {self.reason(number)}; repair the data set, or name another."
    )

  def require_hope(
    self, rows: Int64[np.ndarray, "r"], used: Int64[np.ndarray, "b"], windows_at: Callable[..., Any]
  ) -> None:
    """Raise a UserError where all images of a batch, which failed, are broken.

    Args:
      rows: the rows of its images.
      used: the numbers of the images in all rows.
      windows_at: function that returns the part of an image, given its row and number.
    """
    pairs = [(row, int(used[row])) for row in rows.tolist()]
    if len(pairs) < _HOPELESS:
      return
    if any(self._try(number, windows_at(row, number)) is not None for row, number in pairs):
      return
    split, number = self._split, pairs[0][1]
    raise UserError(
      f"none of {len(pairs)} images in a row can be decoded, the first of them "
      f"{split.name(number)} in {split.root} ({self.reason(number)}): repair the data set."
    )

  def reason(self, number: int) -> str:
    """Return why an image is broken."""
    if number not in self._reasons:
      self._reasons[number] = why_broken(self._split, number)
    return self._reasons[number]

  def check_length(self, number: int, length: int) -> None:
    """Check that an image's size in bytes has not changed since it was indexed.

    Raises:
      UserError: it has changed.
    """
    if length != self._split.length[number]:
      self._changed(number, f"{self._split.length[number]:,} bytes then, {length:,} now")

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
        self._check_size(number, encoded)
        self._reasons[number] = describe_failure(encoded)
    if self._on_error == "raise":
      self._refuse(number)
    return None

  def _refuse(self, number: int) -> NoReturn:
    raise UserError(
      f"{self._split.name(number)} in {self._split.root} cannot be decoded "
      f"({self.reason(number)}): replace or remove it, or set config.data.on_error=skip."
    )

  def _check_size(self, number: int, encoded: bytes) -> None:
    try:
      with pixels.open_image(io.BytesIO(encoded)) as image:
        found = pixels.header_of(image)
    except Exception:  # without a header it is damaged, not changed
      return
    split = self._split
    indexed = (split.width[number], split.height[number], split.orientation[number])
    if found != indexed:
      then, now = (f"{width} x {height}" for width, height, _ in (indexed, found))
      self._changed(number, f"{then} pixels then, {now} now")

  def _changed(self, number: int, how: str) -> NoReturn:
    split = self._split
    advice = outdated(split)
    raise UserError(
      f"{split.name(number)} in {split.root} has changed since the images were indexed "
      f"({how}): {advice}."
    )
