"""The sets of options that bench_augment.py counts, and the differences that it reports."""

import importlib.util

import pytest
from commands import ROOT
from toy import toy_config

from jaxspeed.errors import UserError


def load():
  spec = importlib.util.spec_from_file_location("bench", ROOT / "scripts/bench_augment.py")
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


bench = load()


def test_sets_are_of_fields_that_there_are():
  config = toy_config()
  for overrides in bench.SETS.values():
    for name, value in (override.split("=") for override in overrides):
      assert str(config[name.split(".")[0]][name.split(".")[1]]) != value


def test_the_chosen_sets():
  assert list(bench.chosen_sets("", [])) == list(bench.SETS)
  chosen = bench.chosen_sets("nothing, mixup", ["a b: augment.mixup=1.0 augment.erasing=0.5"])
  assert chosen["a b"] == ("augment.mixup=1.0", "augment.erasing=0.5")
  assert list(chosen) == ["nothing", "mixup", "a b"]


@pytest.mark.parametrize("only, more", [("noting", []), ("", ["augment.mixup=1.0"])])
def test_a_set_that_is_not_there_is_refused(only, more):
  with pytest.raises(UserError, match="choose from nothing|write it as 'NAME: FIELD=VALUE"):
    bench.chosen_sets(only, more)


def test_differences_are_to_the_recipe():
  figures = dict.fromkeys(bench._KEPT, 2.0)
  rows = bench.with_differences({"nothing": figures, "a": figures | {"kernels": 5.0}})
  assert rows["a"]["more"] == dict.fromkeys(bench._KEPT, 0.0) | {"kernels": 3.0}
  assert "more" not in bench.with_differences({"a": figures})["a"]
