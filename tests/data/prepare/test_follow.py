"""Copies and shards follow their originals, and training refuses those that do not."""

import errno
import json
import os
import re

import pytest
from image_files import NAMES, edit, noise, notes_of_training, pack, tree, write
from in_process import command

from jaxspeed.data.prepare import resize as resize_module
from jaxspeed.data.prepare.resize import resize
from jaxspeed.errors import UserError


class Copies:
  kind = "resize"

  def __init__(self, tmp_path):
    self.out, self.folder = tmp_path / "set-sz", tmp_path / "set-sz/8"
    self.flags = "--sizes=8"

  def make(self, source, **options):
    return resize(source, self.out, sizes=(8,), **options)

  def train(self, source, **data):
    return notes_of_training(source, copies=self.out, **data)


class Shards:
  kind = "shards"

  def __init__(self, tmp_path):
    self.out, self.folder = tmp_path / "sets", tmp_path / "sets/set/1.0.0"
    self.flags = "--name=set --shards=3"

  def make(self, source, shards=3):
    return pack(source, self.out.parent, shards=shards)

  def train(self, source, **data):
    return notes_of_training(source, path=str(self.folder), sides=(0,), **data)


@pytest.fixture(params=[Copies, Shards])
def made(request, tmp_path, source):
  """Copies or shards of `source`."""
  files = request.param(tmp_path)
  assert files.make(source).made == 15
  return files


def mend(made, source):
  """Run the command that a refusal names."""
  words = [made.kind, str(source), str(made.out), *made.flags.split()]
  return f"python -m jaxspeed.prepare {' '.join(words)}", lambda: command(
    "prepare", *words, "--workers=1"
  )


def test_what_is_new_or_edited_is_made_and_nothing_else(tmp_path, source, made):
  assert made.make(source).made == 0
  edit(source / "train/a/1.jpg")
  of_one = 1 if made.kind == "resize" else 4  # a shard of four
  assert made.make(source).made == of_one
  write(source, {"train/c/new.jpg": noise(50)})
  made.make(source)
  for content, broken in ((b"broken", ["train/a/0.jpg"]), (noise(1), [])):
    before = (source / "train/a/0.jpg").stat().st_mtime_ns
    write(source, {"train/a/0.jpg": content})
    os.utime(source / "train/a/0.jpg", ns=(before + 2 * 10**9, before + 2 * 10**9))
    with pytest.raises(UserError, match=r"changed \(train/a/0.jpg\); run python -m jaxspeed"):
      made.train(source)
    done = made.make(source)
    assert [name for name, _ in done.broken] == broken
    assert done.made == 1 - len(broken) if made.kind == "resize" else 0 < done.made < 6
    assert made.train(source) == ()
    found = tree(made.out)
    made.out.rename(tmp_path / f"before {len(broken)}")
    made.make(source)
    assert tree(made.out) == found


def test_a_time_in_the_future_or_in_whole_seconds_is_no_edit(source, made):
  """As zip files of another time zone have it, and archives of copies."""
  os.utime(source / "train/a/0.jpg", ns=(2**32 * 10**9, 2**32 * 10**9))
  assert made.make(source).made > 0
  for path in made.out.rglob("*.*"):
    second = path.stat().st_mtime_ns // 10**9 * 10**9
    os.utime(path, ns=(second, second))
  assert made.make(source).made == 0 and made.train(source) == ()


def test_an_image_that_is_edited_while_it_is_read_is_noticed(tmp_path, source, monkeypatch):
  made = Copies(tmp_path)

  def slow(encoded, *arguments, real=resize_module.make_copies, **options):
    if encoded == (source / "train/a/0.jpg").read_bytes():
      edit(source / "train/a/0.jpg", seed=100)
    return real(encoded, *arguments, **options)

  with monkeypatch.context() as patch:
    patch.setattr(resize_module, "make_copies", slow)
    made.make(source)
  with pytest.raises(UserError, match=r"1 of 15 sampled images have changed \(train/a/0.jpg\)"):
    made.train(source)
  assert made.make(source).made == 1


