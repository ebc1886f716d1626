"""The folder of the scripts is on the path, as for a script that is run; calls of scripts."""

import importlib
import json
import sys

import in_process
import pytest
from commands import ROOT, python

sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture
def script(monkeypatch):
  """Calls a script's `main` in the checkout's folder: the exit code and what it printed."""
  monkeypatch.chdir(ROOT)
  return lambda name, *words: in_process.call(
    importlib.import_module(name).main, f"scripts/{name}.py", *words
  )


@pytest.fixture
def report_of(tmp_path):
  """Calls a script in a process of its own, as a user does; returns its report."""

  def report_of(name, *words):
    out = tmp_path / "report.json"
    python(f"scripts/{name}.py", *words, f"--out={out}")
    return json.loads(out.read_text())

  return report_of
