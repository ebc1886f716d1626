"""Configs: what they hold, how they are stored and compared, and what a command line may say."""

import dataclasses
import functools
import json
import pathlib
import re

import pytest
from commands import run
from in_process import command, mistake
from ml_collections import ConfigDict
from recipes import get_config

import jaxspeed.models.make  # noqa: F401  the families of models
from jaxspeed.config import checks, families, names, stored
from jaxspeed.config import fields as fields_lib
from jaxspeed.config import flags as command_line
from jaxspeed.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
QUICKSTART = f"--config={ROOT / 'configs' / 'quickstart.py'}"


def is_primitive(value):
  if isinstance(value, tuple):
    return all(isinstance(v, int | float | str) for v in value)
  return isinstance(value, bool | int | float | str)


def test_the_base_holds_primitives_only():
  fields = dict(stored.leaves(fields_lib.base()))
  assert len(fields) > 40
  assert [name for name, value in fields.items() if not is_primitive(value)] == []


def test_every_base_is_a_new_one():
  fields_lib.base().data.classes = 7
  assert fields_lib.base().data.classes == 10


def test_leaves_are_dotted_and_sorted():
  config = ConfigDict({"b": {"y": 1, "x": (2, 3)}, "a": "four"})
  assert list(stored.leaves(config)) == [("a", "four"), ("b.x", (2, 3)), ("b.y", 1)]


def test_places_are_fields_or_groups_of_the_base():
  names = [name for name, _ in stored.leaves(fields_lib.base())]
  for place in stored.PLACES:
    assert any(name == place or name.startswith(place + ".") for name in names), place


def test_choose_returns_a_known_variant():
  assert fields_lib.variant_of("b", ("a", "b"), "configs/some.py") == "b"


@pytest.mark.parametrize("variant", ["c", "", None, "A"])
def test_choose_lists_the_variants_to_who_names_another(variant):
  with pytest.raises(UserError) as caught:
    fields_lib.variant_of(variant, ("a", "b"), "configs/some.py")
  assert str(caught.value) == (
    f"some.py has no variant {variant!r}: write --config=some.py:NAME with NAME one of a, b."
  )


def test_a_config_comes_back_from_its_file_with_its_tuples(tmp_path):
  config = fields_lib.base()
  config.model = dict(name="airbench", widths=(8, 16, 32))
  config.schedule.segments = ((0, 1, 0.5, 0.25),)
  config.data.mean = ()
  config.schedule.peak = 0.1 + 0.2  # no float is rounded
  path = tmp_path / "config.json"
  stored.save(config, path)
  loaded = stored.load(path)
  assert loaded.to_dict() == config.to_dict()
  assert loaded.model.widths == (8, 16, 32) and loaded.data.mean == ()
  assert loaded.schedule.segments == ((0, 1, 0.5, 0.25),)
  assert isinstance(loaded.data.std, tuple) and loaded.data.std[0] == 62.99
  assert stored.differences(config, loaded) == []
  assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_the_folder_of_compiled_programs_is_neither_stored_nor_believed(tmp_path):
  config = get_config("quickstart")
  config.compile_cache = "programs"
  path = tmp_path / "config.json"
  stored.save(config, path)
  assert config.compile_cache == "programs"
  assert json.loads(path.read_text())["compile_cache"] == ""
  path.write_text(path.read_text().replace('"compile_cache": ""', '"compile_cache": "theirs"'))
  assert stored.load(path).compile_cache == ""


@pytest.mark.parametrize("found", [0, 1, 3, 2.5, "2", True, None, [2]])
def test_a_config_of_another_format_is_refused(tmp_path, found):
  path = tmp_path / "config.json"
  stored.save(get_config("quickstart"), path)
  content = json.loads(path.read_text())
  assert content.pop("format") == stored.FORMAT
  path.write_text(json.dumps({"format": found, "new_field": 1}))
  with pytest.raises(
    UserError, match=f"is of format .*reads {stored.FORMAT}: use the version that"
  ):
    stored.load(path)
  path.write_text(json.dumps(content))
  with pytest.raises(UserError, match="has no format, which jaxspeed.train writes"):
    stored.load(path)


def test_a_config_that_is_not_there_is_told_as_a_wrong_workdir(tmp_path):
  path = tmp_path / "config.json"
  with pytest.raises(UserError) as caught:
    stored.load(path)
  assert str(caught.value) == (
    f"{path} is missing: name the folder of a run, the --workdir of a jaxspeed.train."
  )


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe\x00"])
def test_a_broken_config_file_is_named(tmp_path, content):
  path = tmp_path / "config.json"
  path.write_bytes(content)
  with pytest.raises(UserError, match="cannot be read as a config") as caught:
    stored.load(path)
  assert str(caught.value).startswith(str(path))


def test_json_that_is_no_object_is_no_config(tmp_path):
  path = tmp_path / "config.json"
  path.write_text("[1, 2]")
  with pytest.raises(UserError, match="holds no config: expected a JSON object"):
    stored.load(path)


