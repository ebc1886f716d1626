"""Checks of a config: the value of each field, and values that contradict each other.

`fields` states the values of each field; `planning.make` checks what depends on the data's size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import families, fields, names, schema
from jaxspeed.config.given import Given, given_in
from jaxspeed.config.schema import Problem, shown
from jaxspeed.errors import UserError

# What the package's two feeds allow in fields that both use; any other feed checks its own.
_OF_FEED: dict[str, dict[str, tuple[str, ...]]] = {
  "resident": {
    "data.last_batch": ("drop", "carry_over"),
    "eval.mode": ("center", "flip", "six", "selective"),
  },
  "stream": {
    "data.last_batch": ("drop", "keep"),
    "eval.mode": ("center", "flip", "five", "rect", "rect_flip"),
  },
}
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
    # Not a field that a recipe could lack.
    values = {"given": Given().model_dump()} | _plain(config)
    _check_types(values, model=model)
    if model and not given_in(values).get("model"):
      check_model(values["model"])
    _check_feed(values)
    _check_together(values)
  except UserError as error:
    if not source:
      raise
    raise UserError(f"{source}: {error}") from None
  except RecursionError:
    raise UserError(f"{source or 'the config'}: groups of fields nest without an end.") from None


def _plain(config: ConfigDict | Mapping[str, Any]) -> dict[str, Any]:
  if isinstance(config, ConfigDict):
    return config.copy_and_resolve_references().to_dict()
  return dict(config)


def _check_types(values: Mapping[str, Any], *, model: bool) -> None:
  found = schema.problems(fields.Config, values, complete=True)
  given = values.get("model")
  name = str(given.get("name", "")) if isinstance(given, Mapping) and model else ""
  data = values.get("data")
  feed = data.get("feed") if isinstance(data, Mapping) else None
  choices = _OF_FEED.get(feed, {}) if isinstance(feed, str) else {}
  found = [
    problem._replace(text=f"choose one of {', '.join(choices[problem.name])}.")
    if problem.name in choices
    else problem
    for problem in found
  ]
  _raise_first(found, model=name)


def check_model(values: Mapping[str, Any]) -> None:
  """Checks that `config.model` names a family and has only fields of that family.

  Raises:
    UserError: as `check`.
  """
  known = ", ".join(families.FAMILIES)
  if "name" not in values:
    raise UserError(
      f"config.model has no name: the recipe sets config.model = dict(name=NAME, ...) with one of "
      f"{known}."
    )
  name = values["name"]
  if not isinstance(name, str) or name not in families.FAMILIES:
    raise UserError(f"config.model.name={shown(name)}: {schema.choose(families.FAMILIES)}")
  group = families.FAMILIES[name].fields
  found = [
    problem._replace(name=f"model.{problem.name}") for problem in schema.problems(group, values)
  ]
  own = [f"model.{field}" for field in group.model_fields]
  _raise_first(found, known=own, what=f"; those of {name} are {', '.join(group.model_fields)}")


def _raise_first(
  found: Sequence[Problem], *, model: str = "", known: Sequence[str] = (), what: str = ""
) -> None:
  """Raises a UserError for the first problem; one error names all missing fields."""
  if not found:
    return
  first = found[0]
  if first.kind == "unknown":
    sentence = names.no_field(first.name, model, known=known)
    raise UserError(sentence if sentence.endswith("?") else f"{sentence[:-1]}{what}.")
  if first.kind == "missing":
    missing = [problem.name for problem in found if problem.kind == "missing"]
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    listed = ", ".join(f"config.{name}" for name in missing[:_NAMED])
    raise UserError(
      f"{listed}{more} {'is' if len(missing) == 1 else 'are'} missing: a recipe starts from base() "
      f"of jaxspeed.config.fields, and config.json stays as jaxspeed.train wrote it."
    )
  raise UserError(f"config.{first.name}={shown(first.value)}: {first.text}")


def _check_feed(values: Mapping[str, Any]) -> None:
  """Checks the fields that depend on `data.feed`."""
  feed = values["data"]["feed"]
  choices = _OF_FEED.get(feed, {})
  for name, allowed in choices.items():
    group, _, field = name.partition(".")
    if values[group][field] not in allowed:
      raise UserError(
        f"config.{name}={shown(values[group][field])}: choose one of {', '.join(allowed)}."
      )
  modes = choices.get("eval.mode", ())
  if unknown := [mode for mode in values["phases"]["eval_mode"] if modes and mode not in modes]:
    raise UserError(f"config.phases.eval_mode={unknown}: choose one of {', '.join(modes)}.")
  if feed == "stream" and values["warmup"] == "on":
    raise UserError("config.warmup='on': a stream has no warm-up: set --config.warmup=auto.")
  for name in ("mean", "std"):
    if feed == "stream" and not values["data"][name]:
      raise UserError(f"config.data.{name}=(): it is not computed for a stream: set three numbers.")
  if values["model"].get("whiten") is True and feed == "stream":
    raise UserError("config.model.whiten=True: a stream has no first images, set it to False.")


def _check_together(values: Mapping[str, Any]) -> None:
  """Checks the other fields that depend on each other."""
  data, augment = values["data"], values["augment"]
  for name in ("train_images", "eval_images"):
    if data["synthetic"] and data[name] > _MOST_NOISE:
      raise UserError(
        f"config.data.{name}={data[name]}: with config.data.synthetic=True it must be at most "
        f"{_MOST_NOISE:,}."
      )
  clip = values["optimizer"]["lars_clip"]
  if clip and clip[0] > clip[1]:
    raise UserError(
      f"config.optimizer.lars_clip={clip}: it must be the least and the most trust ratio, or ()."
    )
  if values["seed"] + values["runs"] > 2**31:
    raise UserError(
      f"config.seed={values['seed']}: it must be at most {2**31 - values['runs']}, as "
      f"the seeds of config.runs={values['runs']} start there."
    )
  frozen = values["pretrained"]["path"] and values["pretrained"]["freeze"] == "backbone"
  if frozen and not values["optimizer"]["head_rate"] and "optimizer" not in given_in(values):
    raise UserError(
      "config.optimizer.head_rate=0.0 with config.pretrained.freeze='backbone': nothing would be "
      "trained; set a rate above 0, or freeze less."
    )
  _check_layer_decay(values)
  _check_warmup(values)
  _check_segments("schedule.segments", values["schedule"]["segments"], values["epochs"])
  _check_segments(
    "optimizer.momentum_segments", values["optimizer"]["momentum_segments"], values["epochs"]
  )
  for name in ("cutout", "crop_padding", "cutmix"):
    if augment[name] >= data["image_size"]:
      raise UserError(
        f"config.augment.{name}={augment[name]}: it must be less than "
        f"config.data.image_size={data['image_size']}."
      )
  _check_mixing(augment, values["proxy"]["keep"])


def _check_mixing(augment: Mapping[str, Any], keep: int) -> None:
  """Checks that images are mixed in one way, and not where a proxy chooses them by one label."""
  for name in ("mixup", "cutmix_alpha"):
    if augment[name] and augment["cutmix"] and augment["cutmix_epochs"]:
      raise UserError(
        f"config.augment.{name}={augment[name]:g} with config.augment.cutmix={augment['cutmix']}: "
        f"both mix an image with its neighbour; set one of them to 0."
      )
    if augment[name] and keep:
      raise UserError(
        f"config.augment.{name}={augment[name]:g} with config.proxy.keep={keep}: a proxy chooses "
        f"images by the loss of one label, and mixed images have two; set one of them to 0."
      )


def _check_layer_decay(values: Mapping[str, Any]) -> None:
  """Checks that the model has layers, and that each can have a learning rate of its own."""
  decay, given = values["optimizer"]["layer_decay"], given_in(values)
  if decay == 1:
    return
  model = str(values["model"].get("name", ""))
  family = families.FAMILIES.get(model)
  if "model" not in given and family and not hasattr(family.module, "param_layers"):
    raise UserError(
      f"config.optimizer.layer_decay={decay:g}: the model {model} does not say which layer each "
      "parameter belongs to (its method param_layers): set it to 1."
    )
  if "optimizer" not in given and values["optimizer"]["name"] == "muon":
    raise UserError(
      f"config.optimizer.layer_decay={decay:g}: Muon scales all kernels to one norm, whatever "
      "their learning rate: set it to 1, or choose another config.optimizer.name."
    )


def _check_warmup(values: Mapping[str, Any]) -> None:
  """Checks that the learning rate's rise ends before the run."""
  schedule = values["schedule"]
  if schedule["warmup"] == 1 and not schedule["segments"] and "schedule" not in given_in(values):
    raise UserError(
      f"config.schedule.warmup={schedule['warmup']}: the warm-up would take all of "
      f"config.epochs={values['epochs']:g}: set a smaller share of the run, such as 0.2."
    )


def _check_segments(name: str, segments: Sequence[Sequence[float]], epochs: float) -> None:
  """Checks that segments follow each other without gaps and end with the run."""
  if not segments:
    return
  edges = [0, *(segment[1] for segment in segments)]
  begins = [segment[0] for segment in segments]
  if begins != edges[:-1] or any(
    begin >= segment[1] for begin, segment in zip(begins, segments, strict=True)
  ):
    field = fields.Schedule.model_fields["segments"]
    what = schema.accepted(field.annotation, field.metadata)
    raise UserError(f"config.{name}={shown(segments)}: it must be {what}.")
  if edges[-1] != epochs:
    raise UserError(
      f"config.epochs={epochs:g}: config.{name} end with epoch {edges[-1]:g}, they do not scale "
      f"with the run; set --config.{name} to segments of that length, and "
      f"--config.phases.first_epoch if the recipe has phases."
    )
