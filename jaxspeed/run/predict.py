"""The likeliest classes of image files."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8
from ml_collections import ConfigDict

from jaxspeed.config import output
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
  run_weights,
)
from jaxspeed.run.weights import named, pretrained_weights, require_same_classes
from jaxspeed.steps import eval_step
from jaxspeed.steps.spec import TrainSpec

Prediction = list[tuple[str, float]]
# Called with the error of an image that cannot be read.
OnError = Callable[[UserError], None]


@dataclasses.dataclass(frozen=True)
class Predictor:
  """Weights that predict image files.

  Attributes:
    weights: the weights.
    names: the names of the classes.
  """

  weights: Weights
  names: Sequence[str]

  def predict(
    self, images: Sequence[str], top: int
  ) -> Generator[Prediction | BrokenImage, None, None]:
    """Compiles the program for some files; returns a generator that predicts them, in order.

    It yields the `top` likeliest classes of each file, or why it cannot be read. A batch is
    `eval.batch_size` images on each device, or fewer if there are fewer files. The memory does not
    grow with their number.

    Raises:
      UserError: logits are not finite.
    """
    spec, size = self.weights.spec, self.weights.view.size
    batch = spec.devices * min(spec.config.eval.batch_size, -(-len(images) // spec.devices) or 1)
    shape = jax.ShapeDtypeStruct((batch, size, size, 3), np.uint8)
    abstract = mesh_lib.abstract(shape, mesh_lib.sharded(spec.mesh))
    program = jax.jit(probabilities_of(spec)).lower(self.weights.variables, abstract).compile()
    return self._predict(images, program, batch, top)

  def _predict(
    self, images: Sequence[str], program: Any, batch: int, top: int
  ) -> Generator[Prediction | BrokenImage, None, None]:
    pixels.drop_warnings()
    # A decoded photo takes 100 times the memory of its file and of its crop: few at a time.
    pool = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="read")
    waiting: Iterator[Prediction | BrokenImage] = iter(())
    try:
      for first in range(0, len(images), batch):
        read = list(pool.map(self._read, images[first : first + batch]))
        # The devices compute while the next batch is read.
        started = self._start(read, program, batch)
        earlier, waiting = waiting, self._likeliest(read, started, top)
        yield from earlier
      yield from waiting
    finally:
      pool.shutdown(wait=False, cancel_futures=True)

  def _read(self, path: str) -> "_Read":
    view = self.weights.view
    try:
      return read_image(path, view.size, view.resize, antialias=view.antialias)
    except BrokenImage as error:
      return error

  def _start(self, part: "list[_Read]", program: Any, batch: int) -> Any:
    """The probabilities of a part's images, still being computed; None without images."""
    found = [image for image in part if not isinstance(image, BrokenImage)]
    if not found:
      return None
    # A full batch each time: another size would compile another program.
    padding = [(0, batch - len(found)), (0, 0), (0, 0), (0, 0)]
    images = mesh_lib.split(np.pad(np.stack(found), padding), self.weights.spec.mesh)
    return program(self.weights.variables, images)

  def _likeliest(
    self, part: "list[_Read]", started: Any, top: int
  ) -> Iterator[Prediction | BrokenImage]:
    rows = iter(() if started is None else np.asarray(started))
    for image in part:
      if isinstance(image, BrokenImage):
        yield image
        continue
      row = next(rows)
      if not np.isfinite(row).all():
        raise UserError(
          "the weights give logits that are not finite: choose another --step, or other weights."
        )
      yield [(self.names[index], float(row[index])) for index in np.argsort(-row)[:top]]


# The pixels of a file, or why it has none.
_Read = UInt8[np.ndarray, "size size 3"] | BrokenImage


@contextlib.contextmanager
def run_predictor(folder: pathlib.Path, step: CheckpointStep = None) -> Iterator[Predictor]:
  """Yields the predictor of a run, for use inside the block.

  Args:
    folder: the folder of the run whose weights are used.
    step: the step of the checkpoint, or "best"; None: that of the newest whole one.

  Raises:
    UserError: the folder holds no run, or not that checkpoint.
  """
  config = for_images(load_config(folder))
  if config.eval.mode == "selective":
    output.note(
      "the run was evaluated with eval.mode=selective, six views for the least confident quarter "
      "of the images; predict uses six views for each"
    )
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
    for each in predictor.predict(images, top):
      if isinstance(each, BrokenImage):
        if on_error is None:
          raise each
        on_error(each)
      found.append(None if isinstance(each, BrokenImage) else each)
  return found


def _class_names(config: ConfigDict, given: Collection[str]) -> tuple[str, ...]:
  """The names of the data set's classes, or the weights', or numbers; sets data.classes."""
  names: tuple[str, ...] = ()
  if config.data.path:
    names = class_names_of(name=config.data.name, path=config.data.path)
    if names and "data.classes" not in given and len(names) != config.data.classes:
      output.note(
        f"the data set decides: data.classes={len(names)} in place of the recipe's "
        f"{config.data.classes}"
      )
      config.data.classes = len(names)
    if names and len(names) != config.data.classes:
      raise UserError(
        f"config.data.path: {config.data.path} has {len(names)} classes, and config.data.classes "
        f"is {config.data.classes}: name the data set that the weights were trained on, or none."
      )
    if names:
      require_same_classes(config, names)
  if not names and (stored := class_names_in(config.pretrained.path)):
    if "data.classes" not in given:
      config.data.classes = len(stored)
    # Another number does not fit the last layer either, which is refused.
    names = stored if len(stored) == config.data.classes else ()
  return names or tuple(map(str, range(config.data.classes)))


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