def test_differences_name_the_fields_that_may_change_a_result():
  old, new = fields_lib.base(), fields_lib.base()
  new.epochs = 2.0
  new.schedule.peak = 0.4
  new.model = dict(width=8)
  assert stored.differences(old, new) == [
    "config.epochs: 1.0 -> 2.0",
    "config.model.width: absent -> 8",
    "config.schedule.peak: 0.1 -> 0.4",
  ]
  assert stored.differences(new, old)[1] == "config.model.width: 8 -> absent"


def test_differences_ignore_places():
  old, new = fields_lib.base(), fields_lib.base()
  new.data.update(path="elsewhere", copies="elsewhere", cache="elsewhere")
  new.compile_cache = "elsewhere"
  new.checkpoint.update(every_seconds=1.0, keep=9)
  new.update(cost_per_hour=3.0)
  new.records.update(author="someone")
  assert stored.differences(old, new) == []


def test_a_flag_that_must_be_given():
  assert command_line.required("workdir", "runs/a") == "runs/a"
  for value in ("", None):
    with pytest.raises(UserError, match="--workdir is missing: name the folder of a run"):
      command_line.required("workdir", value)


@pytest.mark.parametrize(
  "arguments, sentence",
  [
    (
      [QUICKSTART, "--config.epoch=3"],
      "the config has no field epoch: did you mean epochs?",
    ),
    (
      [QUICKSTART, "--config.schedule.peek=3"],
      "the config has no field schedule.peek: did you mean schedule.peak?",
    ),
    ([QUICKSTART, "--config.zebra=3"], "the config has no field zebra."),
    (
      [QUICKSTART, "--config.epochs=many"],
      "config.epochs='many': it must be a number above 0 and up to 100,000.",
    ),
    (
      [QUICKSTART, "--config.batch_size=1.5"],
      "config.batch_size='1.5': it must be a whole number from 1 to 16,777,216.",
    ),
    (
      [QUICKSTART, "--config.epochs=__import__('os').getpid()"],
      "config.epochs=\"__import__('os').getpid()\": it must be a number above 0 and up to 100,000.",
    ),
    (
      ["--config=configs/cifar10_resnet9.py:roof"],
      "cifar10_resnet9.py has no variant 'roof': write --config=cifar10_resnet9.py:NAME with NAME "
      "one of baseline, device_data, early_pooling, label_smoothing, celu, ghost_norm, "
      "frozen_scale, whitening, high_rate, ema, flip_tta.",
    ),
    (
      [QUICKSTART + ":roof"],
      f"{QUICKSTART} has no variants: leave out the colon.",
    ),
    (["--config=configs/absent.py"], "--config=configs/absent.py: there is no such file."),
    (["--config", "configs/absent.py:x"], "--config=configs/absent.py: there is no such file."),
    (["--config=configs"], "--config=configs: there is no such file."),
    (
      [QUICKSTART, "--workdirs=x"],
      "Unknown command line flag 'workdirs'; see --help for the flags.",
    ),
    (
      [QUICKSTART, "--confi=x"],
      "Unknown command line flag 'confi' (did you mean --config?); see --help for the flags.",
    ),
    (
      [QUICKSTART, "--epochs=3"],
      "Unknown command line flag 'epochs' (did you mean --config.epochs?); see --help for the "
      "flags.",
    ),
    (
      [QUICKSTART, "--csv=maybe"],
      "flag --csv=maybe: it must be True or False; see --help for the flags.",
    ),
    ([QUICKSTART, "epochs=3"], "'epochs=3' is no flag; see --help for the flags."),
    ([], "set --config=FILE.py to the recipe to plan."),
    ([QUICKSTART, "--config.epochs=-1"], "config.epochs=-1.0: it must be greater than 0."),
    ([QUICKSTART, "--config.optimizer.b1=1"], "config.optimizer.b1=1.0: it must be less than 1."),
    (
      [QUICKSTART, "--config.optimizer.b2=x"],
      "config.optimizer.b2='x': it must be a number from 0 and below 1.",
    ),
  ],
)
def test_a_mistake_on_the_command_line_is_told_in_one_line(arguments, sentence, monkeypatch):
  monkeypatch.chdir(ROOT)
  assert mistake("plan", *arguments) == sentence


def test_values_that_contradict_each_other_are_told_with_their_origin():
  found = mistake("plan", "--config=imagenet18:4", "--config.phases.first_epoch=(0,)")
  assert found.endswith(
    "(config.phases.first_epoch: from the command line, config.phases.batch_size: the recipe's)."
  )


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_prints_the_commands_flags_and_every_field(flag):
  done = command("plan", QUICKSTART, flag)
  assert (done.returncode, done.stderr) == (0, "")
  assert "\n  --config: Recipe: NAME, FILE.py or either with :VARIANT;" in done.stdout
  for name, value in stored.leaves(fields_lib.base()):
    is_field = not name.startswith("given.")  # those only jaxspeed.fit can fill
    assert (f"\n  --config.{name}={value!r} (" in done.stdout) == is_field
  assert "seconds without progress after which a run is ended; 0: never" in done.stdout
  assert (
    "--config.model.width=64 (a whole number from 1 to 1,024): resnet9: channels of the first"
    in done.stdout
  )


