"""Shards follow their images, and training refuses those that do not."""

import pytest
from edited_images import NAMES, Phase, changes, edit, jpeg, pack, train, tree, write
from in_process import command
from ml_collections import ConfigDict

from jaxspeed.data.disk.sets import open_sets
from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.prepare.resize import resize
from jaxspeed.errors import UserError


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
  edit(source / "train/a/0.jpg")  # mended: every shard holds other images
  assert pack(source, tmp_path, shards=3).written == 16


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


@pytest.mark.parametrize("renamed", [False, True])
def test_shards_that_are_being_packed_again_are_no_set(tmp_path, source, monkeypatch, renamed):
  folder = pack(source, tmp_path, shards=3).folder
  if renamed:  # then every shard holds other images
    (source / "train/a/1.jpg").rename(source / "train/a/7.jpg")
  edit(source / "train/a/0.jpg")

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
  assert pack(source, tmp_path, shards=3).written == (15 if renamed else 4)


def test_shards_of_another_source_are_refused(tmp_path, source):
  pack(source, tmp_path)
  source.rename(tmp_path / "moved")  # the names are the same
  assert pack(tmp_path / "moved", tmp_path).written == 0
  for names in (NAMES[1:], NAMES):  # other names, and the same
    other = write(tmp_path / f"other{len(names)}", {name: jpeg(7) for name in names})
    with pytest.raises(UserError, match=r"holds shards of other images \(.*moved\): remove it, or"):
      pack(other, tmp_path)


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
    f"{folder} does not fit the images in {source}: {source}/train held 13 images then, and now "
    f"others; run {mend}."
  )
  done = command(*mend.split()[2].split(".")[1:], *mend.split()[3:], "--workers=1")
  assert done.returncode == 0, done
  assert train(source, path=str(folder), sides=(0,)) == ()
  edit(source / "train/a/bad.jpg")  # mended
  with pytest.raises(UserError, match=r"1 of 16 sampled images .*\(train/a/bad.jpg\); run"):
    train(source, path=str(folder), sides=(0,))
  source.rename(tmp_path / "away")  # the shards stand alone
  assert train(tmp_path / "away", path=str(folder), sides=(0,)) == ()


def test_to_tune_only_the_training_images_are_compared(tmp_path, source):
  folder = pack(source, tmp_path).folder
  (source / "val/b/9.jpg").unlink()
  config = {"path": str(folder), "copies": "", "classes": 3, "synthetic": False, "name": "set"}
  config["hold_out"] = 0.1
  data = ConfigDict(config | {"cache": str(tmp_path / "cache")})
  open_sets(ConfigDict({"tune_on": "validation", "data": data}), [Phase(0)])
  edit(source / "train/b/1.jpg")
  with pytest.raises(UserError, match=r"changed \(train/b/1.jpg\)"):
    open_sets(ConfigDict({"tune_on": "validation", "data": data}), [Phase(0)])


def test_shards_stand_alone_where_a_disk_is_not_mounted(tmp_path, source):
  folder = pack(source, tmp_path).folder
  (source / "val").rename(source / "validation")
  with pytest.raises(UserError, match="set/val held 3 images then, and now 0; run"):
    train(source, path=str(folder), sides=(0,))
  source.rename(tmp_path / "away")
  source.mkdir()
  assert train(tmp_path / "away", path=str(folder), sides=(0,)) == ()


def test_a_damaged_shard_is_named_before_training(tmp_path, source):
  path = pack(source, tmp_path).folder / "set-train.tfrecord-00000-of-00001"
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(UserError, match=f"{path} ends in the middle of record 11"):
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
  with pytest.raises(UserError, match="set/train held 12 images then, and now others; run"):
    train(source, path=str(folder), sides=(0,))


def test_shards_of_copies_follow_the_originals(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8,))
  folder = pack(out / "8", tmp_path).folder
  assert train(source, path=str(folder), sides=(0,)) == ()
  edit(source / "train/a/0.jpg")
  with pytest.raises(UserError, match=f"{out}/8 does not fit the images .* --sizes=8\\."):
    train(source, path=str(folder), sides=(0,))
  resize(source, out, sizes=(8,))
  with pytest.raises(UserError, match="1.0.0 does not fit the images in .*/8: 1 of 15 sampled"):
    train(source, path=str(folder), sides=(0,))
  pack(out / "8", tmp_path)
  assert train(source, path=str(folder), sides=(0,)) == ()
