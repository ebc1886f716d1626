"""Streams of decoded images from disk: random crops to train on, central ones to evaluate on.

    stream = TrainStream(images.train, seed=0, image_size=128, batch_size=1024, min_scale=0.08,
                         flip="random", steps=[(epoch, step), ...])
    for batch in stream:  # HostBatch of uint8 images, decoded while the one before is trained on
      ...
    stream.broken  # {number: reason} of the images that others took the place of

`crops.py` decides which images, which part of each, and which are mirrored, as a function of (seed,
epoch, step) alone. TensorFlow's graph reads, decodes, crops and resizes, and draws nothing. So a
stream starts at any step without decoding what comes before it, and any number of processes sees
the same global batches.
"""

import abc
import collections
import dataclasses
import functools
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt8

from jaxspeed.data.batch import AUGMENT
from jaxspeed.data.disk.crops import (
  CROP_NUMBERS,
  central_windows,
  crop_boxes,
  epoch_mirror,
  epoch_order,
  random_stream,
  stored_boxes,
  stored_windows,
)
from jaxspeed.data.disk.images import (
  central_crop,
  describe_failure,
  describe_unreadable,
  import_tensorflow,
  random_crop,
  turn,
)
from jaxspeed.data.disk.imageset import Split
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.disk.sizes import drop_index
from jaxspeed.data.formats import pixels
from jaxspeed.errors import UserError

_PREFETCHED = 2
# Images of shards that are read at once; 64 originals of ImageNet have 7 MB.
_CHUNK = 64
# Files are opened side by side because a disk or a network answers each after its latency.
_READERS = 8
# When as many images of a batch are broken, and no other is in it, so is the disk.
_HOPELESS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class HostBatch:
  """This process's contiguous part of a global batch.

  Attributes:
    image: as decoded; never mirrored.
    label: of the images that are in `image`.
    mask: false where the image does not count.
    mirror: true where the image is to be mirrored, on the device.
    index: numbers of the images asked for; another may stand for one that is broken.
  """

  image: UInt8[np.ndarray, "b h w 3"]
  label: Int32[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]
  mirror: Bool[np.ndarray, "b"]
  index: Int64[np.ndarray, "b"]


@dataclasses.dataclass(frozen=True, eq=False)
class _Request:
  """A batch before it is decoded: `used` are the images that stand for `index`."""

  index: Int64[np.ndarray, "b"]
  used: Int64[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]
  mirror: Bool[np.ndarray, "b"]
  windows: tuple[np.ndarray, ...]


