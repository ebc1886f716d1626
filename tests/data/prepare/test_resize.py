"""A folder of smaller copies."""

import subprocess
import sys

import commands
import pytest
from edited_images import edit, train
from in_process import command
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

from jaxspeed.data.prepare.resize import resize
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
  assert (done.images, done.made, done.broken) == (13, 13, [])
  assert seen[-1] == (13, 13)
  originals = images_in(source)
  for size in (16, 32):
    copies = images_in(tmp_path / "out" / str(size))
    assert sorted(copies) == sorted(set(originals) - {"train/a/.hidden.jpg", "train/a/note.txt"})
    assert copies.pop("train/a/tiny.JPEG") == small
    for copy in copies.values():
      assert decoded(copy)[2].shape == (size, 50 * size // 40, 3)


def test_broken_images_are_left_out_and_listed(tmp_path):
  broken = broken_files()
  source = write(small_set(tmp_path / "source"), broken)
  (source / "train" / "a" / "gone.jpg").symlink_to("nowhere")
  done = resize(source, tmp_path / "out", sizes=(16, 32))
  names = sorted([*broken, "train/a/gone.jpg"])
  assert [name for name, _ in done.broken] == names
  assert (done.images, done.made) == (12, 12)
  for size in (16, 32):
    folder = tmp_path / "out" / str(size)
    lines = (folder / "broken.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == names
    assert "val/b/text.jpg\tit is not an image of a known format" in lines
    assert "train/a/gone.jpg\tNo such file or directory" in lines
    assert len(images_in(folder)) == 12 + 1  # the copies and the list
  before = tree(tmp_path / "out")
  again = resize(source, tmp_path / "out", sizes=(16, 32))
  assert (again.made, again.broken) == (0, done.broken) and tree(tmp_path / "out") == before


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
  assert done.made == 1 and kept.read_bytes() == b"kept"
  kept.write_bytes(whole["32/train/a/000.jpg"])
  assert images_in(out) == {name: whole[name] for name in images_in(out)}


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


@pytest.fixture
def out(tmp_path, source):
  """Copies of 8 pixels."""
  resize(source, tmp_path / "set-sz", sizes=(8,))
  return tmp_path / "set-sz"


def test_images_without_originals_are_refused_and_stay(tmp_path, source, out):
  for path in (*source.glob("train/c/*"), *source.glob("val/c/*"), source / "train/a/1.jpg"):
    path.unlink()
  (source / "train/c").rmdir(), (source / "val/c").rmdir()
  write(out / "8", {"train/a/notes.txt": b"mine", "train/a/.hidden.jpg": b"mine"})
  before = images_in(out / "8")
  with pytest.raises(
    UserError,
    match=r"8 holds 6 images without originals .*\(train/a/1.jpg, .*: remove them or move",
  ):
    resize(source, out, sizes=(8,))
  assert images_in(out / "8") == before


@pytest.mark.parametrize("target", ["set/train/b", "set/train/c", "moved"])
def test_nothing_behind_a_link_is_written(tmp_path, source, out, target):
  edit(source / "train/b/0.jpg")
  (source / "train/b/1.jpg").unlink()
  (out / "8/train/b").rename(tmp_path / "moved")
  before = tree(tmp_path / "moved"), tree(source)
  (out / "8/train/b").symlink_to(tmp_path / target)
  with pytest.raises(UserError, match="8/train/b is or lies behind a link: replace it by a folder"):
    resize(source, out, sizes=(8,))
  assert (tree(tmp_path / "moved"), tree(source)) == before


def test_copies_do_not_lie_among_originals(tmp_path, source):
  before = tree(source)
  (tmp_path / "linked").mkdir()
  (tmp_path / "linked/8").symlink_to(source / "val")
  with pytest.raises(UserError, match="linked/8 lies inside .*set, whose images are read"):
    resize(source, tmp_path / "linked", sizes=(8,))
  source.rename(tmp_path / "8")
  with pytest.raises(UserError, match="/8 lies inside .*/8, whose images are read, or holds it"):
    resize(tmp_path / "8", tmp_path, sizes=(8,))
  assert tree(tmp_path / "8") == before


def test_what_stands_in_the_place_of_a_copy_is_replaced_or_named(source, out):
  before = tree(out)
  copy = out / "8/train/a/0.jpg"
  copy.unlink()
  copy.symlink_to(source / "train/b/0.jpg")
  assert resize(source, out, sizes=(8,)).made == 1
  assert tree(out) == before
  copy.unlink()
  copy.mkdir()
  with pytest.raises(UserError, match=rf"{copy} cannot be written \(Is a director"):
    resize(source, out, sizes=(8,))
  copy.rmdir()
  assert resize(source, out, sizes=(8,)).made == 1 and tree(out) == before


def test_copies_that_were_taken_away_or_added_are_noticed(source, out):
  (out / "8/train/a/0.jpg").unlink()
  with pytest.raises(UserError, match=r"8 holds 11 images of a split in which 12 were .*--sizes=8"):
    train(source)
  assert resize(source, out, sizes=(8,)).made == 1
  write(out / "8", {"val/a/other.jpg": encoded(smooth(9, 9))})
  with pytest.raises(UserError, match=r"8 holds 4 images of a split in which 3 were written"):
    train(source)


def test_a_class_of_broken_images_is_named_and_the_rest_is_made(tmp_path, source, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  write(source, {f"train/b/{i}.jpg": b"broken" for i in range(4)})
  out = tmp_path / "set-sz"
  done = command("prepare", "resize", str(source), str(out), "--sizes=8", "--workers=1")
  assert done.returncode == 2 and "8/train/b holds no image" in done.stderr
  assert len(list((out / "8").rglob("*.jpg"))) == 11
  with pytest.raises(UserError, match="8 holds resized copies that are not complete"):
    train(source)
