"""The parts of a start are those of the line that a run prints; a mistake leaves nothing behind."""

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
    with fresh_flags(), pytest.raises(SystemExit) as ended:
      bench_startup.main()
    assert list(temporary.iterdir()) == []
    return ended.value.code, capfd.readouterr().err

  return call


def test_a_start_that_fails_gives_its_code(call):
  sentence = "jaxspeed: a.py is missing.\n"
  assert call(f"printf '{sentence}' >&2; exit 2", RECIPE) == (2, sentence)
  code, said = call("exit 0", RECIPE)
  assert code == 2 and RECIPE in said and "ended before its first step" in said


def test_sigterm_ends_the_start_and_leaves_nothing(call):
  assert call("kill -TERM $PPID; exec sleep 600", RECIPE)[0] == 143


def test_the_table_has_a_line_for_each_part():
  start = bench_startup.parts_of(LINE) | {"cpu_seconds": 4.75}
  slower = {name: seconds + 2 for name, seconds in start.items()}
  slower.pop("compile")
  lines = bench_startup.table(slower | {"devices": 0.25}, [start, start]).splitlines()
  assert lines[0].split() == ["seconds", "cold", "warm,", "n", "=", "2"]
  rows = {line[:24].strip(): line[24:].split() for line in lines[1:]}
  assert rows["total"] == ["11.5", "9.5", "±", "0.0"] and rows["compile"] == [
    "-",
    "2.0",
    "±",
    "0.0",
  ]
  assert rows["devices"] == ["0.2", "-"] and "cpu seconds" in rows
  assert bench_startup.table(start, []).splitlines()[1].split() == ["total", "9.5", "-"]