class _Stream(abc.ABC):
  """An iterator of HostBatch, decoded ahead by threads of TensorFlow.

  An image whose part cannot be decoded is replaced by the next one by number of which the same can
  be decoded, which depends on nothing but the image and the part. TensorFlow fails for the whole
  batch and names no image: the doubtful ones are then found one by one, and the stream goes on from
  this batch. From then on parts of doubtful images are tried before they are asked for.

  Attributes:
    split: the images.
    broken: reasons by number, of those images that were replaced in the batches so far; the caller
      may clear it.
  """

  # dtype and shape of what `_windows` returns for each image.
  _window_types: tuple[tuple[type, tuple[int, ...]], ...]
  _batches: Iterator[tuple[Any, Any]]
  _pending: collections.deque[_Request]

  def __init__(
    self, split: Split, *, steps: int, batch: int, on_error: str, antialias: bool
  ) -> None:
    self.split = split
    self.broken: dict[int, str] = {}
    self._tf = import_tensorflow()
    pixels.drop_warnings()
    self._steps, self._batch, self._on_error = steps, batch, on_error
    self._antialias = antialias
    self._delivered = 0
    self._doubtful = split.width == 0
    self._turned = bool((split.orientation > 1).any())
    self._reasons: dict[int, str] = {}
    self._failure: Exception | None = None
    self._restarted_at = -1
    names = split.files if split.whole_files else ()
    self._mixed = not all(name.lower().endswith((".jpg", ".jpeg")) for name in names)
    if on_error == "raise" and self._doubtful.any():
      self._refuse(int(self._doubtful.argmax()))
    self._start()

  @abc.abstractmethod
  def _ask(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, mask and mirror of this process's part of a step's batch."""

  @abc.abstractmethod
  def _windows(self, step: int, rows: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, ...]:
    """What is decoded of the images `used`, in rows `rows` of the batch, and its new size."""

  @abc.abstractmethod
  def _finish(self, encoded: Any, *windows: Any, mixed: bool) -> Any:
    """TensorFlow's operations on one image."""

  def __iter__(self) -> "_Stream":
    return self

  def __next__(self) -> HostBatch:
    """The next batch; its image is only to be read.

    Raises:
      UserError: an image is not what was indexed, or broken with on_error="raise", or all are.
    """
    while self._delivered < self._steps:
      try:
        image, length = next(self._batches)
      except self._tf.errors.OpError as error:
        self._recover(error)
        continue
      # The buffers of TensorFlow's tensors, without the copy that .numpy() makes.
      return self._deliver(np.asarray(memoryview(image)), np.asarray(memoryview(length)))
    self.close()
    raise StopIteration

  def close(self) -> None:
    """Ends the threads; there are no more batches."""
    self._delivered = self._steps
    self._batches = iter(())

  def _deliver(
    self, image: UInt8[np.ndarray, "b h w 3"], length: Int32[np.ndarray, "b"]
  ) -> HostBatch:
    request = self._pending.popleft()
    for row in np.flatnonzero(length != self.split.length[request.used]):
      self._check_length(int(request.used[row]), int(length[row]))
    for row in np.flatnonzero(request.used != request.index):
      number = int(request.index[row])
      self.broken[number] = self._reason(number)
    self._delivered += 1
    return HostBatch(
      image=image,
      label=self.split.label[request.used],
      mask=request.mask,
      mirror=request.mirror,
      index=request.index,
    )

  # Requests

  def _request(self, step: int) -> _Request:
    index, mask, mirror = self._ask(step)
    used = index.copy()
    for row in np.flatnonzero(self._doubtful[used]):
      used[row] = self._next_whole(step, int(row), int(used[row]))
    windows = self._windows(step, np.arange(len(used)), used)
    return _Request(index, used, self._counted(mask, used == index), mirror, windows)

  def _counted(self, mask: np.ndarray, original: np.ndarray) -> np.ndarray:
    """The mask of a batch in which only the `original` images are those asked for."""
    return mask

  def _next_whole(self, step: int, row: int, number: int) -> int:
    """The first image from `number` on that can stand in a row of a batch."""
    images = len(self.split)
    for candidate in (further % images for further in range(number, number + images)):
      if not self._doubtful[candidate]:
        return candidate
      if self.split.width[candidate]:
        windows = self._windows(step, np.array([row]), np.array([candidate]))
        if not self._fault(candidate, [window[0] for window in windows]):
          return candidate
    raise UserError(
      f"none of the {images} images of {self.split.root} can be decoded; "
      f"{self.split.name(number)}: {self._reason(number)}."
    )

  # TensorFlow's part

  def _start(self) -> None:
    """Begins to decode at the first batch that is not delivered yet."""
    tf = self._tf
    self._pending = collections.deque()
    chunk = self._batch if self.split.whole_files else min(self._batch, _CHUNK)
    parts = -(-self._batch // chunk)
    load = functools.partial(self._load, self._pending, parts, chunk)
    types = [tf.string, *(tf.as_dtype(dtype) for dtype, _ in self._window_types)]
    shapes = [(), *(shape for _, shape in self._window_types)]
    mixed, whole_files = self._mixed, self.split.whole_files

    @tf.autograph.experimental.do_not_convert
    def load_part(number: Any) -> tuple[Any, ...]:
      arrays = tf.numpy_function(load, [number], types)
      for array, shape in zip(arrays, shapes, strict=True):
        array.set_shape((None, *shape))
      return tuple(arrays)

    @tf.autograph.experimental.do_not_convert
    def decode(source: Any, *windows: Any) -> tuple[Any, Any]:
      encoded = tf.io.read_file(source) if whole_files else source
      return self._finish(encoded, *windows, mixed=mixed), tf.strings.length(encoded)

    threads = len(os.sched_getaffinity(0))
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_warm_start = True  # decodes from now on, not from the first next()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    # Of about 1,200 us of an image, 41 are spent around its decoding, 64 with from_generator.
    dataset = tf.data.Dataset.range(self._delivered * parts, self._steps * parts).map(load_part)
    dataset = dataset.prefetch(1).unbatch().map(decode, num_parallel_calls=threads)
    dataset = dataset.batch(self._batch).prefetch(_PREFETCHED)
    self._batches = iter(dataset.with_options(options))

  def _load(
    self, pending: "collections.deque[_Request]", parts: int, chunk: int, number: int
  ) -> tuple[np.ndarray, ...]:
    """What the graph needs for `chunk` images of a batch: names or bytes, and windows."""
    try:
      step, part = divmod(int(number), parts)
      if part == 0:
        pending.append(self._request(step))
      request, rows = pending[-1], slice(part * chunk, (part + 1) * chunk)
      sources = np.array(self._sources(request.used[rows]), object)
      return (sources, *(window[rows] for window in request.windows))
    except Exception as error:
      self._failure = error  # TensorFlow makes text of it
      raise

  def _sources(self, used: Int64[np.ndarray, "n"]) -> list[bytes]:
    split = self.split
    if split.whole_files:
      return [os.fsencode(split.files[file]) for file in split.file[used]]
    rows = np.array_split(used, _READERS)
    with ThreadPoolExecutor(_READERS) as pool:
      parts = pool.map(lambda part: [self._read(int(number)) for number in part], rows)
      return [encoded for part in parts for encoded in part]

  def _read(self, number: int) -> bytes:
    try:
      return self.split.read(number)
    except OSError as error:
      raise UserError(
        f"{self.split.name(number)} in {self.split.root} cannot be read "
        f"({error.strerror or error}): the data set is not complete, or not readable for you."
      ) from error

  # Broken images

  def _recover(self, error: Exception) -> None:
    """Finds out which images of the batch are broken, and starts again at this batch.

    Raises:
      UserError: as `__next__`.
    """
    self._batches = iter(())
    if self._failure:
      raise self._failure
    request, known = self._pending[0], (self._mixed, len(self._reasons))

    def examine(row: int) -> str:
      return self._fault(int(request.used[row]), [window[row] for window in request.windows])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
      faults = list(pool.map(examine, range(len(request.used))))
    if all(faults) and len(faults) >= _HOPELESS:
      number = int(request.used[0])
      raise UserError(
        f"none of {len(faults)} images in a row can be decoded, the first of them "
        f"{self.split.name(number)} in {self.split.root} ({faults[0]}): mend the data set."
      )
    for number, fault in zip(request.used.tolist(), faults, strict=True):
      if fault:
        self._reasons[number] = fault
        self._doubtful[number] = True
        if self._on_error == "raise":
          self._refuse(number)
    # A disk may have failed for a moment, but not twice in the same place.
    if known == (self._mixed, len(self._reasons)) and self._restarted_at == self._delivered:
      raise error
    self._restarted_at = self._delivered
    self._start()

  def _fault(self, number: int, windows: Sequence[np.ndarray]) -> str:
    """Why a part of an image cannot be decoded; '' if it can.

    Raises:
      UserError: the image is not the one that was indexed.
    """
    try:
      encoded = self.split.read(number)
    except OSError as error:
      return describe_unreadable(error)
    self._check_length(number, len(encoded))
    try:
      self._finish(self._tf.constant(encoded), *map(self._tf.constant, windows), mixed=True)
    # Outside of a graph, what Pillow decodes raises what `numpy_function` called.
    except (self._tf.errors.OpError, ValueError):
      self._check_size(number, encoded)
      return describe_failure(encoded)
    self._mixed |= not encoded.startswith(pixels.JPEG_SIGNATURE)
    return ""

  def _reason(self, number: int) -> str:
    if number not in self._reasons:
      try:
        self._reasons[number] = describe_failure(self.split.read(number))
      except OSError as error:
        self._reasons[number] = describe_unreadable(error)
    return self._reasons[number]

  def _refuse(self, number: int) -> None:
    raise UserError(
      f"{self.split.name(number)} in {self.split.root} cannot be decoded ({self._reason(number)}): "
      "replace it or take it away, or set config.data.on_error=skip."
    )

  def _check_length(self, number: int, length: int) -> None:
    if length != self.split.length[number]:
      self._changed(number, f"{self.split.length[number]:,} bytes then, {length:,} now")

  def _check_size(self, number: int, encoded: bytes) -> None:
    try:
      with pixels.open_image(io.BytesIO(encoded)) as image:
        found = pixels.header_of(image)
    except Exception:  # no header, which is damage and no change
      return
    split = self.split
    indexed = (split.width[number], split.height[number], split.orientation[number])
    if found != indexed:
      then, now = (f"{width} x {height}" for width, height, _ in (indexed, found))
      self._changed(number, f"{then} pixels then, {now} now")

  def _changed(self, number: int, how: str) -> None:
    advice = drop_index(self.split.index_folder, self.split.root)
    raise UserError(
      f"{self.split.name(number)} in {self.split.root} has changed since the images were indexed "
      f"({how}): {advice}."
    )


class TrainStream(_Stream):
  """Random resized crops in the order of `epoch_order`; decoding begins at once.

  Without antialiasing, where the crops of a set are large, JPEGs are decoded to half their size if
  that is still as large as `image_size`: less to compute, and bilinear interpolation then skips
  fewer pixels. Originals of ImageNet to 128 px take 0.94 times the CPU time (half of the crops are
  halved).
  """

  _window_types = ((np.int32, (4,)), (np.int32, ()))

  def __init__(
    self,
    split: Split,
    *,
    seed: int,
    image_size: int,
    batch_size: int,
    min_scale: float,
    flip: str,
    steps: Iterable[tuple[int, int]],
    process: int = 0,
    processes: int = 1,
    on_error: str = "skip",
    antialias: bool = True,
  ) -> None:
    """Starts to decode.

    Args:
      split: the images.
      seed: of the run.
      image_size: both sides, in pixels.
      batch_size: of all processes together, which divide it.
      min_scale: see `crop_boxes`.
      flip: see `epoch_mirror`.
      steps: (epoch, step in the epoch) of each batch; the last step of an epoch may be short of
        images, and is filled with masked ones from the epoch's beginning: real images, for the
        sake of batch norm.
      process: which part of each batch to decode.
      processes: how many parts there are.
      on_error: "skip" replaces an image that cannot be decoded, "raise" is a UserError.
      antialias: resize as Pillow does, whose filter grows with what it shrinks; else between the
        nearest pixels, as TensorFlow does unasked.
    """
    self._seed, self._size, self._global = seed, image_size, batch_size
    self._min_scale, self._flip = min_scale, flip
    part = batch_size // processes
    self._rows = slice(part * process, part * (process + 1))
    self._numbers = np.array(list(steps), np.int64).reshape(-1, 2)
    self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None
    # A choice costs 2 to 4 % of each image; half of the crops halved gains 8 %.
    short = np.minimum(split.width, split.height)
    self._halve = bool(np.mean(short >= 2 * image_size) > 0.5)
    super().__init__(
      split, steps=len(self._numbers), batch=part, on_error=on_error, antialias=antialias
    )

  def _ask(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    epoch, within = map(int, self._numbers[step])
    images = len(self.split)
    # By one name only: after a restart a thread that is about to end may still be here.
    kept = self._epoch
    if kept is None or kept[0] != epoch:
      order = epoch_order(self._seed, epoch, images)
      kept = epoch, order, epoch_mirror(self._seed, epoch, images, flip=self._flip)
      self._epoch = kept
    _, order, mirror = kept
    place = within * self._global + np.arange(self._global)[self._rows]
    index = order[place % images]
    return index, place < images, mirror[index]

  def _windows(self, step: int, rows: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, ...]:
    epoch, within = map(int, self._numbers[step])
    random = random_stream(self._seed, epoch, within, AUGMENT)
    uniform = random.random_sample((self._global, CROP_NUMBERS))[self._rows][rows]
    size = self.split.width[used], self.split.height[used]
    box = crop_boxes(uniform, *size, min_scale=self._min_scale)
    orientation = self.split.orientation[used].astype(np.int32)
    return stored_boxes(box, *size, orientation), orientation

  def _finish(self, encoded: Any, *windows: Any, mixed: bool) -> Any:
    *part, orientation = windows
    how = dict(halve=self._halve, mixed=mixed, antialias=self._antialias)
    image = random_crop(self._tf, encoded, *part, size=self._size, **how)
    return turn(self._tf, image, orientation) if self._turned else image


class EvalStream(_Stream):
  """Images resized, and of each the centre, in the shape of its batch, equal on all processes.

  A broken image does not count: its mask is false.
  """

  _window_types = (
    (np.int32, (4,)),
    (np.float32, (2,)),
    (np.float32, (2,)),
    (np.int32, (2,)),
    (np.int32, ()),
  )

  def __init__(
    self,
    split: Split,
    batches: Sequence[EvalBatch],
    *,
    resize: float,
    process: int = 0,
    processes: int = 1,
    on_error: str = "skip",
    antialias: bool = True,
  ) -> None:
    """Starts to decode.

    Args:
      split: the images.
      batches: global ones, all of one size, which the processes divide.
      resize: short side after resizing, in pixels; a fraction is dropped, as torchvision does.
      process: which part of each batch to decode.
      processes: how many parts there are.
      on_error: "skip" masks an image that cannot be decoded, "raise" is a UserError.
      antialias: as in `TrainStream`.
    """
    self._batches_asked, self._resize = batches, int(resize)
    part = len(batches[0].index) // processes if batches else 1
    self._rows = slice(part * process, part * (process + 1))
    super().__init__(split, steps=len(batches), batch=part, on_error=on_error, antialias=antialias)

  def _ask(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batch = self._batches_asked[step]
    index = batch.index[self._rows]
    return index, batch.mask[self._rows], np.zeros(len(index), bool)

  def _counted(self, mask: np.ndarray, original: np.ndarray) -> np.ndarray:
    return mask & original

  def _windows(self, step: int, rows: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, ...]:
    batch = self._batches_asked[step]
    size = self.split.width[used], self.split.height[used]
    windows = central_windows(*size, shape=batch.shape, resize=self._resize)
    orientation = self.split.orientation[used].astype(np.int32)
    box, *rest = stored_windows(*windows, *size, orientation, shape=batch.shape)
    # A pixel is enough of an image that only fills the batch.
    box[~batch.mask[self._rows][rows]] = (0, 0, 1, 1)
    return box, *rest, orientation

  def _finish(self, encoded: Any, *windows: Any, mixed: bool) -> Any:
    *part, orientation = windows
    image = central_crop(self._tf, encoded, *part, mixed=mixed, antialias=self._antialias)
    return turn(self._tf, image, orientation) if self._turned else image
