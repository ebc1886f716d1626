"""Checks of a config: values that a field does not accept, that contradict others, or do nothing.

`planning.make` checks what depends on the size of the data. A config is checked where it enters,
and once more when fields get other values. A field that has no effect beside the values of others
is an error on the command line, and a note in a recipe; one that an override leaves so is accepted.
"""

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pydantic
from ml_collections import ConfigDict

from jaxspeed.config import fields
from jaxspeed.config.registry import FAMILIES, Model, fields_of
from jaxspeed.config.run_fields import Config
from jaxspeed.config.schema import Values, shown, values_of
from jaxspeed.errors import UserError


def checked(values: Mapping[str, Any] | ConfigDict) -> ConfigDict:
  """The config with the values of fields, nested, and with defaults for those that are not there.

  Lists become tuples, and numbers and arrays of NumPy those of Python.

  Raises:
    UserError: names the first invalid field and the values that it accepts, or those that
      contradict each other.
  """
  view = values_of(values := to_plain(values))
  model = str(view["model.name"])
  family: Any = fields_of(FAMILIES[model]) if model in FAMILIES else Model
  whole = _whole(dict[str, Any] if view["given.model"] else family)
  try:
    found = whole.model_validate(values).model_dump()
  except pydantic.ValidationError as error:
    raise UserError(_sentence(error, values, model)) from None
  for clashing, reason in _contradictions(view := values_of(found)):
    named = " with ".join(f"config.{name}={shown(view[name])}" for name in clashing.split())
    raise UserError(f"{named}: {reason}.")
  return ConfigDict(found).lock()


def with_overrides(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
  """A checked copy of a config in which fields have other values.

  Args:
    config: the config of a recipe or of a run.
    overrides: values by dotted field name, as in {"schedule.peak": 0.5}. Another "model.name"
      brings the defaults of that family in place of the recipe's fields of its own. A peak scales
      the segments of a recipe's learning rate.

  Raises:
    UserError: a field is unknown, or its value is not valid.
  """
  values = to_plain(config)
  family = overrides.get("model.name", "")
  if family in FAMILIES and family != values["model"].get("name"):
    values["model"] = {"name": family}
  known = fields.known(model := str(values["model"].get("name", "")))
  for name, value in overrides.items():
    if name not in known:
      raise UserError(fields.no_field(str(name), model))
    group, _, last = name.rpartition(".")
    (values[group] if group else values)[last] = value
  found = checked(values)
  segments, peak = found.schedule.segments, found.schedule.peak
  if "schedule.peak" in overrides and "schedule.segments" not in overrides and segments:
    highest = max(rate for segment in segments for rate in segment[2:])
    found.schedule.segments = tuple(
      (first, end, *(peak if rate == highest else rate * (peak / highest) for rate in rates))
      for first, end, *rates in segments
    )
  return found


def to_plain(value: Any) -> Any:
  """A value, or the values of groups, with lists as tuples and in Python's own types."""
  if isinstance(value, Mapping | ConfigDict):
    return {name: to_plain(value[name]) for name in value}
  if isinstance(value, list | tuple):
    return tuple(map(to_plain, value))
  return to_plain(value.tolist()) if hasattr(value, "tolist") else value


@functools.cache
def _whole(model: Any) -> type[Config]:
  """The fields of a config with a model of some type."""
  return pydantic.create_model("Config", __base__=Config, model=(model, ...))


def _sentence(error: pydantic.ValidationError, values: Any, model: str) -> str:
  """A sentence on the first mistake that pydantic found in the values of fields."""
  first, known = error.errors()[0], fields.known(model)
  place = [".".join(map(str, first["loc"][: n + 1])) for n in range(len(first["loc"]))]
  name = next((each for each in place if each in known), place[-1])
  if first["type"] == "missing" and name == place[-1]:
    return f"there is no config.{name}: it has no default, so the recipe sets it."
  if name not in known:
    return fields.no_field(name, model)
  return known[name].refusal(values_of(values)[name])


def to_flags(overrides: Mapping[str, Any]) -> list[str]:
  """The overrides as words of a command line: `--config.FIELD=VALUE`."""
  values = to_plain(overrides).items()
  return [f"--config.{name}={v if isinstance(v, str) else repr(v)}" for name, v in values]


def check_effects(config: ConfigDict, overridden: Collection[str], *, command: str = "") -> None:
  """Refuses overrides without an effect.

  Args:
    config: the config with its overrides, checked.
    overridden: names of the fields that the command line sets.
    command: "train", "evaluate" or "predict", for what holds for that command only; '': none.

  Raises:
    UserError: a field of the command line has no effect.
  """
  # A field of the recipe's model may be set although another model was given.
  known = fields.known() | fields.known(str(config.model.get("name", "")))
  values = values_of(config, command)
  for name in sorted(known.keys() & overridden):
    if sentence := known[name].idle(values):
      raise UserError(sentence)


def set_in_vain(config: ConfigDict) -> list[str]:
  """A sentence for each field of a recipe that has no effect."""
  bases, values = [values_of(fields.base()), values_of(fields.imagenet())], values_of(config)
  differ = [n for n in fields.SHARED if values[n] not in [base[n] for base in bases]]
  return [sentence for n in differ if (sentence := fields.SHARED[n].idle(values))]


# The modes of evaluation, and the values of data.last_batch, of the package's own feeds; any other
# feed checks its own.
_MODES = {
  "resident": ["center", "flip", "six", "selective"],
  "stream": ["center", "flip", "five", "rect", "rect_flip"],
}
_LAST_BATCHES = {"resident": ["drop", "carry_over"], "stream": ["drop", "keep"]}


def _contradictions(c: Values) -> Iterator[tuple[str, str]]:
  """Yields the names of fields that contradict each other, and the end of a sentence about them."""
  of_feeds = {"data.last_batch": _LAST_BATCHES, "eval.mode": _MODES, "phases.eval_mode": _MODES}
  for name, by_feed in of_feeds.items():
    allowed = by_feed.get(c["data.feed"])
    if allowed and not {*([c[name]] if isinstance(c[name], str) else c[name])} <= {*allowed}:
      yield f"{name} data.feed", f"choose one of {', '.join(allowed)}"
  if c["data.feed"] == "stream":
    for name in ("data.mean", "data.std"):
      if not c[name]:
        yield f"{name} data.feed", "it is not computed for a stream: set three numbers"
  for name in ("schedule.segments", "optimizer.momentum_segments"):
    if c[name] and c[name][-1][1] != c["epochs"]:
      yield (
        f"epochs {name}",
        f"these do not scale with the run; set --config.{name} to segments of that length, and "
        "--config.phases.first_epoch if the recipe has phases",
      )
  for name in ("augment.cutout", "augment.crop_padding", "augment.cutmix"):
    if c[name] >= c["data.image_size"]:
      yield f"{name} data.image_size", "it must be less than that"
  for name in ("augment.mixup", "augment.cutmix_alpha"):
    if c[name] and c["augment.cutmix"] and c["augment.cutmix_epochs"]:
      yield f"{name} augment.cutmix", "both mix an image with its neighbour; set one to 0"
    if c[name] and c["proxy.keep"]:
      one_label = "a proxy chooses images by the loss of one label, and mixed images have two"
      yield f"{name} proxy.keep", f"{one_label}; set one of them to 0"
