"""The comparison of input pipelines: the same files and crops for all, and its arithmetic."""

import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import types
from concurrent.futures import ProcessPoolExecutor

import bench_input as bench
import input_pipelines
import numpy as np
import PIL.Image
import pytest
from commands import ROOT, environment

from jaxspeed.errors import UserError


def write_image(file, width, height, mode="RGB", kind="JPEG"):
  """Noise around (60, 120, 180), so that every crop has nearly the same mean: 120."""
  noise = np.random.RandomState(width).randint(-20, 21, (height, width, 3))
  pixels = (np.array([60, 120, 180]) + noise).astype(np.uint8)
  file.parent.mkdir(parents=True, exist_ok=True)
  PIL.Image.fromarray(pixels).convert(mode).save(file, kind)
  return file


@pytest.fixture
def photographs(tmp_path):
  """Seven images of two classes."""
  for i in range(7):
    write_image(tmp_path / "set" / "train" / "ab"[i % 2] / f"{i}.JPEG", 90 + 10 * i, 80)
  return tmp_path / "set"


def test_peers_are_timed_on_the_same_files(photographs, tmp_path):
  out, names = tmp_path / "out.json", ["dataloader"]
  toy = ["--rounds=1", "--batch=4", "--images=10", "--warm_batches=2", "--image_size=32"]
  done = subprocess.run(
    [sys.executable, "scripts/bench_input.py", f"--data={photographs}", f"--out={out}"]
    + [*toy, f"--pipelines={','.join(names)}"],
    cwd=ROOT,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=120,
  )
  if not importlib.util.find_spec("torch"):
    assert done.returncode == 2 and "none of them can run here" in done.stderr
    return
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  assert [row["pipeline"] for row in report["rows"]] == names
  for row in report["rows"]:
    assert row["image_size"] == 32 and row["images_per_core_s"]["n"] == 1
    assert row["images_per_core_s"]["mean"] > 0
    # Without the yardstick there is nothing to compare with.
    assert "ratio" not in row
    assert row["mean_pixel"] == pytest.approx(120, abs=2)
  (source,) = report["sources"]
  assert (source["files"], source["left_out"]) == (7, 0)
  assert source["mean_width"] == pytest.approx(90 + 10 * 3)
  assert source["mean_height"] == 80


@pytest.mark.slow
def test_pipelines_of_tensorflow_make_the_same_batches(photographs, tmp_path):
  pytest.importorskip("tensorflow")
  names = ["jaxspeed", "tfdata"]
  root = tmp_path / "links"
  bench.link_source(str(photographs), 7, root)
  shape = dict(size=32, batch=4, warm_batches=2, batches=3, min_scale=0.08, seed=0)
  tasks = [
    input_pipelines.Task(name, str(root), core=min(os.sched_getaffinity(0)), **shape)
    for name in names
  ]
  # One process for all: most of the time is TensorFlow's import.
  with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
    timings = [*pool.map(bench.measure, tasks)]
  for rate, mean_pixel in timings:
    assert rate > 0
    # All see the same images; the cast to uint8 takes up to a level.
    assert mean_pixel == pytest.approx(120, abs=2)


def test_what_is_not_installed_is_said(photographs, tmp_path, monkeypatch, capsys):
  missing = ("json", "a_module_that_nobody_has")
  monkeypatch.setitem(input_pipelines.PIPELINES, "x", (input_pipelines.open_tfdata, missing))
  given = types.SimpleNamespace(FLAGS=types.SimpleNamespace(pipelines=["x"], out=""))
  monkeypatch.setattr(bench, "flags", given)
  with pytest.raises(UserError, match="none of them can run here"):
    bench.bench(tmp_path / "scratch")
  said = "x is left out: a_module_that_nobody_has is not installed"
  assert said in capsys.readouterr().out


def test_ratios_are_of_rounds():
  rates = {"tfdata": [600.0, 300.0], "jaxspeed": [300.0, 200.0]}
  bare, ours = bench.rows_of(rates, {"tfdata": 120.0, "jaxspeed": 121.0})
  assert bare["images_per_core_s"]["mean"] == 450 and "ratio" not in bare
  # The mean of the rounds' ratios, 1/2 and 2/3, not the ratio of means, 250/450.
  assert ours["ratio"]["mean"] == pytest.approx((1 / 2 + 2 / 3) / 2)
  assert (ours["pipeline"], ours["mean_pixel"]) == ("jaxspeed", 121.0)
  assert "0.58 ± " in bench.said(ours) and "of tfdata's" in bench.said(ours)
  (alone,) = bench.rows_of({"jaxspeed": [300.0]}, {"jaxspeed": 121.0})
  assert "ratio" not in alone and bench.said(alone) == "300 images/s a core"


def test_crops_are_those_of_random_resized_crop():
  rng, width, height = np.random.default_rng(0), 120, 90
  boxes = [input_pipelines.random_box(rng, width, height, 0.25) for _ in range(2000)]
  for x, y, w, h in boxes:
    assert 0 <= x <= width - w and 0 <= y <= height - h
    # Rounding moves a side of at least sqrt(0.25 * 90 * 120 * 3 / 4) = 45 by half a pixel.
    assert 0.25 * 0.97 < w * h / (width * height) <= 1
    assert 3 / 4 * 0.97 < w / h < 4 / 3 * 1.03
  # Draws that do not fit are drawn again, which leaves out large areas: below (0.25 + 1) / 2.
  assert 0.5 < statistics.mean(w * h for _, _, w, h in boxes) / (width * height) < 0.625
  # No crop of a ratio up to 4/3 fits a strip: its middle is taken.
  assert input_pipelines.random_box(rng, 1000, 10, 0.5) == (493, 0, 13, 10)
  assert input_pipelines.random_box(rng, 10, 1000, 0.5) == (0, 493, 10, 13)


def test_files_that_a_pipeline_cannot_read_are_left_out(tmp_path):
  folder = tmp_path / "flat"
  good = [write_image(folder / "a.jpg", 40, 30), write_image(folder / "b.JPEG", 60, 50, "L")]
  write_image(folder / "c.jpg", 20, 20, "CMYK")
  write_image(folder / "d.jpg", 20, 20, kind="PNG")
  (folder / "e.jpg").write_bytes(b"")
  (folder / "readme.txt").write_text("no image")
  source = bench.link_source(str(folder), 100, tmp_path / "links")
  assert (source["files"], source["left_out"]) == (2, 3)
  assert (source["mean_width"], source["mean_height"]) == ((40 + 60) / 2, (30 + 50) / 2)
  assert source["mean_bytes"] == sum(file.stat().st_size for file in good) / 2
  links = sorted((tmp_path / "links" / "train").glob("*/*"))
  assert [link.resolve() for link in links] == [file.resolve() for file in good]
  assert len([*(tmp_path / "links" / "val" / "flat").iterdir()]) == 1
  (tmp_path / "empty").mkdir()
  with pytest.raises(UserError, match="holds no JPEG, RGB or grey"):
    bench.link_source(str(tmp_path / "empty"), 100, tmp_path / "none")


def test_at_most_so_many_files_are_taken(photographs, tmp_path):
  assert bench.link_source(str(photographs), 3, tmp_path / "three")["files"] == 3
