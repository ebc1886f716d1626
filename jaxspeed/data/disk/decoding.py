"""The base of the streams in `streams.py`: batches in order, decoded ahead by TensorFlow."""

import abc
import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from jaxspeed.data.disk.batches import HostBatch, Request
from jaxspeed.data.disk.images import import_tensorflow
from jaxspeed.data.disk.imageset import Split
from jaxspeed.data.disk.reading import ReadAhead
from jaxspeed.data.disk.repair import Repair
from jaxspeed.data.formats import pixels
from jaxspeed.devices.cpus import usable_cpus
from jaxspeed.errors import UserError

_PREFETCHED = 2
# Images that are handed over at once; 64 originals of ImageNet have 7 MB.
_CHUNK = 64
# Images that are read at a time: at 20 ms each, 3,200 a second.
READ_THREADS = 64


class Stream(abc.ABC):
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
  _pending: collections.deque[Request]

  def __init__(
    self,
    split: Split,
    *,
    steps: int,
    batch: int,
    on_error: str,
    antialias: bool,
    read_threads: int,
  ) -> None:
    self.split = split
    self.broken: dict[int, str] = {}
    self._tf = import_tensorflow()
    pixels.drop_warnings()
    self._steps, self._batch = steps, batch
    self._antialias = antialias
    self._delivered = 0
    self._turned = bool((split.orientation > 1).any())
    self._failure: Exception | None = None
    self._restarted_at = -1
    # Outside of a graph, what Pillow decodes raises what `numpy_function` called.
    failures = (self._tf.errors.OpError, ValueError)
    self._repair = Repair(split, self._decode_part, failures=failures, on_error=on_error)
    self._read_threads = read_threads
    # Not TensorFlow's threads, which spin while they wait for work: 72 of them took a third of the
    # cores from the two that decode.
    self._reader = ReadAhead(self._read, threads=read_threads)
    self._start()

  @abc.abstractmethod
  def _ask(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, mask and flips of this process's part of a step's batch."""

  @abc.abstractmethod
  def _windows(self, step: int, rows: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, ...]:
    """What is decoded of the images `used`, in rows `rows` of the batch, and its new size."""

  @abc.abstractmethod
  def _finish(self, encoded: Any, *windows: Any, mixed: bool) -> Any:
    """TensorFlow's operations on one image."""

  def __iter__(self) -> "Stream":
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
    self._reader.close()

  def _deliver(
    self, image: UInt8[np.ndarray, "b h w 3"], length: Int32[np.ndarray, "b"]
  ) -> HostBatch:
    request = self._pending.popleft()
    for row in np.flatnonzero(length != self.split.length[request.used]):
      self._repair.check_length(int(request.used[row]), int(length[row]))
    for row in np.flatnonzero(request.used != request.index):
      number = int(request.index[row])
      self.broken[number] = self._repair.reason(number)
    self._delivered += 1
    return HostBatch(
      image=image,
      label=self.split.label[request.used],
      mask=request.mask,
      flip=request.flip,
      index=request.index,
    )

  # Requests

  def _request(self, step: int) -> Request:
    index, mask, flip = self._ask(step)
    used = index.copy()
    for row in np.flatnonzero(self._repair.doubtful[used]):

      def windows_of(candidate: int, row: int = int(row)) -> list[np.ndarray]:
        windows = self._windows(step, np.array([row]), np.array([candidate]))
        return [window[0] for window in windows]

      used[row] = self._repair.next_whole(int(used[row]), windows_of)
    windows = self._windows(step, np.arange(len(used)), used)
    return Request(index, used, self._counted(mask, used == index), flip, windows)

  def _counted(self, mask: np.ndarray, original: np.ndarray) -> np.ndarray:
    """The mask of a batch in which only the `original` images are those asked for."""
    return mask

  # TensorFlow's part

  def _start(self) -> None:
    """Begins to decode at the first batch that is not delivered yet."""
    self._pending = collections.deque()
    chunk = min(self._batch, _CHUNK)
    self._batches = _decoded(
      self._tf,
      functools.partial(self._load, self._loaded(self._pending, chunk)),
      functools.partial(self._finish, mixed=self._repair.mixed),
      self._window_types,
      parts=(self._steps - self._delivered) * -(-self._batch // chunk),
      batch=self._batch,
    )

  def _load(self, loaded: Iterator[tuple[np.ndarray, ...]], _: int) -> tuple[np.ndarray, ...]:
    """What the graph needs for the next part of a batch."""
    try:
      return next(loaded)
    except Exception as error:
      # TensorFlow makes text of it, and asks again.
      self._failure = self._failure or error
      raise

  def _loaded(
    self, pending: "collections.deque[Request]", chunk: int
  ) -> Iterator[tuple[np.ndarray, ...]]:
    """Encoded images and their windows, for `chunk` images of a batch at a time.

    Args:
      pending: gets the batches as they are asked for.
      chunk: images of a part.
    """
    asked: collections.deque[list[np.ndarray]] = collections.deque()

    def parts() -> Iterator[Int64[np.ndarray, "n"]]:
      for step in range(self._delivered, self._steps):
        request = self._request(step)
        pending.append(request)
        for first in range(0, self._batch, chunk):
          rows = slice(first, first + chunk)
          asked.append([window[rows] for window in request.windows])
          yield request.used[rows]

    for images in self._reader.in_parts(parts()):
      yield np.array(images, object), *asked.popleft()

  def _read(self, number: int) -> bytes:
    try:
      return self.split.read(number)
    except OSError as error:
      if self.split.whole_files:
        return b""  # it cannot be decoded, and counts as broken
      raise UserError(
        f"{self.split.name(number)} in {self.split.root} cannot be read "
        f"({error.strerror or error}): the data set is not complete, or not readable for you."
      ) from error

  def _decode_part(self, encoded: bytes, *windows: np.ndarray) -> None:
    """Decodes part of one image, as the graph would."""
    self._finish(self._tf.constant(encoded), *map(self._tf.constant, windows), mixed=True)

  def _recover(self, error: Exception) -> None:
    """Finds out which images of the batch are broken, and starts again at this batch.

    Raises:
      UserError: as `__next__`.
    """
    self._batches = iter(())
    if self._failure:
      raise self._failure
    news = self._repair.examine(self._pending[0], self._read_threads)
    # A disk may have failed for a moment, but not twice in the same place.
    if not news and self._restarted_at == self._delivered:
      raise error
    self._restarted_at = self._delivered
    self._start()


def _decoded(
  tf: Any,
  load: Callable[[int], tuple[np.ndarray, ...]],
  finish: Callable[..., Any],
  window_types: Sequence[tuple[type, tuple[int, ...]]],
  *,
  parts: int,
  batch: int,
) -> Iterator[tuple[Any, Any]]:
  """Batches of decoded images and of their encoded lengths, made ahead by threads of TensorFlow.

  Args:
    tf: TensorFlow.
    load: returns the encoded images of the next part and their windows; called for one at a time.
    finish: TensorFlow's operations on an encoded image and its windows.
    window_types: dtype and shape of each window of an image.
    parts: how often `load` is called.
    batch: images of a batch.
  """
  types = [tf.string, *(tf.as_dtype(dtype) for dtype, _ in window_types)]
  shapes = [(), *(shape for _, shape in window_types)]

  @tf.autograph.experimental.do_not_convert
  def load_part(number: Any) -> tuple[Any, ...]:
    arrays = tf.numpy_function(load, [number], types)
    for array, shape in zip(arrays, shapes, strict=True):
      array.set_shape((None, *shape))
    return tuple(arrays)

  @tf.autograph.experimental.do_not_convert
  def decode(encoded: Any, *windows: Any) -> tuple[Any, Any]:
    return finish(encoded, *windows), tf.strings.length(encoded)

  threads = usable_cpus()
  options = tf.data.Options()
  options.deterministic = True
  options.autotune.enabled = False
  options.experimental_warm_start = True  # decodes from now on, not from the first next()
  options.threading.private_threadpool_size = threads
  options.threading.max_intra_op_parallelism = 1
  # Of about 1,200 us of an image, 41 are spent around its decoding, 64 with from_generator.
  dataset = tf.data.Dataset.range(parts).map(load_part).prefetch(1).unbatch()
  dataset = dataset.map(decode, num_parallel_calls=threads)
  dataset = dataset.batch(batch).prefetch(_PREFETCHED)
  return iter(dataset.with_options(options))
