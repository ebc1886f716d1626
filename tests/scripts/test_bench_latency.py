"""The benchmark of a slow disk: its delay, and the ratios that it takes."""

import argparse
import importlib
import os
import shutil
import subprocess
import sys

import pytest
from commands import ROOT


@pytest.fixture
def bench_latency(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "scripts")
  return importlib.import_module("bench_latency")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(("name", "waits"), [("a.jpg", True), ("a.JPEG", True), ("a.txt", False)])
def test_opening_an_image_takes_the_delay(bench_latency, tmp_path, name, waits):
  library = bench_latency.compile_library(tmp_path)
  (tmp_path / name).write_bytes(b"content")
  code = (
    "import os, sys, time; start = time.monotonic(); os.environ['OPEN_DELAY_MS'] = '2000'; "
    "content = open(sys.argv[1]).read(); print(content, time.monotonic() - start >= 2)"
  )
  command = [sys.executable, "-c", code, str(tmp_path / name)]
  done = subprocess.run(
    command, env=os.environ | {"LD_PRELOAD": str(library)}, capture_output=True, text=True
  )
  assert (done.stdout, done.stderr) == (f"content {waits}\n", "")


def test_ratios_are_taken_within_a_round(bench_latency, monkeypatch):
  # Each round of this machine is half as fast as the one before it.
  speed = {"here": 0, "beside": 0}

  def measure_apart(flags, data, delay_ms, checkout):
    version = "beside" if checkout == "other" else "here"
    number, speed[version] = speed[version] // 2, speed[version] + 1
    wall = (1000 if version == "here" else 800) / 2**number * (0.75 if delay_ms else 1)
    return {"wall": wall, "cpu": wall}

  monkeypatch.setattr(bench_latency, "measure_apart", measure_apart)
  flags = argparse.Namespace(data=["images"], delay_ms=20, rounds=3, beside="other")
  (row,) = bench_latency.run(flags)
  assert row["here"]["delayed_to_local"] == {"mean": 0.75, "sd": 0.0, "n": 3}
  assert row["local_wall_rate_to_beside"] == {"mean": 1.25, "sd": 0.0, "n": 3}
