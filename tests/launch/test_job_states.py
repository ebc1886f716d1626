"""The state of a job, by the first rule that applies to its folder and its scheduler's answer."""

import json
import types

import pytest
from fake_jobs import NOW, SUBMITTED, TOKEN, ended, event, result_of, write_job, write_run

from jaxspeed.launch import record, state
from jaxspeed.launch.executor import Found
from jaxspeed.launch.record import Event
from jaxspeed.launch.state import NEVER, UNKNOWN, Statuses, status_of, statuses

PENDING, RUNNING, ABSENT = Found(False), Found(True), None
STARTED = event("started", detail="7")
NEW = (Event(NOW - 5, "submit", TOKEN),)
AGAIN = (Event(NOW - 5, "submit", "t2"),)
CANCEL = (*SUBMITTED, Event(NOW - 60, "cancel"))
SILENT = "it is gone, and did not say how it ended"


@pytest.fixture(autouse=True)
def now(monkeypatch):
  monkeypatch.setattr(state, "time", types.SimpleNamespace(time=lambda: NOW))


@pytest.fixture
def run(tmp_path):
  return write_run(tmp_path)


# What is in the folder; the state that each answer of the scheduler makes of it, by first letters
# (q: requeued; UNKNOWN: it was not asked, or does not answer); the detail, or one for each answer.
ALL = (UNKNOWN, PENDING, RUNNING, ABSENT)
LETTERS = dict(p="pending", r="running", q="requeued", d="done", f="failed", c="cancelled")
LOST = f"{NEVER}: do its machines see {{run}}?"
BREAK = [STARTED, event("requeued", 900), event("started", 800, 1)]
TABLE = {
  "a result": ({"result": result_of()}, "dddd", ""),
  "a result, cancelled, failed": (
    {"result": result_of(), "requests": CANCEL, "notes": [event("failed")]},
    "dddd",
    "",
  ),
  "cancelled": ({"requests": CANCEL, "notes": [STARTED]}, "cccc", ("", "", "saving", "")),
  "not submitted": ({"requests": ()}, "pppp", "not submitted"),
  "submitted": ({}, "pppf", ("", "", "", LOST)),
  "submitted a moment ago": ({"requests": NEW}, "pppp", ""),
  "submitted again": ({"requests": (*CANCEL, *AGAIN), "notes": [STARTED]}, "pppp", ""),
  "gave up": ({"notes": [STARTED, event("failed", 60, detail="why", code=1)]}, "ffff", "why"),
  "done, no result": ({"notes": [event("done", 60)]}, "ffff", "it ended without a result.json"),
  "requeued": (
    {"notes": [STARTED, event("requeued", 60, detail="why")]},
    "qqqf",
    ("why", "why", "why", "why; the scheduler no longer has it"),
  ),
  "requeued a moment ago": ({"notes": [event("requeued", 5, detail="why")]}, "qqqq", "why"),
  "started": ({"notes": [STARTED]}, "rqrf", ("", "interrupted", "", SILENT)),
  "started a moment ago": ({"notes": [event("started", 5)]}, "rqrr", ("", "interrupted", "", "")),
  "started again": ({"notes": BREAK, "tasks": ended(0)}, "rqrf", ("", "interrupted", "", SILENT)),
  "its tasks ended with 0": (
    {"notes": [STARTED], "tasks": ended(0, 0)},
    "rqrc",
    ("", "interrupted", "", "outside of jaxspeed.launch"),
  ),
  "a task was killed": (
    {"notes": [event("started", 5)], "tasks": ended(0, 137)},
    "rqrf",
    ("", "interrupted", "", SILENT),
  ),
  "started by an earlier submission": (
    {"notes": [event("started", token="old"), event("failed", token="old")]},
    "pppf",
    ("", "", "", LOST),
  ),
}


@pytest.mark.parametrize("case", [*TABLE])
def test_states(run, case):
  written, letters, details = TABLE[case]
  facts = write_job(run, **written)
  found = [status_of(facts, scheduler) for scheduler in ALL]
  assert [status.state for status in found] == [LETTERS[letter] for letter in letters]
  expected = (details,) * 4 if isinstance(details, str) else details
  assert [status.detail for status in found] == [each.format(run=run) for each in expected]


def test_a_damaged_result_is_a_failure(run):
  status = status_of(write_job(run, result="{}"), UNKNOWN)
  assert status.state == "failed"
  assert "result.json cannot be used (seed: Field required" in status.detail


# Numbers


def test_id_and_restarts(run):
  notes = [STARTED, event("requeued", 60), event("started", 50, 2)]
  notes += [event("started", 9, 8, token="x")]
  status = status_of(write_job(run, notes=notes), RUNNING)
  assert (status.id, status.restarts, status.epochs) == ("7", 2, 20.0)
  assert status_of(write_job(run, "b"), Found(True, "8")).id == "8"


def row(epoch, **values):
  fixed = {"step": int(10 * epoch), "examples": 1, "world": 1, "dawn_seconds": 1.0}
  return fixed | {"epoch": epoch, "train_seconds": 3.0 * epoch, "eval_top1": 0.05 * epoch} | values


