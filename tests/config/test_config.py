"""Configs: their fields, how they are stored and compared, and what --help says of them."""

import json
import pathlib
import re

import pytest
from in_process import command
from recipes import get_config

import jaxspeed.models.make  # noqa: F401  the families of models
from jaxspeed.config import checks, stored
from jaxspeed.config import fields as fields_lib
from jaxspeed.config.checks import with_overrides
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


def test_every_field_has_a_meaning_and_no_other_name_is_that_of_a_field_beside_it():
  for family in FAMILIES:
    known = fields_lib.known(family)
    for name, field in known.items():
      assert field.meaning and field.meaning.split()[0] not in ("of", "whose"), name
      group = name[: name.rfind(".") + 1]
      assert not {f"{group}{other}" for other in field.also} & known.keys(), name


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


def test_a_run_of_an_earlier_version_gets_the_defaults_of_new_fields(tmp_path, caplog):
  path = tmp_path / "config.json"
  stored.save(checks.checked(get_config("quickstart")), path)
  content = json.loads(path.read_text())
  del content["patience"], content["model"]["layers"], content["average"]["every"]
  path.write_text(json.dumps(content))
  assert stored.load(path) == checks.checked(get_config("quickstart"))
  added = "config.average.every=1; config.model.layers='auto'; config.patience=0"
  assert f"{path} is of an earlier version: the defaults hold for {added}." in caplog.messages


def test_a_field_that_is_gone_is_read_where_it_has_the_value_that_holds_now(tmp_path):
  path = tmp_path / "config.json"
  config = get_config("quickstart")
  content = {"format": stored.FORMAT} | stored.to_dict(config)
  content["eval"]["multiple"], content["compile_cache"] = 8, ""
  path.write_text(json.dumps(content))
  assert stored.load(path) == checks.checked(config)
  for gone in ({"compile_cache": "theirs"}, {"eval": content["eval"] | {"multiple": 16}}):
    path.write_text(json.dumps(content | gone))
    with pytest.raises(UserError, match="the config has no field"):
      stored.load(path)


def test_a_field_that_was_renamed_keeps_its_value_and_is_refused_by_its_old_name(tmp_path):
  config = get_config("cifar10_hlb")
  path = tmp_path / "config.json"
  stored.save(config, path)
  path.write_text(path.read_text().replace('"bias_rate_factor"', '"bias_rate"'))
  loaded = stored.load(path)
  assert loaded.optimizer.bias_rate_factor == config.optimizer.bias_rate_factor != 1
  content = json.loads(path.read_text())
  content["optimizer"]["bias_rate_factor"] = 7.0  # beside the old name
  path.write_text(json.dumps(content))
  with pytest.raises(UserError, match=r"no field optimizer\.bias_rate"):
    stored.load(path)
  with pytest.raises(UserError, match=r"mean optimizer.head_decay_factor\?$"):
    with_overrides(config, {"optimizer.head_decay": 2.0})


def test_differences_name_the_fields_that_may_change_a_result():
  old, new = fields_lib.base(), fields_lib.base()
  new.epochs = 2.0
  new.schedule.peak = 0.4
  new.model = dict(width=8)
  new.data.update(path="elsewhere", copies="elsewhere", cache="elsewhere")
  new.checkpoint.update(every_seconds=1.0, keep=9)
  new.update(cost_per_hour=3.0)
  new.records.update(author="someone")
  assert stored.differences(old, new) == [
    "config.epochs: 1.0 -> 2.0",
    "config.model.width: absent -> 8",
    "config.schedule.peak: 0.1 -> 0.4",
  ]
  assert stored.differences(new, old)[1] == "config.model.width: 8 -> absent"


def test_an_unrelated_run_is_told_by_its_first_differences_and_their_number():
  rows = stored.differences(get_config("imagenet18", "8"), get_config("quickstart"))
  assert stored.listed(rows).endswith(f"; and {len(rows) - 5} more") and len(rows) > 20
  assert stored.listed(rows[:2]) == "; ".join(rows[:2])


def test_the_page_of_fields_is_up_to_date():
  """The docstring of `fields` has the command that writes it again."""
  assert (ROOT / "docs" / "fields.md").read_text() == fields_lib.page()


def test_help_shows_common_fields_with_the_recipes_values_and_all_of_them_when_asked():
  done = command("train", "cifar10_resnet9:baseline", "-h")
  assert (done.returncode, done.stderr) == (0, "")
  listed = dict(re.findall(r"\n  --config\.([\w.]+)=(.*?) \(", done.stdout))
  common = {
    name for name, field in fields_lib.known("resnet9").items() if Mark.COMMON in field.metadata
  }
  assert set(listed) == common and 8 <= len(common) <= 14
  config = dict(stored.leaves(get_config("cifar10_resnet9", "baseline")))
  assert {name: repr(config[name]) for name in common} == listed
  assert "\n  --workdir: " in done.stdout
  everything = command("train", "--help=all").stdout
  for name, value in stored.leaves(fields_lib.base()):
    assert name.startswith("given.") or f"\n  --config.{name}={value!r} (" in everything
  assert (
    "--config.model.width=64 (a whole number from 1 to 1,024): resnet9: channels of the first"
    in everything
  )


def test_a_data_set_may_have_a_config_and_a_version():
  config = get_config("quickstart")
  for config.data.name in ("", "insects/small", "insects:1.0.0", "a/b_c:2.*.*", "My set"):
    checks.checked(config)
