"""Resized copies follow their originals, and training refuses those that do not."""

import os
import re

import numpy as np
import pytest
from edited_images import NAMES, Phase, edit, fresh, jpeg, train, tree, write
from in_process import command, mistake
from ml_collections import ConfigDict

from jaxspeed.data.disk.sets import open_sets
from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.prepare import resize as resize_module
from jaxspeed.data.prepare.resize import resize
from jaxspeed.errors import UserError


def copies_in(root):
  return {name: content for name, content in tree(root).items() if ".jaxspeed" not in name}


@pytest.fixture
def out(tmp_path, source):
  """Copies of 8 pixels."""
  resize(source, tmp_path / "set-sz", sizes=(8,))
  return tmp_path / "set-sz"


def test_copies_of_new_and_edited_images_are_made(tmp_path, source, out):
  resize(source, out, sizes=(8, 16))
  edit(source / "train/a/1.jpg")
  write(source, {"train/c/new.jpg": jpeg(50)})
  assert resize(source, out, sizes=(8, 16)).read == 2
  assert tree(out) == fresh(source, tmp_path)
  assert resize(source, out, sizes=(8, 16)).read == 0


def test_a_time_in_the_future_or_in_whole_seconds_is_no_edit(source, out):
  """As zip files of another time zone have it, and archives of copies."""
  far = 2**32 * 10**9
  os.utime(source / "train/a/0.jpg", ns=(far, far))
  assert resize(source, out, sizes=(8,)).read == 1
  for path in out.rglob("*.jpg"):
    second = path.stat().st_mtime_ns // 10**9 * 10**9
    os.utime(path, ns=(second, second))
  assert resize(source, out, sizes=(8,)).read == 0
  assert train(source) == ()


def test_an_image_that_is_edited_while_it_is_read_is_noticed(source, out, monkeypatch):
  edit(source / "train/a/0.jpg")

  def slow(encoded, *arguments, real=resize_module.make_copies, **options):
    if encoded == (source / "train/a/0.jpg").read_bytes():
      edit(source / "train/a/0.jpg", seed=100)
    return real(encoded, *arguments, **options)

  with monkeypatch.context() as patch:
    patch.setattr(resize_module, "make_copies", slow)
    assert resize(source, out, sizes=(8,)).read == 1
  with pytest.raises(UserError, match=r"1 of 15 sampled images have changed \(train/a/0.jpg\)"):
    train(source)
  assert resize(source, out, sizes=(8,)).read == 1


def added(source):
  write(source, {"train/c/new.jpg": jpeg(78)})


def renamed(source):
  (source / "train/b/1.jpg").rename(source / "train/b/renamed.jpg")


def removed(source):
  (source / "train/b/2.jpg").unlink()


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (lambda source: edit(source / "train/a/0.jpg"), r"have changed \(train/a/0.jpg\)"),
    (added, "set/train held 12 images then, and now 13"),
    (renamed, "set/train held 12 images then, and now others"),
    (removed, "set/train held 12 images then, and now 11"),
  ],
)
def test_a_difference_is_refused_with_the_command_that_mends_it(
  tmp_path, source, out, change, words
):
  resize(source, out, sizes=(16,))
  resize(source, out, sizes=(12,), quality=80)
  assert train(source, sides=(8, 16, 12, 0)) == ()
  change(source)
  mend = f"python -m jaxspeed.prepare resize {source} {out} --sizes=8,16"
  with pytest.raises(UserError) as refused:
    train(source, sides=(16,))
  assert re.search(words, str(refused.value)) and str(refused.value).endswith(f"; run {mend}.")
  for path in (source, out / "8"):  # the copies as such, or as a set of their own
    with pytest.raises(UserError, match="/8 does not fit"):
      train(path, sides=(8,) if path == source else (0,), copies=out)
  done = command(*mend.split()[2].split(".")[1:], *mend.split()[3:], "--workers=1")
  if change in (renamed, removed):
    assert done.returncode == 2 and "--prune removes them, or move" in done.stderr, done
    done = command(*mend.split()[2].split(".")[1:], *mend.split()[3:], "--workers=1", "--prune")
  assert done.returncode == 0, done
  assert train(source, sides=(8, 16)) == ()
  with pytest.raises(UserError, match=f"/12 does not .*{out} --sizes=12 --quality=80\\."):
    train(source, sides=(8, 12, 16))
  source.rename(tmp_path / "away")  # the copies stand alone
  assert train(source, copies=out) == ()
  assert train(out / "8", sides=(0,)) == ()