def test_help_without_models_says_where_their_fields_are(monkeypatch):
  monkeypatch.setattr(families, "FAMILIES", {})
  lines = list(names.described())
  assert lines[-1].startswith("model.FIELD: ") and "train --help" in lines[-1]
  assert not any("one of )" in line for line in lines)


def test_help_of_predict_lists_what_it_uses():
  listed = set(re.findall(r"\n  --config\.([\w.]+)", command("predict", "--help").stdout))
  assert {"data.path", "pretrained.path", "model.width", "eval.resize", "precision"} <= listed
  assert not {"epochs", "seed", "data.cache", "eval.shapes", "schedule.peak"} & listed


def test_every_field_of_a_model_has_a_meaning():
  for family in families.FAMILIES.values():
    for name, field in family.fields.model_fields.items():
      assert name == "name" or field.description, name


def test_help_begins_with_the_commands_docstring():
  done = run("plan", "--help")
  assert done.returncode == 0 and "python -m jaxspeed.plan --config=" in done.stdout


def test_overrides_are_literals_of_the_fields_type(monkeypatch):
  monkeypatch.chdir(ROOT)
  arguments = ["--config", "configs/quickstart.py", "--config.epochs", "2"]
  done = command("plan", *arguments, "--config.data.mean=(1,2,3.5)", "--noconfig.stop_at_target")
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith("quickstart: 30 steps")


def test_a_models_own_fields_can_be_set_where_the_recipe_leaves_them_out(monkeypatch):
  monkeypatch.chdir(ROOT)
  done = command("plan", QUICKSTART, "--config.model.ghost_splits=2")
  assert done.returncode == 0, done.stderr


def test_every_field_has_a_meaning_and_its_default_fits():
  base = fields_lib.base()
  checks.check(base, model=False)
  for name in names.all_fields():
    field = names.field_of(name)
    assert field is not None and field.description, name
    words = field.description.split()
    assert words[0] not in ("of", "whose"), name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_number_of_a_config_is_nan_or_infinite(value):
  recipes = [("quickstart", ""), ("imagenet18", "1"), ("cifar10_airbench", "96_faster")]
  asked = 0
  for config in (get_config(*recipe) for recipe in recipes):
    for name, held in list(stored.leaves(config)):
      if isinstance(held, bool | str):
        continue
      wrong = config.copy_and_resolve_references()
      *groups, last = name.split(".")
      group = functools.reduce(getattr, groups, wrong)
      with wrong.ignore_type():
        group[last] = (value,) if isinstance(held, tuple) else value
      with pytest.raises(UserError, match=f"config.{re.escape(name)}"):
        checks.check(wrong)
      asked += 1
  assert asked > 200


def test_the_families_are_those_of_the_recipes():
  assert set(families.FAMILIES) == {"airbench", "resnet", "resnet9", "vit"}
  for name, (module, group, _) in families.FAMILIES.items():
    model = families.with_defaults({"name": name})
    checks.check_model(model)
    assert {*model} == {*group.model_fields}
    own = {field.name for field in dataclasses.fields(module)}
    assert {*model} - {"name"} == own - {"classes", "dtype", "parent", "name"}


@pytest.mark.parametrize(
  "name, meant",
  [
    ("lr", ["schedule.peak"]),
    ("LR", ["schedule.peak"]),
    ("learning-rate", ["schedule.peak"]),
    ("image_size", ["data.image_size", "eval.image_size", "phases.image_size"]),
    ("data.clases", ["data.classes"]),
    ("class_weights", ["data.balance"]),
    ("modle.width", ["model.width"]),
    ("train.epochs", ["epochs"]),
    ("zebra", []),
  ],
)
def test_nearest_names(name, meant):
  assert names.nearest(name, tuple(names.all_fields("resnet9"))) == meant


def test_every_common_name_means_a_field_that_exists():
  known = {*names.all_fields(), "model.name"}
  assert set(names.COMMON.values()) <= known


def test_of_a_flag_that_is_given_twice_the_last_counts():
  argv = ["evaluate", "--workdir=a", "--step=3", "--workdir", "b"]
  assert command_line.value_of("workdir", argv) == "b"
  assert command_line.value_of("config", argv) is None


@pytest.mark.parametrize("name", ["", "insects/small", "insects:1.0.0", "a/b_c:2.*.*", "My set"])
def test_a_data_set_may_have_a_config_and_a_version(name):
  config = get_config("quickstart")
  config.data.name = name
  checks.check(config)
