"""Training refuses resized copies that do not follow their originals."""

import pytest
from edited_images import Phase, edit, jpeg, train, tree, write
from in_process import command
from ml_collections import ConfigDict

from jaxspeed.data.disk.imageset import open_images
from jaxspeed.data.disk.sets import open_sets
from jaxspeed.data.prepare import resize as resize_module
from jaxspeed.data.prepare.resize import resize
from jaxspeed.errors import UserError


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
