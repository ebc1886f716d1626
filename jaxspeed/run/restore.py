"""The weights of a run, or published ones, on the devices, and how they see images."""

import contextlib
import dataclasses
import functools
import math
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.config import output, stored
from jaxspeed.config.registry import AnyModel
from jaxspeed.data.formats.class_names import check_weights_classes, stored_class_names
from jaxspeed.data.remote import is_remote
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.devices.compile import use_cache
from jaxspeed.errors import UserError
from jaxspeed.export.formats.network import Network, network_of
from jaxspeed.files import dump_json, expanded
from jaxspeed.models import hub
from jaxspeed.models.exchange import class_names_in, save_weights
from jaxspeed.models.make import shapes_of
from jaxspeed.models.pretrained import LAYOUTS, layout_of, load_pretrained
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Phase, Plan
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.checkpoint import FOLDER, ranked, restore, steps_of
from jaxspeed.steps.spec import TrainSpec, make_train_spec

_PATH = "config.pretrained.path"


class View(NamedTuple):
  """How a single image is prepared: in pixels, the crop's sides and the short side before it."""

  size: int
  resize: int
  antialias: bool


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights on every device, and the model that they belong to.

  Attributes:
    spec: the specification of the run, or of the recipe.
    step: the number of steps that trained them; of published weights, those of the recipe.
    variables: the variables of the model.
  """

  spec: TrainSpec
  step: int
  variables: dict[str, Any]

  @property
  def phase(self) -> Phase:
    """The phase whose evaluation prepares the images."""
    return self.spec.plan.phase_of(self.step - 1)

  def network(self, class_names: Sequence[str], input_dtype: str) -> Network:
    """The model for other programs; errors as in `network_of`."""
    parts = self.spec, self.variables, self.step, class_names
    return network_of(*parts, view=self.view, input_dtype=input_dtype)

  @property
  def view(self) -> View:
    """How single images are prepared."""
    data = self.spec.config.data
    if data.feed == "stream":
      return View(int(self.phase.eval_size), int(self.phase.eval_resize), bool(data.antialias))
    return View(data.image_size, data.image_size, True)


@contextlib.contextmanager
def run_weights(
  folder: pathlib.Path, config: ConfigDict, step: int | str | None
) -> Iterator[Weights]:
  """Yields the result of `open_run`, whose errors are raised, for use inside the block.

  A note says so if the newest checkpoint is not that of the run's end.
  """
  with precision.wide_enough(config.precision):
    weights = open_run(folder, config, step)
    done, total = weights.step, weights.spec.plan.total_steps
    # A run that its target or its patience ended is finished before its last step.
    end = max(steps_of(folder)) if (folder / "result.json").exists() else total
    if step is None and done < end:
      output.note(f"the run in {folder} is at step {done:,} of {total:,}")
    yield weights


def for_images(config: ConfigDict) -> ConfigDict:
  """The config with an evaluation mode that takes single images of any shape."""
  config = config.copy_and_resolve_references()
  if config.data.feed == "stream":
    config.eval.mode = "flip" if "flip" in config.eval.mode else "center"
  return config


def load_config(folder: pathlib.Path) -> ConfigDict:
  """The config of the run in `folder`, with the evaluation mode of its last phase.

  Its `data.cache` is emptied, and an address in `data.path`: a downloaded run must not say where to
  write, nor what to download.

  Raises:
    UserError: the folder holds no run, or several.
  """
  config = stored.load(folder / "config.json")
  config.data.cache = ""
  if is_remote(config.data.path):
    config.data.path = ""
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


def stored_plan(config: ConfigDict) -> Plan:
  """The plan of a run's config, for evaluation: devices need not divide the training batches."""
  # The stored sizes are those after the hold-out; without them the plan would hold out again.
  return make_plan(
    config, train_images=config.data.train_images, eval_images=config.data.eval_images
  )


def open_run(
  folder: pathlib.Path,
  config: ConfigDict,
  step: int | str | None,
  *,
  model: AnyModel | None = None,
) -> Weights:
  """The weights that the run in `folder` is evaluated with, from a checkpoint.

  Args:
    folder: the run's folder.
    config: its config, perhaps with changes.
    step: the step of the checkpoint, or "best"; None: that of the newest whole one.
    model: the module that the run was given in place of `config.model`.

  Raises:
    UserError: the folder holds no whole checkpoint, or not the one that is asked for.
  """
  use_cache()
  spec = make_train_spec(config, stored_plan(config), mesh_lib.make_mesh(), model=model)
  if step == "best":
    step = best_step(folder, config)
    output.note(f"the best evaluation is that after step {step} (config.checkpoint.keep_best)")
  shapes = shapes_of(spec.model, spec.plan.phases[0].image_size)
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, spec.accumulation), shapes)
  part = {"ema": shapes} if config.average.kind == "ema" else shapes
  target = mesh_lib.abstract({"state": part}, mesh_lib.replicated(spec.mesh))
  restored = restore(folder, target, step=step, partial=True)
  if restored is None:
    result = folder / "result.json"
    advice = f"remove {result} and train it again" if result.exists() else "train it first"
    raise UserError(f"{folder} holds no whole checkpoint: {advice}.")
  state = restored.tree["state"]
  return Weights(spec, restored.step, state.get("ema", state))


