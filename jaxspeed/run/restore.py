"""Evaluation of the model in a run's folder, or of published weights."""

import functools
import math
import os
import pathlib
import time
from collections.abc import Collection, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxspeed.cluster.folder_lock import run_has_ended
from jaxspeed.config import checks, output, stored
from jaxspeed.config.given import given_in
from jaxspeed.data.formats.class_names import check_class_names, check_weights_classes
from jaxspeed.data.formats.tfds_download import no_downloads
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.devices.compile import use_cache
from jaxspeed.errors import UserError, plural
from jaxspeed.feeds.broken import check_evaluated
from jaxspeed.feeds.protocol import OpenData
from jaxspeed.models.pretrained import check_pretrained, load_pretrained, pretrained_class_names
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Plan
from jaxspeed.records import class_figures
from jaxspeed.run.best import CheckpointStep, best_step
from jaxspeed.run.checkpoint import Checkpoints, Restored
from jaxspeed.run.evaluation import predictions_of
from jaxspeed.run.setup import FOLLOWING, as_data_decide, decided, feed_of, open_data
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import TrainSpec, make_train_spec
from jaxspeed.steps.state import Carry


def load_config(folder: pathlib.Path) -> ConfigDict:
  """The config of the run in `folder`, with the evaluation mode of its last phase.

  Its `data.cache` is emptied: a downloaded run must not say where to write.

  Raises:
    UserError: the folder holds no run, or several.
  """
  config = stored.load(folder / "config.json")
  config.data.cache = ""
  if config.runs > 1:
    raise UserError(
      f"{folder} holds {config.runs} runs: name one of them, as in {folder / 'run_000'}."
    )
  return with_last_mode(config)


def with_last_mode(config: ConfigDict) -> ConfigDict:
  """The config with the evaluation mode of its last phase in eval.mode, as `evaluate` needs it."""
  if config.phases.first_epoch and config.phases.eval_mode:
    config = config.copy_and_resolve_references()
    config.eval.mode = config.phases.eval_mode[-1]
    config.phases.eval_mode = ()
  return config


def _stored_plan(config: ConfigDict) -> Plan:
  """The plan of a run's config, for evaluation: devices need not divide the training batches."""
  # The stored sizes are those after the hold-out; without them the plan would hold out again.
  return make_plan(
    config, train_images=config.data.train_images, eval_images=config.data.eval_images
  )


def open_run(
  folder: pathlib.Path,
  config: ConfigDict,
  checkpoint_step: CheckpointStep,
  *,
  model: nn.Module | None = None,
) -> tuple[TrainSpec, Restored]:
  """The specification and a checkpoint of the run in `folder`.

  Args:
    folder: the run's folder.
    config: its config.
    checkpoint_step: the step of the checkpoint, or "best"; None: that of the newest whole one.
    model: the module that the run was given in place of `config.model`; None: none.

  Raises:
    UserError: the folder holds no whole checkpoint, or not the one that is asked for.
  """
  # The field is empty unless the command line of `evaluate` sets it (`stored.NOT_STORED`).
  use_cache(config.compile_cache)
  spec = make_train_spec(config, _stored_plan(config), mesh_lib.make_mesh(), model=model)
  checkpoints = Checkpoints(folder / "checkpoints")
  about = ""
  if checkpoint_step == "best":
    checkpoint_step = best_step(folder, config, checkpoints)
    about = f"--step=best is step {checkpoint_step}; "
  try:
    restored = checkpoints.restore(_abstract_carry(spec), step=checkpoint_step)
  except UserError as error:
    kept = (folder / "checkpoints" / str(checkpoint_step)).exists()
    if about and config.checkpoint.keep_best == "none" and not kept:
      raise UserError(
        f"{folder} kept no checkpoint of its best evaluation, step {checkpoint_step}: leave out "
        "--step=best to take the newest one, and train with --config.checkpoint.keep_best=top1 to "
        "keep the best."
      ) from None
    error.args = (f"{about}{error}",)
    raise
  if restored is None:
    result = folder / "result.json"
    advice = f"remove {result} and train it again" if result.exists() else "train it first"
    raise UserError(f"{folder} holds no whole checkpoint: {advice}.")
  return spec, restored


def note_unfinished(folder: pathlib.Path, step: int, total_steps: int) -> None:
  """Notes that the newest checkpoint of a run is not that of its plan's end."""
  if step < total_steps and not (folder / "result.json").exists():
    # Nothing is known of a process on another host: it may go on.
    how = "ended at" if run_has_ended(folder) else "is at"
    output.note(f"the run in {folder} {how} step {step:,} of {total_steps:,}")


