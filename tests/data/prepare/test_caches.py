"""prepare cache: what lies there, what of it is of no use, and that nothing else is removed."""

import io
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny_sets
from in_process import command, mistake
from PIL import Image

from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.memory.arrays import open_arrays
from jaxspeed.data.prepare.index import write_index


def image_set(root, names=("train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg")):
  for number, name in enumerate(names):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    Image.fromarray(tiny_sets.random_images(number, 1, height=9, width=8)[0]).save(buffer, "JPEG")
    (root / name).write_bytes(buffer.getvalue())
  return root


@pytest.fixture
def cache(tmp_path):
  """Entries of sets that stay and that go, and what others left in the folder."""
  cache = tmp_path / "cache"
  for name in ("stays", "goes"):
    open_images(name="", path=str(image_set(tmp_path / name)), cache=str(cache))
    examples = [tiny_sets.example(image, 0) for image in tiny_sets.random_images(0, 2, 4, 4)]
    splits = {"train": [examples[:1]], "test": [examples[1:]]}
    tiny_sets.write_tfds(
      tmp_path / f"{name}_arrays" / "1.0.0", splits, name="tiny", class_names=("a", "b")
    )
    path = tmp_path / f"{name}_arrays" / "1.0.0"
    open_arrays(name="tiny", path=str(path), cache=str(cache), classes=2)
  (tmp_path / "goes").rename(tmp_path / "gone")
  (tmp_path / "goes_arrays").rename(tmp_path / "gone_arrays")
  for name in ("photos-0123456789abcdef.npz", "mine.npz", "notes.txt"):
    (cache / name).write_bytes(b"mine")
  for name, age in ((".jaxspeed-0123456789abcdef", 7_200), (".jaxspeed-1123456789abcdef", 0)):
    (cache / name).write_bytes(b"half")  # the second is being written
    os.utime(cache / name, (1, time.time() - age))
  return cache


def names(cache):
  return {path.name for path in cache.iterdir()}


def test_entries_are_listed_with_their_sources(tmp_path, cache):
  before = names(cache)
  done = command("prepare", "cache", f"--cache={cache}", "--list")
  assert done.returncode == 0 and names(cache) == before
  lines = [line for line in done.stdout.splitlines() if line.startswith("images-")]
  lines += [line for line in done.stdout.splitlines() if line.startswith("tiny-")]
  for suffix in ("", "_arrays/1.0.0"):
    (stays,) = (line for line in lines if f"{tmp_path}/stays{suffix}," in line)
    assert stays.endswith("days old") and " MB, 0.0 days" in stays
    (goes,) = (line for line in lines if f"{tmp_path}/goes{suffix}," in line)
    assert goes.endswith("days old; the source is gone")
  assert command("prepare", "cache", f"--cache={cache}").stdout == done.stdout


def test_only_what_is_of_no_use_is_removed(cache):
  before = names(cache)
  done = command("prepare", "cache", f"--cache={cache}", "--prune")
  assert done.returncode == 0, done
  removed = before - names(cache)
  kinds = sorted(name.rpartition("-")[0] for name in removed)
  assert kinds == [".jaxspeed", "images", "tiny"] and "\nremoved 3 entries, " in done.stdout
  again = command("prepare", "cache", f"--cache={cache}", "--prune")
  assert "\nremoved 0 entries, 0.0 MB\n" in again.stdout


def test_a_cache_that_is_not_there_is_empty_and_mistakes_are_told(tmp_path):
  done = command("prepare", "cache", f"--cache={tmp_path / 'none'}")
  assert done.stdout == f"{tmp_path / 'none'}: 0 entries, 0.0 MB\n"
  (tmp_path / "file").write_text("")
  assert "file cannot be read" in mistake("prepare", "cache", f"--cache={tmp_path / 'file'}")
  assert "cache takes no folder" in mistake("prepare", "cache", str(tmp_path))


def test_a_list_that_nobody_gets_is_a_mistake(tmp_path):
  command = [sys.executable, "-m", "jaxspeed.prepare", "cache", f"--cache={tmp_path}"]
  with open("/dev/full", "wb") as full:
    done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
  assert done.returncode == 2
  assert done.stderr.startswith("jaxspeed: standard output could not be written (No space left")


def test_many_write_one_index_at_once(tmp_path):
  root = image_set(tmp_path / "set")
  with ThreadPoolExecutor(8) as pool:
    written = list(pool.map(lambda _: len(write_index(root).train), range(24)))
  assert written == [2] * 24
  (index,) = (root / ".jaxspeed").iterdir()
  assert open_images(name="", path=str(root), cache="").train.index == str(index)
