"""The probabilities of the classes of images, and the likeliest classes of image files."""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8
from ml_collections import ConfigDict
from PIL import Image

from jaxspeed.data.augment import normalize
from jaxspeed.data.disk.sources import class_names_of
from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.class_names import stored_class_names
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError
from jaxspeed.files import open_regular
from jaxspeed.models.exchange import class_names_in
from jaxspeed.run import restore
from jaxspeed.steps import eval_step
from jaxspeed.steps.spec import TrainSpec


class BrokenImage(UserError):
  """A file that cannot be read as an image.

  Its `reason` has a few words, without the name.
  """

  def __init__(self, sentence: str, reason: str) -> None:
    super().__init__(sentence)
    self.reason = reason


Prediction = list[tuple[str, float]]
# The name of a file, an image of Pillow, or the pixels as the model sees them.
Source = str | os.PathLike[str] | Image.Image | UInt8[np.ndarray, "size size 3"]
# The probabilities of an image's classes, or why the image cannot be read.
Row = Float[np.ndarray, "classes"] | BrokenImage


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
  """Weights that predict images.

  Attributes:
    weights: the weights.
    names: the names of the classes.
  """

  weights: restore.Weights
  names: Sequence[str]

  def rows(self, images: Sequence[Source]) -> Generator[Row, None, None]:
    """Compiles the program for some images; returns a generator of a row for each, in order.

    A batch is `eval.batch_size` images on each device, or fewer if there are fewer images. The
    memory does not grow with their number.

    Raises:
      UserError: logits are not finite.
    """
    devices, most = self.weights.spec.devices, self.weights.spec.config.eval.batch_size
    batch = devices * min(most, -(-len(images) // devices) or 1)
    return self._rows(images, batch, self._program(batch))

  @functools.cached_property
  def _program(self) -> Callable[[int], Any]:
    """The program for a size of batches, compiled once for each."""
    return functools.cache(self._compiled)

  def _compiled(self, batch: int) -> Any:
    spec, size = self.weights.spec, self.weights.view.size
    shape = jax.ShapeDtypeStruct((batch, size, size, 3), np.uint8)
    abstract = mesh_lib.abstract(shape, mesh_lib.sharded(spec.mesh))
    return jax.jit(probabilities_of(spec)).lower(self.weights.variables, abstract).compile()

  def _rows(self, images: Sequence[Source], batch: int, program: Any) -> Generator[Row, None, None]:
    pixels.drop_warnings()
    # A decoded photo takes 100 times the memory of its file and of its crop: few at a time.
    pool = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="read")
    waiting: Iterator[Row] = iter(())
    try:
      for first in range(0, len(images), batch):
        read = list(pool.map(self._read, images[first : first + batch]))
        found = [image for image in read if not isinstance(image, BrokenImage)]
        started: Any = ()
        if found:
          # A full batch each time: another size would compile another program.
          padding = [(0, batch - len(found)), (0, 0), (0, 0), (0, 0)]
          padded = np.pad(np.stack(found), padding)
          started = program(self.weights.variables, mesh_lib.split(padded, self.weights.spec.mesh))
        # The devices compute while the next batch is read.
        earlier, waiting = waiting, _finished(read, started)
        yield from earlier
      yield from waiting
    finally:
      pool.shutdown(wait=False, cancel_futures=True)

  def _read(self, image: Source) -> UInt8[np.ndarray, "size size 3"] | BrokenImage:
    if isinstance(image, np.ndarray):
      return image
    view = self.weights.view
    try:
      return read_image(image, view.size, view.resize, antialias=view.antialias)
    except BrokenImage as error:
      return error

  def likeliest(self, row: Float[np.ndarray, "classes"], top: int) -> Prediction:
    """The `top` likeliest classes of an image, with their probabilities."""
    return [(self.names[index], float(row[index])) for index in np.argsort(-row)[:top]]


def _finished(read: Sequence[Any], started: Any) -> Iterator[Row]:
  """Waits for the probabilities of a batch; yields a row for each image that was read or not."""
  rows = iter(np.asarray(started))
  for image in read:
    row = image if isinstance(image, BrokenImage) else next(rows)
    if not isinstance(row, BrokenImage) and not np.isfinite(row).all():
      raise UserError(
        "the weights give logits that are not finite: choose another --step, or other weights."
      )
    yield row


@contextlib.contextmanager
def run_predictor(folder: pathlib.Path, step: int | str | None = None) -> Iterator[Predictor]:
  """Yields the predictor of a run, for use inside the block; `step` and errors as in `open_run`."""
  config = restore.for_images(restore.load_config(folder))
  names = stored_class_names(folder, config.data.classes)
  with restore.run_weights(folder, config, step) as weights:
    yield Predictor(weights, names)


@contextlib.contextmanager
def pretrained_predictor(config: ConfigDict, given: Collection[str] = ()) -> Iterator[Predictor]:
  """Yields the predictor with the weights at `config.pretrained.path`, for use inside the block.

  It uses the last phase of a recipe, and the classes of the data set at `config.data.path`, or
  without one those that the file of the weights names. The data set does not override fields that
  the command line sets, `given`.

  Raises:
    UserError: as `pretrained_weights`, or the data set has other classes.
  """
  config = restore.for_images(restore.named(config))
  names = _class_names(config, given)
  with restore.pretrained_weights(config) as weights:
    yield Predictor(weights, names)


def predict(
  opened: contextlib.AbstractContextManager[Predictor], images: Sequence[str], *, top: int = 5
) -> list[Prediction | BrokenImage]:
  """The `top` likeliest classes of image files, with their probabilities.

  `opened` is `run_predictor` or `pretrained_predictor`, which is entered here.

  Raises:
    UserError: the weights cannot be opened, or logits are not finite.
  """
  with opened as predictor:
    return [
      row if isinstance(row, BrokenImage) else predictor.likeliest(row, top)
      for row in predictor.rows(images)
    ]


def _class_names(config: ConfigDict, given: Collection[str]) -> tuple[str, ...]:
  """The names of the data set's classes, or the weights', or numbers; sets data.classes."""
  data, fixed = config.data, "data.classes" in given
  names = class_names_of(name=data.name, path=data.path, cache=data.cache) if data.path else ()
  if names:
    if fixed and len(names) != data.classes:
      raise UserError(
        f"config.data.path: {data.path} has {len(names)} classes, and config.data.classes is "
        f"{data.classes}: name the data set that the weights were trained on, or none."
      )
    restore.require_same_classes(config, names)
  names = names or class_names_in(config.pretrained.path)
  if names and not fixed:
    data.classes = len(names)
  # Another number does not fit the last layer either, which is refused.
  return names if len(names) == data.classes else tuple(map(str, range(data.classes)))


def probabilities_of(spec: TrainSpec) -> Callable[[Any, Any], Any]:
  """The function of variables and uint8 images [n, h, w, 3] that predicts [n, classes]."""
  config = spec.config

  def probabilities(variables: Any, batch: Any) -> Any:
    normal = normalize(batch, config.data.mean, config.data.std, spec.accumulation)
    normal = normal.astype(precision.DTYPES[config.precision])
    with precision.products(config.precision):
      logits = eval_step.logits_of(variables, normal, config.eval.mode, spec=spec)
    return jax.nn.softmax(logits)

  return probabilities


def read_image(
  path: str | os.PathLike[str] | Image.Image, size: int, resize: int, *, antialias: bool = True
) -> UInt8[np.ndarray, "size size 3"]:
  """An image as the model sees it: RGB, short side resized to `resize`, center crop of `size`.

  Both are in pixels; the crop is black beyond the edges of the resized image. `antialias` is that
  of `streams.TrainStream`. The pixels are those of `streams.EvalStream`, which uses TensorFlow, to
  a grey level or two.

  Raises:
    BrokenImage: the file is missing or no image.
  """
  try:
    if isinstance(path, Image.Image):
      return _cropped(pixels.as_shown(path), size, resize, antialias)
    path = os.fspath(path)
    with open_regular(path) as file, pixels.open_image(file) as image:
      return _cropped(pixels.as_shown(image), size, resize, antialias)
  except FileNotFoundError:
    raise BrokenImage(f"{path}: there is no such file.", "there is no such file") from None
  except Exception as error:  # Pillow raises almost anything
    if isinstance(path, str) and os.path.isdir(path):
      files = f"{path.rstrip('/')}/*"
      sentence = f"{path} is a folder: name its files, as in {files}, or add --csv to `predict`."
      raise BrokenImage(sentence, "it is a folder") from None
    reason = pixels.reason_of(error)
    raise BrokenImage(f"{path} cannot be read as an image: {reason}.", reason) from None


def _cropped(
  image: Image.Image, size: int, resize: int, antialias: bool
) -> UInt8[np.ndarray, "size size 3"]:
  short = min(image.size)
  # Only the crop is resized: a strip of 1 x 50,000 pixels would not fit in memory.
  (left, right, x, width), (top, bottom, y, height) = (
    _shown(side, resize * side // short, size) for side in image.size
  )
  box = (left, top, right, bottom)
  if antialias:
    shown = image.resize((width, height), Image.Resampling.BILINEAR, box)
  else:
    shown = _interpolate(image, (width, height), box)
  square = Image.new("RGB", (size, size))
  square.paste(shown, (x, y))
  return np.asarray(square)


def _shown(side: int, resized: int, size: int) -> tuple[float, float, int, int]:
  """The part of a side that a center crop shows, rounded as in `crops.central_windows`.

  Returns:
    The part's begin and end in the image, and its first pixel and length in the result.
  """
  room = resized - size
  first = round(room / 2) if room >= 0 else -(-room // 2)
  begin, end = max(first, 0), min(first + size, resized)
  return begin * side / resized, end * side / resized, begin - first, end - begin


def _interpolate(
  image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float]
) -> Image.Image:
  """Interpolates between the nearest pixels; in float32, as Pillow would drop the fractions."""
  how = (Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)
  planes = [plane.convert("F").transform(size, *how) for plane in image.split()]
  values = np.stack([np.asarray(plane) for plane in planes], -1)
  return Image.fromarray(np.rint(values).astype(np.uint8))
