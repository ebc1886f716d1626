"""The commands of jaxspeed.prepare: kills, full disks and mistakes."""

import functools
import json
import os
import signal

import commands
import numpy as np
import pytest
from image_files import broken_files, encode, images_in, ramp, small_set, tree, write
from in_process import command, mistake
from local_cluster import wait_until

from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.prepare.resize import resize


def prepare(*arguments):
  """What a command prints that succeeds."""
  done = command("prepare", *map(str, arguments))
  assert (done.returncode, done.stderr) == (0, "")
  return done.stdout


@pytest.fixture(scope="module")
def many(tmp_path_factory):
  """140 images, of which two processes make copies for about a second."""
  root = tmp_path_factory.mktemp("many")
  return small_set(root, train=100, held_out=40, width=700, height=500, quality=50)


def start_resize(source, out):
  words = ("resize", str(source), str(out), "--sizes=100,200", "--workers=2")
  # A shell's background job ignores it, and so does what it starts.
  heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
  return commands.start("-m", "jaxspeed.prepare", *words, start_new_session=True, preexec_fn=heard)


def lives(group):
  """Whether a process of a group has not ended."""
  try:
    os.killpg(group, 0)
  except ProcessLookupError:
    return False
  return True


def count(out):
  return sum(1 for path in out.rglob("*.jpg"))


def test_a_run_that_is_stopped_ends_in_the_same_bytes_and_so_do_its_workers(tmp_path, many):
  undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
  resize(many, undisturbed, sizes=(100, 200))
  for kill, number in (
    (os.killpg, signal.SIGKILL),
    (os.killpg, signal.SIGINT),
    (os.kill, signal.SIGKILL),
  ):
    before, process = count(stopped), start_resize(many, stopped)
    while count(stopped) <= before:
      assert process.poll() is None
    kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
      assert (process.returncode, err) == (130, "jaxspeed: stopped by Ctrl-C.\n")
    wait_until(lambda pid=process.pid: not lives(pid), 60, "the end of the workers")
    assert before < count(stopped) < 280
    for name, content in images_in(stopped).items():
      assert content == (undisturbed / name).read_bytes()
  process = start_resize(many, stopped)
  assert process.wait(timeout=60) == 0, process.communicate()
  assert tree(stopped) == tree(undisturbed)


def test_the_three_commands(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))  # the cache's default
  source = write(small_set(tmp_path / "source", train=30), broken_files())
  extra = {f"train/a/more_{i}.jpg": b"" for i in range(10)}
  wide = {"train/b/wide.jpg": encode(ramp(200, 20)), "val/a/tall.jpg": encode(ramp(20, 90))}
  write(source, extra | wide)
  out = tmp_path / "out"
  text = prepare("resize", source, out, "--sizes", "16,32", "--workers=1")
  assert "\x1b" not in text and "\r" not in text
  lines = text.splitlines()
  assert lines[0].startswith("resized 36 images in ") and lines[0].endswith(" images/s")
  assert lines[1] == "broken: 16 images are left out, and listed in broken.txt"
  assert lines[12] == "  and 6 more" and len(lines) == 15
  assert lines[13] == f"{out / '16'}: 31 images for training, 5 for evaluation, 2 classes"

  text = prepare("index", out / "32")
  assert text == f"{out / '32'}: 31 images for training, 5 for evaluation, 2 classes\n"

  flags = ("--name=tiny", "--shards=2", "--workers=1")
  text = prepare("shards", out / "32", tmp_path / "sets", *flags)
  folder = tmp_path / "sets" / "tiny" / "1.0.0"
  assert f"--config.data.path={folder}" in text
  assert json.loads((folder / "dataset_info.json").read_text())["name"] == "tiny"
  assert (folder / ".jaxspeed" / "images.npz").is_file()


def mistakes(tmp):
  source = small_set(tmp / "source", train=4, held_out=2)
  (tmp / "empty").mkdir()
  (tmp / "file").write_text("in the way")
  for bad, name in (("no_val", "train/a/x.jpg"), ("no_train", "val/a/x.jpg")):
    write(tmp / bad, {name: b""})
  for bad, name in (("stranger", "val/c/x.jpg"), ("hollow", "val/b/note.txt")):
    small_set(tmp / bad, train=4, held_out=1)
    write(tmp / bad, {name: b""})
  out, pixels = tmp / "out", "--sizes=16"
  return {
    "nothing": ([], "'' is not a command: write resize SRC DST"),
    "command": (["shrink", source, out], "out' is not a command: write resize SRC DST"),
    "one folder": (["resize", source, pixels], "source' is not a command: write resize SRC DST"),
    "no source": (["resize", tmp / "nowhere", out, pixels], "nowhere is not a folder"),
    "empty source": (["resize", "", out, pixels], "out' is not a command: write resize SRC DST"),
    "empty destination": (["resize", source, "", pixels], "source ' is not a command: write"),
    "no train": (
      ["resize", tmp / "no_train", out, pixels],
      "no_train has no split train to train on",
    ),
    "no val": (["resize", tmp / "no_val", out, pixels], "none of val, validation and test"),
    "inside": (["resize", source, source / "out", pixels], "lies inside"),
    "no sizes": (["resize", source, out], "--sizes=: name different short sides"),
    "twice": (["resize", source, out, "--sizes=8,8"], "--sizes=8,8: name different short sides"),
    "words": (["resize", source, out, "--sizes=small"], "--sizes=small: name different short"),
    "zero": (["resize", source, out, "--sizes=16,0"], "--sizes=16,0: name different short"),
    "blocked": (["resize", source, tmp / "file", pixels], "read or written (Not a directory)"),
    "index": (["index", tmp / "empty"], "empty has no train/"),
    "of another": (["index", source, "--quality=3"], "--quality=3 has no effect with index."),
    "stranger": (
      ["shards", tmp / "stranger", out],
      "no training image has the class of these evaluation images: c (",
    ),
    "hollow": (["shards", tmp / "hollow", out], "val/b holds no image"),
    "shards inside": (["shards", source, source / "sets"], "lies inside"),
  }


def test_a_dangling_link_is_listed_by_all_commands(tmp_path, source, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  (source / "train/a/gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
  write(source, {"train/a/IMG_0001": b"", "train/a/IMG_0002": b"", "val/b/x.txt": b""})
  for arguments, reason in (
    (("resize", source, tmp_path / "out", "--sizes=8", "--workers=1"), "No such file or directory"),
    (("index", source), "it has no header"),
    (("shards", source, tmp_path / "sets", "--workers=1"), "it has no header"),
  ):
    text = prepare(*arguments)
    assert f"  train/a/gone.jpg: {reason}" in text
    assert "3 files in the class folders are left out" in text and "no ending (2)" in text
  images = open_images(name="", path=str(source), cache=str(tmp_path / "cache"))
  assert np.flatnonzero(images.train.width == 0).tolist() == [4]  # training replaces it


def test_mistakes_are_one_sentence_each(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  for case, (arguments, words) in mistakes(tmp_path).items():
    assert words in mistake("prepare", *map(str, arguments)), case
  assert not any((tmp_path / name).exists() for name in ("out", "source/out", "source/sets"))
