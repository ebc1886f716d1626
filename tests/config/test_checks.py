"""Overrides: from the command line, Python and sweeps, the same values and mistakes."""

import numpy as np
import pytest
from in_process import command

from jaxspeed.config import fields, stored
from jaxspeed.config.checks import parse_value, to_flags, with_overrides
from jaxspeed.config.recipe import load_recipe
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the models, whose fields a recipe may set


def test_the_command_line_takes_values_in_every_form():
  flags = ["--config.epochs", "2", "--config.data.mean=(1,2,3.5)", "--config.stop_at_target=false"]
  done = command("plan", "--config", "quickstart", *flags, "--config.augment.flip", "random")
  assert done.returncode == 0 and done.stdout.startswith("quickstart: 30 steps"), done.stderr


@pytest.mark.parametrize(
  "field, value, held",
  [
    ("epochs", 3, 3.0),
    ("epochs", np.float32(3), 3.0),
    ("seed", np.int64(3), 3),
    ("data.path", "a b='c', \\ü", "a b='c', \\ü"),
    ("stop_at_target", False, False),
    ("name", "3", "3"),
    ("epochs", 1e-3, 1e-3),
    ("data.mean", [1, 2, 3], (1.0, 2.0, 3.0)),
    ("data.mean", np.arange(3), (0.0, 1.0, 2.0)),
    ("schedule.segments", ((0, 20, 0.1, 0),), ((0.0, 20.0, 0.1, 0.0),)),
  ],
)
def test_values_become_what_the_field_has(field, value, held):
  config = load_recipe("quickstart")
  made = dict(stored.leaves(with_overrides(config, {field: value})))[field]
  assert repr(made) == repr(held)
  (word,) = to_flags({field: value})
  text = word.removeprefix(f"--config.{field}=")
  read = with_overrides(config, {field: parse_value(field, text)})
  assert repr(dict(stored.leaves(read))[field]) == repr(held)


def test_names_that_only_python_can_pass_are_refused():
  config = load_recipe("quickstart")
  with pytest.raises(UserError, match="^config.schedule is a group of fields: set config.schedule"):
    with_overrides(config, {"schedule": {"peak": 1.0}})
  with pytest.raises(UserError, match="^the config has no field 3"):
    with_overrides(config, {3: 1})


def test_another_family_brings_its_defaults():
  config = with_overrides(load_recipe("imagenet18:1"), {"model.name": "vit", "model.depth": 2})
  own = {n: f.default for n, f in fields.known("vit").items() if n.startswith("model.")}
  assert dict(stored.leaves({"model": config.model})) == own | {
    "model.name": "vit",
    "model.depth": 2,
  }


def test_a_peak_scales_the_segments_of_a_recipe_once():
  config = load_recipe("imagenet18:4")
  before = config.to_json_best_effort(), config.schedule.segments
  highest = max(rate for segment in before[1] for rate in segment[2:])
  scaled = with_overrides(config, {"schedule.peak": highest / 4})
  after = scaled.schedule.segments
  assert [s[:2] for s in after] == [s[:2] for s in before[1]]
  assert [s[2:] for s in after] == [tuple(rate / 4 for rate in s[2:]) for s in before[1]]
  assert (config.to_json_best_effort(), config.schedule.segments) == before
  assert with_overrides(scaled, {"schedule.peak": highest / 4}).schedule.segments == after
  given = ((0, 40, 1.0, 1.0),)
  both = with_overrides(config, {"schedule.peak": 0.5, "schedule.segments": given, "epochs": 40.0})
  assert both.schedule.segments == given
  planned = command("plan", "imagenet18:4", "--config.schedule.peak=2.0", "--csv")
  assert max(float(line.split(",")[4]) for line in planned.stdout.splitlines()[1:]) == 2.0
