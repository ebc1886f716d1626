"""The state of jobs: from their folders first, from the scheduler second."""

import contextlib
import dataclasses
import pathlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspeed.errors import FAULT, LOST_PEER, MISTAKE, REQUEUE, UserError
from jaxspeed.files import open_regular, parse_json
from jaxspeed.launch import cost
from jaxspeed.launch.executor import SchedulerState
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.record import RECORD, Facts, Note
from jaxspeed.launch.runs import LAUNCHER
from jaxspeed.launch.status import JobStatus
from jaxspeed.launch.tables import status_table
from jaxspeed.records.results import read_result

# Bytes at the end of a log that are searched for its last lines.
_TAIL = 8192
_LINES = 3
# Seconds after its last note in which a job may be between two states, such as a start that the
# scheduler does not list yet.
_SETTLING = 20.0


class Statuses(tuple[JobStatus, ...]):
  """The states of a run's jobs, in their order; printed, they are a table.

  Attributes:
    notes: sentences about the run, such as a scheduler that does not answer.
    stopped: whether nothing starts the jobs that wait, until a command does.
  """

  notes: tuple[str, ...] = ()
  stopped: bool = False

  def __str__(self) -> str:
    return status_table(self, self.notes)

  __repr__ = __str__


def statuses(folder: pathlib.Path, jobs: Sequence[Facts]) -> Statuses:
  """The states of jobs, with one question to each scheduler.

  Args:
    folder: the run's folder.
    jobs: what the jobs' folders say.
  """
  said: dict[str, SchedulerState] = {}
  notes, stopped = [], False
  for kind in dict.fromkeys(facts.job.executor.get("kind") for facts in jobs):
    own = [facts for facts in jobs if facts.job.executor.get("kind") == kind and is_open(facts)]
    if not own:
      continue
    executor = executor_of(own[0].job.executor, str(own[0].folder))
    ids = {facts.job.name: facts.submission.id for facts in own if facts.submission}
    found = executor.states(ids, folder / LAUNCHER)
    if found is None:
      notes.append(f"{kind} does not answer: the states are those that the jobs wrote last")
    said |= found or {}
    # No command is advised that would act on a stranger's folder.
    waiting = any(not facts.cancelled and not facts.foreign for facts in own)
    if waiting and (warning := executor.warning(folder / LAUNCHER)):
      notes.append(warning)
      stopped = True
  result = Statuses(status_of(facts, said.get(facts.job.name)) for facts in jobs)
  result.notes, result.stopped = tuple(notes), stopped
  return result


def is_open(facts: Facts) -> bool:
  """Whether the scheduler may still have a job."""
  if facts.submission is None or (facts.folder / "result.json").exists():
    return False
  notes = facts.own(facts.notes)
  return not (notes and notes[-1].what in ("failed", "done"))


def status_of(facts: Facts, scheduler: SchedulerState | None) -> JobStatus:
  """The state of a job.

  Args:
    facts: what its folder says.
    scheduler: what the scheduler says; None: it was not asked, or does not answer.
  """
  job, submission = facts.job, facts.submission
  notes = facts.own(facts.notes)
  status = JobStatus(
    job.name,
    facts.folder,
    "pending",
    # A local queue has no numbers: the name of the submission stands there.
    id=submission.id if submission and submission.id != submission.token else "",
    restarts=max((note.restart for note in notes), default=0),
    epochs=job.epochs,
  )
  status = dataclasses.replace(status, **_progress(facts))
  state, detail = _state(facts, notes, scheduler)
  status = dataclasses.replace(status, state=state, detail=detail)
  if state == "done":
    result = result_of_job(facts) or {}
    accuracy = result.get("mean", result.get(job.metric))
    status = dataclasses.replace(status, accuracy=accuracy)
  if state != "running":
    status = dataclasses.replace(status, remaining=None)
  if state == "failed":
    status = dataclasses.replace(status, **_failure(facts, notes))
  running = state == "running"
  return dataclasses.replace(status, cost=cost.of_job(facts, running=running))


def _state(
  facts: Facts, notes: Sequence[Note], scheduler: SchedulerState | None
) -> tuple[str, str]:
  """State and detail, by the first rule that applies."""
  result, damaged = _result(facts)
  if result is not None:
    return "done", ""
  if damaged:
    return "failed", damaged
  if facts.cancelled:
    return "cancelled", "saving" if scheduler is SchedulerState.RUNNING else ""
  if facts.submission is None:
    return "pending", "not submitted"
  last = notes[-1] if notes else None
  settling = last is not None and time.time() - last.time < _SETTLING
  if last is None and not facts.submission.id:
    return "pending", "not submitted, or not written down: submit again"
  if last is None:
    asked = facts.submission.time
    if scheduler is not SchedulerState.ABSENT or time.time() - asked < _SETTLING:
      return "pending", ""
    return "failed", "the scheduler no longer has it, and it never started"
  if last.what == "failed":
    code, _, reason = last.detail.partition(" ")
    # A trainer ends with 0 and without a result only after SIGTERM.
    return ("cancelled" if code == "0" else "failed"), reason
  if last.what == "done":
    return "failed", "it ended without a result.json"
  if last.what == "requeued":
    if scheduler is SchedulerState.ABSENT and not settling:
      return "failed", f"{last.detail}; the scheduler no longer has it"
    return "requeued", last.detail
  if scheduler is SchedulerState.PENDING:
    return "requeued", "interrupted"
  silent = scheduler is None and not settling and _all_ended(facts, last.restart)
  if scheduler is not SchedulerState.ABSENT and not silent:
    return "running", ""
  return _vanished(facts, last, settling=settling)


