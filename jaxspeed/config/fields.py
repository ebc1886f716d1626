"""The fields of a config by name: what recipes start from, and what is said of each.

A recipe is a Python file whose `get_config(variant)` starts from `base()` and sets what differs. A
config holds primitives only. Everything derived (steps, learning rates, shapes) is computed by
`planning/` after the overrides, so that `--config.epochs=10` rescales the whole schedule.

docs/fields.md is written by:

python -c 'from jaxspeed.models import make; from jaxspeed.config import fields
print(fields.page(), end="")' > docs/fields.md
"""

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config.registry import FAMILIES, fields_of
from jaxspeed.config.run_fields import Config
from jaxspeed.config.schema import Declared, Mark, When, declared, shown

# By dotted name; nobody sets `given`, which `jaxspeed.fit` fills.
SHARED = {each.name: each for each in declared(Config) if not each.name.startswith("given.")}


def known(model: str | None = None) -> dict[str, Declared]:
  """The shared fields, and those of a family of models, by dotted name; None: of all families."""
  found, of = dict(SHARED), Config.model_fields["model"].metadata
  for module in [each for name, each in FAMILIES.items() if model in (None, name)]:
    for field in declared(fields_of(module), "model.", of):
      found.setdefault(field.name, field)
  return found


def no_field(name: str, model: str | None = None) -> str:
  """A sentence that a config has no field of a name, dotted or not; `model` as in `known`."""
  fields = known(model)
  if any(field.startswith(f"{name}.") for field in fields):
    return f"config.{name} is a group of fields: set config.{name}.FIELD."
  near = nearest(name, fields.values())
  meant = f": did you mean {' or '.join(near)}?" if near else "."
  return f"the config has no field {shown(name)[1:-1]}{meant}"


def nearest(name: str, fields: Iterable[Declared]) -> list[str]:
  """At most three fields: those with the name, theirs or of other projects, most like it."""
  called = {f.name: [f.name.rpartition(".")[2], *re.findall(r"`(\w+)`", f.meaning)] for f in fields}
  last = name.lower().replace("-", "_").rpartition(".")[2]
  near = difflib.get_close_matches(last, itertools.chain(*called.values()), 1, 0.7)
  return [each for each, names in called.items() if {*near} & {*names}][:3]


def base() -> ConfigDict:
  """Every shared field with its default; a recipe sets `name`, `model` and what differs.

  Fields are checked when the recipe has returned (`checks.checked`).
  """
  return ConfigDict({"model": {}} | Config.model_construct().model_dump(), type_safe=False)


def imagenet() -> ConfigDict:
  """The base of ImageNet's recipes: data, ResNet-50, SGD without decay of norms, 93 % top-5.

  The bias of the last layer decays like its weights, as in the original recipes.
  """
  config = base()
  config.update(loss_scale=1024.0, target=0.93, target_metric="top5")
  config.data.update(
    feed="stream",
    name="imagenet2012",
    classes=1000,
    image_size=224,
    train_images=1_281_167,
    eval_images=50_000,
    mean=(123.675, 116.28, 103.53),  # 0.485, 0.456, 0.406 of the range
    std=(58.395, 57.12, 57.375),  # 0.229, 0.224, 0.225
    last_batch="keep",
  )
  config.augment.flip = "random"
  config.model = dict(name="resnet", zero_init=True)
  config.optimizer.update(
    nesterov=False, weight_decay=1e-4, bias_decay_factor=0.0, scale_decay_factor=0.0
  )
  config.eval.batch_size = 256
  return config


def page() -> str:
  """The text of docs/fields.md: every field with its default, values, meaning and condition."""
  lines = [
    "# The fields of a config",
    "",
    "Written by `jaxspeed/config/fields.py` from the declarations in `jaxspeed/config/`;",
    "`tests/config/test_config.py` compares them. `--config.FIELD=VALUE` changes a field. Names in",
    "backticks are those of other projects.",
  ]
  for group, listed in itertools.groupby(in_words("", {}), lambda each: each[0].rpartition(".")[0]):
    lines += ["", f"## {group or 'run'}", "", *(f"- **{name}**{words}" for name, words in listed)]
  return "\n".join(lines) + "\n"


def in_words(command: str, values: Mapping[str, Any], *marks: Mark) -> Iterator[tuple[str, str]]:
  """Yields the name of each field with marks, and what is said of it after its name.

  Args:
    command: "evaluate" or "predict" for the fields that they use; else all.
    values: a config by dotted name; {}: defaults, and the fields of all families of models.
    *marks: those of which a field must have all.
  """
  for family in ("", *FAMILIES):
    if family and family != values.get("model.name", family):
      continue
    for name, field in known(family).items():
      if (name in SHARED) == bool(family) or not field.is_used(command):
        continue
      if not {*marks} <= {*field.facts(Mark)}:
        continue
      default = values.get(name, field.default)
      value = "" if default is ... else f"={default!r}"
      reasons = [w.otherwise for w in field.facts(When) if "jaxspeed.fit" not in w.otherwise]
      effect = f" (condition: {'; '.join(reasons)})" if reasons else ""
      meaning = f"{family and f'{family}: '}{field.meaning}"
      yield name, f"{value} ({field.accepted}): {meaning}{effect}"