def _abstract_carry(spec: TrainSpec) -> Carry:
  """Shapes and shardings of a run's carry, to restore a checkpoint into."""
  size = spec.plan.phases[0].image_size
  state = jax.eval_shape(
    on_mesh(init_state, spec),
    jax.ShapeDtypeStruct((2,), np.uint32),
    jax.ShapeDtypeStruct((spec.config.data.train_images, size, size, 3), np.uint8),
  )
  if given_in(spec.config).get(
    "optimizer"
  ):  # its state has a structure that only the optimizer knows
    state = state.replace(opt_state=None)
    if state.proxy is not None:
      state = state.replace(proxy=state.proxy.replace(opt_state=None))
  carry = Carry(state, MetricSums.zero(spec.accumulation))
  return mesh_lib.abstract(carry, mesh_lib.replicated(spec.mesh))


def evaluate(
  folder: pathlib.Path, *, step: CheckpointStep = None, config: ConfigDict | None = None
) -> list[dict[str, Any]]:
  """Accuracies of a checkpoint on the evaluation images of its run.

  Args:
    folder: the run's folder.
    step: the step of the checkpoint, or "best"; None: that of the newest whole one.
    config: the result of `load_config` with changes: other data, or modes separated by commas.

  Returns:
    For each mode {"step", "evaluated_weights", "mode", "data", "evaluated_on", "images",
    "images_skipped", "loss", "top1", "top5", "macro_top1", "ece", "worst_classes",
    "confusions", "seconds"}.
    Accuracies are fractions; "data" says where the images come from; "evaluated_on" is one of
    `results.EVALUATED_ON`, or "all" where data.hold_out is 1; "images" were evaluated,
    "images_skipped" could not be read; "seconds" excludes compiling and finding images;
    "worst_classes" and "confusions" are those of `class_figures`; `results.result_row` and
    `class_figures.summary` explain the others.

  Raises:
    UserError: as `open_run`; an unknown mode; too many broken images; logits that are not finite.
  """
  configs = _one_a_mode(load_config(folder) if config is None else config)
  cache = stored.load(folder / "config.json").data.cache
  if cache and not configs[0].data.cache:
    output.note(
      f"the run's data.cache, {cache}, is not used: --config.data.cache={cache} uses it again"
    )
  with precision.wide_enough(configs[0].precision):
    spec, restored = open_run(folder, configs[0], step)
    if step is None:
      note_unfinished(folder, restored.step, spec.plan.total_steps)
    rows = _rows(configs, spec.mesh, restored.step, restored.tree.state.evaluated(), folder=folder)
  weights = spec.plan.evaluated_weights(restored.step)
  return [{"step": restored.step, "evaluated_weights": weights} | row for row in rows]


def evaluate_pretrained(config: ConfigDict, *, given: Collection[str] = ()) -> list[dict[str, Any]]:
  """Accuracies of the weights at `config.pretrained.path`, in the rows of `evaluate`.

  Args:
    config: a recipe with its modes in eval.mode (`with_last_mode`); its last phase is used.
    given: the fields that the command line sets, which the data do not override.

  Raises:
    UserError: no file is named, or as `models.pretrained.load_pretrained`.
  """
  configs = _one_a_mode(config)
  with precision.wide_enough(config.precision):
    check_named(config)
    last = _stored_plan(configs[0]).phases[-1]
    with no_downloads():
      data = open_data(configs[0], follow=FOLLOWING - set(given), phases=[last])
    for line in decided(config, data):
      output.note(line)
    require_same_classes(config, data.class_names)
    configs = [as_data_decide(each, data) for each in configs]
    spec, variables = open_pretrained(configs[0])
    resolved = [_resolved(each) for each in configs]
    rows = _rows(resolved, spec.mesh, spec.plan.total_steps, variables, data)
  return [{"weights": config.pretrained.path} | row for row in rows]


def open_pretrained(config: ConfigDict) -> tuple[TrainSpec, dict[str, Any]]:
  """The specification of a recipe, and the weights at `config.pretrained.path` on every device.

  Raises:
    UserError: as `evaluate_pretrained`.
  """
  check_named(config)
  use_cache(config.compile_cache)
  config = _resolved(config)
  mesh = mesh_lib.make_mesh()
  spec = make_train_spec(config, _stored_plan(config), mesh)
  size = spec.plan.phases[-1].image_size
  shapes = jax.eval_shape(
    functools.partial(spec.model.init, train=False),
    jax.random.key(0),
    jax.ShapeDtypeStruct((1, size, size, 3), np.float32),
  )
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  return spec, mesh_lib.replicate(load_pretrained(config, zeros), mesh)


def check_named(config: ConfigDict) -> None:
  """Makes sure that a config names weights with a last layer, and a model that can load them.

  Raises:
    UserError: as `evaluate_pretrained`.
  """
  if not config.pretrained.path or config.pretrained.head == "new":
    raise UserError(
      "without --workdir, weights come from --config.pretrained.path=FILE.safetensors, with their "
      "own last layer: set --config.pretrained.head=keep."
    )
  if not (len(config.data.mean) and len(config.data.std)):
    raise UserError(
      "config.data.mean and config.data.std are empty, and weights alone do not tell them: set "
      "both to those that the weights were trained with, which a run's config.json holds."
    )
  check_pretrained(config)


