"""The documents: their commands name what there is, and their links lead somewhere."""

import functools
import importlib
import pathlib
import re
import shlex

import pytest
import yaml
from in_process import command
from recipes import get_config

from jaxspeed.config.registry import FAMILIES, fields_of
from jaxspeed.config.stored import leaves

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.M | re.S)
# What docs/extending.md adds; tests/test_extending.py runs its commands.
ADDED = "configs/mine.py"


def commands(page):
  """The words of each `python -m jaxspeed.NAME` of a page, comments left out."""
  for block in BLOCK.findall(page.read_text()):
    for line in block.replace("\\\n", " ").splitlines():
      words = shlex.split(line, comments=True)
      if "-m" in words:
        yield words[words.index("-m") + 1 :]


COMMANDS = [
  (page.name, words)
  for page in PAGES
  for words in commands(page)
  if not any(ADDED in word for word in words)
]


@functools.cache
def help_of(module):
  return command(module, "--help").stdout


@pytest.mark.parametrize("page, words", COMMANDS, ids=lambda value: str(value)[:60])
def test_a_command_names_flags_recipes_and_fields_that_there_are(page, words):
  module, *arguments = words
  assert importlib.util.find_spec(module)
  name = module.removeprefix("jaxspeed.")
  recipes = [word.partition("=")[2] for word in arguments if word.startswith("--config=")]
  file, _, variant = (recipes or ["configs/cifar10.py"])[0].partition(":")
  config = get_config(pathlib.Path(file).stem, variant)
  for word in arguments:
    flag, is_set, value = word.partition("=")
    if flag.startswith("--config."):
      known = dict(leaves(config))
      field = flag.removeprefix("--config.")
      model = fields_of(FAMILIES[known["model.name"]])
      assert field in known or field in {each.name for each in model}, (page, word)
    elif flag.startswith("--"):
      assert flag in help_of(name), (page, word)


def test_commands_are_found():
  assert {name for name, _ in COMMANDS} >= {"README.md", "data.md", "distributed.md"}
  assert len(COMMANDS) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_results_are_there(page):
  text = page.read_text()
  for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
    if "://" not in link:
      assert (page.parent / link).exists(), link
  for name in re.findall(r"`(?:results/)?([a-z0-9_]+\.json)`", text):
    in_a_run = {"config.json", "result.json", "classes.json", "owner.json", "manifest.json"}
    prepared = {"dataset_info.json", "prepared.json"}
    assert name in in_a_run | prepared or (ROOT / "results" / name).exists(), name


def test_the_site_leads_to_every_page():
  nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
  made = {"index.md", "api.md", "changes.md"}  # by scripts/docs_site.py
  named = set(re.findall(r"\w+\.md", nav))
  assert named == made | {page.name for page in (ROOT / "docs").glob("*.md")}


def test_the_readme_is_short_and_leads_to_every_page():
  text = (ROOT / "README.md").read_text()
  assert text.count("\n") <= 150
  for page in (ROOT / "docs").glob("*.md"):
    assert f"(docs/{page.name})" in text, page.name
