"""The plan of a config whose data may be there: what `jaxspeed.plan` prints."""

import collections
import dataclasses
from collections.abc import Collection

import jax
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.config import checks
from jaxspeed.config.recipe import published_as
from jaxspeed.config.registry import DATA_SETS, OPTIMIZERS
from jaxspeed.data.memory.sources import known
from jaxspeed.devices.mesh import make_mesh
from jaxspeed.errors import UserError, plural
from jaxspeed.files import expanded
from jaxspeed.models import hub
from jaxspeed.models.make import shapes_of
from jaxspeed.models.pretrained import layout_of
from jaxspeed.optim.groups import for_lars
from jaxspeed.optim.make import groups_of
from jaxspeed.planning.plan import Plan, left_out
from jaxspeed.planning.text import group_lines
from jaxspeed.run import setup
from jaxspeed.run.initial import decided_by_weights, fitted, sized
from jaxspeed.scaling.allreduce_time import exchange_of
from jaxspeed.steps.spec import make_train_spec


@dataclasses.dataclass(frozen=True)
class Planned:
  """A plan, the config with the fields that its data decide, and lines to print."""

  config: ConfigDict
  plan: Plan
  lines: tuple[str, ...]


def planned(config: ConfigDict, *, devices: int, given: Collection[str] = ()) -> Planned:
  """The plan of a config; if the config has a path, the images there are counted.

  Raises:
    UserError: a value that no run can have, or data that cannot be read.
  """
  setup.feed_of(config)  # raises on an unknown feed, even if no data are opened
  recipe, lines = config, []
  notes = _missing_weights(config)
  if begins := not notes:
    config = sized(config, given)
  data, names = None, tuple[str, ...]()
  registered = config.data.feed == "resident" and config.data.name in DATA_SETS
  if config.data.synthetic or not (config.data.path or registered):
    config = _as_known(config, given)
  else:
    data = setup.open_data(config, Console(stderr=True), follow=setup.FOLLOWING - set(given))
    config, names = setup.as_data_decide(config, data), data.class_names
  if begins:
    config = fitted(config, given, names)
    notes = decided_by_weights(recipe, config)
  plan = setup.plan_of(config, data, devices=devices)
  if data is not None:
    lines = [f"data: {data.source}, {plan.train_images} images to train on", *data.notes]
    notes = [*setup.uneven_classes(config, data), *notes]
  lines += [*left_out(config, plan), *notes]
  if lacking := setup.missing_package(config):
    lines.append(f"training: {lacking.removesuffix('.')}")
  return Planned(config, plan, tuple(lines))


def group_table(config: ConfigDict, plan: Plan) -> list[str]:
  """The lines of `text.group_lines` for the model and the optimizer of a config."""
  config = config.copy_and_resolve_references()
  config.precision = "float32"  # whatever this machine has
  spec = make_train_spec(config, plan, make_mesh(1))
  params = shapes_of(spec.model, plan.phases[0].image_size)["params"]
  labels = for_lars(spec.labels) if config.optimizer.name == "lars" else spec.labels
  counts = collections.Counter[str]()
  for label, leaf in zip(*map(jax.tree.leaves, (labels, params)), strict=True):
    counts[label] += leaf.size
  own = OPTIMIZERS.get(config.optimizer.name)
  made = own(config.optimizer) if own else None
  rates_for = published_as(config.name).rates_for
  return list(group_lines(config, plan, groups_of(config, made), counts, rates_for))


def _missing_weights(config: ConfigDict) -> list[str]:
  """A line on pretrained weights that are not there yet; none if they are, or none are named.

  Raises:
    UserError: the model takes no weights.
  """
  if config.continue_from:
    return []
  if path := config.pretrained.path:
    layout_of(config)
  if path.startswith(hub.PREFIX):
    return [] if hub.is_cached(path) else [f"weights: training downloads {path}"]
  if not path or expanded(path, "config.pretrained.path").exists():
    return []
  found = f"weights: {path} does not exist, and training needs it"
  return [f"{found}; --config.pretrained.path=FILE.safetensors or hf://OWNER/NAME names others"]


def _as_known(config: ConfigDict, given: Collection[str]) -> ConfigDict:
  """The config with what is known of a data set without a path.

  Raises:
    UserError: the command line sets another image size or number of classes.
  """
  if config.data.feed != "resident" or config.data.synthetic:
    return config
  config = config.copy_and_resolve_references()
  for field, value in known(config.data.name).items():
    if f"data.{field}" not in given:
      config.data[field] = value
    elif field in ("image_size", "classes") and config.data[field] != value:
      raise UserError(
        f"config.data.{field}={config.data[field]}, but {config.data.name} has {value}: set "
        f"--config.data.{field}={value}, or the path of a data set of your own."
      )
  return checks.checked(config.to_dict())


def exchange_line(config: ConfigDict) -> str:
  """A line on the all-reduces of a step: their number and size."""
  exchange = exchange_of(config)
  groups = exchange.groups(config.allreduce.group_mb)[1:]
  return (
    f"gradients: {sum(exchange.tensors) / 1e6:.4g} MB a step in {plural(len(groups), 'all-reduce')}"
    f", and {exchange.rest / 1e6:.2g} MB of statistics in one"
  )
