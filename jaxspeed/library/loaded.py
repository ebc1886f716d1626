"""A run from its folder: its result, its history, its weights, and what they predict."""

import contextlib
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8
from ml_collections import ConfigDict
from PIL import Image

from jaxspeed.config import stored
from jaxspeed.config.registry import AnyModel
from jaxspeed.data.batch import pad_batches
from jaxspeed.data.formats.class_names import stored_class_names
from jaxspeed.data.memory.arrays import images_of, labels_of
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.devices.compile import cache_settings_kept
from jaxspeed.errors import UserError
from jaxspeed.export.formats.choices import Format, InputDtype
from jaxspeed.files import expanded
from jaxspeed.library.calling import library_call
from jaxspeed.models import make  # noqa: F401  registers the families of models
from jaxspeed.models.own import check_module, describe_model
from jaxspeed.planning.make import make_plan
from jaxspeed.records import class_figures
from jaxspeed.records.arrays import Predictions
from jaxspeed.records.results import read_result
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import predictions_of
from jaxspeed.run.export import write_network
from jaxspeed.run.predict import BrokenImage, Predictor, Source
from jaxspeed.run.predict_csv import find_images
from jaxspeed.run.restore import Weights, for_images, load_config, open_run
from jaxspeed.steps.eval_step import evaluate_on_mesh
from jaxspeed.steps.spec import TrainSpec, make_train_spec

_log = logging.getLogger("jaxspeed")


