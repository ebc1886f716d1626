"""Evaluation: of a run while it trains, of the weights in its folder, and of published ones."""

import dataclasses
import functools
import io
import math
import os
import pathlib
import time
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.config import output, stored
from jaxspeed.data.formats.class_names import check_class_names
from jaxspeed.data.formats.tfrecord import no_downloads
from jaxspeed.errors import UserError, plural
from jaxspeed.feeds.broken import describe, require_few
from jaxspeed.feeds.protocol import OpenData
from jaxspeed.files import write_atomically
from jaxspeed.planning.plan import Phase
from jaxspeed.records import class_figures
from jaxspeed.records.arrays import Predictions
from jaxspeed.run import restore, setup
from jaxspeed.run.initial import HELD_OUT_TRAINED
from jaxspeed.steps.outcomes import EvalResult, Outcomes
from jaxspeed.steps.spec import make_train_spec


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The result of an evaluation on the devices, and the seconds it took.

  Attributes:
    step: the number of steps trained before it.
  """

  step: int
  result: EvalResult
  seconds: float

  @functools.cached_property
  def predictions(self) -> Predictions:
    """Its images' predictions, copied from the devices at the first use."""
    return predictions_of(self.result, self.step)


def predictions_of(result: EvalResult, step: int) -> Predictions:
  """The predictions of an evaluation, in the order of the images' numbers."""
  columns = vars(_outcomes(result))
  return Predictions(step, **{name: columns[name] for name in columns if name != "logits"})


def _outcomes(result: EvalResult) -> Outcomes:
  """What an evaluation says of each image that counts, in the order of their numbers."""
  # One call: the copies of all batches are under way before the first is waited for.
  parts = jax.device_get(result.images)
  joined = jax.tree.map(lambda *each: np.concatenate(each), *parts)
  order = np.argsort(joined.index, kind="stable")
  order = order[joined.index[order] >= 0]
  return jax.tree.map(lambda column: column[order], joined)


def save_logits(path: pathlib.Path, result: EvalResult, images: int) -> None:
  """Writes an evaluation's logits [images, classes] and labels [images] as a .npz file, atomically.

  Row i is that of image i of the split; one that could not be read has NaN, and the label -1.

  Raises:
    UserError: the file cannot be written.
  """
  found = _outcomes(result)
  assert found.logits is not None
  logits = np.full((images, found.logits.shape[1]), np.nan, np.float32)
  labels = np.full(images, -1, np.int32)
  logits[found.index], labels[found.index] = found.logits, found.label
  content = io.BytesIO()
  np.savez(content, logits=logits, labels=labels)
  try:
    write_atomically(path, content.getvalue())
  except OSError as error:
    raise UserError(f"--logits={path} cannot be written ({error.strerror or error}).") from error


def evaluate(
  folder: pathlib.Path,
  *,
  step: int | str | None = None,
  config: ConfigDict | None = None,
  split: str = "eval",
  logits: pathlib.Path | None = None,
) -> list[dict[str, Any]]:
  """Accuracies of a checkpoint on the evaluation images of its run.

  Args:
    folder: the run's folder.
    step: the step of the checkpoint, or "best"; None: that of the newest whole one.
    config: the result of `load_config` with changes: other data, or modes separated by commas.
    split: "eval", or "train" for the images to train on, without augmentation.
    logits: the file in which to save the logits of a single mode (`save_logits`).

  Returns:
    For each mode the row that `evaluate --json` prints.
    Accuracies are fractions; "data" says where the images come from; "evaluated_on" is one of
    `results.Result.evaluated_on`, "train", or "all" where data.hold_out is 1; "images" were
    evaluated, "images_skipped" could not be read; "seconds" excludes compiling and finding images;
    "worst_classes" and "confusions" are those of `class_figures`; `results.Result` and
    `class_figures.summary` explain the others.

  Raises:
    UserError: as `open_run`; an unknown mode; too many broken images; logits that are not finite.
  """
  configs = _one_a_mode(restore.load_config(folder) if config is None else config)
  theirs, ours = stored.load(folder / "config.json").data, configs[0].data
  for name in ("cache", "path"):
    if theirs[name] and not ours[name]:
      flag = f"--config.data.{name}={theirs[name]}"
      output.note(f"the run's data.{name}, {theirs[name]}, is not used: {flag} uses it again")
  with restore.run_weights(folder, configs[0], step) as weights:
    data = _open_for(folder, configs[0], theirs.path, weights.phase)
    rows = _rows(configs, weights, data, split, logits)
  evaluated = weights.spec.plan.evaluated_weights(weights.step)
  return [{"step": weights.step, "evaluated_weights": evaluated} | row for row in rows]


def evaluate_pretrained(
  config: ConfigDict,
  *,
  given: Collection[str] = (),
  split: str = "eval",
  logits: pathlib.Path | None = None,
) -> list[dict[str, Any]]:
  """Accuracies of the weights at `config.pretrained.path`, in the rows of `evaluate`.

  `config` is a recipe with its modes in eval.mode (`with_last_mode`), of which the last phase is
  used. The data do not override fields that the command line sets, `given`.

  Raises:
    UserError: no file is named, or as `models.pretrained.load_pretrained`.
  """
  configs = [restore.named(each) for each in _one_a_mode(config)]
  if lacking := setup.missing_package(config):
    raise UserError(lacking)
  last = restore.stored_plan(configs[0]).phases[-1]
  with no_downloads():
    data = setup.open_data(configs[0], follow=setup.FOLLOWING - set(given), phases=[last])
  for line in setup.decided_by_data(config, data):
    output.note(line)
  restore.require_same_classes(configs[0], data.class_names)
  configs = [setup.as_data_decide(each, data) for each in configs]
  with restore.pretrained_weights(configs[0]) as weights:
    rows = _rows(configs, weights, data, split, logits)
  return [{"weights": config.pretrained.path} | row for row in rows]


