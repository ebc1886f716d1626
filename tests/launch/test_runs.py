"""A run's folder: run.json, its jobs in order, and its lock."""

import json
import os
import pathlib
import socket
import threading

import pytest
from fake_jobs import lock_elsewhere, write_job, write_run

from jaxspeed.errors import UserError
from jaxspeed.launch import runs


@pytest.fixture
def holder(tmp_path):
  """Another process that holds the lock of the run `tmp_path`/run."""
  with lock_elsewhere(write_run(tmp_path) / ".launch" / "lock") as process:
    yield process


def test_a_run_is_read_as_it_was_created(tmp_path):
  assert runs.create_run(tmp_path / "b" / "a")
  text = (tmp_path / "b" / "a" / "run.json").read_text()
  found = json.loads(text)
  assert (found["name"], found["host"]) == ("a", socket.gethostname())
  assert (tmp_path / "b" / "a" / ".launch").is_dir()
  assert not runs.create_run(tmp_path / "b" / "a")
  assert (tmp_path / "b" / "a" / "run.json").read_text() == text


def test_a_run_without_jobs_is_removed_but_nothing_else(tmp_path):
  runs.create_run(tmp_path / "a")
  runs.remove_run(tmp_path / "a")
  assert not (tmp_path / "a").exists()
  runs.create_run(tmp_path / "a")
  (tmp_path / "a" / "notes").touch()
  runs.remove_run(tmp_path / "a")
  assert [path.name for path in (tmp_path / "a").iterdir()] == ["notes"]


def test_a_folder_of_other_things_is_left_alone(tmp_path):
  (tmp_path / "notes.txt").touch()
  with pytest.raises(
    UserError, match=r"is not empty and holds no run .*\(notes.txt\): choose anoth"
  ):
    runs.create_run(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
  # A submission that died before it wrote run.json may be repeated.
  (tmp_path / "a" / ".launch").mkdir(parents=True)
  runs.create_run(tmp_path / "a")


def test_a_folder_that_cannot_be_created(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(
    UserError, match="file/run cannot be created or written .Not a directory.*root"
  ):
    runs.create_run(tmp_path / "file" / "run")


def test_a_user_without_a_name(tmp_path, monkeypatch):
  def nobody():
    raise KeyError("uid not found")

  monkeypatch.setattr(runs.getpass, "getuser", nobody)
  runs.create_run(tmp_path / "a")
  assert json.loads((tmp_path / "a" / "run.json").read_text())["user"] == str(os.getuid())


@pytest.mark.parametrize(
  "text, reason",
  [("", "it is no JSON"), ("{}", "format: Field required"), ("[]", "Input should be an object")],
)
def test_a_damaged_run(tmp_path, text, reason):
  folder = write_run(tmp_path)
  (folder / "run.json").write_text(text)
  with pytest.raises(UserError, match=rf"run.json cannot be used \({reason}.*put the file back"):
    runs.read_run(folder)


@pytest.mark.parametrize("name, value", [("format", 1), ("created", "now")])
def test_a_value_of_a_run_that_is_not_valid(tmp_path, name, value):
  folder = write_run(tmp_path, **{name: value})
  with pytest.raises(UserError, match=rf"run.json cannot be used \({name}"):
    runs.read_run(folder)


def test_no_run(tmp_path):
  with pytest.raises(UserError, match="holds no run of jaxspeed.launch: name the folder ROOT/RUN"):
    runs.read_run(tmp_path)
  with pytest.raises(UserError, match="x cannot be read .No such file or directory"):
    runs.read_jobs(tmp_path / "x")


def test_a_run_of_a_later_version(tmp_path):
  runs.read_run(write_run(tmp_path, later=1))


def test_jobs_come_in_their_order(tmp_path):
  folder = write_run(tmp_path)
  for name, index in (("a", 2), ("b", 0), ("d", 1), ("c", 1)):
    write_job(folder, name, index=index)
  (folder / "notes").mkdir()
  (folder / "e" / "launch").mkdir(parents=True)
  assert [facts.job.name for facts in runs.read_jobs(folder)] == ["b", "c", "d", "a"]


def test_a_second_process_is_refused_and_told_who_holds_the_run(holder, tmp_path):
  folder = tmp_path / "run"
  (folder / ".launch" / "lock").write_text("ann (process 77 on login1)")
  with pytest.raises(UserError) as error, runs.lock_run(folder):
    pytest.fail("the lock was had twice")
  expected = "is being submitted or changed by ann (process 77 on login1): wait for it."
  assert str(error.value) == f"{folder} {expected}"
  (folder / ".launch" / "lock").write_bytes(b"\xff")
  with pytest.raises(UserError, match="changed by another process: wait"), runs.lock_run(folder):
    pytest.fail("the lock was had twice")


def test_a_process_that_waits_gets_the_lock(holder, tmp_path):
  timer = threading.Timer(0.2, holder.kill)
  timer.start()
  with runs.lock_run(tmp_path / "run", wait=60.0):
    assert holder.wait() < 0
  timer.join()


def test_who_holds_the_lock_is_written_down(tmp_path):
  folder = write_run(tmp_path)
  with runs.lock_run(folder):
    held = (folder / ".launch" / "lock").read_text()
  assert held.endswith(f" (process {os.getpid()} on {socket.gethostname()})")


def test_each_block_of_the_lock_is_a_change(tmp_path):
  folder = write_run(tmp_path)
  changes = [runs.last_change(folder)]
  for _ in range(2):
    with runs.lock_run(folder):
      pass
    changes.append(runs.last_change(folder))
  assert changes[0] is None and len({*changes}) == 3


def test_the_lock_ends_with_its_block_and_with_its_process(holder, tmp_path):
  holder.kill()
  holder.wait()
  for _ in range(2):
    with pytest.raises(ValueError, match="inside"), runs.lock_run(tmp_path / "run"):
      raise ValueError("inside")


def test_a_lock_that_cannot_be_written(tmp_path):
  with pytest.raises(UserError, match="lock cannot be written .No such file"):
    with runs.lock_run(pathlib.Path(tmp_path / "none")):
      pytest.fail("there is no such folder")
