"""Who owns a run's folder, what is refused before anything is written, and what is left behind."""

import os
import pathlib

import pytest
from toy import contents
from toy import saving_digits as digits

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.signals import Stopped
from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.run import folder as folder_lib
from jaxspeed.run import session
from jaxspeed.run.folder import look, make, taken
from jaxspeed.run.session import train

LOCKS = {".owner.lock", "owner.json", "run.lock"}


# Made


def test_a_folder_is_made_with_its_parents_and_may_exist(tmp_path):
  folder = tmp_path / "a" / "b"
  for _ in range(2):
    make(folder)
    assert list(folder.iterdir()) == []


def test_a_file_or_what_lies_under_one_is_no_folder(tmp_path):
  (tmp_path / "file").write_text("precious")
  for path in (tmp_path / "file", tmp_path / "file" / "run"):
    with pytest.raises(UserError, match=f"workdir {path} cannot be created or written"):
      with taken(path):
        pass
  assert contents(tmp_path) == {"file": b"precious"}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc, which nobody can write")
@pytest.mark.parametrize("path", ["/proc", "/proc/run"])
def test_a_folder_that_nobody_can_write(path):
  with pytest.raises(UserError, match=f"workdir {path} cannot be created or written"):
    make(pathlib.Path(path))


@pytest.mark.parametrize(
  "workdir, words",
  [
    ("gs://bucket/run", "gs://bucket/run is no local folder"),
    ("a\udcff", "utf-8. codec"),
    ("a/" + "b" * 300, "cannot be created or written .File name too long"),
    ("a/\0b", "cannot be created or written .*null"),
  ],
)
def test_names_that_no_folder_can_have(tmp_path, monkeypatch, workdir, words):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=words):
    with taken(workdir):
      pass
  assert set(contents(tmp_path)) <= {"a"}


# Not ours


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
  with pytest.raises(UserError, match="config.json:? "):
    with taken(tmp_path):
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


# Refused


def test_a_refused_start_leaves_no_folder_behind(tmp_path):
  with pytest.raises(UserError), taken(folder := tmp_path / "a" / "b"):
    (folder / "config.json").write_text("{}")
    (folder / "run_000").mkdir()
    (folder / "run_000" / "config.json").write_text("{}")
    (folder / "metrics.jsonl").touch()
    raise UserError("no")
  assert contents(tmp_path) == {"a": None}


def test_what_was_there_before_a_refused_start_stays(tmp_path):
  (tmp_path / "a").mkdir()
  with pytest.raises(UserError), taken(tmp_path / "a"):
    raise UserError("no")
  assert contents(tmp_path) == {"a": None}


def test_what_another_start_wrote_meanwhile_stays(tmp_path, monkeypatch):
  def faster(path, **options):
    (path / "config.json").write_text((run / "config.json").read_text())
    return FolderLock(path, **options)

  with taken(run := tmp_path / "run"):
    stored.save(digits(), run / "config.json")
  monkeypatch.setattr(folder_lib, "FolderLock", faster)
  with pytest.raises(UserError, match="no"), taken(tmp_path / "a"):
    raise UserError("no")
  assert (tmp_path / "a" / "config.json").exists()


def test_a_run_with_something_to_lose_or_that_was_stopped_stays(tmp_path):
  with pytest.raises(UserError), taken(folder := tmp_path / "a"):
    (folder / "metrics.jsonl").write_text("{}")
    raise UserError("no")
  assert set(os.listdir(folder)) == LOCKS | {"metrics.jsonl"}
  with pytest.raises(Stopped), taken(tmp_path / "b"):
    raise Stopped("saved", 0)
  assert set(os.listdir(tmp_path / "b")) == LOCKS


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
