"""A stranger's run is looked at, and nothing that it names is run, signalled or written."""

import json
import os
import signal
import subprocess
import sys

import pytest
from fake_jobs import (
  LOCAL,
  event,
  facts_of,
  fake_python,
  local,
  lock_elsewhere,
  write_events,
  write_job,
  write_run,
)
from in_process import command, mistake


@pytest.fixture
def run(tmp_path):
  """A run whose job names programs that leave a trace, with a seal that is not ours."""
  folder, trace = write_run(tmp_path), tmp_path / "trace"
  python = fake_python(tmp_path, {"a": [f"touch {trace}"]})
  executor = local(python=python, setup=[f"touch {trace}"]).to_dict()
  write_job(folder, "a", executor=executor, requests=LOCAL, seal="0" * 64)
  yield folder
  assert not trace.exists()


def everything(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
  "words", [["resume"], ["resume", "--here"], ["cancel", "--all"], ["retry", "--failed"]]
)
def test_nothing_acts(run, words):
  before = everything(run)
  text = mistake("launch", words[0], str(run), *words[1:])
  assert text.startswith(f"{run}/a was submitted by somebody else or changed since: submit the sw")
  assert everything(run) == before
  # Nor is a command advised that would.
  assert "resume" not in command("launch", "status", str(run)).stdout


def test_a_change_of_what_was_submitted_breaks_the_seal(tmp_path):
  facts = write_job(write_run(tmp_path), "a", executor=local().to_dict())
  assert facts.foreign == ""
  path = facts.folder / "launch" / "job.json"
  job = json.loads(path.read_text())
  job["executor"]["setup"] = ["true"]
  path.write_text(json.dumps(job))
  assert "changed since" in facts_of(facts.folder).foreign


@pytest.mark.parametrize("change", [{"token": "VICTIM"}, {"detail": "--user=victim"}, {"seal": ""}])
def test_a_request_names_what_may_be_cancelled_only_with_its_seal(change, tmp_path):
  facts = write_job(write_run(tmp_path), "a", requests=LOCAL)
  path = facts.folder / "launch" / "requests.jsonl"
  first, *others = path.read_text().splitlines()
  path.write_text("\n".join([json.dumps(json.loads(first) | change), *others, ""]))
  assert "changed since" in facts_of(facts.folder).foreign


def test_a_job_is_not_started_whose_logs_lie_behind_a_link(tmp_path):
  facts = write_job(write_run(tmp_path), "a", requests=LOCAL)
  logs = facts.folder / "launch" / "logs"
  logs.rename(tmp_path / "elsewhere")
  logs.symlink_to(tmp_path / "elsewhere")
  assert facts_of(facts.folder).foreign.startswith("has links in its record")


def test_a_submission_of_ones_own_begins_anew(make, fake, root):
  make("a").start()
  facts = facts_of(root / "run" / "a")
  first = facts.submission.sealed(root / "another's")
  write_events(facts.folder / "launch" / "requests.jsonl", [first, facts.requests[1]])
  assert facts_of(facts.folder).foreign
  make("a").start()
  facts = facts_of(facts.folder)
  assert facts.foreign == "" and [each.what for each in facts.requests] == ["submit", "submitted"]
  assert [ask for ask in fake.asked if ask[0] == "submit"] == [("submit", "a")] * 2


def test_a_copy_is_not_taken_for_the_first(tmp_path):
  facts = write_job(write_run(tmp_path), "a")
  facts.folder.rename(tmp_path / "b")
  assert facts_of(tmp_path / "b").foreign.startswith("was copied or moved: submit the sweep's own")


def test_a_job_is_never_appended_to_through_a_link(tmp_path):
  run = write_run(tmp_path)
  record = write_job(run, "a", requests=LOCAL, executor=local().to_dict()).folder / "launch"
  own = tmp_path / "own"
  (record / "requests.jsonl").rename(own)
  before = own.read_bytes()
  (record / "requests.jsonl").symlink_to(own)
  assert "requests.jsonl cannot be written" in mistake("launch", "cancel", str(run), "--all")
  assert own.read_bytes() == before


@pytest.mark.parametrize("number", ["0", "1", "{other}"])
def test_a_process_that_a_file_names_is_not_signalled(tmp_path, number):
  other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
  run = write_run(tmp_path)
  started = event("started", detail=number.format(other=other.pid))
  fields = {"requests": LOCAL, "executor": local().to_dict()}
  facts = write_job(run, "a", notes=[event("started")], tasks={0: [started]}, **fields)
  with lock_elsewhere(facts.folder / "launch" / "alive.lock"):
    assert command("launch", "cancel", str(run), "--all").stdout == "cancelled a\n"
    assert other.poll() is None
  assert facts_of(facts.folder).cancelled
  os.kill(other.pid, signal.SIGKILL)
  other.wait()
