"""Checks of a config: the value of each field, and values that contradict each other.

`fields` declares the values of each field; `planning.make` checks what depends on the data's size.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxspeed.config import families, fields, names, schema
from jaxspeed.config.conditions import WHITENS, View
from jaxspeed.config.given import Given, given_in
from jaxspeed.config.schema import Problem, shown
from jaxspeed.errors import UserError

# The largest number of images of noise: each takes 60 bytes of memory.
_MOST_NOISE = 20_000_000
# The largest number of missing fields named in a message.
_NAMED = 3


def check(config: ConfigDict | Mapping[str, Any], *, source: str = "", model: bool = True) -> None:
  """Checks that a config has exactly the fields of `fields.Config`, each with a valid value.

  Args:
    config: the config of a recipe, with or without overrides, or of a config.json.
    source: the file that the config comes from, for the message.
    model: whether to check the fields of the model too.

  Raises:
    UserError: names the first invalid field and the values that it accepts.
  """
  try:
    if isinstance(config, ConfigDict):
      config = config.copy_and_resolve_references().to_dict()
    # Not a field that a recipe could lack.
    values = {"given": Given().model_dump()} | dict(config)
    given = values.get("model")
    name = str(given.get("name", "")) if isinstance(given, Mapping) else ""
    _raise_first(schema.problems(fields.Config, values, complete=True), name)
    if model and not given_in(values).get("model"):
      check_model(values["model"])
    view = View(values)
    for clash in _CLASHES:
      if clash.where(view):
        raise UserError(re.sub(r"\[(\D[\w.]+)\]", lambda m: _given(view, m[1]), clash.sentence))
  except UserError as error:
    raise UserError(f"{source}: {error}" if source else str(error)) from None
  except RecursionError:
    raise UserError(f"{source or 'the config'}: groups of fields nest without an end.") from None


def _given(view: View, name: str) -> str:
  return f"config.{name}={shown(view[name])}"


def check_model(values: Mapping[str, Any]) -> None:
  """Checks that `config.model` names a family and has only fields of that family.

  Raises:
    UserError: as `check`.
  """
  if "name" not in values:
    raise UserError(
      "config.model has no name: the recipe sets config.model = dict(name=NAME, ...) with one of "
      f"{', '.join(families.FAMILIES)}."
    )
  name = values["name"]
  if not isinstance(name, str) or name not in families.FAMILIES:
    raise UserError(f"config.model.name={shown(name)}: {schema.choose(families.FAMILIES)}")
  _raise_first(schema.problems(families.FAMILIES[name].fields, values, prefix="model."), name)


def _raise_first(found: Sequence[Problem], model: str) -> None:
  """Raises a UserError for the first problem; one error names all missing fields."""
  if not found:
    return
  first = found[0]
  if first.kind == "unknown":
    raise UserError(names.no_field(first.name, model))
  if first.kind == "missing":
    missing = [f"config.{problem.name}" for problem in found if problem.kind == "missing"]
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    listed = f"{', '.join(missing[:_NAMED])}{more}"
    raise UserError(f"there is no {listed}: a recipe starts from base() of jaxspeed.config.fields.")
  raise UserError(f"config.{first.name}={shown(first.value)}: {first.text}")


class _Clash(NamedTuple):
  """Values that contradict each other; in the sentence, [FIELD] becomes config.FIELD=VALUE."""

  where: Callable[[View], Any]
  sentence: str


def _of_feed(feed: str, name: str, *allowed: str) -> _Clash:
  """What a feed of the package allows in a field; any other feed checks its own."""

  def clashes(c: View) -> bool:
    found = c[name] if isinstance(c[name], tuple) else (c[name],)
    return c["data.feed"] == feed and any(each not in allowed for each in found)

  return _Clash(clashes, f"[{name}]: choose one of {', '.join(allowed)}.")


def _segments(name: str) -> Iterator[_Clash]:
  """Segments follow each other without gaps, and end with the run."""

  def broken(c: View) -> bool:
    ends = [0, *(segment[1] for segment in c[name])]
    begins = [segment[0] for segment in c[name]]
    return begins != ends[:-1] or any(a >= b for a, b in zip(begins, ends[1:], strict=True))

  field = fields.Schedule.model_fields["segments"]
  yield _Clash(broken, f"[{name}]: it must be {schema.accepted(field.annotation, field.metadata)}.")
  yield _Clash(
    lambda c: c[name] and c[name][-1][1] != c["epochs"],
    f"[epochs] with [{name}]: these do not scale with the run; set --config.{name} to segments of "
    "that length, and --config.phases.first_epoch if the recipe has phases.",
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
  _Clash(
    lambda c: c["data.feed"] == "stream" and c["warmup"] == "on",
    "[warmup]: a stream has no warm-up: set --config.warmup=auto.",
  ),
  *(
    _Clash(
      lambda c, name=name: c["data.feed"] == "stream" and not c[name],
      f"[{name}]: it is not computed for a stream: set three numbers.",
    )
    for name in ("data.mean", "data.std")
  ),
  _Clash(
    lambda c: c["data.feed"] == "stream" and c["model.whiten"] is True,
    "[model.whiten]: a stream has no first images, set it to False.",
  ),
  _Clash(
    lambda c: _whitened_pixels(c) >= 2**31,
    "[data.image_size]: [whitening.images] of this size have too many pixels to whiten; set one of "
    "them lower.",
  ),
  *(
    _Clash(
      lambda c, name=name: c["data.synthetic"] and c[name] > _MOST_NOISE,
      f"[{name}]: with [data.synthetic] it must be at most {_MOST_NOISE:,}.",
    )
    for name in ("data.train_images", "data.eval_images")
  ),
  _Clash(
    lambda c: (
      c["optimizer.lars_clip"] and c["optimizer.lars_clip"][0] > c["optimizer.lars_clip"][1]
    ),
    "[optimizer.lars_clip]: it must be the least and the most trust ratio, or ().",
  ),
  _Clash(
    lambda c: c["seed"] + c["runs"] > 2**31,
    "[seed]: the seeds of [runs] start there, and the largest seed is 2,147,483,647.",
  ),
  _Clash(
    lambda c: (
      c["pretrained.path"]
      and c["pretrained.freeze"] == "backbone"
      and not (c["optimizer.head_rate"] or c["given.optimizer"])
    ),
    "[optimizer.head_rate] with [pretrained.freeze]: nothing would be trained; set a rate above 0, "
    "or freeze less.",
  ),
  _Clash(
    lambda c: c["optimizer.layer_decay"] != 1 and _has_no_layers(c),
    "[optimizer.layer_decay]: the model of [model.name] does not say which layer each parameter "
    "belongs to (its method param_layers): set it to 1.",
  ),
  _Clash(
    lambda c: (
      c["optimizer.layer_decay"] != 1 and c["optimizer.name"] == "muon" and not c["given.optimizer"]
    ),
    "[optimizer.layer_decay]: Muon scales all kernels to one norm, whatever their learning rate: "
    "set it to 1, or choose another config.optimizer.name.",
  ),
  _Clash(
    lambda c: c["schedule.warmup"] == 1 and not (c["schedule.segments"] or c["given.schedule"]),
    "[schedule.warmup]: the warm-up would take all of [epochs]: set a smaller share of the run, "
    "such as 0.2.",
  ),
  *_segments("schedule.segments"),
  *_segments("optimizer.momentum_segments"),
  *(
    _Clash(
      lambda c, name=name: c[name] >= c["data.image_size"],
      f"[{name}]: it must be less than [data.image_size].",
    )
    for name in ("augment.cutout", "augment.crop_padding", "augment.cutmix")
  ),
  *(
    _Clash(
      lambda c, name=name: c[name] and c["augment.cutmix"] and c["augment.cutmix_epochs"],
      f"[{name}] with [augment.cutmix]: both mix an image with its neighbour; set one to 0.",
    )
    for name in ("augment.mixup", "augment.cutmix_alpha")
  ),
  *(
    _Clash(
      lambda c, name=name: c[name] and c["proxy.keep"],
      f"[{name}] with [proxy.keep]: a proxy chooses images by the loss of one label, and mixed "
      "images have two; set one of them to 0.",
    )
    for name in ("augment.mixup", "augment.cutmix_alpha")
  ),
)
