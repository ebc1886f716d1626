"""The base class of the streams in `streams.py`: ordered batches, decoded ahead by TensorFlow.

Also why images are broken, and which take their places.
"""

import abc
import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from PIL import UnidentifiedImageError

from jaxspeed.data.batch import Batch
from jaxspeed.data.disk.images import crop, import_tensorflow
from jaxspeed.data.disk.reading import Part, ReadAhead, window_of
from jaxspeed.data.formats import pixels
from jaxspeed.data.table import Table
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError

_PREFETCHED = 2
# Images handed to TensorFlow at once; 64 originals of ImageNet take 7 MB.
_CHUNK = 64
# Images read concurrently: at 20 ms each, 3,200 a second.
READ_THREADS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """This process's part of a batch before it is decoded.

  Attributes:
    place: epoch, and place in its order.
    index: numbers of the images.
    used: the same, with others in place of images without a header (`Stream._with_headers`).
    mask, flip: as in `Batch`.
    windows: of each image the box to decode, the (vertical, horizontal) scale, translation and
      shape of its result, and its decoder (`pixels.JPEG`, ...); 4, 2, 2, 2 and 1 numbers of 32
      bits.
  """

  place: tuple[int, int]
  index: Int64[np.ndarray, "b"]
  used: Int64[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]
  flip: Bool[np.ndarray, "b"]
  windows: tuple[np.ndarray, ...]


