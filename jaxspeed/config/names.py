"""Names of config fields: lists, suggestions for mistyped names, and the lines of --help."""

import difflib
import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any

from jaxspeed.config import families, fields, schema
from jaxspeed.config.schema import Group, shown

# Names that other projects use for a field.
COMMON = {
  "accum": "accumulate",
  "accum_steps": "accumulate",
  "accumulation": "accumulate",
  "accumulation_steps": "accumulate",
  "amp": "precision",
  "arch": "model.name",
  "architecture": "model.name",
  "base_lr": "schedule.peak",
  "beta1": "optimizer.b1",
  "beta2": "optimizer.b2",
  "batch": "batch_size",
  "bs": "batch_size",
  "class_weight": "data.balance",
  "class_weights": "data.balance",
  "clip_grad": "optimizer.clip_norm",
  "clip_grad_norm": "optimizer.clip_norm",
  "crop": "augment.crop_padding",
  "data_dir": "data.path",
  "data_path": "data.path",
  "dataset": "data.name",
  "decay_epochs": "schedule.step_size",
  "decay_rate": "schedule.gamma",
  "dtype": "precision",
  "early_stopping": "patience",
  "early_stopping_patience": "patience",
  "ema": "average.kind",
  "ema_decay": "average.decay",
  "fp16": "precision",
  "freeze_layers": "pretrained.freeze",
  "grad_accum": "accumulate",
  "grad_clip_norm": "optimizer.clip_norm",
  "gradient_accumulation_steps": "accumulate",
  "img_size": "data.image_size",
  "learning_rate": "schedule.peak",
  "lr": "schedule.peak",
  "lr_scheduler": "schedule.name",
  "max_grad_norm": "optimizer.clip_norm",
  "max_lr": "schedule.peak",
  "min_lr": "schedule.final",
  "mixed_precision": "precision",
  "mixup_alpha": "augment.mixup",
  "n_classes": "data.classes",
  "n_epochs": "epochs",
  "num_classes": "data.classes",
  "num_epochs": "epochs",
  "opt": "optimizer.name",
  "optim": "optimizer.name",
  "random_seed": "seed",
  "reprob": "augment.erasing",
  "resolution": "data.image_size",
  "save_best": "checkpoint.keep_best",
  "save_best_only": "checkpoint.keep_best",
  "sched": "schedule.name",
  "scheduler": "schedule.name",
  "save_every": "checkpoint.every_seconds",
  "smoothing": "label_smoothing",
  "tta": "eval.mode",
  "val_batch_size": "eval.batch_size",
  "warmup_epochs": "schedule.warmup",
  "wd": "optimizer.weight_decay",
  "weights": "pretrained.path",
}
# Least similarity of a suggestion, from 0 to 1, and how far it may be below the nearest name's.
_ALIKE, _BEHIND = 0.7, 0.1
_NAMED = 3
# So alike is a mistyped name of a group.
_LIKE_A_GROUP = 0.8


def all_fields(model: str = "") -> Iterator[str]:
  """Dotted names of all shared fields, and of the fields of the model family `model` if given."""
  yield from _names(fields.Config, "")
  if family := families.FAMILIES.get(model):
    yield from _names(family.fields, "model.")


def _names(group: type[Group], prefix: str) -> Iterator[str]:
  for name, field in group.model_fields.items():
    annotation: Any = field.annotation
    if (prefix, name) == ("", "given"):
      continue  # filled by jaxspeed.fit, never set
    if isinstance(annotation, type) and issubclass(annotation, Group):
      yield from _names(annotation, f"{prefix}{name}.")
    elif (prefix, name) != ("", "model"):
      yield prefix + name


def nearest(name: str, known: Sequence[str]) -> list[str]:
  """At most three fields that `name` may mean, the likeliest first.

  Args:
    name: a dotted name, or its last part.
    known: dotted names of all fields.
  """
  name = name.lower().replace("-", "_")
  last = name.rpartition(".")[2]
  found = [COMMON[last]] if COMMON.get(last) in known else []
  found += [field for field in known if last in (field, field.rpartition(".")[2])]
  scores = {
    field: max(_likeness(name, field), _likeness(last, field.rpartition(".")[2])) for field in known
  }
  least = max(_ALIKE, max(scores.values(), default=0) - _BEHIND)
  alike = [field for field in known if scores[field] >= least and not found]
  # Among names with the same last part, the one in the named group comes first.
  order = sorted([*found, *alike], key=lambda field: _likeness(name, field), reverse=True)
  return list(dict.fromkeys([*found[:1], *order]))[:_NAMED]


def _likeness(a: str, b: str) -> float:
  return difflib.SequenceMatcher(None, a, b).ratio()


def no_field(name: str, model: str = "", *, known: Sequence[str] = ()) -> str:
  """A sentence that a config has no field of this name, with suggestions.

  Args:
    name: a dotted name, or its last part.
    model: the config's model family, to suggest its fields too.
    known: dotted names to choose from; (): all fields.
  """
  near = nearest(name, known or tuple(all_fields(model)))
  groups = [name for name, field in fields.Config.model_fields.items() if _is_group(field)]
  if name in groups:
    near = []
  elif "." not in name:
    near = difflib.get_close_matches(name, groups, 1, _LIKE_A_GROUP) or near
  meant = f": did you mean {' or '.join(near)}?" if near else "."
  plain = shown(name)[1:-1] if shown(name)[:1] in "'\"" else shown(name)
  return f"the config has no field {plain}{meant}"


def _is_group(field: Any) -> bool:
  return isinstance(field.annotation, type) and issubclass(field.annotation, Group)


def field_of(name: str) -> Any:
  """The pydantic field of a dotted name; for a model's field, that of the first family with it."""
  groups: list[type[Group]] = [fields.Config]
  if name.startswith("model."):
    name = name.removeprefix("model.")
    groups = [family.fields for family in families.FAMILIES.values()]
  for group in groups:
    field: Any = None
    for part in name.split("."):
      field = group.model_fields.get(part)
      group = field.annotation if field else Group
    if field is not None:
      return field
  return None


def accepted(name: str, value: Any = None) -> str:
  """The values that a field accepts, in words; '' for an unknown field.

  Args:
    name: the dotted name of the field.
    value: one that it does not accept, which decides whether the form of a tuple is shown.
  """
  field = field_of(name)
  if field is None:
    return ""
  return schema.accepted(field.annotation, field.metadata) + schema.form(field.annotation, value)


def matches(name: str, patterns: str) -> bool:
  """Whether a field's name matches one of the patterns, which spaces separate."""
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split())


def described(patterns: str = "*") -> Iterator[str]:
  """Lines FIELD=DEFAULT (accepted values): meaning, for the fields that match `patterns`.

  A model's fields are known once its family is imported, which needs JAX: the doctor does without.
  """
  for name in all_fields():
    field = field_of(name)
    if matches(name, patterns):
      yield f"{name}={field.default!r} ({accepted(name)}): {_meaning(field)}"
  if not matches("model.name", patterns):
    return
  if not families.FAMILIES:
    yield "model.FIELD: the fields of the models, which `jaxspeed train --help` lists"
    return
  yield f"model.name (one of {', '.join(families.FAMILIES)}): the model, which has these fields:"
  for family, (_, group, _) in families.FAMILIES.items():
    for name, field in group.model_fields.items():
      what = schema.accepted(field.annotation, field.metadata)
      default = "" if field.is_required() else f"={field.default!r}"
      if name != "name":
        yield f"model.{name}{default} ({what}): {family}: {_meaning(field)}"


def _meaning(field: Any) -> str:
  return " ".join((field.description or "").split())