class Run:
  """A trained run; `jaxspeed.fit` and `jaxspeed.load` return it.

  Attributes:
    folder: the run's folder.
    config: its config, with everything filled in.
    result: the content of result.json; {} while the run is not finished: "top1", "macro_top1",
      "ece", "per_class" (as in `evaluate`), "confusion", "seconds", ...
    history: a dict for each epoch, as in metrics.jsonl: "epoch", "step", "train_loss",
      "train_top1", "eval_loss", "eval_top1", "learning_rate", "train_seconds", ...
    step: the number of steps after which the weights were saved.
    class_names: the names of its classes, by label; their numbers as text where it has no names.
    model: the Flax module, called as `model.apply(variables, images, train=False)` on normalised
      images: (images - config.data.mean) / config.data.std, with pixels from 0 to 255.
    variables: its variables, those that the run was evaluated with: {"params", "batch_stats"}.
  """

  def __init__(self, folder: pathlib.Path, config: ConfigDict, weights: Weights) -> None:
    """Use `jaxspeed.load`."""
    self.folder, self.config, self.step = folder, config, weights.step
    self.model: AnyModel = weights.spec.model
    self.variables: dict[str, Any] = weights.variables
    self.history: list[dict[str, Any]] = read_metrics(folder)
    self.result: dict[str, Any] = read_result(folder) or {}
    self.class_names = stored_class_names(folder, config.data.classes)
    self._weights, self._predictor = weights, Predictor(weights, self.class_names)

  def __repr__(self) -> str:
    end = f"top1 {self.result['top1']:.2%}" if self.result else f"unfinished, step {self.step}"
    if self.result and self.history and self.step != self.history[-1]["step"]:
      end += f" at its end, weights of step {self.step}"
    return f"<jaxspeed.Run {str(self.folder)!r}: {self.config.name or 'a recipe'}, {end}>"

  @functools.cached_property
  def predictions(self) -> Predictions | None:
    """What the run predicted at its last evaluation, image by image; None if it is not finished.

    Raises:
      UserError: predictions.npz in the run's folder is damaged.
    """
    return Predictions.read(self.folder, self.config.data.classes)

  def evaluate(self, images: Any, labels: Any = None) -> dict[str, Any]:
    """Metrics of the weights on labelled images, with the views of `config.eval.mode`.

    Args:
      images: uint8 from 0 to 255 or floats from 0 to 1, of shape [n, size, size, 3], in the size
        that the run was evaluated with.
      labels: integers [n].

    Returns:
      {"images": n, "loss", "top1", "top5", "macro_top1", "ece", "per_class", "confusion"};
      accuracies are fractions, and there is no "top5" for five classes or fewer. "macro_top1" is
      the mean accuracy of the classes, "ece" the expected calibration error (`class_figures`).
      `metrics["per_class"]["cat"]` is {"top1", "images"}; `metrics["confusion"][a][b]` the number
      of images of class a that class b is predicted for. Above 1,000 classes both are missing.

    Raises:
      UserError: images or labels are of another kind or size.
    """
    if labels is None or isinstance(images, str | os.PathLike):
      raise UserError(
        "run.evaluate takes images and their labels, as run.evaluate(x_val, y_val): run.result has "
        "the figures of the run's own evaluation images."
      )
    with _computing(self.config.precision):
      pixels = self._checked(images)
      truth = labels_of(labels, len(pixels), "labels")
      if (largest := int(truth.max())) >= self.config.data.classes:
        raise UserError(
          f"labels go up to {largest}, and the run has {self.config.data.classes} classes."
        )
      spec, program = self._evaluation(len(pixels))
      batch = pad_batches(pixels, truth, spec.plan.eval_batch_size * spec.devices)
      result = program(self.variables, mesh_lib.replicate(batch, spec.mesh))
      metrics = {
        "images": int(result.sums.count),
        **result.sums.means(self.config.data.classes),
      }
      predictions = predictions_of(result, self.step)
      return metrics | class_figures.figures_of(predictions, self.class_names)

  def predict(self, images: Any) -> Float[np.ndarray, "n classes"]:
    """Probabilities of the classes, by label.

    Args:
      images: as in `evaluate`, or one image without its first axis; or, of any size, image files, a
        folder of them (in the order of their names, those of sub-folders last) or images of Pillow,
        one or a list.

    Returns:
      A row for each image. The row of a file that cannot be read is NaN, and the logger "jaxspeed"
      has the reason as a warning.

    Raises:
      UserError: images are of another kind or size, or none of the files is an image.
    """
    with _computing(self.config.precision):
      found = list(self._predictor.rows(self._sources(images)))
      read = [row for row in found if not isinstance(row, BrokenImage)]
      for row in found:
        if isinstance(row, BrokenImage):
          if not read:
            raise row
          _log.warning("%s", row)
      lost = np.full_like(read[0], np.nan)
      return np.stack([lost if isinstance(row, BrokenImage) else row for row in found])

  def export(
    self,
    path: str | os.PathLike[str],
    *,
    format: Format,
    input: InputDtype = "uint8",
    fold: bool = False,
  ) -> dict[str, Any]:
    """Writes the model for other programs, as `jaxspeed export` does; docs/serving.md loads it.

    Args:
      path: the file to write; an existing one is replaced.
      format: "onnx" and "stablehlo" go from images [n, h, w, 3] to probabilities [n, classes];
        "safetensors" holds the weights of a ResNet or ViT alone. "onnx" has the models of the
        package, "stablehlo" any.
      input: the images that go in: "uint8" from 0 to 255, or "float32" from 0 to 1.
      fold: whether "onnx" folds batch norms into the convolutions before them.

    Returns:
      What the caller of the model must know, as in the file's metadata: "image_size", "resize",
      "mean", "std", "class_names", ...

    Raises:
      UserError: the format does not take the model, a package is missing, or the file cannot be
        written.
    """
    with library_call():
      network = self._weights.network(self.class_names, input)
      return write_network(expanded(path, "path"), network, file_format=format, fold=fold)

  @functools.cached_property
  def _evaluation(self) -> Callable[[int], tuple[TrainSpec, Any]]:
    """The specification and program of an evaluation of so many images, made once for each."""
    return functools.cache(self._made_evaluation)

  def _made_evaluation(self, count: int) -> tuple[TrainSpec, Any]:
    config = self._weights.spec.config
    plan = make_plan(config, train_images=config.data.train_images, eval_images=count)
    own = self.model if config.given.model else None
    spec = make_train_spec(config, plan, self._weights.spec.mesh, model=own)
    return spec, jax.jit(evaluate_on_mesh(spec))

  def _sources(self, images: Any) -> Sequence[Source]:
    """What `predict` takes, one by one; arrays in the size of the model."""
    if isinstance(images, str | os.PathLike):
      return find_images([os.fspath(images)]).paths
    if isinstance(images, Image.Image):
      return [images]
    kinds = str | os.PathLike | Image.Image
    if not (isinstance(images, Sequence) and images and isinstance(images[0], kinds)):
      return list(self._checked(images, one=True))
    if not all(isinstance(each, kinds) for each in images):
      raise UserError("images holds files or images of Pillow and something else: pass one kind.")
    return images

  def _checked(self, images: Any, *, one: bool = False) -> UInt8[np.ndarray, "n size size 3"]:
    """Arrays as uint8 in the size of the model; `one` as in `images_of`."""
    size, pixels = self._weights.view.size, images_of(images, "images", one=one)
    if pixels.shape[1:3] != (size, size):
      height, width = pixels.shape[1:3]
      raise UserError(
        f"images have {height} x {width} pixels, and the run was evaluated on {size} x {size}: "
        "resize them; predict takes files and images of Pillow of any size."
      )
    return pixels


def load(
  workdir: str | os.PathLike[str], *, step: int | str | None = None, model: AnyModel | None = None
) -> Run:
  """The run in a folder, with the weights of its newest whole checkpoint.

  Args:
    workdir: the folder of a run of `jaxspeed.fit` or of the command `train`.
    step: the step of the checkpoint, or "best" for that of the best evaluation, which
      config.checkpoint.keep_best keeps; None: that of the newest whole one.
    model: the Flax module that the run was given, if it was: the folder holds its weights and its
      description, and nothing is imported because a folder says so.

  Raises:
    UserError: the folder holds no run or no whole checkpoint, or `model` does not fit it.
  """
  with library_call():
    folder = expanded(workdir, "workdir")
    config = load_config(folder)
    if model is not None:
      check_module(model)
      if (passed := describe_model(model)) != config.given.model:
        trained = config.given.model or f"{config.model.name} of a recipe: leave model= out"
        raise UserError(f"model= is {passed}, and the run in {folder} trained {trained}.")
    for_use = for_images(config)
    with cache_settings_kept(), precision.wide_enough(config.precision):
      weights = open_run(folder, for_use, step, model=model)
    return Run(folder, stored.load(folder / "config.json"), weights)


@contextlib.contextmanager
def _computing(name: str) -> Iterator[None]:
  """The block of a computation: `library_call` with the types of a precision."""
  with library_call(), precision.wide_enough(name):
    yield
