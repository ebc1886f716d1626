"""`jaxspeed recipes`, and that a recipe's data and its header publish the same."""

import json
import os
import re
import subprocess
import sys

import pytest
from commands import ROOT
from in_process import command, mistake
from recipes import RECIPES, STREAMED

import jaxspeed
from jaxspeed.config.recipe import Published, facts_of, import_file, published, shipped
from jaxspeed.errors import UserError


def header(name):
  return import_file(str(shipped()[name])).__doc__


def row_of(name, variant):
  """The line of a header's table that begins with a variant."""
  lines = [line.split() for line in header(name).splitlines()]
  return next(" ".join(words) for words in lines if words[:1] == [variant])


def test_every_recipe_and_variant_is_listed():
  listed = [(name, variant) for name in shipped() for variant in facts_of(name).variants]
  assert sorted(listed) == sorted(RECIPES + STREAMED)
  for name in shipped():
    default = facts_of(name).default
    assert jaxspeed.recipe(name).name == f"{name}/{default}".rstrip("/")


def spelled(row):
  """Each figure in the spellings that a header may use, and whether it is an accuracy."""
  for share in (row.top1, row.top5):
    if share is not None:
      yield {f"{100 * share:.{digits}f} %" for digits in (0, 1, 2)}, True
  if row.seconds is not None:
    minutes = row.seconds / 60
    whole = f"{round(row.seconds) // 60} min {round(row.seconds) % 60:02d}"
    hours = f"{minutes / 60:.2f} h"
    yield {f"{row.seconds:g}", f"{minutes:.0f} min", f"{minutes:.1f} min", whole, hours}, False
  if row.runs:
    yield {f"({row.runs})", f"{row.runs:,} runs"}, False
  if row.epochs:
    least, most = row.epochs
    yield {f" {least}-{most}"} if least < most else {f" {least} epochs", f" {least}"}, False


# Headers that say above their tables which accuracy all variants reach.
ABOVE = ("cifar10_resnet9", "imagenet_lars")


@pytest.mark.parametrize("name, variant", RECIPES + STREAMED)
def test_data_and_header_agree(name, variant):
  row, text = published(name, variant), " ".join(header(name).split())
  where = row_of(name, variant) if variant else text
  assert row.source.partition(",")[0].partition(" at ")[0] in text
  assert row.hardware.partition(" ")[2] in text
  for spellings, is_accuracy in spelled(row):
    # Fujitsu's is the only time of a batch size.
    above = name in ABOVE and (is_accuracy or row.hardware == "2,048 V100")
    assert any(each in (text if above else where) for each in spellings), (spellings, where)
  # And the other way round: no accuracy of a table is left out of the data.
  shares = {f"{100 * share:.2f}" for share in (row.top1, row.top5) if share}
  if variant and name not in ABOVE:
    found = {f"{float(number):.2f}" for number in re.findall(r"([\d.]+) %", where)}
    assert found == shares


def test_published_is_a_function_of_recipe_and_variant():
  assert published("imagenet18", "4").top5 == 0.9305
  assert published("imagenet18") == published("imagenet18", "1")
  assert published("cifar10").seconds == 1.98 and published("cifar10").runs == 2000
  assert published("quickstart").top1 is None
  assert published("imagenet18", "mine") == Published()


def test_a_recipe_of_ones_own_publishes_nothing_or_its_own(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text("def get_config(variant='a'):\n  pass\n")
  assert published(str(file)) == Published()
  assert "mine.py" in command("recipes", str(file)).stdout
  own = "'''Mine.'''\ndef get_config(): pass\n"
  file.write_text(own + "PUBLISHED = {'a': dict(top1=0.5), 'b': {}}\n")
  assert command("recipes", str(file)).stdout.startswith("Mine.\n\n")
  assert published(str(file), "a").top1 == 0.5
  for wrong in ("{'a': dict(speed=1)}", "[1]", "{'a': 1}"):
    file.write_text(f"{own}PUBLISHED = {wrong}\n")
    with pytest.raises(UserError, match="PUBLISHED must map each variant to a dict with fields"):
      facts_of(str(file))
  for wrong in ("source=1", "top1='x'", "top5=99", "seconds=float('nan')", "epochs=(1,)"):
    file.write_text(f"{own}PUBLISHED = {{'a': dict({wrong})}}\n")
    field = wrong.partition("=")[0]
    assert re.search(rf"PUBLISHED must map .* \(.*{field}", mistake("recipes", str(file)))
  file.write_text("PUBLISHED = {}\n")
  assert "mine.py defines no function get_config()" in mistake("recipes", str(file))


def test_a_recipe_without_a_name():
  assert "a recipe's name is empty" in mistake("recipes", "")


def test_the_list_has_a_line_for_each_recipe():
  lines = command("recipes").stdout.splitlines()
  assert lines[0].split() == ["recipe", "variants", "source", "hardware", "accuracy", "time"]
  assert [line.split()[0].partition(":")[0] for line in lines[1 : 1 + len(shipped())]] == [
    *shipped()
  ]
  (record,) = [line for line in lines if line.startswith("cifar10 ")]
  assert record.endswith("1 A100       94.02 % top-1 (2,000 runs)    1.98 s")


def test_one_recipe_has_a_line_for_each_variant():
  lines = command("recipes", "imagenet18").stdout.splitlines()
  assert lines[0] == header("imagenet18").splitlines()[0]
  found = [line.split()[0] for line in lines[3:8]]
  assert found == [f"imagenet18:{machines}" for machines in (1, 2, 4, 8, 16)]
  assert "32 V100   93.05 % top-5  29 min 44 s   training, validation" in lines[5]
  assert lines[-1].endswith(" trains it; figures as published.")
  (*_, last) = command("recipes", "finetune").stdout.splitlines()
  assert last == "jaxspeed train finetune trains it; no figures are published."


def test_json_is_the_same():
  found = json.loads(command("recipes", "--json").stdout)
  assert [*found] == [*shipped()]
  assert found["imagenet_lars"]["variants"]["1632"]["epochs"] == [33, 37]
  assert found["cifar10_airbench"]["default"] == "94_muon"
  one = json.loads(command("recipes", "--json", "imagenet18").stdout)
  assert one == {"imagenet18": found["imagenet18"]}


def test_it_needs_no_jax_works_in_any_folder_and_ends_with_its_reader(tmp_path):
  code = (
    "import sys, runpy; sys.argv = ['recipes']\n"
    "runpy.run_module('jaxspeed.recipes', run_name='__main__')\n"
    "sys.exit(bool({'jax', 'optax', 'flax'} & set(sys.modules)))\n"
  )
  reading, writing = os.pipe()
  os.close(reading)  # as `| head` after its last line
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    stdout=writing,
    stderr=subprocess.PIPE,
    text=True,
    timeout=120,
  )
  os.close(writing)
  assert (done.returncode, done.stderr) == (0, "")
