"""The right to write to a folder: taken once, handed on, and lost to a restarted job."""

import contextlib
import json
import os
import socket
import threading
import time

import pytest
from commands import python, start

from jaxspeed.cluster import folder_lock as lock_lib
from jaxspeed.cluster.folder_lock import LOCK, OWNER, FolderLock, job_of, read_owner
from jaxspeed.errors import SUPERSEDED, UserError


class Lost(Exception):
  """What `FolderLock` calls here in place of the process's end."""


def lose(message: str) -> None:
  raise Lost(message)


def as_job(monkeypatch, job: str, restart: int) -> None:
  monkeypatch.setenv("SLURM_JOB_ID", job)
  monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
  jobs = ("SLURM_JOB_ID", "JOBSET_NAME", "SKYPILOT_TASK_ID")
  for name in (*jobs, "SLURM_RESTART_COUNT", "JOBSET_RESTART_ATTEMPT", "JAXSPEED_RESTARTS"):
    monkeypatch.delenv(name, raising=False)


def test_incarnations_count_up_and_a_second_taker_is_refused(tmp_path):
  for number in (1, 2, 3):
    with contextlib.closing(FolderLock(tmp_path)) as lock:
      assert lock.incarnation == number
      with pytest.raises(UserError, match=rf"in use by start {number} of its run \(process \d+ "):
        FolderLock(tmp_path)
      owner = read_owner(tmp_path)
      assert owner is not None and (owner.pid, owner.released) == (os.getpid(), False)
      lock.check()
    owner = read_owner(tmp_path)
    assert owner is not None and owner.released


def test_who_was_killed_holds_nothing(tmp_path):
  code = (
    "import pathlib, sys, time; from jaxspeed.cluster.folder_lock import FolderLock;"
    "FolderLock(pathlib.Path(sys.argv[1])); print('taken', flush=True); time.sleep(60)"
  )
  with start("-c", code, str(tmp_path)) as process:
    assert process.stdout is not None and process.stdout.readline() == "taken\n"
    with pytest.raises(UserError, match="is in use by start 1"):
      FolderLock(tmp_path)
    process.kill()
  with contextlib.closing(FolderLock(tmp_path)) as lock:
    assert lock.incarnation == 2


def test_the_same_job_started_again_takes_over_and_nobody_else(tmp_path, monkeypatch):
  as_job(monkeypatch, "7", 0)
  older = FolderLock(tmp_path, superseded=lose)
  older.check()
  as_job(monkeypatch, "8", 1)
  with pytest.raises(UserError, match="is in use by start 1 .*Slurm job 7"):
    FolderLock(tmp_path)
  as_job(monkeypatch, "7", 1)
  newer = FolderLock(tmp_path, superseded=lose)
  assert newer.incarnation == 2
  with pytest.raises(Lost, match="taken over by start 2 .* start 1, ends at once"):
    older.check()
  with pytest.raises(Lost), older.writing():
    pytest.fail("an older start was let in")
  with newer.writing():
    pass
  # The older start, late: it may not take the folder back, and its end gives nothing free.
  as_job(monkeypatch, "7", 0)
  with pytest.raises(UserError, match="is in use by start 2"):
    FolderLock(tmp_path)
  older.close()
  monkeypatch.delenv("SLURM_JOB_ID")
  with pytest.raises(UserError, match="is in use by start 2"):
    FolderLock(tmp_path)
  newer.close()
  with contextlib.closing(FolderLock(tmp_path)) as lock:
    assert lock.incarnation == 3


def test_an_older_start_notices_by_itself(tmp_path, monkeypatch):
  told = threading.Event()
  monkeypatch.setattr(lock_lib, "RENEWED_EVERY", 0.05)
  as_job(monkeypatch, "7", 0)
  older = FolderLock(tmp_path, superseded=lambda _: told.set())
  as_job(monkeypatch, "7", 1)
  with contextlib.closing(FolderLock(tmp_path)):
    assert told.wait(10)
  older.close()


def test_the_process_ends_at_once_with_its_own_code(tmp_path):
  code = (
    "import json, pathlib, sys; from jaxspeed.cluster.folder_lock import FolderLock;"
    "folder = pathlib.Path(sys.argv[1]); lock = FolderLock(folder);"
    "owner = json.loads((folder / 'owner.json').read_text()) | {'token': 'x', 'incarnation': 5};"
    "(folder / 'owner.json').write_text(json.dumps(owner)); lock.check(); print('still here')"
  )
  done = python("-c", code, str(tmp_path), code=SUPERSEDED)
  assert done.stdout == ""
  assert done.stderr.startswith("jaxspeed: ") and "taken over by start 5" in done.stderr


@pytest.mark.parametrize("host, boot", [("far", ""), (socket.gethostname(), "of another machine")])
def test_an_owner_elsewhere_counts_while_it_gives_signs_of_life(tmp_path, monkeypatch, host, boot):
  monkeypatch.setattr(lock_lib, "RENEWED_EVERY", 0.2)
  far = {"incarnation": 4, "token": "t", "host": host, "pid": 1, "job": "", "restart": 0}
  (tmp_path / OWNER).write_text(json.dumps(far | {"boot": boot}))
  (tmp_path / LOCK).touch()
  done = threading.Event()

  def renew():
    while not done.wait(0.05):
      os.utime(tmp_path / LOCK)

  thread = threading.Thread(target=renew)
  thread.start()
  try:
    with pytest.raises(UserError, match="is in use by start 4"):
      FolderLock(tmp_path)
  finally:
    done.set()
    thread.join()
  begun = time.monotonic()
  lock = FolderLock(tmp_path)
  assert lock.incarnation == 5 and time.monotonic() - begun >= 3 * 0.2
  lock.close()


def test_a_lost_or_damaged_owner_file_ends_nobody(tmp_path):
  with contextlib.closing(FolderLock(tmp_path)) as lock:
    (tmp_path / OWNER).write_text('{"incarnation": 1, "tok')
    lock.check()
    (tmp_path / OWNER).unlink()
    with lock.writing():
      pass
  assert read_owner(tmp_path) is None


def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch):
  monkeypatch.setattr(lock_lib, "_SHORT", 0.2)
  # A start that stands still inside a short lock.
  with contextlib.closing(FolderLock(tmp_path)) as lock, lock.writing():
    with pytest.raises(UserError, match="is locked by a process that hangs"), lock.writing():
      pytest.fail("two in one lock")
  with pytest.raises(UserError, match="cannot be locked for this run .No such file or directory"):
    FolderLock(tmp_path / "none")


@pytest.mark.parametrize(
  "environment, expected",
  [
    ({}, ("", 0)),
    ({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3"}, ("Slurm job 12", 3)),
    ({"JOBSET_NAME": "a", "JOBSET_RESTART_ATTEMPT": "2"}, ("JobSet a", 2)),
    ({"SKYPILOT_TASK_ID": "b", "JAXSPEED_RESTARTS": "1"}, ("SkyPilot job b", 1)),
    ({"SKYPILOT_TASK_ID": "b"}, ("SkyPilot job b", 0)),
  ],
)
def test_jobs_of_schedulers(environment, expected):
  assert job_of(environment) == expected
