"""Broken images of a split: the reason for each, and the image that takes its place."""

import dataclasses
import io
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Int64

from jaxspeed.data.disk.images import describe_failure, describe_unreadable
from jaxspeed.data.disk.index import outdated
from jaxspeed.data.formats import pixels
from jaxspeed.data.table import Table
from jaxspeed.errors import UserError

# A batch of at least this many images that are all broken means that the disk is broken.
_HOPELESS = 8
# A name of a file that does not end as JPEGs do.
_NO_JPEG = re.compile(rb"(?i)(?<!\.jpg)(?<!\.jpeg)\0")


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """A batch before it is decoded; `used` is `index` with its broken images replaced."""

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
  """What a stream knows about the broken images of its split.

  Attributes:
    doubtful: true for images with an unreadable header or a part that could not be decoded.
    mixed: whether the split has images other than JPEGs.
  """

  def __init__(
    self,
    split: Table,
    decode: Callable[..., Any],
    *,
    failures: tuple[type[Exception], ...],
    on_error: str,
  ) -> None:
    """Mark the images without a readable header as doubtful.

    Args:
      split, on_error: as in the streams.
      decode: function that decodes a part, given an encoded image and its windows.
      failures: exceptions of `decode` that mean a broken image.

    Raises:
      UserError: a header could not be read and on_error is "raise".
    """
    self.doubtful = split.width == 0
    self.mixed = split.offset is None and _NO_JPEG.search(split.names.text.data) is not None
    self._split, self._decode = split, decode
    self._failures, self._on_error = failures, on_error
    self._reasons: dict[int, str] = {}
    if on_error == "raise" and self.doubtful.any():
      self._refuse(int(self.doubtful.argmax()))

  def next_whole(self, number: int, windows_of: Callable[[int], Sequence[np.ndarray]]) -> int:
    """Return the first image, from `number` on, whose part given by `windows_of` can be decoded.

    Raises:
      UserError: no image can be decoded.
    """
    split, images = self._split, len(self._split)
    for candidate in (further % images for further in range(number, number + images)):
      if not self.doubtful[candidate]:
        return candidate
      if split.width[candidate] and not self._fault(candidate, windows_of(candidate)):
        return candidate
    raise UserError(
      f"none of the {images} images of {split.root} can be decoded; "
      f"{split.name(number)}: {self.reason(number)}; repair the data set, or name another."
    )

  def examine(self, request: Request, threads: int) -> bool:
    """Try each image of a failed batch; return whether anything new was found.

    Raises:
      UserError: an image has changed since it was indexed, is broken with on_error="raise", or all
        images are broken.
    """
    split, known = self._split, (self.mixed, len(self._reasons))
    faults = self._faults(request, threads)
    if all(faults) and len(faults) >= _HOPELESS:
      number = int(request.used[0])
      raise UserError(
        f"none of {len(faults)} images in a row can be decoded, the first of them "
        f"{split.name(number)} in {split.root} ({faults[0]}): repair the data set."
      )
    for number, fault in zip(request.used.tolist(), faults, strict=True):
      if fault:
        self._reasons[number] = fault
        self.doubtful[number] = True
        if self._on_error == "raise":
          self._refuse(number)
    return known != (self.mixed, len(self._reasons))

  def _faults(self, request: Request, threads: int) -> list[str]:
    """Return why each image of a batch cannot be decoded, or ''; try `threads` images at once."""

    def try_row(row: int) -> str:
      return self._fault(int(request.used[row]), [window[row] for window in request.windows])

    with ThreadPoolExecutor(threads) as pool:
      return list(pool.map(try_row, range(len(request.used))))

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

  def _fault(self, number: int, windows: Sequence[np.ndarray]) -> str:
    """Return why a part of an image cannot be decoded, or ''.

    Raises:
      UserError: the image has changed since it was indexed.
    """
    try:
      encoded = self._split.read(number)
    except OSError as error:
      return describe_unreadable(error)
    self.check_length(number, len(encoded))
    try:
      self._decode(encoded, *windows)
    except self._failures:
      self._check_size(number, encoded)
      return describe_failure(encoded)
    self.mixed |= not encoded.startswith(pixels.JPEG_SIGNATURE)
    return ""

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
