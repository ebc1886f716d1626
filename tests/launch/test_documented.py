"""The Python of README and of docs/launch.md runs as it stands, but for where, and with what."""

import re

import pytest
from commands import ROOT

from jaxspeed.launch import Run, Sky

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def blocks(page):
  found = BLOCK.findall((ROOT / page).read_text())
  return [code for code in found if "jaxspeed.launch" in code]


@pytest.fixture
def started(monkeypatch, tmp_path):
  """Runs that were started: their jobs are checked, and nothing is submitted."""
  runs = []
  monkeypatch.chdir(ROOT)
  monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
  monkeypatch.setattr(Run, "start", lambda run, detach=True: runs.append(run))
  monkeypatch.setattr(Run, "status", lambda run: "table")
  return runs


@pytest.mark.parametrize("page, jobs", [("README.md", 6), ("docs/launch.md", 9)])
def test_the_first_example_checks_its_jobs(page, jobs, started):
  exec(blocks(page)[0], {})
  (run,) = started
  assert run.name == "lr-sweep" and len(run.scripts()) == jobs


def test_the_example_of_clouds_is_a_valid_executor(monkeypatch):
  names = {}
  exec(blocks("docs/launch.md")[1], names)
  assert isinstance(names["sky"], Sky) and names["sky"].devices() == 16
