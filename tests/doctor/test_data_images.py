"""The sample of a data path, its disk, and the lines on what it feeds."""

import io
import json
import pathlib
import shlex
import sys

import numpy as np
import pytest
from PIL import Image

from jaxspeed.doctor import child, decode, images


def jpeg(seed, side=40):
  pixels = np.random.default_rng(seed).integers(0, 255, (side, side + 8, 3), np.uint8)
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, "JPEG")
  return file.getvalue()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """Class folders in splits, with copies of 160 px beside them; one file is broken."""
  path = tmp_path_factory.mktemp("images") / "set"
  for name, split in (("set", "train"), ("set", "val"), ("set-sz/160", "train")):
    for number in range(8):
      folder = path.parent / name / split / "ab"[number % 2]
      folder.mkdir(parents=True, exist_ok=True)
      (folder / f"{number}.jpg").write_bytes(jpeg(number))
  (path / "train/a/broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
  (path / "train/a/notes.txt").touch()
  return path


def test_a_sample_of_class_folders(root):
  sample = images.sample_of(root)
  names = {pathlib.Path(file).relative_to(root).as_posix() for file, _, _ in sample.images}
  assert len(names) == 9 and sample.problem == ""
  assert "train/a/broken.jpg" in names and all(name.startswith("train/") for name in names)
  assert len(images.sample_of(root / "train").images) == 9  # without splits
  assert len(images.sample_of(root / "train/b").images) == 4  # one flat folder


def test_copies_are_read_where_runs_read_them(root):
  samples = images.samples_for(root)
  assert [samples[side].what for side in (128, 224, 288)] == [
    "copies of 160 px",
    "originals",
    "originals",
  ]


def test_nothing_there(tmp_path):
  assert images.sample_of(tmp_path).problem.endswith("holds no image (.jpg, .jpeg, .png)") or (
    "holds no image" in images.sample_of(tmp_path).problem
  )
  assert "No such file" in images.sample_of(tmp_path / "none").problem


def test_shards_are_sampled(root, tmp_path):
  from jaxspeed.data.disk.imageset import open_images
  from jaxspeed.data.prepare.shards import write_shards

  whole = tmp_path / "whole"
  for file in root.rglob("*.jpg"):
    if file.name != "broken.jpg":
      target = whole / file.relative_to(root)
      target.parent.mkdir(parents=True, exist_ok=True)
      target.write_bytes(file.read_bytes())
  opened = open_images(name="t", path=str(whole), cache=str(tmp_path / "cache"))
  write_shards(opened, tmp_path / "sets", name="t", shards=1)
  sample = images.sample_of(tmp_path / "sets")
  assert sample.what == "shards" and len(sample.images) == 8 and sample.problem == ""
  split, broken = decode.split_of(sample.images)
  assert broken == 0 and {split.read(number) for number in range(8)} == {jpeg(n) for n in range(8)}


def test_the_disk_is_read_once(root):
  found = images.read(images.sample_of(root))
  size = sum(file.stat().st_size for file in (root / "train").rglob("*.jpg"))
  assert (found.images, found.size, found.failed) == (9, size, 0)
  gone = images.Sample("gone", (("/no/such/file", 0, 0),))
  assert images.read(gone).failed == 1
  assert images.read(images.sample_of(root), seconds=-1).images == 0


def test_broken_images_are_left_out_and_counted(root):
  sample = images.sample_of(root)
  split, broken = decode.split_of(sample.images)
  assert (len(split), broken) == (8, 1)
  assert split.width[0] == 48 and split.height[0] == 40
  assert {split.read(number) for number in range(8)} == {jpeg(n) for n in range(8)}


def test_the_rate_of_decoding(root):
  pytest.importorskip("tensorflow")
  row = decode.rate_of(images.sample_of(root).images, 32, seconds=0.02)
  assert row["images_per_s"] > 0 and (row["broken"], row["images"], row["side"]) == (1, 9, 32)


def test_what_another_process_says(root, monkeypatch):
  samples = images.samples_for(root)
  rows = [{"side": side, "images_per_s": 100.0, "broken": 0, "images": 9} for side in images.SIDES]

  def answer(code, out, error=""):
    monkeypatch.setattr(child, "run", lambda *_, **__: child.Ended(code, out, error))
    return images.decode(samples, seconds=1)

  found, problem = answer(0, "noise\n" + "\n".join(map(json.dumps, rows)))
  assert sorted(found) == [128, 224, 288] and problem == ""
  found, problem = answer(None, json.dumps(rows[0]))
  assert list(found) == [128] and "did not end within 1 s" in problem
  assert answer(1, "", "Traceback\nImportError: x")[1] == "decoding failed: ImportError: x"
  assert answer(0, json.dumps({"error": "reading needs TensorFlow"}))[1].endswith("TensorFlow")


def test_a_program_that_hangs_is_ended():
  done = child.run([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
                   seconds=1.0)  # fmt: skip
  assert done.code is None
  done = child.run(["cat"], seconds=120, text="here")
  assert (done.code, done.out) == (0, "here")


def part(root, problem="", broken=0, disk=1000):
  samples = images.samples_for(root)
  readings = {
    "originals": images.Reading(disk, disk * 100_000, 1.0, 0, True),
    "copies of 160 px": images.Reading(4000, 4000 * 10_000, 1.0, 0, True),
  }
  rates = {
    side: {"side": side, "images_per_s": rate, "broken": broken, "images": 9}
    for side, rate in ((128, 3000.0), (224, 600.0), (288, 400.0))
  }
  return images.examine(
    root, samples, readings, rates, problem,
    gpu="one H100", gpu_rates={128: 6000.0, 224: 3000.0, 288: 2000.0}, kind="ext4",
  )  # fmt: skip


def test_how_many_gpus_a_path_feeds(root):
  lines = part(root).lines
  assert lines[1] == (
    "disk, originals: 1,000 images/s, 100 MB/s by 16 threads (1000 images read once)"
  )
  assert lines[3] == (
    "128 px, copies of 160 px: 3,000 images/s decoded; feeds 0.5 of one H100, which trains 6,000 "
    "images/s"
  )
  assert "feeds 0.2 of one H100" in lines[4] and part(root).advice == []
  slow = part(root, disk=300).lines[4]
  assert "600 images/s decoded (the disk is slower); feeds 0.1 of one H100" in slow


def test_broken_and_missing_are_to_mend(root):
  found = [each for each in part(root, broken=2).advice if each.mend]
  assert found[0].what.startswith("2 of 9 sampled images (")
  assert found[0].type == f"python -m jaxspeed.prepare index {shlex.quote(str(root))}"
  (lacking,) = part(root, problem="reading needs TensorFlow").advice
  assert lacking.type == "pip install 'jaxspeed[imagenet]'" and lacking.mend
  for problem in ("no sampled image can be decoded", "decoding failed: SystemExit: 1"):
    (failed,) = part(root, problem=problem).advice
    assert failed.mend and problem in failed.what
  (late,) = part(root, problem="decoding did not end within 3 s").advice
  assert not late.mend
