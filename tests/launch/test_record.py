"""A job's folder: what is written into it, what is read back, also from a damaged one."""

import json
import os
import pathlib
import time

import pytest
from fake_jobs import (
  CANCELLED,
  SUBMITTED,
  TOKEN,
  config_of,
  event,
  facts_of,
  local,
  write_job,
  write_run,
)

from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY
from jaxspeed.launch import record, submit
from jaxspeed.launch.executor import Planned
from jaxspeed.launch.supervisor import Start

# Requests


def test_requests_are_read_as_they_were_written(tmp_path):
  folder = write_job(tmp_path, requests=()).folder
  facts = facts_of(folder)
  assert (facts.submission, facts.token, facts.id, facts.cancelled) == (None, "", "", False)
  record.request(folder, "submit", "t1")
  facts = facts_of(folder)
  assert (facts.token, facts.id) == ("t1", "") and abs(facts.submission.time - time.time()) < 60
  record.request(folder, "submitted", "t1", "12_3")
  assert facts_of(folder).id == "12_3"
  record.request(folder, "cancel")
  assert facts_of(folder).cancelled
  # Submitted again, the job is not cancelled, and the old id is not its id.
  record.request(folder, "submit", "t2")
  facts = facts_of(folder)
  assert (facts.token, facts.id, facts.cancelled) == ("t2", "", False)
  kinds = [request.what for request in facts.requests]
  assert kinds == ["submit", "submitted", "cancel", "submit"]


def test_an_id_that_comes_after_a_cancellation_does_not_revoke_it(tmp_path):
  facts = write_job(tmp_path, requests=(SUBMITTED[0], CANCELLED, SUBMITTED[1]))
  assert facts.cancelled and facts.id == "7"


def test_requests_that_cannot_be_written(tmp_path, monkeypatch):
  path = write_job(tmp_path).folder / "launch" / "requests.jsonl"
  monkeypatch.setattr(os, "write", lambda *_: 3)
  with pytest.raises(UserError, match="requests.jsonl cannot be written .there is no room.*repeat"):
    record.request(tmp_path / "a", "cancel")
  monkeypatch.undo()
  path.unlink()
  path.mkdir()
  with pytest.raises(UserError, match="requests.jsonl cannot be written .Is a directory"):
    record.request(tmp_path / "a", "cancel")


# Events


@pytest.mark.parametrize(
  "line",
  [
    b"",
    b"nothing",
    b"{}",
    b"[]",
    b"\xff\xfe",
    b'{"time": 1.0, "wh',
    b'{"time": 1.0}',
    b'{"time": "now", "what": "started"}',
    b'{"time": 1.0, "what": "failed", "restart": 1.5}',
    b'{"time": ' + b"9" * 5000 + b', "what": "failed"}',
    b'{"time": 1.0, "what": "failed", "restart": ' + b"9" * 5000 + b"}",
  ],
)
@pytest.mark.parametrize("name", ["requests", "job"])
def test_damaged_lines_and_a_last_one_that_was_cut_off_do_not_count(tmp_path, line, name):
  facts = write_job(tmp_path, notes=[event("started"), event("requeued", 60)])
  path = facts.folder / "launch" / f"{name}.jsonl"
  first, second = path.read_bytes().splitlines()
  path.write_bytes(b"\n".join([first, line, second, b'{"time": 1.0, "what": "failed"}']))
  assert facts_of(facts.folder) == facts


def test_an_event_after_a_cut_off_one_has_a_line_of_its_own(tmp_path):
  path = write_job(tmp_path).folder / "launch" / "requests.jsonl"
  whole = path.read_bytes()
  path.write_bytes(whole + b'{"time": 1.0, "wh')
  record.request(tmp_path / "a", "cancel")
  assert facts_of(tmp_path / "a").cancelled and path.read_bytes().startswith(whole)


def test_notes_are_read_as_they_were_written(tmp_path):
  folder = write_job(tmp_path, notes=[event("started", detail="7")]).folder
  Start(folder, TOKEN, 2).note("failed", "137 killed by signal 9")
  note = facts_of(folder).notes[-1]
  assert (note.token, note.what, note.restart) == (TOKEN, "failed", 2)
  assert note.detail == "137 killed by signal 9" and note.where == os.uname().nodename
  assert abs(note.time - time.time()) < 60


