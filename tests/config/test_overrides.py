"""Overrides from Python are those of the command line: same values, same mistakes."""

import pathlib

import pytest
from in_process import command, fresh_flags

from jaxspeed.config import checks, families, flags, names, stored
from jaxspeed.config.overrides import parse_value, to_flags, with_overrides
from jaxspeed.config.recipe import load_recipe
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the models, whose fields a recipe may set

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
# A recipe of each family of models.
RECIPES = ("imagenet18.py:1", "cifar10.py", "cifar10_airbench.py")


def recipe(name="quickstart.py"):
  file, _, variant = name.partition(":")
  return load_recipe(str(CONFIGS / file), variant or None)


def parsed(config, words):
  """The config with the words of a command line."""
  with fresh_flags():
    argv = ["train", *words]
    flags.define_config(config.copy_and_resolve_references(), argv, "")
    flags.flags.FLAGS(argv)
    return flags.flags.FLAGS["config"].value


def changed(value):
  """Another value of the same type."""
  others = {bool: lambda v: not v, int: lambda v: v + 3, float: lambda v: v * 0.7 + 1e-5}
  others |= {str: lambda v: f"{v}/a b='c', \\ü", tuple: lambda v: (*v, 0.25, 3)}
  return others[type(value)](value)


@pytest.mark.parametrize("name", RECIPES)
def test_every_field_gets_what_the_command_line_gives_it(monkeypatch, name):
  config = recipe(name)
  monkeypatch.setattr(checks, "check", lambda *_, **__: None)
  known = [field for field in names.declared(config.model.name) if field != "model.name"]
  leaves = dict(stored.leaves(config))
  overrides = {field: changed(leaves[field]) for field in known}
  assert len({type(value) for value in overrides.values()}) == 5
  words = to_flags(overrides)
  made = with_overrides(config, overrides)
  assert dict(stored.leaves(made)) == dict(stored.leaves(parsed(config, words)))
  assert dict(stored.leaves(made)) == leaves | overrides
  texts = (word.removeprefix("--config.").partition("=")[::2] for word in words)
  assert {field: parse_value(field, text) for field, text in texts} == overrides


@pytest.mark.parametrize(
  "field, value",
  [
    ("epochs", 3),
    ("phases.first_epoch", [0, 2]),
    ("schedule.segments", [[0, 0.1], [2.5, 0.0]]),
    ("schedule.segments", ((0.0, 0.1), [2.5, 0])),
    ("data.mean", []),
  ],
)
def test_lists_and_whole_numbers_become_what_the_field_has(monkeypatch, field, value):
  monkeypatch.setattr(checks, "check", lambda *_, **__: None)
  config = recipe()
  made = dict(stored.leaves(with_overrides(config, {field: value})))[field]
  before = dict(stored.leaves(config))[field]
  assert type(made) is type(before) and "[" not in repr(made)
  read = dict(stored.leaves(parsed(config, to_flags({field: value}))))[field]
  assert made == read and type(made) is type(read)


def test_the_recipe_keeps_its_values():
  config = recipe()
  before = config.to_json_best_effort()
  assert with_overrides(config, {"schedule.peak": 2.0, "model.width": 8}).schedule.peak == 2.0
  assert config.to_json_best_effort() == before


@pytest.mark.parametrize(
  "overrides, message",
  [
    ({"lr": 0.1}, "the config has no field lr: did you mean schedule.peak?"),
    ({"schedule": {"peak": 1.0}}, "config.schedule is a group of fields: set config.schedule.FI"),
    ({3: 1}, "the config has no field 3"),
    ({"seed": 1.0}, "config.seed=1.0: it must be a whole number"),
    ({"seed": True}, "config.seed=True: it must be a whole number"),
    ({"epochs": None}, "config.epochs=None: it must be a number"),
    ({"stop_at_target": 1}, "config.stop_at_target=1: it must be True or False"),
    ({"optimizer.name": "adam2"}, "config.optimizer.name='adam2': choose one of"),
    ({"data.mean": 1.0}, "config.data.mean=1.0: it must be"),
    ({"batch_size": 0}, "config.batch_size=0: it must be"),
    ({"model.depth": 50}, "the config has no field model.depth"),
  ],
)
def test_mistakes(overrides, message):
  with pytest.raises(UserError) as error:
    with_overrides(recipe(), overrides)
  assert str(error.value).startswith(message)


def test_another_family_brings_its_defaults():
  config = with_overrides(recipe("imagenet18.py:1"), {"model.name": "vit", "model.depth": 2})
  assert config.model.to_dict() == families.with_defaults({"name": "vit", "depth": 2})


@pytest.mark.parametrize(
  "field, text, value",
  [
    ("seed", "3", 3),
    ("epochs", "1e-3", 1e-3),
    ("stop_at_target", "true", True),
    ("stop_at_target", "False", False),
    ("name", "3", "3"),
    ("name", "", ""),
    ("data.mean", "(1.0, 2)", (1.0, 2)),
    ("model.width", "8", 8),
  ],
)
def test_values_from_text(field, text, value):
  found = parse_value(field, text)
  assert found == value and type(found) is type(value)


@pytest.mark.parametrize("text", ["", "a", "1 + 1", "__import__('os')", "(" * 999, "9" * 5000])
def test_text_that_is_no_value(text):
  with pytest.raises(UserError, match="^config.seed=.*: it must be a whole number"):
    parse_value("seed", text)
  with pytest.raises(UserError, match="no field sead: did you mean seed"):
    parse_value("sead", "1")


def test_a_peak_scales_the_segments_of_a_recipe():
  config = recipe("imagenet18.py:4")
  before = config.schedule.segments
  highest = max(rate for segment in before for rate in segment[2:])
  after = with_overrides(config, {"schedule.peak": highest / 4}).schedule.segments
  assert [s[:2] for s in after] == [s[:2] for s in before]
  assert [s[2:] for s in after] == [tuple(rate / 4 for rate in s[2:]) for s in before]
  assert config.schedule.segments == before


def test_a_peak_is_scaled_to_once_and_segments_that_are_given_stay():
  config = with_overrides(recipe("imagenet18.py:4"), {"schedule.peak": 0.7})
  segments = config.schedule.segments
  assert max(rate for segment in segments for rate in segment[2:]) == 0.7
  assert with_overrides(config, {"schedule.peak": 0.7}).schedule.segments == segments
  given = ((0, 40, 1.0, 1.0),)
  both = with_overrides(config, {"schedule.peak": 0.5, "schedule.segments": given, "epochs": 40.0})
  assert both.schedule.segments == given


def test_the_command_line_scales_them_too():
  planned = command(
    "plan", f"--config={CONFIGS}/imagenet18.py:4", "--config.schedule.peak=2.0", "--csv"
  )
  rates = [float(line.split(",")[4]) for line in planned.stdout.splitlines()[1:]]
  assert max(rates) == 2.0
