"""Which images of a split are broken, why, and which image stands for each of them."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np

from jaxspeed.data.disk.batches import Request
from jaxspeed.data.disk.images import describe_failure, describe_unreadable
from jaxspeed.data.disk.imageset import Split
from jaxspeed.data.disk.sizes import drop_index
from jaxspeed.data.formats import pixels
from jaxspeed.errors import UserError

# When as many images of a batch are broken, and no other is in it, so is the disk.
_HOPELESS = 8


def why_broken(split: Split, number: int) -> str:
  """Why an image of a split is broken; reads it."""
  try:
    return describe_failure(split.read(number))
  except OSError as error:
    return describe_unreadable(error)


class Repair:
  """What a stream knows of the broken images of its split.

  Attributes:
    doubtful: true for images of which some part could not be decoded, or the header not be read.
    mixed: whether the split has images that are no JPEGs.
  """

  def __init__(
    self,
    split: Split,
    decode: Callable[..., Any],
    *,
    failures: tuple[type[Exception], ...],
    on_error: str,
  ) -> None:
    """Looks at the headers' outcome only.

    Args:
      split: the images.
      decode: called with an encoded image and its windows, decodes that part.
      failures: exceptions of `decode` that mean a broken image.
      on_error: "skip" or "raise", as the streams take it.

    Raises:
      UserError: a header could not be read, with on_error="raise".
    """
    self.doubtful = split.width == 0
    names = split.files if split.whole_files else ()
    self.mixed = not all(name.lower().endswith((".jpg", ".jpeg")) for name in names)
    self._split, self._decode = split, decode
    self._failures, self._on_error = failures, on_error
    self._reasons: dict[int, str] = {}
    if on_error == "raise" and self.doubtful.any():
      self._refuse(int(self.doubtful.argmax()))

  def next_whole(self, number: int, windows_of: Callable[[int], Sequence[np.ndarray]]) -> int:
    """The first image from `number` on of which the part that `windows_of` it says can be decoded.

    Raises:
      UserError: there is none.
    """
    split, images = self._split, len(self._split)
    for candidate in (further % images for further in range(number, number + images)):
      if not self.doubtful[candidate]:
        return candidate
      if split.width[candidate] and not self._fault(candidate, windows_of(candidate)):
        return candidate
    raise UserError(
      f"none of the {images} images of {split.root} can be decoded; "
      f"{split.name(number)}: {self.reason(number)}."
    )

  def examine(self, request: Request, threads: int) -> bool:
    """Tries each image of a batch that failed; whether that told anything new.

    Args:
      request: the batch.
      threads: images that are tried at a time.

    Raises:
      UserError: an image is not what was indexed, or broken with on_error="raise", or all are.
    """
    split, known = self._split, (self.mixed, len(self._reasons))

    def try_row(row: int) -> str:
      return self._fault(int(request.used[row]), [window[row] for window in request.windows])

    with ThreadPoolExecutor(threads) as pool:
      faults = list(pool.map(try_row, range(len(request.used))))
    if all(faults) and len(faults) >= _HOPELESS:
      number = int(request.used[0])
      raise UserError(
        f"none of {len(faults)} images in a row can be decoded, the first of them "
        f"{split.name(number)} in {split.root} ({faults[0]}): mend the data set."
      )
    for number, fault in zip(request.used.tolist(), faults, strict=True):
      if fault:
        self._reasons[number] = fault
        self.doubtful[number] = True
        if self._on_error == "raise":
          self._refuse(number)
    return known != (self.mixed, len(self._reasons))

  def reason(self, number: int) -> str:
    """Why an image is broken."""
    if number not in self._reasons:
      self._reasons[number] = why_broken(self._split, number)
    return self._reasons[number]

  def check_length(self, number: int, length: int) -> None:
    """Makes sure that an image has as many bytes as when it was indexed.

    Raises:
      UserError: it has not.
    """
    if length != self._split.length[number]:
      self._changed(number, f"{self._split.length[number]:,} bytes then, {length:,} now")

  def _fault(self, number: int, windows: Sequence[np.ndarray]) -> str:
    """Why a part of an image cannot be decoded; '' if it can.

    Raises:
      UserError: the image is not the one that was indexed.
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
      f"({self.reason(number)}): replace it or take it away, or set config.data.on_error=skip."
    )

  def _check_size(self, number: int, encoded: bytes) -> None:
    try:
      with pixels.open_image(io.BytesIO(encoded)) as image:
        found = pixels.header_of(image)
    except Exception:  # no header, which is damage and no change
      return
    split = self._split
    indexed = (split.width[number], split.height[number], split.orientation[number])
    if found != indexed:
      then, now = (f"{width} x {height}" for width, height, _ in (indexed, found))
      self._changed(number, f"{then} pixels then, {now} now")

  def _changed(self, number: int, how: str) -> NoReturn:
    split = self._split
    advice = drop_index(split.index_folder, split.root)
    raise UserError(
      f"{split.name(number)} in {split.root} has changed since the images were indexed "
      f"({how}): {advice}."
    )
