"""The clock of a run, with a time that passes only when told to."""

import subprocess
import sys
import time
from unittest import mock

import psutil
import pytest
from commands import ROOT

from jaxspeed.records import clock as clock_lib
from jaxspeed.records.clock import Clock


@pytest.fixture
def now(monkeypatch):
  """The time, in a list; the process is 7 s old."""
  monkeypatch.setattr(clock_lib, "process_age", lambda: 7.0)
  return [100.0]


def clock_at(now, **how):
  return Clock(now=lambda: now[0], **how)


def spend(clock, now, **seconds):
  for name, duration in seconds.items():
    with clock.measure(name):
      now[0] += duration


def test_each_rule_counts_exactly_its_intervals_and_those_of_the_processes_before(now):
  # Powers of two: each sum names the intervals it holds.
  once = {"init": 1.0, "train": 2.0, "validate": 4.0, "final_validate": 8.0, "checkpoint": 16.0}
  once |= {"compile": 32.0, "warmup": 64.0, "load": 128.0, "connect": 256.0, "restore": 512.0}
  first = clock_at(now)
  spend(first, now, **once)
  assert first.train_seconds == 1.0 + 2.0 + 8.0
  assert first.dawn_seconds == 1.0 + 2.0
  assert first.process_seconds == 7.0 + 1023.0
  first.add("compile_cold", 5.0)
  state = first.state()
  nothing = dict.fromkeys(("compile_cached", "others", "devices", "model", "tracing"), 0.0)
  assert state == once | nothing | {"compile_cold": 5.0, "process": 7.0 + 1023.0}

  second = clock_at(now)
  spend(second, now, load=10.0)
  second.restore(state)
  spend(second, now, train=20.0)
  now[0] += 50.0  # what no interval measures
  assert second.train_seconds == (1.0 + 2.0 + 8.0) + 20.0
  assert second.dawn_seconds == (1.0 + 2.0) + 20.0
  assert second.process_seconds == (7.0 + 1023.0) + (7.0 + 10.0 + 20.0 + 50.0)
  assert second.state()["load"] == 128.0 + 10.0
  assert second.summary()["compile"] == {"wall": 32.0, "cold": 5.0, "cached": None}


def test_a_start_is_told_by_its_parts_and_without_those_of_earlier_processes(now):
  clock = clock_at(now)
  clock.restore({"load": 100.0, "init": 3.0})
  spend(clock, now, load=1.5, others=0.5, restore=2.0, init=0.04, devices=0.5, compile=2.0)
  clock.add("tracing", 1.5)
  now[0] += 0.75
  assert clock.starting() == (
    "14.3 s after the process began: python and imports 7.0, devices 0.5, load 1.5, "
    "compile 2.0 (tracing 1.5 in its threads), others 0.5, restore 2.0, the rest 0.8"
  )
  later = clock_at(now, later=True)
  spend(later, now, init=0.25)
  now[0] += 0.5
  assert later.starting() == "0.8 s after this run began: init 0.2, the rest 0.5"


def test_a_second_interval_is_an_error_and_one_ends_where_its_block_raises(now):
  clock = clock_at(now)
  with pytest.raises(RuntimeError, match="'validate' while it measures 'train'"):
    with clock.measure("train"):
      spend(clock, now, validate=1.0)
  spend(clock, now, train=0.5)
  assert (clock.state()["train"], clock.state()["validate"]) == (0.5, 0.0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/stat")
def test_process_age_counts_what_came_before_the_import(monkeypatch):
  code = "import time; time.sleep(0.5); from jaxspeed.records.clock import *; print(process_age())"
  start = time.perf_counter()
  words = [sys.executable, "-c", code]
  done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
  # The kernel counts in ticks of 10 ms.
  assert 0.5 - 0.02 < float(done.stdout) < time.perf_counter() - start + 0.02
  # In a sandbox, whose boot is later than the host's, or not told, only what comes after it counts.
  for boot in ({"return_value": -1e9}, {"side_effect": psutil.AccessDenied()}):
    monkeypatch.setattr(psutil, "boot_time", mock.Mock(**boot))
    since_import = time.perf_counter() - clock_lib._IMPORTED
    assert clock_lib.process_age() == pytest.approx(since_import, abs=1.0)