def best_step(folder: pathlib.Path, config: ConfigDict) -> int:
  """The step of the best evaluation of the run in `folder`, whether or not it has a checkpoint.

  With keep_best "none", the target's metric decides.

  Raises:
    UserError: no evaluation has the metric.
  """
  metric = config.checkpoint.keep_best
  metric = config.target_metric if metric == "none" else metric
  # A run that resumes drops the rows after its newest checkpoint, and repeats their epochs.
  is_finished = (folder / "result.json").exists()
  last = math.inf if is_finished else max(steps_of(folder), default=0)
  best = ranked([row for row in read_metrics(folder) if row["step"] <= last], metric)
  if not best:
    raise UserError(
      f"{folder / 'metrics.jsonl'} has no evaluation with {metric}, so that none is the best: "
      "leave out --step=best, or name a step."
    )
  return int(best[0]["step"])


def with_file(config: ConfigDict) -> ConfigDict:
  """The config with a local file in pretrained.path, downloaded or written from a run's folder.

  Raises:
    UserError: as `hub.fetch` and `restore.open_run`.
  """
  config = config.copy_and_resolve_references()
  if config.pretrained.path.startswith(hub.PREFIX):
    file = hub.fetch(config.pretrained.path)
  else:
    file = expanded(config.pretrained.path, _PATH)
    # Other packages' folders of weights have a config.json too, but no checkpoints.
    checkpoints = file / FOLDER
    if (file / "config.json").is_file() and checkpoints.is_dir():
      file = _exported(file, checkpoints.stat().st_mtime_ns)
  config.pretrained.path = str(file)
  return config


@contextlib.contextmanager
def pretrained_weights(config: ConfigDict) -> Iterator[Weights]:
  """Yields the weights of a `named` config, for use inside the block.

  Raises:
    UserError: as `evaluate_pretrained`.
  """
  use_cache()
  with precision.wide_enough(config.precision):
    spec = make_train_spec(config, stored_plan(config), mesh_lib.make_mesh())
    shapes = shapes_of(spec.model, spec.plan.phases[-1].image_size)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    variables = mesh_lib.replicate(load_pretrained(config, zeros), spec.mesh)
    yield Weights(spec, spec.plan.total_steps, variables)


def named(config: ConfigDict) -> ConfigDict:
  """`with_file` of a config for `evaluate` and `predict`, checked.

  Raises:
    UserError: it names no weights with a last layer, no mean and deviation, or a model that takes
      no weights.
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
  layout_of(config)  # raises if the model takes no weights
  config = with_file(config)
  class_names_in(config.pretrained.path)  # raises if the file does not open
  return config


def require_same_classes(config: ConfigDict, names: Sequence[str]) -> None:
  """Refuses weights of a config, with a UserError, that say they were trained on other classes."""
  path, data = config.pretrained.path, config.data.path or config.data.name
  if note := check_weights_classes(path, class_names_in(path), data, names):
    output.note(note)


@functools.cache
def _exported(folder: pathlib.Path, saved_at: int) -> pathlib.Path:
  """A file of the weights that a run is evaluated with; it is gone with this process.

  Another file is made for weights that are `saved_at` another time: a run may go on while a
  notebook is open.
  """
  config = load_config(folder)
  if config.model.name not in LAYOUTS:
    raise UserError(
      f"{_PATH}={folder} is a run with model.name={config.model.name}: only a ResNet's or a ViT's "
      "weights can be taken."
    )
  with precision.wide_enough(config.precision):
    variables = jax.device_get(open_run(folder, config, None).variables)
  names = stored_class_names(folder, config.data.classes)
  facts = {"model": dict(config.model), "class_names": names}
  path = pathlib.Path(tempfile.mkdtemp(dir=_own_folder().name), f"{folder.name}.safetensors")
  metadata = {name: dump_json(fact) for name, fact in facts.items()}
  save_weights(path, variables, LAYOUTS[config.model.name], metadata=metadata)
  return path


@functools.cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
  return tempfile.TemporaryDirectory(prefix="jaxspeed-weights-")
