"""The likeliest classes of image files."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from jaxspeed.data.augment import normalize
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.run.restore import load_config, open_run
from jaxspeed.steps import eval_step


def predict(
  folder: pathlib.Path, images: Sequence[str], *, step: int | None = None, top: int = 5
) -> list[list[tuple[str, float]]]:
  """The likeliest classes of image files, with their probabilities.

  Raises:
    UserError: a file that is no image, or a folder that holds no run.
  """
  config = load_config(folder)
  if config.data.feed == "stream":
    config.eval.mode = "flip" if "flip" in config.eval.mode else "center"
  job, restored = open_run(folder, config, step)
  phase = job.plan.phase_of(restored.step - 1)
  if config.data.feed == "stream":
    size, resize, antialias = phase.eval_size, int(phase.eval_resize), config.data.antialias
  else:
    size, resize, antialias = config.data.image_size, config.data.image_size, True
  pixels = np.stack([read_image(path, size, resize, antialias=antialias) for path in images])
  names = (folder / "classes.txt").read_text().splitlines()

  def probabilities(variables: Any, batch: Any) -> Any:
    normal = normalize(batch, config.data.mean, config.data.std)
    logits = eval_step.predict_logits(
      variables, normal.astype(precision.DTYPES[config.precision]), job=job
    )
    return jax.nn.softmax(logits)

  variables = restored.tree.state.evaluated()
  rows = np.asarray(jax.jit(probabilities)(variables, mesh_lib.replicate(pixels, job.mesh)))
  order = np.argsort(-rows, axis=1)[:, :top]
  return [
    [(names[index], float(row[index])) for index in best]
    for row, best in zip(rows, order, strict=True)
  ]


def read_image(
  path: str, size: int, resize: int, *, antialias: bool = True
) -> UInt8[np.ndarray, "size size 3"]:
  """An image file as the net sees it: RGB, short side scaled to `resize`, the middle square.

  As `images.EvalStream` prepares it, to a grey level or two, by Pillow in place of TensorFlow.

  Args:
    path: of a file that Pillow reads.
    size: both sides, in pixels; what the resized image lacks of it is black.
    resize: the short side before the cut.
    antialias: as in `images.TrainStream`.

  Raises:
    UserError: the file is missing or no image.
  """
  try:
    with Image.open(path) as file:
      image = file.convert("RGB")
  except FileNotFoundError:
    raise UserError(f"{path}: there is no such file.") from None
  except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
    raise UserError(f"{path} cannot be read as an image: {error}.") from None
  short = min(image.size)
  width, height = (resize * side // short for side in image.size)
  image = (_resize if antialias else _interpolate)(image, width, height)
  left, top = (
    round(room / 2) if room >= 0 else -(-room // 2) for room in (width - size, height - size)
  )
  return np.asarray(image.crop((left, top, left + size, top + size)))


def _resize(image: Image.Image, width: int, height: int) -> Image.Image:
  return image.resize((width, height), Image.Resampling.BILINEAR)


def _interpolate(image: Image.Image, width: int, height: int) -> Image.Image:
  """Between the nearest pixels; in float32, because Pillow would drop the fractions."""
  how = (Image.Transform.EXTENT, (0, 0, *image.size), Image.Resampling.BILINEAR)
  planes = [plane.convert("F").transform((width, height), *how) for plane in image.split()]
  pixels = np.stack([np.asarray(plane) for plane in planes], -1)
  return Image.fromarray(np.rint(pixels).astype(np.uint8))
