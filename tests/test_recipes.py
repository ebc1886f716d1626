"""`jaxspeed recipes`: what is published of each recipe."""

import json
import os

from commands import ROOT, environment, start
from in_process import command, mistake
from recipes import RECIPES, STREAMED

import jaxspeed
from jaxspeed.config.recipe import published, published_as, shipped


def test_every_variant_of_every_recipe_has_a_line():
  every = sorted((name, variant or "") for name, variant in RECIPES + STREAMED)
  assert sorted((name, variant) for name in shipped() for variant in published(name)) == every
  for name in shipped():
    config_names = {f"{name}/{variant}".rstrip("/") for variant in published(name)}
    assert jaxspeed.recipe(name).name in config_names
  header, *lines = command("recipes").stdout.splitlines()
  assert header.split() == ["recipe", "source", "hardware", "accuracy", "time", "which", "covers"]
  assert sorted(tuple(f"{line.split()[0]}:".split(":")[:2]) for line in lines[:-2]) == every
  (record,) = [line for line in lines if line.startswith("cifar10 ")]
  assert "94.02 % top-1 (2,000 runs)    1.98 s " in record
  _, *lines, _, _ = command("recipes", "imagenet18").stdout.splitlines()
  assert [line.split()[0] for line in lines] == [f"imagenet18:{n}" for n in (1, 2, 4, 8, 16)]
  assert "32 V100   93.05 % top-5  29 min 44 s   training, validation" in lines[2]


def test_published_is_a_function_of_recipe_and_variant():
  assert published_as("imagenet18/4").top5 == 0.9305
  assert published_as("cifar10").seconds == 1.98 and published_as("cifar10").runs == 2000
  for name in ("quickstart", "imagenet18", "imagenet18/mine", "mine", "configs/cifar10"):
    assert published_as(name).top1 is None
  found = json.loads(command("recipes", "--json").stdout)
  assert [*found] == [*shipped()] and found["imagenet_lars"]["1632"]["epochs"] == [33, 37]


def test_a_recipe_of_ones_own_publishes_nothing_or_its_own(tmp_path):
  file, own = tmp_path / "mine.py", "def get_config(): pass\n"
  file.write_text("def get_config(variant='a'):\n  pass\n")
  assert "mine.py" in command("recipes", str(file)).stdout
  file.write_text(own + "PUBLISHED = {'a': dict(top1=0.5), 'b': {}}\n")
  assert published(str(file))["a"].top1 == 0.5
  for wrong in ("[1]", "{'a': 1}", "{'a': dict(speed=1)}"):
    file.write_text(f"{own}PUBLISHED = {wrong}\n")
    assert mistake("recipes", str(file)).startswith(f"{file}: ")


def test_a_recipe_is_a_module_while_it_runs(tmp_path):
  (tmp_path / "mine.py").write_text(
    "from __future__ import annotations\nimport dataclasses, jaxspeed\n"
    "@dataclasses.dataclass\nclass Own:\n  epochs: int = 3\n"
    "def get_config():\n  return jaxspeed.recipe('quickstart', epochs=Own().epochs)\n"
  )
  assert jaxspeed.recipe(str(tmp_path / "mine.py")).epochs == 3


def test_it_needs_no_jax_works_in_any_folder_and_ends_with_its_reader(tmp_path):
  code = (
    "import sys, runpy; sys.argv = ['recipes']\n"
    "runpy.run_module('jaxspeed.recipes', run_name='__main__')\n"
    "sys.exit(bool({'jax', 'optax', 'flax'} & set(sys.modules)))\n"
  )
  reading, writing = os.pipe()
  os.close(reading)  # as `| head` after its last line
  env = environment(PYTHONPATH=str(ROOT))
  process = start("-c", code, cwd=tmp_path, env=env, stdout=writing)
  os.close(writing)
  assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