def test_own_notes_are_those_of_the_last_submission(tmp_path):
  notes = [event("started", token="old"), event("failed", token="old"), event("started")]
  assert write_job(tmp_path, notes=notes).own_notes == notes[2:]


def test_only_files_of_tasks_say_how_tasks_ended(tmp_path):
  ends = [event("ended", detail="1"), event("ended", detail="75")]
  old = [event("ended", restart=1, detail="3"), event("ended", token="old", detail="4")]
  tasks = {10: [*ends, *old], 2: [event("ended", detail="x")], 3: [event("started")]}
  facts = write_job(tmp_path, tasks=tasks)
  folder = facts.folder / "launch" / "tasks"
  for name in ("x.jsonl", "1.jsonl.swp", "-1.jsonl"):
    (folder / name).write_bytes((folder / "10.jsonl").read_bytes())
  assert facts.ends() == {10: 75}


# job.json


def test_a_folder_without_a_job_is_none(tmp_path):
  assert record.read_facts(tmp_path) is None
  facts = write_job(tmp_path)
  (facts.folder / "launch" / "job.json").unlink()
  (tmp_path / f"{TEMPORARY}0123" / "launch").mkdir(parents=True)
  assert record.read_facts(facts.folder) is None


@pytest.mark.parametrize(
  "text, reason",
  [("", "it is no JSON"), ("{}", "format: Field required"), ("[]", "job.json cannot be used")],
)
def test_a_damaged_job(tmp_path, text, reason):
  facts = write_job(tmp_path)
  (facts.folder / "launch" / "job.json").write_text(text)
  with pytest.raises(UserError, match=f"{reason}.*: put the file back, or remove"):
    facts_of(facts.folder)


@pytest.mark.parametrize(
  "name, value",
  [("format", 1), ("index", -1), ("metric", "f1"), ("cwd", 3), ("executor", {"kind": ["local"]})],
)
def test_a_field_of_a_job_that_is_not_valid(tmp_path, name, value):
  with pytest.raises(UserError, match=rf"job.json cannot be used \({name}"):
    write_job(tmp_path, **{name: value})


def made(run, **overrides):
  """The record of a job that is planned, and its config."""
  config = config_of(overrides)
  planned = Planned("a", "configs/quickstart.py", overrides, local(price_per_hour=2.0))
  return submit.job_of(run, planned, config, index=3, code="abc"), config


def test_a_job_is_read_as_it_was_written(tmp_path):
  run = write_run(tmp_path)
  job, config = made(run, **{"epochs": 3.0, "data.mean": (1.0, 2.0, 3.0), "seed": 4})
  record.write_job(job, config)
  facts = facts_of(run / "a")
  assert facts.job == job and (job.index, job.epochs, job.metric, job.sources) == (
    3,
    3.0,
    "top1",
    "abc",
  )
  fields = {"epochs": 3.0, "data.mean": [1.0, 2.0, 3.0], "seed": 4, "cost_per_hour": 2.0}
  assert job.overrides == fields and job.cwd == str(pathlib.Path.cwd())
  assert job.executor == local(price_per_hour=2.0).to_dict()
  assert (facts.requests, facts.notes, facts.ends(), facts.foreign) == ([], [], {}, "")
  names = {path.name for path in (run / "a" / "launch").iterdir()}
  assert names == {"job.json", "config.json", "tasks", "logs"}
  assert json.loads((run / "a" / "launch" / "config.json").read_text())["epochs"] == 3.0
  with pytest.raises(UserError, match="a cannot be written .*fix that or choose another root"):
    record.write_job(job, config)
  record.write_job(made(run, seed=5)[0], config, facts)
  assert facts_of(run / "a").job.overrides["seed"] == 5


def test_a_job_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
  job, config = made(tmp_path / "run")

  def full(*_, **__):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(record, "write_atomically", full)
  with pytest.raises(UserError, match="a cannot be written .No space left on device.: make room"):
    record.write_job(job, config)
  assert [*(tmp_path / "run").iterdir()] == []
