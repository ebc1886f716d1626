"""Copies and shards that follow their images, and what a training says of those that do not."""

import io
import json
import os

import numpy as np
import pytest
import tiny_sets
from in_process import command, mistake
from ml_collections import ConfigDict
from PIL import Image

from jaxspeed.data.disk.imageset import open_images
from jaxspeed.data.disk.sets import open_sets
from jaxspeed.data.prepare import following
from jaxspeed.data.prepare import resize as resize_module
from jaxspeed.data.prepare.index import write_index
from jaxspeed.data.prepare.resize import resize
from jaxspeed.data.prepare.shards import write_shards
from jaxspeed.errors import UserError


def jpeg(seed, width=24, height=20):
  buffer = io.BytesIO()
  Image.fromarray(tiny_sets.random_images(seed, 1, height=height, width=width)[0]).save(
    buffer, "JPEG"
  )
  return buffer.getvalue()


def write(root, files):
  for name, content in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)
  return root


NAMES = [f"train/{c}/{i}.jpg" for c in "abc" for i in range(4)] + [f"val/{c}/9.jpg" for c in "abc"]


@pytest.fixture
def source(tmp_path):
  return write(tmp_path / "set", {name: jpeg(i) for i, name in enumerate(NAMES)})


def tree(root):
  return {
    str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
  }


class Phase:
  def __init__(self, copies):
    self.copies, self.image_size = copies, 8


def train(source, copies="", sides=(8,), **data):
  """What a training opens, of these sides of copies; its notes."""
  config = ConfigDict({"tune_on": "test"})
  config.data = ConfigDict(
    {"synthetic": False, "name": "set", "path": str(source), "copies": str(copies), "classes": 3}
    | {"cache": str(source.parent / "cache"), "hold_out": 0.1}
    | data
  )
  return open_sets(config, [Phase(side) for side in sides]).notes


def edit(path, seed=99, **options):
  """Another image of the same name, with the same time if asked for."""
  before = path.stat().st_mtime_ns
  path.write_bytes(jpeg(seed, **options))
  os.utime(path, ns=(before + 10**9, before + 10**9))


def fresh(source, tmp_path, sizes=(8, 16)):
  resize(source, tmp_path / "fresh", sizes=sizes)
  return tree(tmp_path / "fresh")


# resize


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


# Training


def test_each_disagreement_is_refused_with_its_command(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8, 16), quality=80)
  assert train(source, sides=(8, 16, 0)) == ()
  edit(source / "train/a/0.jpg", width=30)
  (source / "train/b/1.jpg").rename(source / "train/b/renamed.jpg")
  mend = f"python -m jaxspeed.prepare resize {source} {out} --sizes=16 --quality=80 --prune"
  with pytest.raises(UserError) as refused:
    train(source, sides=(16,))
  assert str(refused.value) == (
    f"{out}/16 does not fit its originals in {source}: 1 new (train/b/renamed.jpg); 1 changed "
    f"(train/a/0.jpg); 1 removed (train/b/1.jpg); run {mend}."
  )
  done = command(*mend.split()[2].split(".")[1:], *mend.split()[3:], "--workers=1")
  assert done.returncode == 0 and "resized 2 images" in done.stdout, done
  assert "1 copies without originals were removed" in done.stdout
  assert train(source, sides=(16,)) == ()
  with pytest.raises(UserError, match="/8 does not fit"):
    train(source, sides=(16, 8))
  with pytest.raises(UserError, match="/8 does not fit"):  # opened as a set of its own
    train(out / "8", sides=(0,))
  source.rename(tmp_path / "away")  # the copies stand alone
  assert train(source, copies=out) == ()
  assert train(out / "8", sides=(0,)) == ()


def test_one_command_mends_all_sizes_of_one_quality(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8, 16))
  resize(source, out, sizes=(12,), quality=80)
  (source / "train/a/0.jpg").unlink()
  resize(source, out, sizes=(8,))  # whose orphan is known, and no difference
  write(source, {"train/b/new.jpg": jpeg(77)})
  (out / "8/.jaxspeed/complete.json").write_text('{"images": {"train": 11}, "orphans": 0}')
  mend = f"python -m jaxspeed.prepare resize {source} {out} --sizes=8,16 --prune"
  with pytest.raises(UserError, match=f"/8 does not fit .* run {mend}\\.$"):
    train(source, sides=(8, 12, 16))
  assert command(*mend.split()[2].split(".")[1:], *mend.split()[3:], "--workers=1").returncode == 0
  with pytest.raises(UserError, match="--sizes=12 --quality=80 --prune"):
    train(source, sides=(8, 12, 16))


