"""Resized copies that follow their originals, and what the commands say of both."""

import os

import numpy as np
import pytest
from edited_images import NAMES, edit, fresh, jpeg, pack, train, tree, write
from in_process import command, mistake

from jaxspeed.data.disk.imageset import open_images
from jaxspeed.data.prepare import following
from jaxspeed.data.prepare import resize as resize_module
from jaxspeed.data.prepare.index import write_index
from jaxspeed.data.prepare.resize import resize
from jaxspeed.errors import UserError


def test_copies_of_edited_images_are_made_again(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8, 16))
  edit(source / "train/a/1.jpg")
  # The same bytes at another time are another file, and the same size at another time, too.
  os.utime(source / "train/b/2.jpg", ns=(1, 10**18 + 1))
  write(source, {"train/c/new.jpg": jpeg(50)})
  assert resize(source, out, sizes=(8, 16)).read == 3
  assert tree(out) == fresh(source, tmp_path)
  assert resize(source, out, sizes=(8, 16)).read == 0


def test_times_in_whole_seconds_are_those_of_tar(tmp_path, source):
  resize(source, tmp_path / "set-sz", sizes=(8,))
  for path in source.rglob("*.jpg"):
    second = path.stat().st_mtime_ns // 10**9 * 10**9
    os.utime(path, ns=(second, second))
  assert resize(source, tmp_path / "set-sz", sizes=(8,)).read == 0
  assert train(source) == ()


def test_copies_of_removed_images_are_listed_and_then_pruned(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8, 16))
  (source / "train/a/1.jpg").unlink()
  for path in (*source.glob("train/c/*"), *source.glob("val/c/*")):
    path.unlink()
  (source / "train/c").rmdir(), (source / "val/c").rmdir()
  write(out / "8", {"train/a/mine.jpg": jpeg(1), "train/a/notes.txt": b"mine"})
  (tmp_path / "elsewhere.jpg").write_bytes(jpeg(2))
  (out / "8/train/c/0.jpg").unlink()
  (out / "8/train/c/0.jpg").symlink_to(tmp_path / "elsewhere.jpg")

  done = resize(source, out, sizes=(8, 16))
  assert len(done.orphans) == 2 * 6 and done.pruned == 0
  assert done.strangers == ("8/train/a/mine.jpg",)
  with pytest.raises(UserError, match=r"8 holds 6 copies without originals: run .* --prune"):
    train(source, classes=2)

  done = resize(source, out, sizes=(8, 16), prune=True)
  assert done.orphans == ("8/train/c/0.jpg",) and done.pruned == 11
  assert (out / "8/train/a/mine.jpg").exists() and (tmp_path / "elsewhere.jpg").exists()
  for path in ("8/train/a/mine.jpg", "8/train/a/notes.txt", "8/train/c/0.jpg"):
    (out / path).unlink()
  (out / "8/train/killed").mkdir()  # as a kill leaves it
  assert resize(source, out, sizes=(8, 16), prune=True).pruned == 0
  assert tree(out) == fresh(source, tmp_path)
  assert not any((out / "8/train" / name).exists() for name in ("c", "killed"))
  assert train(source, classes=2) == ()


