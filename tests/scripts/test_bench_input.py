"""The comparison of input pipelines: the same files and crops for both, and its arithmetic."""

import contextlib
import json
import subprocess
import sys

import bench_input as bench
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


@pytest.mark.slow
def test_both_pipelines_are_timed_on_the_same_images(tmp_path):
  pytest.importorskip("tensorflow")
  for i in range(7):
    write_image(tmp_path / "set" / "train" / "ab"[i % 2] / f"{i}.JPEG", 90 + 10 * i, 80)
  out = tmp_path / "out.json"
  toy = ["--rounds=1", "--batch=4", "--images=10", "--image_size=32", f"--out={out}"]
  done = subprocess.run(
    [sys.executable, "scripts/bench_input.py", f"--data={tmp_path / 'set'}", *toy],
    cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=240,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  ours, bare = report["rows"]
  assert (ours["pipeline"], bare["pipeline"]) == ("jaxspeed", "tfdata") and "ratio" not in bare
  for row in (ours, bare):
    assert row["image_size"] == 32 and row["images_per_core_s"]["mean"] > 0
    # Both see the same images; the cast to uint8 takes up to a level.
    assert row["mean_pixel"] == pytest.approx(120, abs=2)
  assert [source["files"] for source in report["sources"]] == [7]
  assert "of tf.data's" in done.stdout


def test_ratios_are_of_rounds(monkeypatch):
  found = iter([(300.0, 121.0), (600.0, 120.0), (300.0, 120.0), (200.0, 121.0)])
  monkeypatch.setattr(bench, "process", contextlib.nullcontext)
  monkeypatch.setattr(bench, "ask", lambda *_: next(found))
  tasks = [bench.Task(name, "", 32, 4, 3, 0, 0) for name in bench.PIPELINES]
  ours, bare = bench.time_in_turns(tasks, 2)
  assert bare["images_per_core_s"]["mean"] == 450 and ours["mean_pixel"] == 121.0
  # The mean of the rounds' ratios, 1/2 and 2/3, not the ratio of means, 250/450.
  assert ours["ratio"]["mean"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_files_that_a_pipeline_cannot_read_are_left_out(tmp_path):
  folder = tmp_path / "set" / "train" / "a"
  good = [write_image(folder / "a.jpg", 40, 30), write_image(folder / "b.JPEG", 60, 50, "L")]
  write_image(folder / "c.jpg", 20, 20, "CMYK")
  write_image(folder / "d.jpg", 20, 20, kind="PNG")
  (folder / "e.jpg").write_bytes(b"")
  source = bench.link_source(str(tmp_path / "set"), 100, tmp_path / "links")
  assert source["files"] == 2
  assert source["mean_bytes"] == sum(file.stat().st_size for file in good) / 2
  links = sorted((tmp_path / "links" / "train").glob("*/*"))
  assert [link.resolve() for link in links] == [file.resolve() for file in good]
  assert len([*(tmp_path / "links" / "val" / "a").iterdir()]) == 1
  assert bench.link_source(str(tmp_path / "set"), 1, tmp_path / "one")["files"] == 1
  with pytest.raises(UserError, match="holds no JPEG, RGB or grey"):
    bench.link_source(str(tmp_path / "links" / "none"), 100, tmp_path / "none")
