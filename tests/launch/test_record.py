"""The files of a run: what is written into them, what is read back, also from damaged ones."""

import dataclasses
import json
import os
import pathlib
import threading
import time

import pytest
from fake_jobs import (
  TOKEN,
  config_of,
  event,
  facts_of,
  local,
  lock_elsewhere,
  write_job,
  write_run,
)

from jaxspeed.errors import UserError
from jaxspeed.launch import runs, submit
from jaxspeed.launch.executor import Planned
from jaxspeed.launch.record import RUN_FILE
from jaxspeed.launch.supervisor import Start

# Events


@pytest.mark.parametrize(
  "line",
  [
    b"",
    b"[]",
    b"\xff\xfe",
    b'{"time": 1.0, "wh',
    b'{"time": 1.0}',
    b'{"time": 1.0, "what": "failed", "restart": 1.5}',
    b'{"time": 1.0, "what": "failed", "restart": ' + b"9" * 5000 + b"}",
  ],
)
@pytest.mark.parametrize("name", [".launch/requests", "a/launch/job"])
def test_damaged_lines_and_a_last_one_that_was_cut_off_do_not_count(tmp_path, line, name):
  write_job(tmp_path, notes=[event("started"), event("requeued", 60)])
  runs.request(tmp_path, "submit", [facts_of(tmp_path / "a")], TOKEN)
  facts = facts_of(tmp_path / "a")
  path = tmp_path / f"{name}.jsonl"
  first, second = path.read_bytes().splitlines()
  path.write_bytes(b"\n".join([first, line, second, b'{"time": 1.0, "what": "failed"}']))
  assert facts_of(facts.folder) == facts


def test_notes_are_read_as_they_were_written(tmp_path):
  folder = write_job(tmp_path, notes=[event("started", detail="7")]).folder
  Start(folder, TOKEN, 2).note("failed", "killed by signal 9", 137)
  note = facts_of(folder).notes[-1]
  assert (note.token, note.what, note.restart) == (TOKEN, "failed", 2)
  assert (note.detail, note.code, note.where) == ("killed by signal 9", 137, os.uname().nodename)
  assert abs(note.time - time.time()) < 60


def test_only_files_of_tasks_say_how_tasks_ended(tmp_path):
  ends = [event("ended", code=1), event("ended", code=75)]
  old = [event("ended", restart=1, code=3), event("ended", token="old", code=4)]
  tasks = {10: [*ends, *old], 2: [event("ended")], 3: [event("started")]}
  facts = write_job(tmp_path, tasks=tasks)
  folder = facts.folder / "launch" / "tasks"
  for name in ("x.jsonl", "1.jsonl.swp", "-1.jsonl"):
    (folder / name).write_bytes((folder / "10.jsonl").read_bytes())
  assert facts.ends() == {10: 75}


# run.json


def made(run, **overrides):
  """The record of a job that is planned."""
  planned = Planned("a", "configs/quickstart.py", overrides, local(price_per_hour=2.0))
  return submit.job_of(run, planned, config_of(overrides), code="abc")


def test_jobs_are_read_as_they_were_written_in_their_order(tmp_path):
  run = tmp_path / "b" / "run"
  runs.create_run(run)
  assert runs.jobs_of(run) is None
  job = made(run, **{"epochs": 3.0, "data.mean": (1.0, 2.0, 3.0), "seed": 4})
  runs.write_jobs(run, [dataclasses.replace(job, name="x", folder=str(run / "x")), job])
  first, facts = runs.read_jobs(run)
  assert first.job.name == "x" and facts.job == job
  assert (job.epochs, job.metric, job.sources) == (3.0, "top1", "abc")
  fields = {"epochs": 3.0, "data.mean": [1.0, 2.0, 3.0], "seed": 4, "cost_per_hour": 2.0}
  assert job.overrides == fields and job.cwd == str(pathlib.Path.cwd())
  assert job.executor == local(price_per_hour=2.0).to_dict()
  assert (facts.requests, facts.notes, facts.ends(), facts.foreign) == ([], [], {}, "")
  # Places of data and caches make no other job.
  same = made(run, **{"epochs": 3.0, "data.mean": (1.0, 2.0, 3.0), "seed": 4, "data.path": "/x"})
  assert same.config == job.config != made(run, seed=5).config
  assert same.digest != job.digest


@pytest.mark.parametrize("name, value", [("metric", "f1"), ("later", 1)])
def test_a_damaged_run(tmp_path, name, value):
  folder = write_run(tmp_path)
  write_job(folder)
  found = json.loads((folder / RUN_FILE).read_text())
  found["jobs"][0][name] = value
  (folder / RUN_FILE).write_text(json.dumps(found))
  with pytest.raises(UserError, match=rf"run.json cannot be used \(.*{name}.*put the file back"):
    runs.read_jobs(folder)


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


# The lock


def test_a_process_that_waits_gets_the_lock(tmp_path):
  killed = threading.Event()
  with lock_elsewhere(write_run(tmp_path) / ".launch" / "lock") as holder:
    timer = threading.Timer(0.2, lambda: (killed.set(), holder.kill()))
    timer.start()
    with runs.lock_run(tmp_path / "run", wait=60.0):
      assert killed.is_set() and holder.wait() < 0
    timer.join()