def require_same_classes(config: ConfigDict, names: Sequence[str]) -> None:
  """Makes sure that the weights of a config were trained on classes of these names, if they say so.

  Raises:
    UserError: they were not.
  """
  path, data = config.pretrained.path, config.data.path or config.data.name
  if note := check_weights_classes(path, pretrained_class_names(config), data, names):
    output.note(note)


def _resolved(config: ConfigDict) -> ConfigDict:
  """The config with its precision resolved for this machine."""
  config = config.copy_and_resolve_references()
  config.precision = precision.resolve(config.precision, mesh_lib.find_devices()[0])
  return config


def _one_a_mode(config: ConfigDict) -> list[ConfigDict]:
  """A checked config for each of the modes in eval.mode, which commas separate."""
  configs = []
  for mode in config.eval.mode.split(","):
    configs.append(config.copy_and_resolve_references())
    configs[-1].eval.mode = mode
    checks.check(configs[-1])
  return configs


def _require_same_kind(folder: pathlib.Path, config: ConfigDict, data: OpenData) -> None:
  """Makes sure that the run in `folder` was trained on the classes and the image size of `data`.

  Raises:
    UserError: it was not.
  """
  for name, value in data.decides.items():
    if value != config.data[name]:
      raise UserError(
        f"{config.data.path or config.data.name} has data.{name}={value}, and the run in {folder} "
        f"was trained with {config.data[name]}: set --config.data.path to such data."
      )
  check_class_names(folder, data.class_names, renamed=True)


def _require_own_data(folder: pathlib.Path | None, path: str) -> None:
  """Makes sure that the data at `path` are there if the run's config is what names them.

  Raises:
    UserError: they are not.
  """
  if folder is None or not path or os.path.exists(path) or load_config(folder).data.path != path:
    return
  relative = "" if os.path.isabs(path) else ", relative to the folder where it was trained"
  raise UserError(
    f"{path} does not exist: {folder / 'config.json'} names it{relative}; name the data with "
    "--config.data.path."
  )


def _rows(
  configs: Sequence[ConfigDict],
  mesh: Mesh,
  step: int,
  variables: Any,
  data: OpenData | None = None,
  folder: pathlib.Path | None = None,
) -> list[dict[str, Any]]:
  """The row of each mode, evaluated as in the phase that trained step `step`."""
  specs = [make_train_spec(config, _stored_plan(config), mesh) for config in configs]
  phases = [spec.plan.phase_of(step - 1) for spec in specs]
  if data is None:
    # A stream opens only what this phase reads; what the data decide is compared below.
    try:
      with no_downloads():
        data = open_data(configs[0], phases=phases[:1], follow=FOLLOWING)
    except UserError:
      _require_own_data(folder, configs[0].data.path)
      raise
  if folder is not None:
    _require_same_kind(folder, configs[0], data)
  path = configs[0].data.path
  source = f"{data.source}, {path}" if path and path not in data.source else data.source
  whole = configs[0].data.hold_out == 1 and data.evaluated_on != "test"
  evaluated_on = "all" if whole else data.evaluated_on
  if folder is not None and whole and path == load_config(folder).data.path:
    output.note("all images are evaluated (data.hold_out=1), those that the run was trained on too")
  rows = []
  for config, spec, phase in zip(configs, specs, phases, strict=True):
    row = {"mode": config.eval.mode, "data": source, "evaluated_on": evaluated_on}
    rows.append(row | _evaluate_mode(config, spec, step, variables, data))
    images = data.evaluated_count(phase.copies)
    if folder is not None and images != config.data.eval_images:
      output.note(
        f"the run was evaluated on {plural(config.data.eval_images, 'image')}, not {images:,}"
      )
  return rows


def _evaluate_mode(
  config: ConfigDict, spec: TrainSpec, step: int, variables: Any, data: OpenData
) -> dict[str, Any]:
  """The numbers of a row: images, loss, accuracies, the worst classes, confusions and seconds."""
  prepare, phase = feed_of(config).prepare_evaluation, spec.plan.phase_of(step - 1)
  run = prepare(data, spec, phase, variables)
  start = time.perf_counter()
  evaluated, broken = jax.block_until_ready(run())
  sums, seconds = evaluated.sums, round(time.perf_counter() - start, 3)
  images, count = data.evaluated_count(phase.copies), int(sums.count)
  for line in check_evaluated(broken, images, config):
    output.note(line)
  means = sums.means(config.data.classes)
  if not math.isfinite(means["loss"]):
    raise UserError(
      f"the mean loss of {count} images is {means['loss']}: the weights give logits that are not "
      "finite, and accuracies would mean nothing; choose another --step."
    )
  row = {"images": count, "images_skipped": images - count, **means, "top5": means.get("top5")}
  predictions = predictions_of(evaluated, step)
  return row | {
    **class_figures.summary(predictions, config.data.classes),
    "worst_classes": class_figures.worst_classes(predictions, data.class_names),
    "confusions": class_figures.worst_confusions(predictions, data.class_names),
    "seconds": seconds,
  }
