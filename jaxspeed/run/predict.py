"""The likeliest classes of image files."""

import collections
import contextlib
import dataclasses
import itertools
import pathlib
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

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
from jaxspeed.devices.cpus import usable_cpus
from jaxspeed.errors import UserError
from jaxspeed.models.pretrained import pretrained_class_names
from jaxspeed.planning.plan import Phase
from jaxspeed.run.best import CheckpointStep
from jaxspeed.run.image_file import BrokenImage, read_image
from jaxspeed.run.restore import (
  load_config,
  note_unfinished,
  open_run,
)
from jaxspeed.run.weights import named, open_pretrained, require_same_classes
from jaxspeed.steps import eval_step
from jaxspeed.steps.spec import TrainSpec

Prediction = list[tuple[str, float]]
# Called with the error of an image that cannot be read.
OnError = Callable[[UserError], None]


@dataclasses.dataclass(frozen=True)
class Predictor:
  """Weights that predict image files.

  Attributes:
    spec: the specification of the run, or of the recipe.
    phase: the phase whose evaluation prepares the images.
    variables: the variables of the model, on every device.
    names: the names of the classes.
  """

  spec: TrainSpec
  phase: Phase
  variables: Any
  names: Sequence[str]

  def compiled(self, images: int) -> "Program":
    """The compiled program for `images` images: `eval.batch_size` on each device, or fewer."""
    devices = self.spec.devices
    batch = devices * max(1, min(self.spec.config.eval.batch_size, -(-images // devices)))
    size = self._sizes()[0]
    shape = jax.ShapeDtypeStruct((batch, size, size, 3), np.uint8)
    abstract = mesh_lib.abstract(shape, mesh_lib.sharded(self.spec.mesh))
    function = jax.jit(probabilities_of(self.spec))
    return Program(function.lower(self.variables, abstract).compile(), batch)

  def predict(
    self, images: Iterable[str], program: "Program", top: int
  ) -> Generator[Prediction | BrokenImage, None, None]:
    """Yields the `top` likeliest classes of each file, or why it cannot be read, in order.

    Threads read files ahead of the devices; the memory does not grow with the number of files.

    Raises:
      UserError: logits are not finite.
    """
    # Closed at once if the caller stops early: its threads would go on reading.
    with contextlib.closing(self._read(images, program.batch)) as read:
      waiting: list[tuple[list[_Read], Any]] = []
      while part := list(itertools.islice(read, program.batch)):
        # The devices compute while the next batch is read.
        waiting.append((part, self._start(part, program)))
        if len(waiting) > 1:
          yield from self._likeliest(*waiting.pop(0), top)
      for started in waiting:
        yield from self._likeliest(*started, top)

  def _start(self, part: "list[_Read]", program: "Program") -> Any:
    """The probabilities of a part's images, still being computed; None without images."""
    found = [image for image in part if not isinstance(image, BrokenImage)]
    if not found:
      return None
    # A full batch each time: another size would compile another program.
    padding = [(0, program.batch - len(found)), (0, 0), (0, 0), (0, 0)]
    return program.function(
      self.variables, mesh_lib.split(np.pad(np.stack(found), padding), self.spec.mesh)
    )

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

  def _read(self, images: Iterable[str], ahead: int) -> "Generator[_Read, None, None]":
    """Yields the pixels of the files, of which at least `ahead` are read ahead."""
    data, (size, resize, antialias) = self.spec.config.data, self._sizes()
    # A decoded photo takes 100 times the memory of its file and of its crop: few at a time.
    decoding = threading.BoundedSemaphore(usable_cpus())

    def read(path: str) -> _Read:
      try:
        return read_image(path, size, resize, antialias=antialias, decoding=decoding)
      except BrokenImage as error:
        return error

    pixels.drop_warnings()
    pool = ThreadPoolExecutor(data.read_threads, thread_name_prefix="read")
    try:
      under_way: collections.deque[Future[_Read]] = collections.deque()
      for path in images:
        under_way.append(pool.submit(read, path))
        if len(under_way) > max(ahead, 2 * data.read_threads):
          yield under_way.popleft().result()
      while under_way:
        yield under_way.popleft().result()
    finally:
      pool.shutdown(wait=False, cancel_futures=True)

  def _sizes(self) -> tuple[int, int, bool]:
    """The size of a crop and the short side before it, in pixels, and whether to antialias."""
    data = self.spec.config.data
    if data.feed == "stream":
      return self.phase.eval_size, int(self.phase.eval_resize), data.antialias
    return data.image_size, data.image_size, True


class Program(NamedTuple):
  """A compiled program of variables and uint8 images [batch, size, size, 3], and its batch."""

  function: Callable[[Any, Any], Any]
  batch: int


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
  with precision.wide_enough(config.precision):
    spec, restored = open_run(folder, config, step)
    if step is None:
      note_unfinished(folder, restored.step, spec.plan.total_steps)
    phase = spec.plan.phase_of(restored.step - 1)
    yield Predictor(spec, phase, restored.tree.state.evaluated(), names)


@contextlib.contextmanager
def pretrained_predictor(config: ConfigDict, given: Collection[str] = ()) -> Iterator[Predictor]:
  """Yields the predictor with the weights at `config.pretrained.path`, for use inside the block.

  Args:
    config: a recipe; uses its last phase, and the classes of the data set at `config.data.path`, or
      without one those that the file of the weights names.
    given: the fields that the command line sets, which the data set does not override.

  Raises:
    UserError: as `restore.open_pretrained`, or the data set has other classes.
  """
  config = for_images(named(config))
  names = _class_names(config, given)
  with precision.wide_enough(config.precision):
    spec, variables = open_pretrained(config)
    yield Predictor(spec, spec.plan.phases[-1], variables, names)


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
    for each in predictor.predict(images, predictor.compiled(len(images)), top):
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
  if not names and (stored := pretrained_class_names(config)):
    if "data.classes" not in given:
      config.data.classes = len(stored)
    # Another number does not fit the last layer either, which is refused.
    names = stored if len(stored) == config.data.classes else ()
  return names or tuple(map(str, range(config.data.classes)))


def for_images(config: ConfigDict) -> ConfigDict:
  """The config with an evaluation mode that takes single images of any shape."""
  config = config.copy_and_resolve_references()
  if config.data.feed == "stream":
    config.eval.mode = "flip" if "flip" in config.eval.mode else "center"
  return config


def probabilities_of(spec: TrainSpec) -> Callable[[Any, Any], Any]:
  """The function of variables and uint8 images [n, h, w, 3] that predicts [n, classes]."""
  config = spec.config

  def probabilities(variables: Any, batch: Any) -> Any:
    normal = normalize(batch, config.data.mean, config.data.std, spec.accumulation)
    normal = normal.astype(precision.DTYPES[config.precision])
    with precision.products(config.precision):
      logits = eval_step.predict_logits(variables, normal, spec=spec)
    return jax.nn.softmax(logits)

  return probabilities
