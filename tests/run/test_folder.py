"""Who owns a run's folder, what is refused before anything is written, and what is left behind."""

import os

import pytest
from toy import contents
from toy import saving_digits as digits

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.signals import Stopped
from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.run import folder as folder_lib
from jaxspeed.run import session
from jaxspeed.run.folder import look, taken
from jaxspeed.run.session import train

LOCKS = {".owner.lock", "owner.json", "run.lock"}
NOWHERE = "cannot be created or written"


@pytest.mark.parametrize(
  "workdir, words",
  [
    ("file", NOWHERE),
    ("file/run", NOWHERE),
    ("/proc/run", NOWHERE),
    ("gs://bucket/run", "gs://bucket/run is no local folder"),
    ("a\udcff", "utf-8. codec"),
    ("a/" + "b" * 300, f"{NOWHERE} .File name too long"),
    ("a/\0b", f"{NOWHERE} .*null"),
  ],
)
def test_a_place_for_no_folder_is_refused(tmp_path, monkeypatch, workdir, words):
  if workdir.startswith("/proc") and not os.path.isdir("/proc/self"):
    pytest.skip("needs /proc, which nobody can write")
  monkeypatch.chdir(tmp_path)
  (tmp_path / "file").write_text("precious")
  with pytest.raises(UserError, match=words), taken(workdir):
    pass
  assert contents(tmp_path) in ({"file": b"precious"}, {"file": b"precious", "a": None})


@pytest.mark.parametrize(
  "names, words",
  [
    (["metrics.jsonl"], "(metrics.jsonl)"),
    (["classes.txt", "images.npy", "labels.npy"], "(classes.txt, images.npy, labels.npy)"),
    (["a", "b", "c", "d"], "(a, b, c, ...)"),
    (["train/cat/1.jpg"], "(train)"),
    (["checkpoints/15/manifest.json"], "(checkpoints)"),
    (["owner.json", "notes.txt"], "(notes.txt)"),
  ],
)
def test_a_folder_that_holds_something_else_is_refused_as_it_is(tmp_path, names, words):
  for name in names:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("precious")
  before = contents(tmp_path)
  with pytest.raises(UserError) as error:
    train(digits(), str(tmp_path))
  assert str(error.value).startswith(f"{tmp_path} is not empty and holds no run")
  assert words in str(error.value)
  assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ['{"model_type": "resnet", "data": 3}', "[]", '{"data"'])
def test_a_config_of_something_else_is_refused_as_it_is(tmp_path, text):
  (tmp_path / "config.json").write_text(text)
  with pytest.raises(UserError, match="config.json:? "), taken(tmp_path):
    pass
  assert contents(tmp_path) == {"config.json": text.encode()}


@pytest.mark.parametrize(
  "names", [[], [".owner.lock", "run.lock"], [".owner.lock", ".jaxspeed-0123456789abcdef"]]
)
def test_what_a_killed_start_or_a_new_disk_leaves_is_nobodys(tmp_path, names):
  for name in names:
    (tmp_path / name).touch()
  for name in ("lost+found", "checkpoints"):
    (tmp_path / name).mkdir()
  assert look(tmp_path)
  with taken(tmp_path) as lock:
    assert lock.incarnation == 1


EARLY = ("config.json", "metrics.jsonl", "run_000/config.json")


@pytest.mark.parametrize(
  "was_there, wrote, error, left",
  [
    (False, EARLY, UserError("no"), None),
    (True, (), UserError("no"), set()),
    (False, ("result.json",), UserError("no"), LOCKS | {"result.json"}),
    (False, (), Stopped("saved", 0), LOCKS),
  ],
)
def test_a_refused_start_leaves_what_was_there_or_may_be_lost(
  tmp_path, was_there, wrote, error, left
):
  folder = tmp_path / "b" / "a"
  if was_there:
    folder.mkdir(parents=True)
  with pytest.raises(type(error)), taken(folder):
    for name in wrote:
      (folder / name).parent.mkdir(exist_ok=True)
      (folder / name).write_text("{}" if name != "metrics.jsonl" else "")
    raise error
  assert (set(os.listdir(folder)) if folder.exists() else None) == left


def test_what_another_start_wrote_meanwhile_stays(tmp_path, monkeypatch):
  def faster(path, **options):
    stored.save(digits(), path / "config.json")
    return FolderLock(path, **options)

  monkeypatch.setattr(folder_lib, "FolderLock", faster)
  with pytest.raises(UserError, match="no"), taken(tmp_path / "a"):
    raise UserError("no")
  assert (tmp_path / "a" / "config.json").exists()


def test_a_start_that_is_refused_for_another_one_leaves_that_alone(tmp_path):
  with taken(tmp_path / "a"):
    before = contents(tmp_path)
    with pytest.raises(UserError, match="is in use by start 1"), taken(tmp_path / "a"):
      pass
    assert contents(tmp_path) == before


def test_what_fails_before_the_first_step_leaves_no_folder_behind(tmp_path, monkeypatch):
  monkeypatch.setattr(session, "_ready_feed", lambda *_: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    train(digits(), str(tmp_path / "runs" / "a"))
  assert contents(tmp_path) == {"runs": None}