def test_only_a_sample_of_the_times_is_compared(source, out, monkeypatch):
  monkeypatch.setattr("jaxspeed.data.disk.prepared._SAMPLE", 5)
  for name in NAMES:
    edit(source / name)
  with pytest.raises(UserError, match="5 of 5 sampled images have changed"):
    train(source)


def test_to_tune_only_the_training_images_are_compared(tmp_path, source, out):
  edit(source / "val/a/9.jpg")
  (source / "val/b/9.jpg").unlink()
  config = {"path": str(source), "copies": "", "classes": 3, "synthetic": False, "name": "set"}
  config["hold_out"] = 0.1
  data = ConfigDict(config | {"cache": str(tmp_path / "cache")})
  open_sets(ConfigDict({"tune_on": "validation", "data": data}), [Phase(8)])


def test_copies_that_no_phase_reads_are_told(tmp_path, source, out):
  (note,) = train(source, sides=(0,))
  assert note == (
    f"{tmp_path}/set-sz holds resized copies (8) that this recipe does not read: name one of "
    "these folders in --config.data.path, or, for a recipe with phases, all in "
    "--config.phases.copies"
  )
  assert train(tmp_path / "set-sz/8", sides=(0,)) == ()


def test_images_without_originals_are_removed_only_if_asked(tmp_path, source, out):
  for path in (*source.glob("train/c/*"), *source.glob("val/c/*"), source / "train/a/1.jpg"):
    path.unlink()
  (source / "train/c").rmdir(), (source / "val/c").rmdir()
  write(out / "8", {"train/a/notes.txt": b"mine", "train/a/.hidden.jpg": b"mine"})
  (tmp_path / "elsewhere.jpg").write_bytes(jpeg(2))
  (out / "8/train/c/0.jpg").unlink()
  (out / "8/train/c/0.jpg").symlink_to(tmp_path / "elsewhere.jpg")
  with pytest.raises(
    UserError,
    match=r"8 holds 6 images without originals .*\(train/a/1.jpg, .*: --prune removes them",
  ):
    resize(source, out, sizes=(8,))
  with pytest.raises(UserError, match="8 holds resized copies that are not complete: run "):
    train(source, classes=2)
  with pytest.raises(UserError, match=r"holds 1 images .*train/c/0.jpg.*remove these links"):
    resize(source, out, sizes=(8,), prune=True)
  assert (out / "8/train/a/notes.txt").exists() and (tmp_path / "elsewhere.jpg").exists()
  (out / "8/train/c/0.jpg").unlink()
  for name in ("notes.txt", ".hidden.jpg"):
    (out / "8/train/a" / name).unlink()
  assert resize(source, out, sizes=(8,), prune=True).pruned == 0
  assert tree(out) == fresh(source, tmp_path, sizes=(8,))
  assert not (out / "8/train/c").exists() and train(source, classes=2) == ()


def test_nothing_behind_a_link_is_removed_or_written(tmp_path, source, out):
  (out / "8/train/a").rename(tmp_path / "moved")
  (out / "8/train/a").symlink_to(tmp_path / "moved")
  (source / "train/a/1.jpg").unlink()
  with pytest.raises(UserError, match="train/a/1.jpg.*: remove these links yourself"):
    resize(source, out, sizes=(8,), prune=True)
  (tmp_path / "moved/1.jpg").unlink()
  before = tree(source)
  for target in ("train/b", "train/c"):  # whose images have the same names
    edit(source / "train/b/0.jpg")
    before = tree(source)
    (out / "8/train/b").rename(tmp_path / f"moved_{target[-1]}")
    (out / "8/train/b").symlink_to(source / target)
    with pytest.raises(UserError, match=f"train/b leads to .*set/{target}, among the originals"):
      resize(source, out, sizes=(8,))
    (out / "8/train/b").unlink()
    (tmp_path / f"moved_{target[-1]}").rename(out / "8/train/b")
  (tmp_path / "linked").mkdir()
  (tmp_path / "linked/8").symlink_to(source / "val")
  with pytest.raises(UserError, match="linked/8 lies inside .*set, whose images are read"):
    resize(source, tmp_path / "linked", sizes=(8,))
  assert tree(source) == before


def test_what_stands_in_the_place_of_a_copy_is_replaced_or_named(source, out):
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