CHANGES = {
  "edited": (lambda source: edit(source / "train/a/0.jpg"), r"have changed \(train/a/0.jpg\)"),
  "added": (
    lambda source: write(source, {"train/c/new.jpg": noise(78)}),
    "there were 15 then, and now 16",
  ),
  "renamed": (
    lambda source: (source / "train/b/1.jpg").rename(source / "train/b/renamed.jpg"),
    "there were images of other names",
  ),
  "removed": (
    lambda source: (source / "train/b/2.jpg").unlink(),
    "there were 15 then, and now 14",
  ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_difference_is_refused_with_the_command_that_mends_it(tmp_path, source, made, change):
  apply, words = CHANGES[change]
  assert made.train(source) == ()
  apply(source)
  sentence, run = mend(made, source)
  with pytest.raises(UserError) as refused:
    made.train(source)
  assert re.search(words, str(refused.value)) and str(refused.value).endswith(f"; run {sentence}.")
  done = run()
  if made.kind == "resize" and change in ("renamed", "removed"):
    name = f"train/b/{1 if change == 'renamed' else 2}.jpg"
    told = f"8 holds 1 images without originals in the source ({name}): remove them or move"
    assert done.returncode == 2 and told in done.stderr, done
    with pytest.raises(UserError, match="8 holds resized copies that are not complete: run "):
      made.train(source)
    (made.folder / name).unlink()
    done = run()
  assert done.returncode == 0, done
  assert made.train(source) == ()


def test_copies_and_shards_stand_alone(tmp_path, source, made):
  (source / "val").rename(source / "validation")
  with pytest.raises(UserError, match="does not fit the images .*: there were images of other nam"):
    made.train(source)
  source.rename(tmp_path / "away")
  assert notes_of_training(tmp_path / "away", path=str(made.folder), sides=(0,)) == ()
  source.mkdir()  # a disk that is not mounted
  assert notes_of_training(tmp_path / "away", path=str(made.folder), sides=(0,)) == ()


def test_only_a_sample_of_the_times_is_compared(source, made, monkeypatch):
  monkeypatch.setattr("jaxspeed.data.disk.index._SAMPLE", 5)
  for name in NAMES:
    edit(source / name)
  with pytest.raises(UserError, match="5 of 5 sampled images have changed"):
    made.train(source, tune_on="validation")


def test_a_damaged_description_is_one_short_sentence(source, made):
  path = made.folder / ".jaxspeed/prepared.json"
  whole = json.loads(path.read_text())
  damages = ({"newest": "now"}, {"newest": 1e308}, {"kind": "x"}, {"flags": [3]}, {"images": 3})
  for content in (*(json.dumps(whole | damage) for damage in damages), "null", "{}", "\xff"):
    path.write_text(content)
    for open_it in (made.train, made.make):
      with pytest.raises(UserError, match=rf"^{path} cannot be used .*remove {made.folder} and ma"):
        open_it(source)
  path.unlink()
  os.mkfifo(path)
  with pytest.raises(UserError, match="it is no regular file"):
    made.make(source)


def test_folders_of_others_are_not_written_over(tmp_path, source, made):
  other = write(tmp_path / "other", {name: noise(7) for name in NAMES})
  before = tree(made.out)
  held = rf"holds what python -m jaxspeed.prepare {made.kind} \S*/"
  with pytest.raises(UserError, match=rf"{held}set .* makes: remove it, or name another folder"):
    made.make(other)
  source.rename(tmp_path / "moved")  # the names are the same
  assert made.make(tmp_path / "moved").made == 0
  (tmp_path / "moved").rename(tmp_path / "moved again")
  (other / NAMES[0]).unlink()
  with pytest.raises(UserError, match=f"{held}moved "):
    made.make(other)
  strange = made.folder / ".jaxspeed/prepared.json"
  strange.unlink()
  with pytest.raises(UserError, match=f"holds files that prepare {made.kind} did not write"):
    made.make(tmp_path / "moved again")
  after = tree(made.out)
  assert {name: before[name] for name in after if ".json" not in name}.items() <= after.items()


def test_files_of_one_folder_are_made_in_one_way(source, made):
  options = {"resize": {"quality": 80}, "shards": {"shards": 2}}[made.kind]
  with pytest.raises(UserError, match=f"holds what {mend(made, source)[0]} makes: remove it"):
    made.make(source, **options)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
def test_a_kill_or_a_full_disk_leaves_no_lie(tmp_path, source, made, monkeypatch, fault):
  """Whatever write is the last, the folder is refused, and the command ends in the same bytes."""
  half = made.folder / "train" if made.kind == "resize" else made.folder
  write(half, {".jaxspeed-4711": b"what a kill leaves of a file"})
  edit(source / "train/a/1.jpg", seed=70)
  edit(source / "train/c/1.jpg", seed=71)
  write(source, {"val/b/8.jpg": noise(72)})
  real, left = os.replace, [0]

  def replace(*names):
    left[0] -= 1
    if left[0] < 0:
      raise fault
    return real(*names)

  sentence = mend(made, source)[0]
  for last in range(100):
    left[0] = last
    with monkeypatch.context() as patch:
      patch.setattr(os, "replace", replace)
      try:
        made.make(source)
        break
      except (KeyboardInterrupt, UserError) as error:
        told = str(error)
        assert "written (No space left): " in told or not told
    paths = (made.folder,) if made.kind == "resize" else (made.folder, *made.folder.parents[:2])
    for path in paths:
      with pytest.raises(UserError, match=re.escape(sentence)):
        notes_of_training(source, path=str(path), sides=(0,))
    with pytest.raises(UserError, match=re.escape(sentence)):
      made.train(source)
  assert 3 < last < 99
  found = tree(made.out)
  assert made.train(source) == ()
  made.out.rename(tmp_path / "before")
  made.make(source)
  assert tree(made.out) == found


def test_copies_of_several_sizes_are_named_together(tmp_path, source):
  out = tmp_path / "set-sz"
  resize(source, out, sizes=(8, 16), quality=80)
  edit(source / "train/a/0.jpg")
  for path, sides in ((source, (16,)), (out / "8", (0,))):
    with pytest.raises(UserError, match=rf"{source} {out} --sizes=8,16 --quality=80\."):
      notes_of_training(path, copies=out, sides=sides)
  resize(source, out, sizes=(8, 16), quality=80)
  assert notes_of_training(source, copies=out, sides=(8, 16)) == ()
