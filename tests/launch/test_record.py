"""The files of a run: what is written, what is read back, also from damaged ones.

A stranger's run is looked at, and nothing that it names is run, signalled or written.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from fake_jobs import (
  TOKEN,
  config_of,
  event,
  facts_of,
  fake_python,
  lock_elsewhere,
  write_job,
  write_run,
)
from in_process import command, mistake
from local_cluster import wait_until
from toy import contents

from jaxspeed.errors import UserError
from jaxspeed.files import is_locked
from jaxspeed.launch import Local, record, runs, submit
from jaxspeed.launch.executor import Planned
from jaxspeed.launch.record import ends_of
from jaxspeed.launch.runs import RUN_FILE

# Events


FAILED = b'{"time": 1.0, "what": "failed"'
DAMAGED = [b"", b"[]", b"\xff\xfe", b'{"time": 1.0, "wh', b'{"time": 1.0}']
DAMAGED += [FAILED + b', "restart": ' + number + b"}" for number in (b"1.5", b"9" * 5000)]


@pytest.mark.parametrize("name", [".launch/requests", "a/launch/job"])
def test_damaged_lines_and_a_last_one_that_was_cut_off_do_not_count(tmp_path, name):
  write_job(tmp_path, notes=[event("started"), event("requeued", 60)])
  record.request(tmp_path, "submit", [facts_of(tmp_path / "a")], TOKEN)
  facts = facts_of(tmp_path / "a")
  path = tmp_path / f"{name}.jsonl"
  first, second = path.read_bytes().splitlines()
  path.write_bytes(b"\n".join([first, *DAMAGED, second, FAILED + b"}"]))
  assert facts_of(facts.folder) == facts


def test_only_files_of_tasks_say_how_tasks_ended(tmp_path):
  ends = [event("ended", code=1), event("ended", code=75)]
  old = [event("ended", restart=1, code=3), event("ended", token="old", code=4)]
  tasks = {10: [*ends, *old], 2: [event("ended")], 3: [event("started")]}
  facts = write_job(tmp_path, tasks=tasks)
  folder = facts.folder / "launch" / "tasks"
  for name in ("x.jsonl", "1.jsonl.swp", "-1.jsonl"):
    (folder / name).write_bytes((folder / "10.jsonl").read_bytes())
  assert ends_of(facts.folder, TOKEN, 0) == {10: 75}


# run.json


def made(run, **overrides):
  """The record of a job that is planned."""
  planned = Planned("a", "configs/quickstart.py", overrides, Local(gpus=0, price_per_hour=2.0))
  return submit.job_of(run, planned, config_of(overrides), code="abc")


def test_jobs_are_read_as_they_were_written_in_their_order(tmp_path):
  run = tmp_path / "b" / "run"
  runs.create_run(run)
  assert record.jobs_of(run) == []
  job = made(run, **{"epochs": 3.0, "data.mean": (1.0, 2.0, 3.0), "seed": 4})
  record.write_jobs(run, [dataclasses.replace(job, name="x", folder=str(run / "x")), job])
  first, facts = record.read_jobs(run)
  assert first.job.name == "x" and facts.job == job
  assert (job.epochs, job.metric, job.sources) == (3.0, "top1", "abc")
  fields = {"epochs": 3.0, "data.mean": [1.0, 2.0, 3.0], "seed": 4, "cost_per_hour": 2.0}
  assert job.overrides == fields and job.cwd == str(pathlib.Path.cwd())
  assert job.executor == Local(gpus=0, price_per_hour=2.0).to_dict()
  assert (facts.requests, facts.notes, facts.foreign) == ([], [], "")
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
    record.read_jobs(folder)


def test_a_folder_of_other_things_is_left_alone(tmp_path):
  (tmp_path / "notes.txt").touch()
  with pytest.raises(UserError, match=r"is not empty and holds no run .*\(notes.txt\): choose"):
    runs.create_run(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
  # A submission that died before it wrote run.json may be repeated.
  (tmp_path / "a" / ".launch").mkdir(parents=True)
  runs.create_run(tmp_path / "a")


# The lock


def test_a_process_that_waits_gets_the_lock(tmp_path, monkeypatch):
  holder, freed = contextlib.ExitStack(), []
  holder.enter_context(lock_elsewhere(write_run(tmp_path) / ".launch" / "lock"))
  monkeypatch.setattr(runs.time, "sleep", lambda _: (freed.append(1), holder.close()))
  with runs.lock_run(tmp_path / "run"):
    assert freed == [1]


# Strangers


@pytest.fixture
def run(tmp_path):
  """A run whose job names programs that leave a trace, with a seal that is not ours."""
  folder, trace = write_run(tmp_path), tmp_path / "trace"
  python = fake_python(tmp_path, {"a": [f"touch {trace}"]})
  write_job(folder, "a", executor=Local(gpus=0, python=python, setup=[f"touch {trace}"]).to_dict())
  change(folder, seal="0" * 64)
  yield folder
  assert not trace.exists()


def change(folder, **values):
  path = folder / "run.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("words", [["resume"], ["cancel", "--all"], ["retry", "--failed"]])
def test_nothing_acts(run, words):
  before = contents(run)
  text = mistake("launch", words[0], str(run), *words[1:])
  assert text.startswith(f"{run}/a was submitted by somebody else or changed since: submit the sw")
  assert contents(run) == before
  # Nor is a command advised that would.
  assert "resume" not in command("launch", "status", str(run)).stdout


def test_a_worker_takes_no_job_of_a_stranger(run):
  before = contents(run)
  Local(gpus=0).begin(run, 1)
  wait_until(lambda: not is_locked(run / ".launch" / "worker.0.lock"), 60, "the worker's end")
  new = contents(run).keys() - before
  files = ("lock", "worker.0.lock", "place.0.lock", "worker.log")
  assert ".launch/place.0.lock" in new and new <= {f".launch/{name}" for name in files}


def test_a_change_of_what_was_submitted_breaks_the_seal(tmp_path):
  facts = write_job(write_run(tmp_path), "a", executor=Local(gpus=0).to_dict())
  assert facts.foreign == ""
  jobs = json.loads((tmp_path / "run" / "run.json").read_text())["jobs"]
  jobs[0]["executor"]["setup"] = ["true"]
  change(tmp_path / "run", jobs=jobs)
  assert "changed since" in facts_of(facts.folder).foreign


@pytest.mark.parametrize("name", ["../other", "/etc", "a/b", ".launch"])
def test_a_job_that_lies_outside_of_its_run_is_not_looked_at(tmp_path, name):
  write_job(write_run(tmp_path), "a")
  jobs = json.loads((tmp_path / "run" / "run.json").read_text())["jobs"]
  change(tmp_path / "run", jobs=[jobs[0] | {"name": name}])
  assert record.jobs_of(tmp_path / "run") == []


@pytest.mark.parametrize("part", ["", "launch", "launch/job.jsonl"])
def test_a_job_is_not_started_whose_files_lie_behind_a_link(tmp_path, part):
  facts = write_job(write_run(tmp_path), "a", notes=[event("started")])
  place = facts.folder / part
  place.rename(tmp_path / "elsewhere")
  place.symlink_to(tmp_path / "elsewhere")
  assert facts_of(facts.folder).foreign.endswith(": remove it")


@pytest.mark.parametrize("link", ["", "lock"])
def test_a_run_is_not_submitted_into_whose_own_files_lie_behind_a_link(make, root, tmp_path, link):
  make("a").start()
  place = root / "run" / ".launch" / link
  place.rename(tmp_path / "elsewhere")
  place.symlink_to(tmp_path / "elsewhere")
  change(root / "run", seal="0" * 64)
  with pytest.raises(UserError, match=f"{place} is a link, .*: remove it"):
    make("a").start()


def test_a_submission_of_ones_own_begins_anew(make, fake, root):
  make("a").start()
  change(root / "run", seal="0" * 64)
  assert facts_of(root / "run" / "a").foreign
  make("a").start()
  facts = facts_of(root / "run" / "a")
  assert facts.foreign == "" and [each.what for each in facts.requests] == ["submit"]
  assert [ask for ask in fake.asked if ask[0] == "submit"] == [("submit", "a")] * 2


def test_a_copy_is_not_taken_for_the_first(tmp_path):
  write_job(write_run(tmp_path), "a")
  (tmp_path / "run").rename(tmp_path / "copy")
  found = facts_of(tmp_path / "copy" / "a").foreign
  assert found.startswith("was copied or moved: submit the sweep's own")


@pytest.mark.parametrize("number", ["0", "1", "{other}"])
def test_a_process_that_a_file_names_is_not_signalled(tmp_path, number):
  other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
  run = write_run(tmp_path)
  started = event("started", detail=number.format(other=other.pid))
  executor = Local(gpus=0).to_dict()
  facts = write_job(run, "a", notes=[event("started")], tasks={0: [started]}, executor=executor)
  (run / ".launch" / "place.0.lock").write_text("a")
  with lock_elsewhere(run / ".launch" / "place.0.lock"):
    assert command("launch", "cancel", str(run), "--all").stdout == "cancelled a\n"
    assert other.poll() is None
  assert facts_of(facts.folder).cancelled
  os.kill(other.pid, signal.SIGKILL)
  other.wait()