def test_the_copy_of_an_image_that_is_now_broken_goes(source, out):
  edit(source / "train/a/1.jpg")
  time = (source / "train/a/1.jpg").stat().st_mtime_ns
  write(source, {"train/a/1.jpg": b"broken"})
  os.utime(source / "train/a/1.jpg", ns=(time, time))
  done = resize(source, out, sizes=(8,))
  assert [each.name for each in done.broken] == ["train/a/1.jpg"]
  assert not (out / "8/train/a/1.jpg").exists()
  assert train(source) == ()  # what was broken and still is, is no difference
  edit(source / "train/a/1.jpg")
  with pytest.raises(UserError, match=r"changed \(train/a/1.jpg\); run python -m jaxspeed.prepare"):
    train(source)


@pytest.mark.parametrize(
  "content",
  ["null", "{}", '{"quality": -5}', '{"quality": 1e308}', '{"quality": "x"}', '{"quality": 1e999}',
   '{"quality": 75, "images": 3}', '{"quality": 75, "originals": {"train": 1}}', "\xff"],
)  # fmt: skip
def test_damaged_settings_are_one_short_sentence(source, out, content):
  path = out / "8/.jaxspeed/resize.json"
  path.write_text(content)
  with pytest.raises(UserError, match=rf"^{path} is damaged( \([^)]*\))?: remove {out}/8 a"):
    train(source)


def test_copies_of_an_older_version_are_not_made_again(source, out):
  (out / "8/.jaxspeed/resize.json").write_text('{"quality": 75}')
  with pytest.raises(UserError, match=rf"not complete: run .* resize {source} {out} --sizes=8,"):
    train(source)
  assert resize(source, out, sizes=(8,)).read == 0 and train(source) == ()


def test_images_of_others_are_not_written_over(tmp_path, source):
  write(tmp_path / "set-sz/8", {name: jpeg(i) for i, name in enumerate(NAMES)})
  before = tree(tmp_path / "set-sz")
  with pytest.raises(UserError, match="8 holds images that prepare resize did not write"):
    resize(source, tmp_path / "set-sz", sizes=(8,))
  assert tree(tmp_path / "set-sz") == before
  (note,) = train(source)
  assert "was not written by prepare resize" in note


def test_copies_of_another_source_stay_what_they_are(tmp_path, source, out):
  before = tree(out)
  other = write(tmp_path / "other", {name: jpeg(i) for i, name in enumerate(NAMES[1:])})
  with pytest.raises(UserError, match="/8 holds copies of .*/set, not of .*/other: remove it, or"):
    resize(other, out, sizes=(8,), prune=True)
  assert tree(out) == before
  source.rename(tmp_path / "moved")
  assert resize(tmp_path / "moved", out, sizes=(8,)).read == 0


def test_a_kill_between_leaves_no_lie(tmp_path, source, out, monkeypatch):
  """Whatever write is the last, the folder is refused, and the command ends in the same bytes."""
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
      try:
        resize(source, out, sizes=(8,), prune=True)
        break
      except KeyboardInterrupt:
        pass
    for path, sides in ((source, (8,)), (out / "8", (0,))):
      with pytest.raises(UserError, match="resize"):
        train(path, sides=sides, copies=out)
  assert 3 < last < 99
  assert tree(out) == expected and train(source) == ()


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


def test_copies_that_were_taken_away_or_added_are_noticed(source, out):
  (out / "8/train/a/0.jpg").unlink()
  with pytest.raises(UserError, match=r"train holds 11 images, and 12 copies were .*--sizes=8, wh"):
    train(source)
  assert resize(source, out, sizes=(8,)).read == 1
  write(out / "8", {"val/a/other.jpg": jpeg(1)})
  with pytest.raises(UserError, match=r"val holds 4 images, and 3 copies were .* names the others"):
    train(source)


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
  assert done.returncode == 2 and "8/train/b holds no image" in done.stderr
  assert len(list((out / "8").rglob("*.jpg"))) == 11
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


def test_rectangles_are_tried_in_batches_that_the_set_fills(source):
  done = command("prepare", "index", str(source), "--size=8")
  assert "in batches of 3\n" in done.stdout, done
  assert np.float64(done.stdout.split("squares: ")[1].split("; ")[1].split()[0]) == 1


def test_flags_of_other_commands_are_refused(source):
  assert "--prune=True has no effect with index" in mistake(
    "prepare", "index", str(source), "--prune"
  )