def _vanished(facts: Facts, last: Note, *, settling: bool) -> tuple[str, str]:
  """The state of a job whose last note is a start, and which the scheduler does not have."""
  ends = _ends(facts, last.restart)
  if ends and set(ends.values()) == {0}:
    return "cancelled", "outside of jaxspeed.launch"
  if settling and not ends:
    return "running", ""
  return "failed", "it is gone, and did not say how it ended"


def _all_ended(facts: Facts, restart: int) -> bool:
  """Whether every task of a start has written how it ended."""
  executor = executor_of(facts.job.executor, str(facts.folder))
  return len(_ends(facts, restart)) >= executor.processes


def _ends(facts: Facts, restart: int) -> dict[int, int]:
  """Exit codes of the tasks of a start, by their numbers."""
  found = {}
  for number, notes in facts.tasks.items():
    ended = [n for n in facts.own(notes) if n.what == "ended" and n.restart == restart]
    if ended and ended[-1].detail.isdecimal():
      found[number] = int(ended[-1].detail)
  return found


def _result(facts: Facts) -> tuple[dict[str, Any] | None, str]:
  """The job's result, or why there is a damaged one."""
  try:
    return result_of_job(facts), ""
  except UserError as error:
    return None, str(error)


def result_of_job(facts: Facts) -> dict[str, Any] | None:
  """The content of a job's result.json; None if it has not finished.

  Raises:
    UserError: the file contains something else.
  """
  runs = facts.job.overrides.get("runs", 1)
  several = (isinstance(runs, int) and runs > 1) or (facts.folder / "run_000").is_dir()
  return read_result(facts.folder, several=several)


def _progress(facts: Facts) -> dict[str, Any]:
  """Epoch, accuracy and remaining seconds, from the last rows of metrics.jsonl."""
  folders = [facts.folder, *sorted(facts.folder.glob("run_[0-9]*"))[-1:]]
  rows = _last_rows(folders[-1] / "metrics.jsonl")
  if not rows:
    return {}
  last = rows[-1]
  accuracies = [row.get(f"eval_{facts.job.metric}") for row in rows]
  known = [value for value in accuracies if isinstance(value, int | float)]
  found: dict[str, Any] = {
    "epoch": float(last["epoch"]),
    "accuracy": float(known[-1]) if known else None,
  }
  pace = _seconds_per_epoch(rows)
  if pace is not None and len(folders) == 1:
    found["remaining"] = max(0.0, facts.job.epochs - last["epoch"]) * pace
  return found


def _seconds_per_epoch(rows: Sequence[Mapping[str, Any]]) -> float | None:
  first, last = rows[0], rows[-1]
  begin, end = first.get("train_seconds"), last.get("train_seconds")
  if not isinstance(begin, int | float) or not isinstance(end, int | float) or not last["epoch"]:
    return None
  evaluation = last.get("eval_seconds")
  if not isinstance(evaluation, int | float):
    evaluation = 0.0
  if last["epoch"] > first["epoch"]:
    return (end - begin) / (last["epoch"] - first["epoch"]) + evaluation
  return end / last["epoch"] + evaluation


def _last_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """The last whole rows of metrics.jsonl; rows that are damaged are left out."""
  rows = []
  for line in _tail(path, 64 * 1024).splitlines():
    with contextlib.suppress(ValueError):
      row = parse_json(line)
      if isinstance(row, dict) and isinstance(row.get("epoch"), int | float):
        rows.append(row)
  return rows[-10:]


def _failure(facts: Facts, notes: Sequence[Note]) -> dict[str, Any]:
  """Exit code, task and last lines of a failed job."""
  last = notes[-1] if notes else None
  restart = max((note.restart for note in notes), default=0)
  ends = _ends(facts, restart)
  found: dict[str, Any] = {}
  if last and last.what == "failed":
    code = last.detail.partition(" ")[0]
    found["exit_code"] = int(code) if code.isdecimal() else None
  # 143: ended because another task had ended; 75: lost another task.
  order = (MISTAKE, FAULT)
  culprits = sorted(
    (number for number, code in ends.items() if code not in (0, REQUEUE)),
    key=lambda number: (
      ends[number] not in order,
      ends[number] in (143, LOST_PEER),
      number,
    ),
  )
  number = culprits[0] if culprits else 0
  if culprits:
    found |= {"task": number, "exit_code": found.get("exit_code") or ends[number]}
  logs = facts.folder / RECORD / "logs"
  lines = _last_lines(logs / f"{number}.log") or _last_lines(logs / "batch.log")
  return found | {"last_lines": tuple(lines)}


def _last_lines(path: pathlib.Path) -> list[str]:
  """The last lines of a log; only those of jaxspeed if the very last lines have some."""
  text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _tail(path, _TAIL))
  # A progress bar overwrites its line: what it showed last counts.
  lines = [line.rstrip().rpartition("\r")[2] for line in text.split("\n") if line.strip()]
  own = [line for line in lines[-10:] if line.startswith("jaxspeed: ")]
  return (own or lines)[-_LINES:]


def _tail(path: pathlib.Path, size: int) -> str:
  """The last bytes of a file as text, from the beginning of a line; '' if it cannot be read."""
  try:
    with open_regular(path) as file:
      end = file.seek(0, 2)
      file.seek(max(0, end - size))
      content = file.read(size)
  except OSError:
    return ""
  if end > size:
    content = content.partition(b"\n")[2]
  return content.decode("utf-8", "replace")
