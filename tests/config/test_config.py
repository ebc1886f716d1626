"""Configs: their fields, other values for them, how they are stored and compared, and --help."""

import json
import pathlib
import re

import numpy as np
import pytest
from in_process import command
from recipes import get_config

import jaxspeed.models.make  # noqa: F401  the families of models
from jaxspeed.config import checks, stored
from jaxspeed.config import fields as fields_lib
from jaxspeed.config.checks import to_flags, with_overrides
from jaxspeed.config.flags import parse_overrides
from jaxspeed.config.recipe import load_recipe
from jaxspeed.config.registry import FAMILIES
from jaxspeed.config.schema import Mark
from jaxspeed.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]


def is_primitive(value):
  if isinstance(value, tuple):
    return all(map(is_primitive, value))
  return isinstance(value, bool | int | float | str)


def test_the_base_holds_primitives_only_and_is_a_new_one_each_time():
  fields = dict(stored.leaves(fields_lib.base()))
  assert [name for name, value in fields.items() if not is_primitive(value)] == []
  fields_lib.base().data.classes = 7
  assert fields_lib.base().data.classes == 10


def test_every_field_has_a_meaning():
  for family in FAMILIES:
    for name, field in fields_lib.known(family).items():
      assert field.meaning and field.meaning.split()[0] not in ("of", "whose"), name


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
  read = with_overrides(config, parse_overrides([word])[0])
  assert repr(dict(stored.leaves(read))[field]) == repr(held)


def test_names_that_only_python_can_pass_are_refused():
  config = load_recipe("quickstart")
  with pytest.raises(UserError, match="^config.schedule is a group of fields: set config.schedule"):
    with_overrides(config, {"schedule": {"peak": 1.0}})
  with pytest.raises(UserError, match="^the config has no field 3"):
    with_overrides(config, {3: 1})


def test_another_family_brings_its_defaults():
  config = with_overrides(load_recipe("imagenet18:1"), {"model.name": "vit", "model.depth": 2})
  own = {n: f.default for n, f in fields_lib.known("vit").items() if n.startswith("model.")}
  named = {"model.name": "vit", "model.depth": 2}
  assert dict(stored.leaves({"model": config.model})) == own | named


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


def test_a_config_comes_back_from_its_file_with_its_tuples(tmp_path):
  config = fields_lib.base()
  config.model = dict(name="airbench", widths=(8, 16, 32))
  config = checks.checked(config)
  config.schedule.segments = ((0, 1, 0.5, 0.25),)
  config.data.mean = ()
  config.schedule.peak = 0.1 + 0.2  # no float is rounded
  path = tmp_path / "config.json"
  stored.save(config, path)
  loaded = stored.load(path)
  assert loaded.to_dict() == config.to_dict()
  assert stored.differences(config, loaded) == []
  assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_files_of_earlier_versions_are_read(tmp_path, caplog):
  config, path = get_config("cifar10_hlb"), tmp_path / "config.json"
  stored.save(config, path)
  whole, content = checks.checked(config), json.loads(path.read_text())
  # New fields, one whose name did not say that it is a factor, and some that are gone.
  del content["patience"], content["average"]["reach"]
  optimizer = content["optimizer"] | {"lars_clip": []}
  optimizer["bias_rate"] = optimizer.pop("bias_rate_factor")
  evaluation = content["eval"] | {"multiple": 8}
  content |= {"format": 2, "compile_cache": "", "optimizer": optimizer, "eval": evaluation}
  path.write_text(json.dumps(content))
  assert stored.load(path) == whole and whole.optimizer.bias_rate_factor != 1
  assert (
    f"{path} is of an earlier version: defaults hold for average.reach, patience" in caplog.text
  )
  for wrong in (
    {"compile_cache": "theirs"},
    {"eval": evaluation | {"multiple": 16}},
    {"optimizer": optimizer | {"bias_rate_factor": 7.0}},  # beside its old name
  ):
    path.write_text(json.dumps(content | wrong))
    with pytest.raises(UserError, match="config.json: the config has no field"):
      stored.load(path)


def test_differences_name_the_fields_that_may_change_a_result():
  old, new = fields_lib.base(), fields_lib.base()
  new.epochs, new.model = 2.0, dict(width=8)
  new.data.update(path="elsewhere", copies="elsewhere", cache="elsewhere")
  new.checkpoint.update(every_seconds=1.0, keep=9)
  new.records.update(author="someone")
  assert stored.differences(old, new) == [
    "config.epochs: 1.0 -> 2.0",
    "config.model.width: absent -> 8",
  ]
  assert stored.differences(new, old)[1] == "config.model.width: 8 -> absent"


def test_the_page_of_fields_is_up_to_date():
  """The docstring of `fields` has the command that writes it again."""
  assert (ROOT / "docs" / "fields.md").read_text() == fields_lib.page()


def test_help_shows_common_fields_with_the_recipes_values_and_all_of_them_when_asked():
  done = command("train", "cifar10_resnet9:baseline", "-h")
  assert (done.returncode, done.stderr) == (0, "")
  listed = dict(re.findall(r"\n  --config\.([\w.]+)=(.*?) \(", done.stdout))
  known = fields_lib.known("resnet9").items()
  common = {name for name, field in known if Mark.COMMON in field.metadata}
  assert set(listed) == common and 8 <= len(common) <= 14
  config = dict(stored.leaves(get_config("cifar10_resnet9", "baseline")))
  assert {name: repr(config[name]) for name in common} == listed
  assert "\n  --workdir: " in done.stdout
  everything = command("train", "--help=all").stdout
  for name, value in stored.leaves(fields_lib.base()):
    assert name.startswith("given.") or f"\n  --config.{name}={value!r} (" in everything
  width = "--config.model.width=64 (a whole number from 1 to 4,096): resnet9: channels of the first"
  assert width in everything


def test_a_data_set_may_have_a_config_and_a_version():
  config = get_config("quickstart")
  for config.data.name in ("", "insects/small", "insects:1.0.0", "a/b_c:2.*.*", "My set"):
    checks.checked(config)
