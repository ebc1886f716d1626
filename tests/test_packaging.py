"""The sdist and the wheel: they hold every file, and the wheel works in another folder."""

import re
import shutil
import tarfile
import zipfile

import pytest
from commands import ROOT, environment, python

FOLDERS = ("jaxspeed", "configs", "docs", "results", "scripts", "tests")
FILES = "pyproject.toml setup.py MANIFEST.in README.md LICENSE CHANGELOG.md CITATION.cff mkdocs.yml"
BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # which building changes
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


def files_in(root, folders):
  """Names of all files below some folders, without what Python and tests leave."""
  return {
    str(path.relative_to(root))
    for folder in folders
    for path in (root / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
  }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  """Contents of the sdist and of the wheel by name, and the wheel's unpacked folder."""
  pytest.importorskip("setuptools", minversion="77")
  source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("out")
  for name in FOLDERS:
    shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
  for name in (*FILES.split(), "CONTRIBUTING.md"):
    shutil.copy(ROOT / name, source)
  # Without PYTHONPATH, in which this checkout may stand.
  python("-c", BUILD, str(out), cwd=source, env=environment(PYTHONPATH=""))
  (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
  with tarfile.open(sdist) as archive:
    packed = {name.partition("/")[2] for name in archive.getnames()}
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(out / "wheel")
    return packed, set(archive.namelist()), out / "wheel"


def test_the_sdist_holds_every_file(built):
  packed, _, _ = built
  assert files_in(ROOT, FOLDERS) | set(FILES.split()) <= packed


def test_the_wheel_holds_the_package_its_page_and_its_command(built):
  _, names, wheel = built
  package = {name for name in names if ".dist-info/" not in name}
  recipes = {f"jaxspeed/{name}" for name in files_in(ROOT, ["configs"])}
  assert package == files_in(ROOT, ["jaxspeed"]) | recipes
  (facts,) = wheel.glob("*.dist-info")
  assert "jaxspeed = jaxspeed.__main__:main" in (facts / "entry_points.txt").read_text()
  page = (facts / "METADATA").read_text()
  assert "## Your own photos" in page and not re.search(r"\]\((?!https?:)", page)


# Commands and Python's own calls, in a folder without a checkout.
SCRIPT = """
import sys
import jaxspeed
from jaxspeed.__main__ import main
assert jaxspeed.__file__.startswith(sys.argv[1]), jaxspeed.__file__
sys.path.append(sys.argv[2])
from in_process import call
assert jaxspeed.recipe("imagenet18:4").name == "imagenet18/4"
assert "imagenet18_lambda:8" in call(main, "jaxspeed", "recipes").stdout
for name in ("quickstart", "configs/quickstart.py"):
  done = call(main, "jaxspeed", "plan", f"--config={name}")
  assert "quickstart: 300 steps" in done.stdout, done
"""


def test_the_wheel_works_in_another_folder(built, tmp_path):
  _, _, wheel = built
  words = (SCRIPT, str(wheel), str(ROOT / "tests"))
  python("-c", *words, cwd=tmp_path, env=environment(PYTHONPATH=str(wheel)))
  assert not list(tmp_path.iterdir())
