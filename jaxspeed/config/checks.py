"""Checks of a config: the value of each field, and values that contradict each other.

`run_fields` declares the values of each field; `planning.make` checks what depends on the size of
the data. A config is checked where it enters, with the file that it comes from, and once more when
it is merged with overrides, or with what the data decide.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pydantic
from ml_collections import ConfigDict

from jaxspeed.config import families, names, run_fields, schema
from jaxspeed.config.conditions import WHITENS, View
from jaxspeed.config.schema import Group, shown
from jaxspeed.errors import UserError

# The largest number of images of noise: each takes 60 bytes of memory.
_MOST_NOISE = 20_000_000


def check(config: ConfigDict, *, source: str = "") -> None:
  """Checks a config as `checked` does."""
  checked(config.copy_and_resolve_references().to_dict(), source=source)


def checked(values: Mapping[str, Any], *, source: str = "") -> ConfigDict:
  """The config with the values of fields, nested, and with defaults for those that are not there.

  Lists become tuples, and numbers and arrays of NumPy those of Python.

  Args:
    values: of a recipe, with or without overrides, or of a config.json.
    source: the file that they come from, for the message.

  Raises:
    UserError: names the first invalid field and the values that it accepts, or those that
      contradict each other.
  """
  try:
    plain = to_plain(values)
    found = _valid(run_fields.Config, plain, "", plain.get("model"))
    if not found["given"]["model"]:
      found["model"] = _valid_model(found["model"])
    view = View(found)
    for clash in _CLASHES:
      if clash.where(view):
        named = " with ".join(f"config.{name}={shown(view[name])}" for name in clash.names)
        raise UserError(f"{named}: {clash.sentence}.")
  except UserError as error:
    raise UserError(f"{source}: {error}" if source else str(error)) from None
  return ConfigDict(found).lock()


def to_plain(value: Any) -> Any:
  """A value, or the values of groups, with lists as tuples and in Python's own types."""
  if isinstance(value, Mapping):
    return {name: to_plain(each) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return tuple(map(to_plain, value))
  return to_plain(value.tolist()) if hasattr(value, "tolist") else value


def _valid(group: type[Group], values: Mapping[str, Any], prefix: str, model: Any) -> Any:
  """The values of a group as its schema has them."""
  try:
    return group.model_validate(values).model_dump()
  except pydantic.ValidationError as error:
    found = schema.first_mistake(error, group, values)
  name = f"{prefix}{found.name}"
  if found.kind == "unknown":
    raise UserError(names.no_field(name, str(dict(model or {}).get("name"))))
  if found.kind == "missing":
    raise UserError(f"there is no config.{name}: it has no default, so the recipe sets it.")
  raise UserError(f"config.{name}={shown(found.value)}: {found.text}")


def _valid_model(values: Mapping[str, Any]) -> Any:
  """The values of `config.model` as its family has them."""
  if (name := values.get("name")) is None:
    raise UserError(
      "config.model has no name: the recipe sets config.model = dict(name=NAME, ...) with one of "
      f"{', '.join(families.FAMILIES)}."
    )
  if not isinstance(name, str) or name not in families.FAMILIES:
    raise UserError(f"config.model.name={shown(name)}: {schema.choose(families.FAMILIES)}")
  return _valid(families.FAMILIES[name].fields, values, "model.", values)


class _Clash(NamedTuple):
  """Values that contradict each other: the fields to name, and what to do about them."""

  names: tuple[str, ...]
  where: Callable[[View], Any]
  sentence: str


def _of_feed(feed: str, name: str, *allowed: str) -> _Clash:
  """What a feed of the package allows in a field; any other feed checks its own."""

  def clashes(c: View) -> bool:
    found = c[name] if isinstance(c[name], tuple) else (c[name],)
    return c["data.feed"] == feed and any(each not in allowed for each in found)

  return _Clash((name, "data.feed"), clashes, f"choose one of {', '.join(allowed)}")


def _segments(name: str) -> Iterator[_Clash]:
  """Segments follow each other without gaps, and end with the run."""

  def broken(c: View) -> bool:
    ends = [0, *(segment[1] for segment in c[name])]
    begins = [segment[0] for segment in c[name]]
    return begins != ends[:-1] or any(a >= b for a, b in zip(begins, ends[1:], strict=True))

  yield _Clash((name,), broken, f"it must be {names.declared()[name].accepted}")
  yield _Clash(
    ("epochs", name),
    lambda c: c[name] and c[name][-1][1] != c["epochs"],
    f"these do not scale with the run; set --config.{name} to segments of that length, and "
    "--config.phases.first_epoch if the recipe has phases",
  )


def _has_no_layers(c: View) -> bool:
  family = families.FAMILIES.get(c["model.name"])
  return not (family is None or c["given.model"] or hasattr(family.module, "param_layers"))


def _whitened_pixels(c: View) -> int:
  images = min(c["whitening.images"], c["data.train_images"])
  return images * c["data.image_size"] ** 2 if WHITENS.works(c) else 0


_RESIDENT = ("center", "flip", "six", "selective")
_STREAM = ("center", "flip", "five", "rect", "rect_flip")
_CLASHES = (
  _of_feed("resident", "data.last_batch", "drop", "carry_over"),
  _of_feed("stream", "data.last_batch", "drop", "keep"),
  _of_feed("resident", "eval.mode", *_RESIDENT),
  _of_feed("stream", "eval.mode", *_STREAM),
  _of_feed("resident", "phases.eval_mode", *_RESIDENT),
  _of_feed("stream", "phases.eval_mode", *_STREAM),
  _of_feed("stream", "warmup", "auto", "off"),
  *(
    _Clash(
      (name, "data.feed"),
      lambda c, name=name: c["data.feed"] == "stream" and not c[name],
      "it is not computed for a stream: set three numbers",
    )
    for name in ("data.mean", "data.std")
  ),
  _Clash(
    ("model.whiten", "data.feed"),
    lambda c: c["data.feed"] == "stream" and c["model.whiten"] is True,
    "a stream has no first images, set it to False",
  ),
  _Clash(
    ("data.image_size", "whitening.images"),
    lambda c: _whitened_pixels(c) >= 2**31,
    "images of this size have too many pixels to whiten; set one of them lower",
  ),
  *(
    _Clash(
      (name, "data.synthetic"),
      lambda c, name=name: c["data.synthetic"] and c[name] > _MOST_NOISE,
      f"it must be at most {_MOST_NOISE:,}",
    )
    for name in ("data.train_images", "data.eval_images")
  ),
  _Clash(
    ("optimizer.lars_clip",),
    lambda c: (
      c["optimizer.lars_clip"] and c["optimizer.lars_clip"][0] > c["optimizer.lars_clip"][1]
    ),
    "it must be the least and the most trust ratio, or ()",
  ),
  _Clash(
    ("seed", "runs"),
    lambda c: c["seed"] + c["runs"] > 2**31,
    "the seeds of the runs start there, and the largest seed is 2,147,483,647",
  ),
  _Clash(
    ("optimizer.head_rate", "pretrained.freeze"),
    lambda c: (
      c["pretrained.path"]
      and c["pretrained.freeze"] == "backbone"
      and not (c["optimizer.head_rate"] or c["given.optimizer"])
    ),
    "nothing would be trained; set a rate above 0, or freeze less",
  ),
  _Clash(
    ("optimizer.layer_decay", "model.name"),
    lambda c: c["optimizer.layer_decay"] != 1 and _has_no_layers(c),
    "the model does not say which layer each parameter belongs to (its method param_layers): set "
    "the decay to 1",
  ),
  _Clash(
    ("optimizer.layer_decay", "optimizer.name"),
    lambda c: (
      c["optimizer.layer_decay"] != 1 and c["optimizer.name"] == "muon" and not c["given.optimizer"]
    ),
    "Muon scales all kernels to one norm, whatever their learning rate: set the decay to 1, or "
    "choose another optimizer",
  ),
  _Clash(
    ("schedule.warmup", "epochs"),
    lambda c: c["schedule.warmup"] == 1 and not (c["schedule.segments"] or c["given.schedule"]),
    "the warm-up would take all of them: set a smaller share of the run, such as 0.2",
  ),
  *_segments("schedule.segments"),
  *_segments("optimizer.momentum_segments"),
  *(
    _Clash(
      (name, "data.image_size"),
      lambda c, name=name: c[name] >= c["data.image_size"],
      "it must be less than that",
    )
    for name in ("augment.cutout", "augment.crop_padding", "augment.cutmix")
  ),
  *(
    _Clash(
      (name, "augment.cutmix"),
      lambda c, name=name: c[name] and c["augment.cutmix"] and c["augment.cutmix_epochs"],
      "both mix an image with its neighbour; set one to 0",
    )
    for name in ("augment.mixup", "augment.cutmix_alpha")
  ),
  *(
    _Clash(
      (name, "proxy.keep"),
      lambda c, name=name: c[name] and c["proxy.keep"],
      "a proxy chooses images by the loss of one label, and mixed images have two; set one of them "
      "to 0",
    )
    for name in ("augment.mixup", "augment.cutmix_alpha")
  ),
)
