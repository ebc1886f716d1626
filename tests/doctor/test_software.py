"""Versions, conditions on them, and missing extras."""

import importlib.metadata
import tomllib

import pytest
from commands import ROOT

from jaxspeed.doctor import software

PACKAGES = dict.fromkeys(
  [*software.CORE, *(name for names, _ in software.EXTRAS.values() for name in names)], "1.0"
)


@pytest.mark.parametrize(
  "version, asked, met",
  [
    ("9.10.2.21", ">=9.8,<10", True),
    ("10.0", ">=9.8,<10", False),
    ("9.7", ">=9.8", False),
    ("9.8", ">=9.8.0", True),
    ("12.9.1", "==12.*", True),
    ("13.0", "==12.*", False),
    ("1.4.5", "~=1.4.2", True),
    ("1.5.0", "~=1.4.2", False),
    ("1.0", "!=1.0", False),
    ("1.0", "what?", True),
  ],
)
def test_a_version_meets_conditions(version, asked, met):
  assert software.satisfies(version, asked) is met


def test_numbers_of_a_version():
  assert software.numbers("0.10.2.dev3+g1") == (0, 10, 2)
  assert software.numbers("?") == ()


def test_all_there_is_nothing_to_mend():
  part = software.examine(PACKAGES, streams=True, python="3.11.7")
  assert part.advice == [] and part.lines[0].startswith("Python 3.11.7, jaxspeed 1.0, jax 1.0")
  assert part.facts["missing"] == {}


@pytest.mark.parametrize("streams", [False, True])
def test_missing_tensorflow_is_to_mend_where_images_are_streamed(streams):
  packages = {name: version for name, version in PACKAGES.items() if name != "tensorflow"}
  (advice,) = software.examine(packages, streams=streams).advice
  assert advice.type == "pip install 'jaxspeed[imagenet]'" and advice.mend is streams
  assert advice.what.startswith("tensorflow is not installed; training on images")


@pytest.mark.parametrize("extra", list(software.EXTRAS))
def test_the_extras_are_those_of_the_package(extra):
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  listed = " ".join(project["optional-dependencies"][extra])
  names, _ = software.EXTRAS[extra]
  assert all(name in listed for name in names)
  (advice,) = software.examine(
    {name: version for name, version in PACKAGES.items() if name != names[0]}, streams=False
  ).advice
  assert advice.type == f"pip install 'jaxspeed[{extra}]'"


def test_a_missing_core_package_is_to_mend():
  packages = {name: version for name, version in PACKAGES.items() if name != "flax"}
  (advice,) = software.examine(packages, streams=False).advice
  assert advice.mend and advice.type == "pip install -U flax"


def test_what_is_installed_is_found():
  found = software.installed()
  assert found["jax"] == importlib.metadata.version("jax") and "pytest" not in found


def test_conditions_of_a_plugin_are_read():
  lines = [
    "jax-cuda12-pjrt==0.10.2",
    'nvidia-cudnn-cu12<10.0,>=9.8; extra == "with-cuda"',
    "numpy>=2",
  ]
  assert software.requirements("plugin", lambda _: lines) == {
    "jax-cuda12-pjrt": "==0.10.2",
    "nvidia-cudnn-cu12": "<10.0,>=9.8",
  }
  assert software.requirements("no-such-package") == {}
