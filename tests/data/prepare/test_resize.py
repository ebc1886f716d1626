"""A folder of smaller copies."""

import subprocess
import sys

import commands
import pytest
from made_images import (
  broken_files,
  decoded,
  die,
  encoded,
  images_in,
  small_set,
  smooth,
  tree,
  write,
)

from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.prepare.index import write_index
from jaxspeed.data.prepare.resize import resize
from jaxspeed.data.prepare.writing import locked
from jaxspeed.data.workers import in_processes
from jaxspeed.errors import UserError


def test_a_folder_of_copies(tmp_path):
  source = small_set(tmp_path / "source", width=50, height=40)
  small = encoded(smooth(12, 10))
  unusual = {"train/a/tiny.JPEG": small, "train/a/.hidden.jpg": small, "train/a/note.txt": b""}
  write(source, unusual)
  seen = []
  done = resize(
    source, tmp_path / "out", sizes=(16, 32), show=lambda *progress: seen.append(progress)
  )
  assert (done.images, done.read, done.broken) == (13, 13, ())
  assert seen[-1] == (13, 13)
  originals = images_in(source)
  for size in (16, 32):
    copies = images_in(tmp_path / "out" / str(size))
    assert sorted(copies) == sorted(set(originals) - {"train/a/.hidden.jpg", "train/a/note.txt"})
    assert copies.pop("train/a/tiny.JPEG") == small
    for copy in copies.values():
      assert decoded(copy)[2].shape == (size, 50 * size // 40, 3)


def test_processes_write_what_one_writes(tmp_path):
  source = small_set(tmp_path / "source", train=80)
  for workers in (1, 2):
    resize(source, tmp_path / str(workers), sizes=(16, 32), workers=workers)
  assert tree(tmp_path / "1") == tree(tmp_path / "2")


def test_broken_images_are_left_out_and_listed(tmp_path):
  broken = broken_files()
  source = write(small_set(tmp_path / "source"), broken)
  (source / "train" / "a" / "gone.jpg").symlink_to("nowhere")
  done = resize(source, tmp_path / "out", sizes=(16, 32))
  names = sorted([*broken, "train/a/gone.jpg"])
  assert [each.name for each in done.broken] == names
  assert (done.images, done.read) == (12 + 7, 12 + 7)
  for size in (16, 32):
    folder = tmp_path / "out" / str(size)
    lines = (folder / "broken.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == names
    assert "val/b/text.jpg\tit is not an image of a known format" in lines
    assert "train/a/gone.jpg\tNo such file or directory" in lines
    assert len(images_in(folder)) == 12 + 1  # the copies and the list
  before = tree(tmp_path / "out")
  again = resize(source, tmp_path / "out", sizes=(16, 32))
  assert (again.read, again.broken) == (7, done.broken) and tree(tmp_path / "out") == before


def test_mended_images_leave_the_list(tmp_path):
  source = write(small_set(tmp_path / "source"), {"val/a/x.jpg": b""})
  resize(source, tmp_path / "out", sizes=(16,))
  write(source, {"val/a/x.jpg": encoded(smooth(60, 40))})
  assert resize(source, tmp_path / "out", sizes=(16,)).read == 1
  assert not (tmp_path / "out" / "16" / "broken.txt").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_broken_image_can_end_the_run(tmp_path, workers):
  source = write(small_set(tmp_path / "source"), {"val/a/x.jpg": b""})
  with pytest.raises(UserError, match="val/a/x.jpg is broken .*known format.*--on_error=raise"):
    resize(source, tmp_path / "out", sizes=(16,), workers=workers, raise_broken=True)


def test_finished_copies_are_not_made_again(tmp_path):
  source, out = small_set(tmp_path / "source"), tmp_path / "out"
  resize(source, out, sizes=(16, 32))
  whole = tree(out)
  kept = out / "32" / "train" / "a" / "000.jpg"
  kept.write_bytes(b"kept")
  (out / "16" / "train" / "b" / "001.jpg").unlink()
  for folder in ("train/b", ".jaxspeed", "."):
    (out / "16" / folder / ".jaxspeed-4711").write_bytes(b"half")
  done = resize(source, out, sizes=(16, 32))
  assert done.read == 1 and kept.read_bytes() == b"kept"
  kept.write_bytes(whole["32/train/a/000.jpg"])
  assert tree(out) == whole


def test_copies_of_one_folder_have_one_quality(tmp_path):
  source = small_set(tmp_path / "source")
  resize(source, tmp_path / "out", sizes=(16,), quality=80)
  with pytest.raises(UserError, match="16 holds copies of quality 80, not 75: write --quality=80"):
    resize(source, tmp_path / "out", sizes=(16,))


def test_copies_are_not_written_over_their_originals(tmp_path):
  source = small_set(tmp_path / "160")
  with pytest.raises(UserError, match="written into .*160, where the images of"):
    resize(source, tmp_path, sizes=(160,))


def test_two_commands_do_not_write_to_one_folder(tmp_path):
  source = small_set(tmp_path / "source")
  with locked(tmp_path / "out"), pytest.raises(UserError, match="being written by another"):
    resize(source, tmp_path / "out", sizes=(16,))
  assert resize(source, tmp_path / "out", sizes=(16,)).read == 12


def test_a_process_that_is_killed_is_told():
  with pytest.raises(UserError, match="one of 2 worker processes was killed.*fewer --workers"):
    list(in_processes(die, [9, 9, 9], workers=2))


def test_workers_import_neither_jax_nor_tensorflow():
  code = (
    "import jaxspeed.prepare, sys; print({'jax', 'tensorflow', 'torch'} & set(sys.modules) or '')"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=commands.ROOT, capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == ""


def test_the_index_lies_beside_the_copies(tmp_path):
  source = small_set(tmp_path / "source")
  resize(source, tmp_path / "out", sizes=(16,))
  written = write_index(tmp_path / "out" / "16")
  # A file that changed under its name is read again.
  write(tmp_path / "out" / "16", {"val/a/008.jpg": encoded(smooth(24, 18))})
  assert write_index(tmp_path / "out" / "16").eval.width.max() == 24
  assert set(written.train.width.tolist()) == {20} and set(written.train.height.tolist()) == {16}

  cache, headers = tmp_path / "cache", []
  found = open_images(
    name="",
    path=str(tmp_path / "out" / "16"),
    cache=str(cache),
    show=lambda *progress: headers.append(progress),
  )
  assert not headers
  assert found.train.paths() == written.train.paths() and not cache.exists()