def _one_a_mode(config: ConfigDict) -> list[ConfigDict]:
  """A config for each of the modes in eval.mode, which commas separate."""
  configs = []
  for mode in config.eval.mode.split(","):
    configs.append(config.copy_and_resolve_references())
    configs[-1].eval.mode = mode
  return configs


def _open_for(folder: pathlib.Path, config: ConfigDict, own_path: str, phase: Phase) -> OpenData:
  """The images to evaluate a run on, with the classes and the image size that it was trained with.

  `config` is the run's, perhaps with other data than its own, at `own_path`.

  Raises:
    UserError: they cannot be read, or are of another kind.
  """
  path = config.data.path
  if lacking := setup.missing_package(config):
    raise UserError(lacking)
  try:
    # A stream opens only what this phase reads.
    with no_downloads():
      data = setup.open_data(config, phases=[phase], follow=setup.FOLLOWING)
  except UserError:
    if not path or path != own_path or os.path.exists(path):
      raise
    raise UserError(
      f"{path} does not exist: {folder / 'config.json'} names it, perhaps relative to the folder "
      "where it was trained; name the data with --config.data.path."
    ) from None
  for name, value in data.decides.items():
    if value != config.data[name]:
      raise UserError(
        f"{path or config.data.name} has data.{name}={value}, and the run in {folder} was trained "
        f"with {config.data[name]}: set --config.data.path to such data."
      )
  check_class_names(folder, data.class_names, renamed=True)
  trained, there = config.data.train_images, len(data.train_labels)
  holds_own_out = path == own_path and data.evaluated_on != "test"
  if holds_own_out and config.data.hold_out == 1:
    output.note("all images are evaluated (data.hold_out=1), those that the run was trained on too")
  elif holds_own_out and trained != there:
    output.note(
      f"{trained:,} images were trained on, and the data have {there:,} now: {HELD_OUT_TRAINED}"
    )
  if (images := data.counts[1]) != config.data.eval_images:
    before = plural(config.data.eval_images, "image")
    output.note(f"the run was evaluated on {before}, not {images:,}")
  return data


def _evaluated_on(config: ConfigDict, data: OpenData) -> str:
  return "all" if config.data.hold_out == 1 and data.evaluated_on != "test" else data.evaluated_on


def _rows(
  configs: Sequence[ConfigDict],
  weights: restore.Weights,
  data: OpenData,
  split: str,
  logits: pathlib.Path | None,
) -> list[dict[str, Any]]:
  """The row of each mode, evaluated as in the phase that trained the last step."""
  path, rows, trains = configs[0].data.path, [], split == "train"
  evaluated_on = split if trains else _evaluated_on(configs[0], data)
  data = data.to_evaluate_training() if trains else data
  source = f"{data.source}, {path}" if path and path not in data.source else data.source
  for config in configs:
    row = {"mode": config.eval.mode, "data": source, "evaluated_on": evaluated_on}
    if trains:
      config.data.eval_images = config.data.train_images
    spec = make_train_spec(config, restore.stored_plan(config), weights.spec.mesh)
    spec = dataclasses.replace(spec, saves_logits=logits is not None)
    rows.append(row | _evaluate_mode(dataclasses.replace(weights, spec=spec), data, logits))
  return rows


def _evaluate_mode(
  weights: restore.Weights, data: OpenData, logits: pathlib.Path | None
) -> dict[str, Any]:
  """The numbers of a row: images, loss, accuracies, the worst classes, confusions and seconds."""
  config, phase = weights.spec.config, weights.phase
  run = setup.feed_of(config).prepare_evaluation(data, weights.spec, phase, weights.variables)
  start = time.perf_counter()
  result, broken = jax.block_until_ready(run())
  sums, seconds = result.sums, round(time.perf_counter() - start, 3)
  images, count = data.counts[1], int(sums.count)
  require_few(broken, {"eval": images}, config.data.max_broken)
  for line in describe(broken):
    output.note(line)
  means = sums.means(config.data.classes)
  if not math.isfinite(means["loss"]):
    raise UserError(
      f"the mean loss of {count} images is {means['loss']}: the weights give logits that are not "
      "finite, and accuracies would mean nothing; choose another --step."
    )
  result = jax.device_get(result)
  if logits is not None:
    save_logits(logits, result, images)
  row = {"images": count, "images_skipped": images - count, **means, "top5": means.get("top5")}
  predictions = predictions_of(result, weights.step)
  return row | {
    **class_figures.summary(predictions, config.data.classes),
    "worst_classes": class_figures.worst_classes(predictions, data.class_names),
    "confusions": class_figures.worst_confusions(predictions, data.class_names),
    "seconds": seconds,
  }