@pytest.mark.parametrize(
  "rows, epoch, accuracy",
  [
    ([], None, None),
    ([row(4)], 4.0, 0.2),
    ([row(3), row(4), row(5, eval_top1=None)], 5.0, 0.2),
    ([row(5, eval_top1=None)], 5.0, None),
    # A damaged file.
    ([row(4), {"epoch": "5"}, row(6)], None, None),
  ],
)
def test_progress(run, rows, epoch, accuracy):
  status = status_of(write_job(run, notes=[STARTED], metrics=rows), RUNNING)
  assert (status.epoch, status.accuracy) == (epoch, accuracy)


def test_of_several_runs_the_last_one_counts_by_its_own_metric(run):
  facts = write_job(run, notes=[STARTED], metric="top5")
  for i, epoch in enumerate((20, 4)):
    folder = facts.folder / f"run_{i:03d}"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps(row(epoch, eval_top5=0.9)) + "\n")
  status = status_of(facts, RUNNING)
  assert (status.epoch, status.accuracy) == (4.0, 0.9)


# Failures


def failed(run, notes=(), name="a", **written):
  return status_of(write_job(run, name, notes=[STARTED, *notes], **written), ABSENT)


def test_task_exit_code_and_log_of_what_failed_first(run):
  logs = {f"{i}.log": f"line of {i}\n" for i in range(3)} | {"batch.log": "of all\n"}
  status = failed(run, tasks=ended(143, 143, 2), logs=logs)
  assert (status.state, status.task, status.exit_code) == ("failed", 2, 2)
  assert status.last_lines == ("line of 2",)
  # The script's own end, of a task that has no log.
  note = event("failed", 60, 0, "a task was killed by signal 9; not put back", code=137)
  status = failed(run, [note], "b", tasks=ended(75, 137), logs={"batch.log": "at the end\n"})
  assert (status.exit_code, status.task, status.detail) == (137, 1, note.detail)
  assert status.last_lines == ("at the end",)


@pytest.mark.parametrize(
  "log, lines",
  [
    ("a\nb\n\nc\nd", ("b", "c", "d")),
    ("a\njaxspeed: no data.\nslurm: killed\n", ("jaxspeed: no data.",)),
    ("jaxspeed: old\n" + "x\n" * 10, ("x", "x", "x")),
    ("x" * 9000 + "\n" + "short\n", ("short",)),
    (b"\xff\xfe\n", ("\ufffd\ufffd",)),
    (None, ()),
  ],
)
def test_the_last_lines_of_a_log(run, log, lines):
  facts = write_job(run, notes=[STARTED])
  path = facts.folder / "launch" / "logs" / "0.log"
  if log is None:  # a folder
    path.mkdir()
  else:
    path.write_bytes(log if isinstance(log, bytes) else log.encode())
  assert status_of(facts, ABSENT).last_lines == lines


# All jobs of a run


FAKE = {"executor": {"kind": "fake"}}


def test_the_scheduler_is_asked_once_about_the_jobs_that_have_not_ended(run, fake):
  write_job(run, "a", notes=[STARTED], **FAKE)
  write_job(run, "b", **FAKE)
  write_job(run, "c", result=result_of(), **FAKE)
  write_job(run, "d", notes=[event("failed")], **FAKE)
  write_job(run, "e", requests=(), **FAKE)
  fake.said = {"a": RUNNING}
  found = statuses(run, record.read_jobs(run))
  assert [status.state for status in found] == ["running", "failed", "done", "failed", "pending"]
  assert fake.asked == [("states", "a", "b")] and found.notes == ()
  fake.asked.clear()
  assert statuses(run, [facts for facts in record.read_jobs(run) if facts.job.name in "cd"])
  assert fake.asked == []


def test_what_the_scheduler_does_not_say_is_noted(run, fake, monkeypatch):
  write_job(run, "a", notes=[STARTED], **FAKE)
  write_job(run, "b", notes=[event("requeued")], **FAKE)
  monkeypatch.setattr(fake, "warning", lambda *_: "the queue does not run")
  fake.said = None
  found = statuses(run, record.read_jobs(run))
  assert [status.state for status in found] == ["running", "requeued"]
  silent = "fake does not answer: the states are those that the jobs wrote last"
  assert found.notes == (silent, "the queue does not run")
  assert str(found).splitlines()[-2:] == [f"note: {note}" for note in found.notes]


# As text


def test_the_table(run):
  jobs = [
    write_job(run, "a", notes=[STARTED, event("started", 9, 2, "7")], metrics=[row(4)]),
    write_job(run, "b", requests=CANCEL),
    write_job(
      run,
      "c",
      notes=[STARTED, event("failed", 60, detail="a task ended with 2", code=2)],
      tasks=ended(143, 2),
      logs={"1.log": "jaxspeed: no data in /x.\n"},
    ),
    write_job(run, "d", notes=[event("started", 9, detail="7")]),
  ]
  lines = str(Statuses(status_of(facts, RUNNING) for facts in jobs)).splitlines()
  assert str(Statuses()).splitlines()[-1] == "0 jobs: none"
  assert lines[0].split() == ["job", "state", "epoch", "accuracy", "restarts", "id"]
  assert lines[1].split() == ["a", "running", "4/20", "20.00", "%", "2", "7"]
  assert lines[2].split() == ["b", "cancelled:", "saving"]
  assert lines[3].split() == ["c", "failed", "7"]
  assert lines[4].split() == ["d", "running", "0/20", "7"]
  assert lines[5:] == [
    "4 jobs: 1 cancelled, 1 failed, 2 running",
    "c failed (exit code 2, task 1): a task ended with 2",
    "  jaxspeed: no data in /x.",
  ]
