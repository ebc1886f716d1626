"""Checks of a config: the value of each field, and values that contradict each other.

`run_fields` declares the values of each field; `planning.make` checks what depends on the size of
the data. A config is checked where it enters, with the file that it comes from, and once more when
it is merged with overrides, or with what the data decide.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
from ml_collections import ConfigDict

from jaxspeed.config import fields
from jaxspeed.config.conditions import WHITENS, View
from jaxspeed.config.registry import FAMILIES, Model
from jaxspeed.config.run_fields import Config
from jaxspeed.config.schema import shown
from jaxspeed.errors import UserError


def checked(values: Mapping[str, Any] | ConfigDict, *, source: str = "") -> ConfigDict:
  """The config with the values of fields, nested, and with defaults for those that are not there.

  Lists become tuples, and numbers and arrays of NumPy those of Python.

  Args:
    values: of a recipe, with or without overrides, of a run, or of a config.json.
    source: the file that they come from, for the message.

  Raises:
    UserError: names the first invalid field and the values that it accepts, or those that
      contradict each other.
  """
  values = to_plain(values)
  model = View(values)["model.name"]
  family = FAMILIES[model].fields if isinstance(model, str) and model in FAMILIES else Model
  sentence = ""
  try:
    is_given = View(values)["given.model"]
    found = _whole(dict[str, Any] if is_given else family).model_validate(values).model_dump()
    for clashing, reason in _contradictions(view := View(found)):
      named = " with ".join(f"config.{name}={shown(view[name])}" for name in clashing.split())
      sentence = sentence or f"{named}: {reason}."
  except pydantic.ValidationError as error:
    sentence = _sentence(error, values, str(model))
  if sentence:
    raise UserError(f"{source}: {sentence}" if source else sentence)
  return ConfigDict(found).lock()


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
  if first["type"] == "missing" and name in ("model", "model.name", place[-1]):
    return f"there is no config.{name}: it has no default, so the recipe sets it."
  if name not in known:
    return fields.no_field(name, model)
  value = functools.reduce(lambda group, key: group[key], name.split("."), values)
  accepted = known[name].accepted
  must = "choose" if accepted.startswith("one of ") else "it must be"
  return f"config.{name}={shown(value)}: {must} {accepted}."


# The modes of evaluation, and the values of data.last_batch, of the package's own feeds; any other
# feed checks its own.
_OF_FEEDS = {
  "resident": (("center", "flip", "six", "selective"), ("drop", "carry_over")),
  "stream": (("center", "flip", "five", "rect", "rect_flip"), ("drop", "keep")),
}


def _contradictions(c: View) -> Iterator[tuple[str, str]]:
  """Yields the names of fields that contradict each other, and the end of a sentence about them."""
  if c["data.feed"] in _OF_FEEDS:
    modes, last_batches = _OF_FEEDS[c["data.feed"]]
    for name, found, allowed in (
      ("data.last_batch", [c["data.last_batch"]], last_batches),
      ("eval.mode", [c["eval.mode"]], modes),
      ("phases.eval_mode", c["phases.eval_mode"], modes),
    ):
      if not {*found} <= {*allowed}:
        yield f"{name} data.feed", f"choose one of {', '.join(allowed)}"
  for name in ("data.mean", "data.std"):
    if c["data.feed"] == "stream" and not c[name]:
      yield f"{name} data.feed", "it is not computed for a stream: set three numbers"
  if c["data.feed"] == "stream" and c["model.whiten"] is True:
    yield "model.whiten data.feed", "a stream has no first images: set it to False"
  pixels = min(c["whitening.images"], c["data.train_images"]) * c["data.image_size"] ** 2
  if WHITENS.works(c) and pixels >= 2**31:
    yield "data.image_size whitening.images", "these are too many pixels to whiten: set one lower"
  if c["pretrained.path"] and c["pretrained.freeze"] == "backbone" and not c["given.optimizer"]:
    if not c["optimizer.head_rate_factor"]:
      yield "optimizer.head_rate_factor pretrained.freeze", "nothing would be trained: freeze less"
  if c["optimizer.layer_decay"] != 1:
    family = FAMILIES.get(c["model.name"])
    if family and not (c["given.model"] or hasattr(family.module, "param_layers")):
      without = "the model has no method param_layers, which says the layer of each parameter"
      yield "optimizer.layer_decay model.name", f"{without}: set the decay to 1"
    if c["optimizer.name"] == "muon" and not c["given.optimizer"]:
      muon = "Muon scales all kernels to one norm, whatever their learning rate"
      yield "optimizer.layer_decay optimizer.name", f"{muon}: set the decay to 1"
  for name in ("schedule.segments", "optimizer.momentum_segments"):
    if c[name] and c[name][-1][1] != c["epochs"]:
      yield (
        f"epochs {name}",
        f"these do not scale with the run; set --config.{name} to segments of that length, and "
        "--config.phases.first_epoch if the recipe has phases",
      )
  if c["schedule.warmup"] == 1 and not (c["schedule.segments"] or c["given.schedule"]):
    yield "schedule.warmup epochs", "the warm-up would take all of them: set a share, such as 0.2"
  for name in ("augment.cutout", "augment.crop_padding", "augment.cutmix"):
    if c[name] >= c["data.image_size"]:
      yield f"{name} data.image_size", "it must be less than that"
  for name in ("augment.mixup", "augment.cutmix_alpha"):
    if c[name] and c["augment.cutmix"] and c["augment.cutmix_epochs"]:
      yield f"{name} augment.cutmix", "both mix an image with its neighbour; set one to 0"
    if c[name] and c["proxy.keep"]:
      one_label = "a proxy chooses images by the loss of one label, and mixed images have two"
      yield f"{name} proxy.keep", f"{one_label}; set one of them to 0"
