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
from jaxspeed.models.exchange import class_names_in
from jaxspeed.run.best import CheckpointStep
from jaxspeed.run.image_file import BrokenImage, read_image
from jaxspeed.run.restore import (
  Weights,
  for_images,
  load_config,
  named,
  pretrained_weights,
  require_same_classes,
  run_weights,
)
from jaxspeed.steps import eval_step
from jaxspeed.steps.spec import TrainSpec

Prediction = list[tuple[str, float]]
# Called with the error of an image that cannot be read.
OnError = Callable[[UserError], None]
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

  weights: Weights
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
def run_predictor(folder: pathlib.Path, step: CheckpointStep = None) -> Iterator[Predictor]:
  """Yields the predictor of a run, for use inside the block; `step` and errors as in `open_run`."""
  config = for_images(load_config(folder))
  names = stored_class_names(folder, config.data.classes)
  with run_weights(folder, config, step) as weights:
    yield Predictor(weights, names)


@contextlib.contextmanager
def pretrained_predictor(config: ConfigDict, given: Collection[str] = ()) -> Iterator[Predictor]:
  """Yields the predictor with the weights at `config.pretrained.path`, for use inside the block.

  Args:
    config: a recipe; uses its last phase, and the classes of the data set at `config.data.path`, or
      without one those that the file of the weights names.
    given: the fields that the command line sets, which the data set does not override.

  Raises:
    UserError: as `pretrained_weights`, or the data set has other classes.
  """
  config = for_images(named(config))
  names = _class_names(config, given)
  with pretrained_weights(config) as weights:
    yield Predictor(weights, names)


def predict(
  opened: contextlib.AbstractContextManager[Predictor],
  images: Sequence[str],
  *,
  top: int = 5,
  on_error: OnError | None = None,
) -> list[Prediction | None]:
  """The likeliest classes of image files, with their probabilities.

  Args:
    opened: `run_predictor` or `pretrained_predictor`, which is entered here.
    images: the names of the image files.
    top: the number of classes to return for each image.
    on_error: a function called with the error for a file that is no image; the file's result is
      then None. Without a function, the error is raised.

  Raises:
    UserError: a file is no image, the weights cannot be opened, or logits are not finite.
  """
  found: list[Prediction | None] = []
  with opened as predictor:
    for row in predictor.rows(images):
      if not isinstance(row, BrokenImage):
        found.append(predictor.likeliest(row, top))
      elif on_error is None:
        raise row
      else:
        on_error(row)
        found.append(None)
  return found


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
    require_same_classes(config, names)
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