def test_orphans_of_all_sizes_are_removed_by_one_command(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8, 16))
  (source / "train/a/0.jpg").unlink()
  resize(source, out, sizes=(8, 16))
  mend = f"python -m jaxspeed.prepare resize {source} {out} --sizes=8,16 --prune"
  with pytest.raises(UserError, match=f"/8 holds 1 copies without originals: run {mend}, "):
    train(source, sides=(8, 16))
  assert command(*mend.split()[2].split(".")[1:], *mend.split()[3:], "--workers=1").returncode == 0
  assert train(source, sides=(8, 16)) == ()


def test_copies_that_no_phase_reads_are_told(tmp_path, source):
  resize(source, tmp_path / "set-sz", sizes=(16, 8))
  (note,) = train(source, sides=(0,))
  assert note == (
    f"{tmp_path}/set-sz holds resized copies (8, 16) that this recipe does not read: name one of "
    "these folders in --config.data.path, or, for a recipe with phases, all in "
    "--config.phases.copies"
  )
  assert train(tmp_path / "set-sz/8", sides=(0,)) == ()


def test_what_stands_in_the_place_of_a_copy_is_replaced_or_named(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  before = tree(out)
  copy = out / "8/train/a/0.jpg"
  copy.unlink()
  copy.symlink_to(source / "train/b/0.jpg")
  assert resize(source, out, sizes=(8,)).read == 1
  assert tree(out) == before
  copy.unlink()
  copy.mkdir()
  with pytest.raises(UserError, match=rf"/train/a cannot be written \(Is a directory: {copy}\)"):
    resize(source, out, sizes=(8,))
  copy.rmdir()
  assert resize(source, out, sizes=(8,)).read == 1 and tree(out) == before


@pytest.mark.parametrize(
  "content",
  ["null", "{}", '{"quality": -5}', '{"quality": 1e308}', '{"quality": "x"}', '{"quality": 1e999}'],
)
def test_damaged_settings_are_one_short_sentence(tmp_path, source, content):
  resize(source, tmp_path / "set-sz", sizes=(8,))
  path = tmp_path / "set-sz/8/.jaxspeed/resize.json"
  path.write_text(content)
  with pytest.raises(
    UserError, match=rf"^{path} is damaged( \([^)]*\))?: remove {tmp_path}/set-sz/8 a"
  ):
    train(source)


def test_to_tune_only_the_training_images_are_compared(tmp_path, source):
  resize(source, tmp_path / "set-sz", sizes=(8,))
  edit(source / "val/a/9.jpg")
  config = {"path": str(source), "copies": "", "classes": 3, "synthetic": False, "name": "set"}
  config["hold_out"] = 0.1
  data = ConfigDict(config | {"cache": str(tmp_path / "cache")})
  open_sets(ConfigDict({"tune_on": "validation", "data": data}), [Phase(8)])


def test_half_made_copies_do_not_train(tmp_path, source, monkeypatch):
  out = tmp_path / "set-sz"

  def stopped(task, real=resize_module._resize_chunk):
    if task.name == "val/c":
      raise KeyboardInterrupt
    return real(task)

  with monkeypatch.context() as patch:
    patch.setattr(resize_module, "_resize_chunk", stopped)
    with pytest.raises(KeyboardInterrupt):
      resize(source, out, sizes=(8,))
  (out / "8/val/c").rmdir()
  message = (
    "8 holds resized copies that are not complete: run python -m jaxspeed.prepare resize "
    f"{source} {out} --sizes=8, which"
  )
  for opening in (
    lambda: train(source),
    lambda: train(out / "8", sides=(0,)),
    lambda: open_images(name="", path=str(out / "8"), cache=str(tmp_path / "cache")),
  ):
    with pytest.raises(UserError, match=message):
      opening()
  assert resize(source, out, sizes=(8,)).read == 1 and train(source) == ()


def test_copies_that_were_taken_away_are_missed(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  (out / "8/train/a/0.jpg").unlink()
  with pytest.raises(
    UserError, match=r"train holds 11 images, and 12 copies were .*--sizes=8, which"
  ):
    train(source)
  resize(source, out, sizes=(8,))
  write(out / "8", {"val/a/other.jpg": jpeg(1)})
  with pytest.raises(UserError, match=r"val holds 4 images, and 3 copies were .*--prune, which"):
    train(source)


# Shards


def pack(source, tmp_path, name="set", **options):
  images = open_images(name="", path=str(source), cache=str(tmp_path / "cache"), anew=True)
  return write_shards(images, tmp_path / "sets", name=name, **options)


def test_shards_follow_their_images(tmp_path, source):
  assert pack(source, tmp_path, shards=3).written == 15
  assert pack(source, tmp_path, shards=3).written == 0
  edit(source / "train/a/1.jpg")
  assert pack(source, tmp_path, shards=3).written == 4  # a shard of four
  (source / "train/b/2.jpg").unlink()
  write(source, {"train/c/new.jpg": jpeg(50), "val/a/8.jpg": jpeg(51), "train/a/0.jpg": b"broken"})
  folder = pack(source, tmp_path, shards=3).folder
  (tmp_path / "sets").rename(tmp_path / "before")
  pack(source, tmp_path, shards=3)
  assert tree(tmp_path / "sets") == tree(tmp_path / "before")
  assert (folder / "dataset_info.json").is_file()


def test_shards_that_are_one_less_leave_none_behind(tmp_path, source, monkeypatch):
  monkeypatch.setattr("jaxspeed.data.prepare.shards._IMAGES_A_SHARD", 6)
  assert pack(source, tmp_path).shards == {"train": 2, "validation": 1}
  for name in "abc":
    (source / f"train/{name}/0.jpg").rename(source / f"val/{name}/0.jpg")
    (source / f"train/{name}/1.jpg").unlink()
  write(tmp_path / "sets/set/1.0.0", {"notes.txt": b"mine"})
  folder = pack(source, tmp_path).folder
  names = sorted(path.name for path in folder.iterdir() if "tfrecord" in path.name)
  assert names == ["set-train.tfrecord-00000-of-00001", "set-validation.tfrecord-00000-of-00001"]
  assert (folder / "notes.txt").read_bytes() == b"mine"


def test_shards_that_are_being_packed_again_are_no_set(tmp_path, source, monkeypatch):
  folder = pack(source, tmp_path, shards=3).folder
  edit(source / "train/a/1.jpg")

  def killed(task):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr("jaxspeed.data.prepare.shards._write_shard", killed)
    with pytest.raises(KeyboardInterrupt):
      pack(source, tmp_path, shards=3)
  mend = f"python -m jaxspeed.prepare shards {source} {tmp_path}/sets --name=set --shards=3"
  for path in (folder, folder.parent, tmp_path / "sets"):
    message = (
      f"{folder} holds shards that are not complete: run {mend}, which resumes where it was."
    )
    with pytest.raises(UserError, match=message):
      open_images(name="", path=str(path), cache=str(tmp_path / "cache2"))
  assert pack(source, tmp_path, shards=3).written == 4


def test_a_shard_that_was_cut_off_is_packed_again(tmp_path, source):
  folder = pack(source, tmp_path, shards=3).folder
  before = tree(folder)
  path = folder / "set-train.tfrecord-00001-of-00003"
  path.write_bytes(path.read_bytes()[:-100])
  assert pack(source, tmp_path, shards=3).written == 4
  assert tree(folder) == before


def test_shards_of_another_source_are_refused(tmp_path, source):
  pack(source, tmp_path)
  source.rename(tmp_path / "moved")  # the names are the same
  assert pack(tmp_path / "moved", tmp_path).written == 0
  for names in (NAMES[1:], NAMES):  # other names, and the same
    other = write(tmp_path / f"other{len(names)}", {name: jpeg(7) for name in names})
    with pytest.raises(UserError, match=r"holds shards of other images \(.*moved\): remove it, or"):
      pack(other, tmp_path)


def changes(source):
  """An edited, a removed and a new image."""
  edit(source / "train/a/0.jpg", width=30)
  (source / "train/b/2.jpg").unlink()
  write(source, {"train/c/new.jpg": jpeg(78)})


def test_training_refuses_shards_whose_images_have_changed(tmp_path, source):
  write(source, {"train/a/bad.jpg": b"no image"})
  folder = pack(source, tmp_path, shards=2).folder
  for path in (folder, tmp_path / "sets"):
    assert train(source, path=str(path), sides=(0,)) == ()
  changes(source)
  mend = f"python -m jaxspeed.prepare shards {source} {tmp_path}/sets --name=set --shards=2"
  with pytest.raises(UserError) as refused:
    train(source, path=str(tmp_path / "sets"), sides=(0,))
  assert str(refused.value) == (
    f"the shards in {folder} do not fit the images in {source}: 1 new (train/c/new.jpg); 1 changed "
    f"(train/a/0.jpg); 1 removed (train/b/2.jpg); run {mend}."
  )
  done = command(*mend.split()[2].split(".")[1:], *mend.split()[3:], "--workers=1")
  assert done.returncode == 0, done
  assert train(source, path=str(folder), sides=(0,)) == ()
  write(source, {"train/a/bad.jpg": jpeg(79)})  # mended
  with pytest.raises(UserError, match=r": 1 changed \(train/a/bad.jpg\); run"):
    train(source, path=str(folder), sides=(0,))
  source.rename(tmp_path / "away")  # the shards stand alone
  assert train(tmp_path / "away", path=str(folder), sides=(0,)) == ()


def test_to_tune_only_the_training_shards_are_compared(tmp_path, source):
  folder = pack(source, tmp_path).folder
  (source / "val/b/9.jpg").unlink()
  config = {"path": str(folder), "copies": "", "classes": 3, "synthetic": False, "name": "set"}
  config["hold_out"] = 0.1
  data = ConfigDict(config | {"cache": str(tmp_path / "cache")})
  open_sets(ConfigDict({"tune_on": "validation", "data": data}), [Phase(0)])
  edit(source / "train/b/1.jpg")
  with pytest.raises(UserError, match=r"1 changed \(train/b/1.jpg\)"):
    open_sets(ConfigDict({"tune_on": "validation", "data": data}), [Phase(0)])


def test_shards_stand_alone_where_a_disk_is_not_mounted(tmp_path, source):
  folder = pack(source, tmp_path).folder
  (source / "val").rename(source / "validation")
  with pytest.raises(UserError, match=r": 3 removed .val/a/9.jpg, val/b/9.jpg, val/c/9.jpg.; run"):
    train(source, path=str(folder), sides=(0,))
  source.rename(tmp_path / "away")
  source.mkdir()
  assert train(tmp_path / "away", path=str(folder), sides=(0,)) == ()


def test_a_byte_that_changed_in_a_shard_is_found_before_training(tmp_path, source):
  path = pack(source, tmp_path).folder / "set-train.tfrecord-00000-of-00001"
  content = bytearray(path.read_bytes())
  content[-100] ^= 1
  path.write_bytes(content)
  message = f"{path} is damaged: record 11 does not fit its checksum; remove it, and"
  with pytest.raises(UserError, match=message):
    train(source, path=str(path.parent), sides=(0,))
  path.unlink()
  assert pack(source, tmp_path).written == 12
  assert train(source, path=str(path.parent), sides=(0,)) == ()


def test_two_classes_of_one_name_are_refused(tmp_path, source):
  folder = pack(source, tmp_path).folder
  (folder / "label.labels.txt").write_text("a\nb\na\n")
  with pytest.raises(UserError, match="1.0.0 has two classes of the name a: correct its list"):
    train(source, path=str(folder), sides=(0,))


def test_shards_of_a_folder_without_splits_follow_it(tmp_path, source):
  flat = source / "train"
  folder = pack(flat, tmp_path).folder
  assert train(source, path=str(folder), sides=(0,)) == ()
  (flat / "a/0.jpg").rename(flat / "a/7.jpg")
  with pytest.raises(UserError, match=r": 1 new \(a/7.jpg\); 1 removed \(a/0.jpg\); run"):
    train(source, path=str(folder), sides=(0,))


def test_shards_of_copies_follow_the_originals(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  folder = pack(out / "8", tmp_path).folder
  assert train(source, path=str(folder), sides=(0,)) == ()
  edit(source / "train/a/0.jpg")
  with pytest.raises(UserError, match=f"{out}/8 does not fit its originals .* --sizes=8\\."):
    train(source, path=str(folder), sides=(0,))
  resize(source, out, sizes=(8,))
  with pytest.raises(UserError, match="the shards in .* do not fit the images in .*/8: 1 changed"):
    train(source, path=str(folder), sides=(0,))
  pack(out / "8", tmp_path)
  assert train(source, path=str(folder), sides=(0,)) == ()


def test_a_shard_without_its_record_is_named(tmp_path, source):
  folder = pack(source, tmp_path).folder
  record = folder / ".jaxspeed/originals/set-train.tfrecord-00000-of-00001"
  record.write_text("{")
  with pytest.raises(UserError, match=f"{record} is missing or damaged: run .* --name=set\\."):
    train(source, path=str(folder), sides=(0,))


@pytest.mark.parametrize("name", ["a/\0.jpg", "a/\ud800.jpg"])
def test_a_name_that_no_file_can_have_is_of_no_image(tmp_path, source, name):
  folder = pack(source, tmp_path).folder
  record = folder / ".jaxspeed/originals/set-train.tfrecord-00000-of-00001"
  stored = json.loads(record.read_text())
  stored["images"][0][0] = name
  record.write_text(json.dumps(stored))
  with pytest.raises(UserError, match="do not fit the images in .* 1 removed .*; run "):
    train(source, path=str(folder), sides=(0,))


# The commands


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