def test_nothing_behind_a_link_is_removed_or_written(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  (out / "8/train/a").rename(tmp_path / "moved")
  (out / "8/train/a").symlink_to(tmp_path / "moved")
  (source / "train/a/1.jpg").unlink()
  done = resize(source, out, sizes=(8,), prune=True)
  assert done.orphans == ("8/train/a/1.jpg",) and (tmp_path / "moved/1.jpg").exists()
  (out / "8/train/b/0.jpg").parent.rename(tmp_path / "moved_b")
  (out / "8/train/b").symlink_to(source / "train/b")
  edit(source / "train/b/0.jpg")
  before = tree(source)
  with pytest.raises(UserError, match="train/b is the folder of the originals: remove that link"):
    resize(source, out, sizes=(8,))
  assert tree(source) == before
  (out / "8/train/b").unlink()
  (out / "8/train/b").symlink_to(source / "train/c")  # whose images have the same names
  with pytest.raises(UserError, match="train/b leads to .*set/train/c, among the originals: rem"):
    resize(source, out, sizes=(8,))
  (tmp_path / "linked").mkdir()
  (tmp_path / "linked/8").symlink_to(source / "val")
  with pytest.raises(UserError, match="linked/8 lies inside .*set, whose images are read"):
    resize(source, tmp_path / "linked", sizes=(8,))
  assert tree(source) == before


def test_the_copy_of_an_image_that_is_now_broken_goes(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  write(source, {"train/a/1.jpg": b"broken"})
  done = resize(source, out, sizes=(8,))
  assert [each.name for each in done.broken] == ["train/a/1.jpg"]
  assert not (out / "8/train/a/1.jpg").exists()
  assert train(source) == ()  # what was broken and still is, is no difference
  edit(source / "train/a/1.jpg")
  with pytest.raises(
    UserError, match=r"1 changed \(train/a/1.jpg\); run python -m jaxspeed.prepare"
  ):
    train(source)


def test_copies_without_records_are_made_again(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  for path in (*(out / "8/.jaxspeed/originals/train").iterdir(), out / "8/.jaxspeed/complete.json"):
    path.unlink()
  (out / "8/.jaxspeed/resize.json").write_text('{"quality": 75}')  # of an older version
  with pytest.raises(UserError, match=rf"not complete: run .* resize {source} {out} --sizes=8,"):
    train(source)
  done = resize(source, out, sizes=(8,))
  assert (done.read, done.unrecorded) == (12, 12)
  assert tree(out) == fresh(source, tmp_path, sizes=(8,)) and train(source) == ()


def test_images_of_others_are_not_written_over(tmp_path, source):
  write(tmp_path / "set-sz/8", {name: jpeg(i) for i, name in enumerate(NAMES)})
  before = tree(tmp_path / "set-sz")
  with pytest.raises(UserError, match="8 holds images that prepare resize did not write"):
    resize(source, tmp_path / "set-sz", sizes=(8,))
  assert tree(tmp_path / "set-sz") == before
  (note,) = train(source)
  assert "was not written by prepare resize" in note


def test_a_kill_between_leaves_no_lie(tmp_path, source, monkeypatch):
  """Whatever write is the last, the folder is refused, and the command ends in the same bytes."""
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  edit(source / "train/a/1.jpg", seed=70)
  edit(source / "train/c/1.jpg", seed=71)
  (source / "val/b/9.jpg").unlink()
  write(source, {"val/b/8.jpg": jpeg(72)})
  expected = fresh(source, tmp_path, sizes=(8,))
  real, left = os.replace, [0]

  def replace(*names):
    left[0] -= 1
    if left[0] < 0:
      raise KeyboardInterrupt
    return real(*names)

  for last in range(100):
    left[0] = last
    with monkeypatch.context() as patch:
      patch.setattr(os, "replace", replace)
      patch.setattr(following.Follower, "flush", lambda self: None)  # as a kill has it
      try:
        resize(source, out, sizes=(8,), prune=True)
        break
      except KeyboardInterrupt:
        pass
    with pytest.raises(UserError, match="resize"):
      train(source)
  assert 3 < last < 99
  assert tree(out) == expected and train(source) == ()


def test_copies_of_another_source_stay_what_they_are(tmp_path, source):
  out = tmp_path / "copies"
  resize(source, out, sizes=(8,))
  before = tree(out)
  other = write(tmp_path / "other", {name: jpeg(i) for i, name in enumerate(NAMES[1:])})
  for name in NAMES[1:]:
    os.utime(other / name, ns=(0, (source / name).stat().st_mtime_ns))
  with pytest.raises(UserError, match="/8 holds copies of .*/set, not of .*/other: remove it, or"):
    resize(other, out, sizes=(8,), prune=True)
  assert tree(out) == before
  source.rename(tmp_path / "moved")
  assert resize(tmp_path / "moved", out, sizes=(8,)).read == 0


def test_what_a_kill_leaves_of_an_index_goes(tmp_path, source):
  """`files.new_folder` fills a folder of a temporary name, which a kill leaves."""
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  folder = pack(source, tmp_path).folder
  for own in (out / "8/.jaxspeed", folder / ".jaxspeed"):
    write(own / ".jaxspeed-0123456789abcdef", {"width.npy": b"half of it"})
  assert resize(source, out, sizes=(8,)).read == 0
  assert pack(source, tmp_path).written == 0
  for root in (out / "8", folder):
    write_index(root)
    assert sorted(path.name for path in (root / ".jaxspeed").glob("*-*")) == []


def test_records_are_written_while_a_class_is_being_made(tmp_path, source, monkeypatch):
  monkeypatch.setattr(following, "_SECONDS", 0)
  monkeypatch.setattr(following, "_SHARE", 0)
  monkeypatch.setattr(resize_module, "_CHUNK", 1)
  made = []

  def stopped(task, real=resize_module._resize_chunk):
    made.append(task)
    if len(made) == 3:
      raise KeyboardInterrupt
    return real(task)

  monkeypatch.setattr(resize_module, "_resize_chunk", stopped)
  monkeypatch.setattr(following.Follower, "flush", lambda self: None)
  with pytest.raises(KeyboardInterrupt):
    resize(source, tmp_path / "out", sizes=(8,))
  assert resize(source, tmp_path / "out", sizes=(8,)).read == 15 - 2


def test_a_dangling_link_is_listed_by_all_commands(tmp_path, source, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  (source / "train/a/gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
  done = command(
    "prepare", "resize", str(source), str(tmp_path / "out"), "--sizes=8", "--workers=1"
  )
  assert done.returncode == 0 and "train/a/gone.jpg: No such file or directory" in done.stdout
  done = command("prepare", "index", str(source))
  assert done.returncode == 0 and "  train/a/gone.jpg: it has no header" in done.stdout, done
  done = command("prepare", "shards", str(source), str(tmp_path / "sets"), "--workers=1")
  assert done.returncode == 0 and "  train/a/gone.jpg: it has no header" in done.stdout, done
  images = open_images(name="", path=str(source), cache=str(tmp_path / "cache"))
  assert np.flatnonzero(images.train.width == 0).tolist() == [4]  # training replaces it
  (tmp_path / "nowhere.jpg").write_bytes(jpeg(5))
  images = open_images(name="", path=str(source), cache=str(tmp_path / "cache"))
  assert images.train.width.all()  # the index was made anew


def test_a_class_of_broken_images_is_named_and_the_rest_is_made(tmp_path, source, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  write(source, {f"train/b/{i}.jpg": b"broken" for i in range(4)})
  out = tmp_path / "set-sz"
  done = command("prepare", "resize", str(source), str(out), "--sizes=8", "--workers=1")
  assert done.returncode == 0 and "1 classes have no readable image" in done.stdout, done
  assert "\n  train/b\n" in done.stdout and len(list((out / "8").rglob("*.jpg"))) == 11
  with pytest.raises(UserError, match="the class folder .*train/b holds no image"):
    train(source)


def test_what_is_left_out_is_said(tmp_path, source, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  write(source, {"train/a/IMG_0001": jpeg(0), "train/a/IMG_0002": jpeg(0), "val/b/x.txt": b""})
  resized = ("resize", str(source), str(tmp_path / "out"), "--sizes=8", "--workers=1")
  for arguments in (
    resized,
    ("index", str(source)),
    ("shards", str(source), str(tmp_path / "sets"), "--workers=1"),
  ):
    out = command("prepare", *arguments).stdout
    assert "3 files in the class folders are left out" in out and "no ending (2)" in out


def test_rectangles_are_tried_in_batches_that_the_set_fills(tmp_path, source):
  done = command("prepare", "index", str(source), "--size=8")
  assert "in batches of 3\n" in done.stdout, done
  assert np.float64(done.stdout.split("squares: ")[1].split("; ")[1].split()[0]) == 1


def test_flags_of_other_commands_are_refused(source):
  assert "--prune=True has no effect with index" in mistake(
    "prepare", "index", str(source), "--prune"
  )
