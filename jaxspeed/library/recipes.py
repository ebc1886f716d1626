"""Recipes by name, with changes."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config.checks import with_overrides
from jaxspeed.config.recipe import load_recipe
from jaxspeed.config.schema import shown
from jaxspeed.library.calling import library_call
from jaxspeed.models import make  # noqa: F401  registers the families of models


class Recipe(ConfigDict):
  """A config that knows the call that made it."""

  def remember(self, call: str, changed: tuple[str, ...]) -> "Recipe":
    """Notes the call, and the dotted names of the fields that it sets."""
    # As `ConfigDict` sets its own attributes, which are no fields.
    object.__setattr__(self, "_call", call)
    object.__setattr__(self, "_changed", changed)
    return self


def call_of(config: ConfigDict) -> str:
  """The call that made a config, for result.json."""
  return getattr(config, "_call", "") if isinstance(config, Recipe) else "config"


def changed_in(config: ConfigDict) -> tuple[str, ...]:
  """The fields that the caller of `recipe` set, which data do not override."""
  return getattr(config, "_changed", ()) if isinstance(config, Recipe) else ()


def recipe(name: str, /, **changes: Any) -> ConfigDict:
  """The config of a shipped recipe, or of a recipe file, with changes.

      jaxspeed.recipe("cifar10", epochs=4, batch_size=512)
      jaxspeed.recipe("imagenet18:4", optimizer={"weight_decay": 5e-5})
      jaxspeed.recipe("configs/mine.py", **{"data.image_size": 64})

  Args:
    name: a shipped recipe (the README lists them), or the path of a recipe file; either with
      :VARIANT.
    **changes: fields of the config with their values, as --config.FIELD=VALUE of the commands. A
      field of a group is given as {"GROUP.FIELD": value}, or as GROUP={"FIELD": value}.

  Returns:
    The config. Fields can be read and set, as in `config.schedule.peak = 0.2`; `jaxspeed train
    --help` lists them.

  Raises:
    UserError: there is no such recipe or field, or a value does not fit.
  """
  with library_call():
    if not isinstance(name, str):
      name = str(name)
    loaded = load_recipe(name)
    given = dict(_flat(changes, loaded))
    config = Recipe(with_overrides(loaded, given).to_dict(), type_safe=False)
    words = [repr(name), *(f"{key}={shown(value)}" for key, value in changes.items())]
    return config.remember(f"jaxspeed.recipe({', '.join(words)})", tuple(given))


def _flat(changes: Mapping[str, Any], config: ConfigDict) -> Iterator[tuple[str, Any]]:
  """Dotted names and values of changes, in which groups may be dicts."""
  for name, value in changes.items():
    if isinstance(value, Mapping) and isinstance(config.get(name), ConfigDict):
      for field, inner in value.items():
        yield f"{name}.{field}", inner
    else:
      yield name, value
