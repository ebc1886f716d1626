"""The likeliest classes of image files."""

import os
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8
from ml_collections import ConfigDict
from PIL import Image

from jaxspeed.config import output
from jaxspeed.data.augment import normalize
from jaxspeed.data.disk.imageset import class_names_of
from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.class_names import stored_class_names
from jaxspeed.data.formats.pixels import reason_of
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.files import open_regular
from jaxspeed.planning.plan import Phase
from jaxspeed.run.restore import load_config, open_pretrained, open_run
from jaxspeed.steps import eval_step
from jaxspeed.steps.spec import TrainSpec

Prediction = list[tuple[str, float]]
# Called with the error of an image that cannot be read.
OnError = Callable[[UserError], None]


def predict(
  folder: pathlib.Path,
  images: Sequence[str],
  *,
  step: int | None = None,
  top: int = 5,
  on_error: OnError | None = None,
) -> list[Prediction | None]:
  """The likeliest classes of image files, with their probabilities.

  Args:
    folder: the folder of the run whose weights are used.
    images: the names of the image files.
    step: the step of the checkpoint; None: that of the newest whole one.
    top: the number of classes to return for each image.
    on_error: a function called with the error for a file that is no image; the file's result is
      then None. Without a function, the error is raised.

  Raises:
    UserError: a file is no image, the folder holds no run, or logits are not finite.
  """
  config = for_images(load_config(folder))
  names = stored_class_names(folder, config.data.classes)
  with precision.wide_enough(config.precision):
    return _predict_run(folder, config, images, names, step, top, on_error)


def _predict_run(
  folder: pathlib.Path,
  config: ConfigDict,
  images: Sequence[str],
  names: Sequence[str],
  step: int | None,
  top: int,
  on_error: OnError | None,
) -> list[Prediction | None]:
  spec, restored = open_run(folder, config, step)
  phase = spec.plan.phase_of(restored.step - 1)
  return _predict(spec, phase, restored.tree.state.evaluated(), images, names, top, on_error)


def predict_pretrained(
  config: ConfigDict,
  images: Sequence[str],
  *,
  top: int = 5,
  given: Collection[str] = (),
  on_error: OnError | None = None,
) -> list[Prediction | None]:
  """`predict` with the weights that `config.pretrained.path` names.

  Args:
    config: a recipe; uses its last phase, and the classes of the data set at `config.data.path`.
    images: the names of the image files.
    top: the number of classes to return for each image.
    given: the fields that the command line sets, which the data set does not override.
    on_error: as in `predict`.

  Raises:
    UserError: as `predict` and `restore.open_pretrained`, or the data set has other classes.
  """
  config = for_images(config)
  names = _class_names(config, given)
  with precision.wide_enough(config.precision):
    spec, variables = open_pretrained(config)
    return _predict(spec, spec.plan.phases[-1], variables, images, names, top, on_error)


def _class_names(config: ConfigDict, given: Collection[str]) -> tuple[str, ...]:
  """The names of the data set's classes, or numbers; sets data.classes to their number."""
  names: tuple[str, ...] = ()
  if config.data.path:
    names = class_names_of(name=config.data.name, path=config.data.path)
    if names and "data.classes" not in given and len(names) != config.data.classes:
      output.say(
        f"note: the data set decides: data.classes={len(names)} in place of the recipe's "
        f"{config.data.classes}"
      )
      config.data.classes = len(names)
    if names and len(names) != config.data.classes:
      raise UserError(
        f"config.data.path: {config.data.path} has {len(names)} classes, and config.data.classes "
        f"is {config.data.classes}: name the data set that the weights were trained on, or none."
      )
  return names or tuple(map(str, range(config.data.classes)))


def for_images(config: ConfigDict) -> ConfigDict:
  """The config with an evaluation mode that takes single images of any shape."""
  config = config.copy_and_resolve_references()
  if config.data.feed == "stream":
    config.eval.mode = "flip" if "flip" in config.eval.mode else "center"
  return config


def _predict(
  spec: TrainSpec,
  phase: Phase,
  variables: Any,
  images: Sequence[str],
  names: Sequence[str],
  top: int,
  on_error: OnError | None,
) -> list[Prediction | None]:
  config = spec.config
  if config.data.feed == "stream":
    size, resize, antialias = phase.eval_size, int(phase.eval_resize), config.data.antialias
  else:
    size, resize, antialias = config.data.image_size, config.data.image_size, True
  found: dict[int, UInt8[np.ndarray, "size size 3"]] = {}
  for number, path in enumerate(images):
    try:
      found[number] = read_image(path, size, resize, antialias=antialias)
    except UserError as error:
      if on_error is None:
        raise
      on_error(error)
  if not found:
    return [None] * len(images)
  batch = mesh_lib.replicate(np.stack(list(found.values())), spec.mesh)
  rows = np.asarray(jax.jit(probabilities_of(spec))(variables, batch))
  if not np.isfinite(rows).all():
    raise UserError(
      "the weights give logits that are not finite: choose another --step, or other weights."
    )
  order = np.argsort(-rows, axis=1)[:, :top]
  likeliest = {
    number: [(names[index], float(row[index])) for index in best]
    for number, row, best in zip(found, rows, order, strict=True)
  }
  return [likeliest.get(number) for number in range(len(images))]


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


def read_image(
  path: str, size: int, resize: int, *, antialias: bool = True
) -> UInt8[np.ndarray, "size size 3"]:
  """An image file as the model sees it: RGB, short side resized to `resize`, center crop.

  The pixels are those of `streams.EvalStream`, which uses TensorFlow, to a grey level or two.

  Args:
    path: the path of a file in one of `pixels.FORMATS`.
    size: both sides of the result, in pixels; black beyond the edges of the resized image.
    resize: the short side before the crop, in pixels.
    antialias: as in `streams.TrainStream`.

  Raises:
    UserError: the file is missing or no image.
  """
  try:
    with pixels.without_warnings(), open_regular(path) as file:
      image = pixels.load_upright(file)
  except FileNotFoundError:
    raise UserError(f"{path}: there is no such file.") from None
  except Exception as error:  # Pillow raises almost anything
    if os.path.isdir(path):
      raise UserError(f"{path} is a folder: name its files, as in {path.rstrip('/')}/*.") from None
    raise UserError(f"{path} cannot be read as an image: {reason_of(error)}.") from None
  short = min(image.size)
  # Only the crop is resized: a strip of 1 x 50,000 pixels would not fit in memory.
  (left, right, x, width), (top, bottom, y, height) = (
    _shown(side, resize * side // short, size) for side in image.size
  )
  how = _resize if antialias else _interpolate
  square = Image.new("RGB", (size, size))
  square.paste(how(image, (width, height), (left, top, right, bottom)), (x, y))
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


_Box = tuple[float, float, float, float]


def _resize(image: Image.Image, size: tuple[int, int], box: _Box) -> Image.Image:
  return image.resize(size, Image.Resampling.BILINEAR, box)


def _interpolate(image: Image.Image, size: tuple[int, int], box: _Box) -> Image.Image:
  """Interpolates between the nearest pixels; in float32, as Pillow would drop the fractions."""
  how = (Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)
  planes = [plane.convert("F").transform(size, *how) for plane in image.split()]
  values = np.stack([np.asarray(plane) for plane in planes], -1)
  return Image.fromarray(np.rint(values).astype(np.uint8))
