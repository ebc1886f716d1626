"""A stranger's run is looked at, and nothing that it names is run, signalled or written."""

import json
import os
import signal
import subprocess
import sys

import pytest
from fake_jobs import (
  event,
  facts_of,
  fake_python,
  local,
  lock_elsewhere,
  write_job,
  write_run,
)
from in_process import command, mistake

from jaxspeed.errors import UserError
from jaxspeed.launch import runs
from jaxspeed.launch.worker import work


@pytest.fixture
def run(tmp_path):
  """A run whose job names programs that leave a trace, with a seal that is not ours."""
  folder, trace = write_run(tmp_path), tmp_path / "trace"
  python = fake_python(tmp_path, {"a": [f"touch {trace}"]})
  write_job(folder, "a", executor=local(python=python, setup=[f"touch {trace}"]).to_dict())
  change(folder, seal="0" * 64)
  yield folder
  assert not trace.exists()


def change(folder, **values):
  path = folder / "run.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | values))


def everything(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", [["resume"], ["cancel", "--all"], ["retry", "--failed"]])
def test_nothing_acts(run, words):
  before = everything(run)
  text = mistake("launch", words[0], str(run), *words[1:])
  assert text.startswith(f"{run}/a was submitted by somebody else or changed since: submit the sw")
  assert everything(run) == before
  # Nor is a command advised that would.
  assert "resume" not in command("launch", "status", str(run)).stdout


def test_a_worker_takes_no_job_of_a_stranger(run):
  before = everything(run)
  with open(run / ".launch" / "worker.0.lock", "w") as lock:
    work(run, 0, os.dup(lock.fileno()))
  new = {path.name for path in everything(run)} - {path.name for path in before}
  assert new <= {"lock", "worker.0.lock", "place.0.lock"}


def test_a_change_of_what_was_submitted_breaks_the_seal(tmp_path):
  facts = write_job(write_run(tmp_path), "a", executor=local().to_dict())
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
  assert runs.read_jobs(tmp_path / "run") == []


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
  executor = local().to_dict()
  facts = write_job(run, "a", notes=[event("started")], tasks={0: [started]}, executor=executor)
  (run / ".launch" / "place.0.lock").write_text("a")
  with lock_elsewhere(run / ".launch" / "place.0.lock"):
    assert command("launch", "cancel", str(run), "--all").stdout == "cancelled a\n"
    assert other.poll() is None
  assert facts_of(facts.folder).cancelled
  os.kill(other.pid, signal.SIGKILL)
  other.wait()