class Stream(Iterator[Batch], abc.ABC):
  """An iterator of batches, decoded ahead by threads of TensorFlow.

  A batch is this process's contiguous part of a global batch: pixels that are never flipped, and
  the numbers of the images: in training of those that took the place of broken ones, in an
  evaluation of those requested. Of a table of noise, pixels are noise and nothing is decoded.

  If an image's crop cannot be decoded, the next one of the batch takes its place (`next_sound`).
  TensorFlow fails for the whole batch and names no image. So at the first failure the stream begins
  again at that batch, with a graph that marks images that it cannot decode (`_start`).

  Attributes:
    split: the images.
    broken: the reason for each image replaced so far, by number; the caller may clear it.
  """

  # Then boxes are all of a crop, and other images take the place of broken ones.
  _trains: bool
  _batches: Iterator[tuple[Any, Any]]
  _pending: collections.deque[Request]

  def __init__(
    self,
    split: Table,
    *,
    steps: int,
    batch_size: int,
    process: int = 0,
    processes: int = 1,
    antialias: bool = True,
    read_threads: int = READ_THREADS,
  ) -> None:
    """Start to decode.

    Args:
      split: the images.
      steps: number of batches.
      batch_size: global batch size, a multiple of `processes`.
      process: number of this process, which decodes that part of each batch.
      processes: number of processes.
      antialias: whether to resize as Pillow does, with a filter that widens as the image shrinks;
        else between the nearest pixels only, as TensorFlow does by default.
      read_threads: number of images read concurrently, ahead of decoding.
    """
    batch = batch_size // processes
    self._rows = slice(batch * process, batch * (process + 1))
    self.split = split
    self.broken: dict[int, str] = {}
    self._steps, self._batch, self._antialias = steps, batch, antialias
    self._delivered, self._tolerant = 0, False
    # Our own threads: 72 idle ones of TensorFlow cost two cores a third of the decoding.
    self._reader = ReadAhead(split, threads=read_threads)
    self._window = window_of(split, read_threads * processes)
    if split.is_noise or not steps:
      return
    self._tf = import_tensorflow()
    pixels.drop_warnings()
    self._failure: Exception | None = None
    self._mixed = bool((split.decoder != pixels.JPEG).any())
    self._start()

  @abc.abstractmethod
  def _request(self, step: int) -> Request:
    """Return this process's part of a batch."""

  def _with_headers(self, index: Int64[np.ndarray, "b"]) -> tuple[np.ndarray, ...]:
    """Return numbers, widths, heights and decoders; the next image is for one without a header."""
    split, sound = self.split, self.split.width[index] > 0
    used = index if sound.all() else index[next_sound(split, index, sound)]
    return used, split.width[used], split.height[used], split.decoder[used].astype(np.int32)

  def __next__(self) -> Batch:
    """Return the next batch; its images are read-only.

    Raises:
      UserError: all images of a batch are broken, or a shard cannot be read.
    """
    while self._delivered < self._steps:
      if self.split.is_noise:
        request = self._request(self._delivered)
        image = _noise(self._batch, *request.windows[3][0].tolist())
        return self._deliver(request, image, request.index, request.mask)
      try:
        # Memoryviews avoid the copy that .numpy() makes.
        image, sound = (np.asarray(memoryview(each)) for each in next(self._batches))
      except (self._tf.errors.OpError, StopIteration) as error:
        if self._failure or self._tolerant:
          raise self._failure or UserError(f"images could not be decoded: {error}") from error
        self._tolerant = True
        self._start()
        continue
      return self._sound_batch(self._pending.popleft(), image, sound)
    self.close()
    raise StopIteration

  def close(self) -> None:
    """End the threads; no batches follow."""
    self._delivered = self._steps
    self._batches = iter(())
    self._reader.close()

  def _sound_batch(
    self, request: Request, image: UInt8[np.ndarray, "b h w 3"], sound: Bool[np.ndarray, "b"]
  ) -> Batch:
    """Return a decoded batch with other images, or a mask, in place of the broken ones."""
    split, index, used, mask = self.split, request.index, request.used, request.mask
    for number in {*index[used != index], *used[~sound]}:
      self.broken[int(number)] = why_broken(split, int(number))
    if not self._trains:
      mask = mask & sound & (used == index)
    elif sound.all():
      index = used
    else:
      rows = next_sound(split, used, sound)
      image, index = image[rows], used[rows]
    return self._deliver(request, image, index, mask)

  def _deliver(
    self, request: Request, image: np.ndarray, index: np.ndarray, mask: np.ndarray
  ) -> Batch:
    self._delivered += 1
    return Batch(image, self.split.label[index], mask, request.flip, index.astype(np.int32))

  def _start(self) -> None:
    """Start to decode at the first batch not delivered yet; only a tolerant stream marks images."""
    tf, threads = self._tf, usable_cpus()
    self._pending = collections.deque()
    chunk = min(self._batch, _CHUNK)
    loaded = self._loaded(self._pending, chunk)
    windows = self._request(self._delivered).windows
    # The same for all images in training: known to the graph, it saves 1 to 2 % of an image's time.
    shape = tuple(windows[3][0].tolist()) if self._trains else None
    types = [tf.string, *(tf.as_dtype(each.dtype) for each in windows)]
    shapes = [(), *(each.shape[1:] for each in windows)]
    graph = tf.autograph.experimental.do_not_convert

    @graph
    def load(number: Any) -> tuple[Any, ...]:
      arrays = tf.numpy_function(lambda _: next(loaded), [number], types)
      for array, shape in zip(arrays, shapes, strict=True):
        array.set_shape((None, *shape))
      return tuple(arrays)

    @graph
    def decode(*element: Any) -> tuple[Any, Any]:
      how: dict[str, Any] = dict(mixed=self._mixed, antialias=self._antialias, filled=shape)
      return crop(tf, *element, **how), tf.constant(True)

    @graph
    def black(*element: Any) -> tuple[Any, Any]:
      return tf.zeros(tf.concat([element[4], [3]], 0), tf.uint8), tf.constant(False)

    @graph
    def decode_or_mark(*element: Any) -> Any:
      """Return a data set of one result: a black image where `decode` fails."""
      one = tf.data.Dataset.from_tensors(element)
      return one.map(decode).ignore_errors().concatenate(one.map(black)).take(1)

    # 41 of an image's 1,200 us are spent outside its decoding; with from_generator, 64.
    parts = (self._steps - self._delivered) * -(-self._batch // chunk)
    dataset = tf.data.Dataset.range(parts).map(load).prefetch(1).unbatch()
    if not self._tolerant:
      dataset = dataset.map(decode, num_parallel_calls=threads)
    else:
      # 414 and 483 images/s with 10 of 1,024 images cut off, where the plain map decoded 454 and
      # 707 whole ones on two busy cores. A restart at each broken image left a tenth of the rate.
      dataset = dataset.interleave(decode_or_mark, cycle_length=threads, num_parallel_calls=threads)
    dataset = dataset.batch(self._batch).prefetch(_PREFETCHED)
    self._batches = iter(dataset.with_options(_options(tf, threads)))

  def _loaded(
    self, pending: collections.deque[Request], chunk: int
  ) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield encoded images and their windows, in parts of at most `chunk` images of one batch.

    Args:
      pending: queue to which requested batches are appended.
      chunk: images of a part.
    """

    def parts() -> Iterator[Part]:
      for step in range(self._delivered, self._steps):
        request = self._request(step)
        epoch, place = request.place
        pending.append(request)
        for first in range(0, self._batch, chunk):
          rows = slice(first, first + chunk)
          window = epoch, (place + first) // self._window
          yield window, request.used[rows], *[each[rows] for each in request.windows]

    try:
      for (_, _, *windows), images in self._reader.in_order(parts()):
        yield np.array(images, object), *windows
    except Exception as error:
      self._failure = error  # TensorFlow turns it into text
      raise


def _options(tf: Any, threads: int) -> Any:
  options = tf.data.Options()
  options.deterministic = True
  options.autotune.enabled = False
  options.experimental_warm_start = True  # decode from now on, not from the first next()
  options.threading.private_threadpool_size = threads
  options.threading.max_intra_op_parallelism = 1
  return options


def why_broken(split: Table, number: int) -> str:
  """Read an image and return why it is broken."""
  try:
    encoded = split.read(number)
  except OSError as error:
    return f"it cannot be read: {error.strerror or error}"
  if len(encoded) != split.length[number]:
    return f"it has changed since it was indexed: remove {split.index}"
  try:
    pixels.decode(encoded)
  except (UnidentifiedImageError, ValueError) as error:  # Pillow names what it cannot read
    return pixels.reason_of(error) if encoded else "it is empty"
  except Exception:
    pass  # TensorFlow refuses what Pillow shows in part
  return "its data are damaged or cut off"


def next_sound(
  split: Table, index: Int64[np.ndarray, "b"], sound: Bool[np.ndarray, "b"]
) -> Int64[np.ndarray, "b"]:
  """Return for each row of a batch the next one that is sound, from it on and then from the first.

  Args:
    split: the images.
    index: the number of the image in each row.
    sound: whether it can be decoded.

  Raises:
    UserError: none can.
  """
  rows = np.flatnonzero(sound)
  if not len(rows):
    number = int(index[0])
    raise UserError(
      f"none of {len(index)} images in a row can be decoded, the first of them "
      f"{split.name(number)} in {split.root} ({why_broken(split, number)}): repair the data set, "
      "or name another."
    )
  return rows[np.searchsorted(rows, np.arange(len(index))) % len(rows)]


@functools.lru_cache(16)
def _noise(batch: int, height: int, width: int) -> UInt8[np.ndarray, "batch height width 3"]:
  random = np.random.RandomState((height, width))
  return random.randint(0, 256, (batch, height, width, 3)).astype(np.uint8)
