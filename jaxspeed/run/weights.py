"""Where pretrained weights come from: a file, the Hugging Face hub, or the folder of a run."""

import contextlib
import functools
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.config import output
from jaxspeed.data.formats.class_names import check_weights_classes, stored_class_names
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.devices.compile import use_cache
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, expanded
from jaxspeed.models import hub
from jaxspeed.models.exchange import class_names_in, save_weights
from jaxspeed.models.make import shapes_of
from jaxspeed.models.pretrained import (
  LAYOUTS,
  layout_of,
  load_pretrained,
)
from jaxspeed.run.checkpoint import FOLDER
from jaxspeed.run.restore import Weights, load_config, open_run, stored_plan
from jaxspeed.steps.spec import make_train_spec

_PATH = "config.pretrained.path"


def with_file(config: ConfigDict) -> ConfigDict:
  """The config with a local file in pretrained.path, downloaded or written from a run's folder.

  Raises:
    UserError: as `hub.fetch` and `restore.open_run`.
  """
  config = config.copy_and_resolve_references()
  config.pretrained.path = str(_file(config.pretrained.path, config.compile_cache))
  return config


@contextlib.contextmanager
def pretrained_weights(config: ConfigDict) -> Iterator[Weights]:
  """Yields the weights of a `named` config, for use inside the block.

  Raises:
    UserError: as `evaluate_pretrained`.
  """
  use_cache(config.compile_cache)
  with precision.wide_enough(config.precision):
    spec = make_train_spec(config, stored_plan(config), mesh_lib.make_mesh())
    shapes = shapes_of(spec.model, spec.plan.phases[-1].image_size)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    variables = mesh_lib.replicate(load_pretrained(config, zeros), spec.mesh)
    yield Weights(spec, spec.plan.total_steps, variables)


def named(config: ConfigDict) -> ConfigDict:
  """`with_file` of a config that names weights with a last layer, for a model that can load them.

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
  config = with_file(config)
  layout_of(config)
  class_names_in(config.pretrained.path)  # raises if the file does not open
  return config


def require_same_classes(config: ConfigDict, names: Sequence[str]) -> None:
  """Makes sure that the weights of a config were trained on classes of these names, if they say so.

  Raises:
    UserError: they were not.
  """
  path, data = config.pretrained.path, config.data.path or config.data.name
  if note := check_weights_classes(path, class_names_in(path), data, names):
    output.note(note)


def _file(path: str, compile_cache: str) -> pathlib.Path:
  if path.startswith(hub.PREFIX):
    return hub.fetch(path)
  place = expanded(path, _PATH)
  # Other packages' folders of weights have a config.json too, but no checkpoints.
  checkpoints = place / FOLDER
  if not ((place / "config.json").is_file() and checkpoints.is_dir()):
    return place
  return _exported(place, compile_cache, checkpoints.stat().st_mtime_ns)


@functools.cache
def _exported(folder: pathlib.Path, compile_cache: str, saved_at: int) -> pathlib.Path:
  """A file of the weights that a run is evaluated with; it is gone with this process.

  Args:
    folder: the run's folder.
    compile_cache: the caller's, which stays in force.
    saved_at: the time of its newest checkpoint: a run may go on while a notebook is open.
  """
  config = load_config(folder)
  config.compile_cache = compile_cache
  if config.model.name not in LAYOUTS:
    raise UserError(
      f"{_PATH}={folder} is a run with model.name={config.model.name}: only a ResNet's or a ViT's "
      "weights can be taken."
    )
  with precision.wide_enough(config.precision):
    _, restored = open_run(folder, config, None)
    variables = jax.device_get(restored.tree.state.eval_variables())
  facts: dict[str, Any] = {"model": dict(config.model)}
  with contextlib.suppress(UserError):  # a run may have lost its names
    facts["class_names"] = stored_class_names(folder, config.data.classes)
  path = pathlib.Path(tempfile.mkdtemp(dir=_own_folder().name), f"{folder.name}.safetensors")
  metadata = {name: dump_json(fact) for name, fact in facts.items()}
  save_weights(path, variables, LAYOUTS[config.model.name], metadata=metadata)
  return path


@functools.cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
  return tempfile.TemporaryDirectory(prefix="jaxspeed-weights-")
