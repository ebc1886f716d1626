"""From a run's folder back to a model: evaluation and prediction."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from jaxspeed import config as config_lib
from jaxspeed import mesh as mesh_lib
from jaxspeed import precision, step, validate
from jaxspeed.build import Job, make_job
from jaxspeed.checkpoint import Checkpoints, Restored
from jaxspeed.compile import use_cache
from jaxspeed.data.augment import normalize
from jaxspeed.data.feed import pad_batches
from jaxspeed.errors import UserError
from jaxspeed.loop import open_data
from jaxspeed.losses import Sums
from jaxspeed.plan import make_plan
from jaxspeed.state import Carry


def open_run(folder: pathlib.Path, checkpoint_step: int | None) -> tuple[Job, Restored]:
  """The job and a checkpoint of the run in `folder`.

  Raises:
    UserError: the folder holds no run, several runs, or no whole checkpoint.
  """
  config = config_lib.load(folder / "config.json")
  if config.runs > 1:
    raise UserError(
      f"{folder} holds {config.runs} runs: name one of them, as in --workdir={folder / 'run_000'}."
    )
  use_cache(config.compile_cache)
  mesh = mesh_lib.make_mesh()
  # Told the sizes, the plan takes no hold-out from them: the stored ones are those without it.
  plan = make_plan(
    config, train_images=config.data.train_images, eval_images=config.data.eval_images
  )
  job = make_job(config, plan, mesh)
  everywhere = mesh_lib.replicated(mesh)
  size = config.data.image_size
  state = jax.eval_shape(
    step.on_mesh(step.init_state, job),
    jax.ShapeDtypeStruct((2,), np.uint32),
    jax.ShapeDtypeStruct((config.data.train_images, size, size, 3), np.uint8),
  )
  target = mesh_lib.abstract(Carry(state, jax.eval_shape(Sums.zero)), everywhere)
  restored = Checkpoints(folder / "checkpoints").restore(target, step=checkpoint_step)
  if restored is None:
    raise UserError(f"{folder} holds no whole checkpoint: train it first.")
  return job, restored


def evaluate(
  folder: pathlib.Path, *, step: int | None = None, data_path: str = ""
) -> dict[str, Any]:
  """Accuracies of a checkpoint on the images that its run was evaluated on.

  Args:
    folder: of the run.
    step: of the checkpoint; None: the newest whole one.
    data_path: in place of the config's data.path.

  Returns:
    {"step", "evaluated_on", "images", "loss", "top1", "top5"}; accuracies as fractions,
    evaluated_on as in `records.result_row`.
  """
  job, restored = open_run(folder, step)
  config = job.config
  if data_path:
    config = config.copy_and_resolve_references()
    config.data.path = data_path
  arrays = open_data(config)
  data = pad_batches(
    arrays.eval_images, arrays.eval_labels, batch=job.plan.eval_batch_size, devices=job.devices
  )
  state = restored.tree.state
  sums = jax.jit(validate.evaluate_on_mesh(job))(
    state.evaluated(), mesh_lib.replicate(data, job.mesh)
  )
  return {
    "step": restored.step,
    "evaluated_on": config.tune_on,
    "images": int(sums.count),
    **sums.means(),
  }


def predict(
  folder: pathlib.Path, images: Sequence[str], *, step: int | None = None, top: int = 5
) -> list[list[tuple[str, float]]]:
  """The likeliest classes of image files, with their probabilities.

  Raises:
    UserError: a file that is no image, or a folder that holds no run.
  """
  job, restored = open_run(folder, step)
  config = job.config
  pixels = np.stack([read_image(path, config.data.image_size) for path in images])
  names = (folder / "classes.txt").read_text().splitlines()

  def probabilities(variables: Any, batch: Any) -> Any:
    normal = normalize(batch, config.data.mean, config.data.std)
    logits = validate.predict_logits(
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


def read_image(path: str, size: int) -> UInt8[np.ndarray, "size size 3"]:
  """An image file as the net sees it: RGB, short side scaled to `size`, the middle square.

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
  width, height = image.size
  scale = size / min(width, height)
  image = image.resize(
    (max(size, round(width * scale)), max(size, round(height * scale))), Image.Resampling.BILINEAR
  )
  left, top = (image.width - size) // 2, (image.height - size) // 2
  return np.asarray(image.crop((left, top, left + size, top + size)))
