"""The parts of a start are those of the line that a run prints; a mistake leaves nothing behind."""

import json
import sys
import tempfile

import bench_startup
import pytest
from in_process import fresh_flags

from jaxspeed.records.clock import Clock

LINE = (
  "9.5 s after the process began: python and imports 5.0, load 1.5, compile 2.0 (tracing 1.5 in "
  "its threads), the rest 1.0"
)
RECIPE = "--config=configs/quickstart.py"
PARTS = {"python and imports": 5.0, "load": 1.5, "compile": 2.0, "the rest": 1.0}


def test_the_parts_of_a_start_are_read():
  assert bench_startup.parts_of(LINE) == {"total": 9.5, "tracing": 1.5, **PARTS}
  clock = Clock()
  clock.add("compile", 2.5)
  assert bench_startup.parts_of(clock.starting())["compile"] == 2.5


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
  """Calls it with a program in the place of Python; returns the exit code and standard error."""
  temporary = tmp_path / "temporary"
  temporary.mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(temporary))

  def call(script, *arguments):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "argv", ["bench_startup.py", *arguments])
    code = 0
    with fresh_flags():
      try:
        bench_startup.main()
      except SystemExit as ended:
        code = ended.code
    assert list(temporary.iterdir()) == []
    return code, capfd.readouterr().err

  return call


def test_parts_are_said_cold_and_warm(call, tmp_path):
  events = '{"event": "header", "starting": "' + LINE + '"}'
  out = tmp_path / "out.json"
  assert call(f"echo '{events}'; exec sleep 600", RECIPE, "--warm=2", f"--out={out}")[0] == 0
  report = json.loads(out.read_text())
  assert report["cold"]["compile"] == 2.0 and len(report["warm"]) == 2
  said = dict(report["said"])
  assert said["total, s"] == "9.5 cold, 9.5 ± 0.0 warm" and "cpu seconds, s" in said


def test_a_start_that_fails_gives_its_code(call):
  sentence = "jaxspeed: a.py is missing.\n"
  assert call(f"printf '{sentence}' >&2; exit 2", RECIPE) == (2, sentence)
  code, said = call("exit 0", RECIPE)
  assert code == 2 and RECIPE in said and "ended before its first step" in said


def test_sigterm_ends_the_start_and_leaves_nothing(call):
  assert call("kill -TERM $PPID; exec sleep 600", RECIPE)[0] == 143
