"""The state of jobs: from their folders first, from the scheduler second."""

import contextlib
import pathlib
import re
import time
from collections.abc import Sequence
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.files import open_regular
from jaxspeed.launch import runs
from jaxspeed.launch.decision import culprit
from jaxspeed.launch.executor import SchedulerState
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.local import Local
from jaxspeed.launch.record import RECORD, Facts
from jaxspeed.launch.status import JobStatus, status_table
from jaxspeed.records.results import read_result
from jaxspeed.records.writer import read_metrics

# Bytes at the end of a log that are searched for its last lines, and how many are shown.
_TAIL, _LINES = 8192, 3
# Seconds after its last note in which a job may be between two states, such as a start that the
# scheduler does not list yet.
_SETTLING = 20.0


class Statuses(tuple[JobStatus, ...]):
  """The states of a run's jobs, in their order; printed, they are a table.

  Attributes:
    notes: sentences about the run, such as a scheduler that does not answer.
    stopped: whether nothing starts the jobs that wait, until a command does.
    is_local: whether no scheduler was asked.
  """

  notes: tuple[str, ...] = ()
  stopped: bool = False
  is_local: bool = True

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
  notes, stopped = [*filter(None, [runs.without_record(folder)])], False
  kinds = dict.fromkeys(facts.job.executor["kind"] for facts in jobs if facts.is_open)
  for kind in kinds:
    own = [facts for facts in jobs if facts.job.executor["kind"] == kind and facts.is_open]
    executor = executor_of(own[0].job.executor, str(own[0].folder))
    # A stranger's folder has no jobs of ours.
    ids = {facts.job.name: facts.id for facts in own}
    found = executor.states(ids, folder)
    if found is None:
      notes.append(f"{kind} does not answer: the states are those that the jobs wrote last")
    said |= found or {}
    # Nor is a command advised that would act on it.
    waiting = any(not facts.cancelled and not facts.foreign for facts in own)
    if waiting and (warning := executor.warning(folder)):
      notes.append(warning)
      stopped = True
  result = Statuses(status_of(facts, said.get(facts.job.name)) for facts in jobs)
  result.notes, result.stopped = tuple(notes), stopped
  result.is_local = {*kinds} <= {Local.kind}
  return result


def status_of(facts: Facts, scheduler: SchedulerState | None) -> JobStatus:
  """The state of a job.

  Args:
    facts: what its folder says.
    scheduler: what the scheduler says; None: it was not asked, or does not answer.
  """
  job = facts.job
  state, detail = _state(facts, scheduler)
  found = _progress(facts)
  if state == "done":
    result = result_of_job(facts) or {}
    found["accuracy"] = result.get("mean", result.get(job.metric))
  if state != "running":
    found["remaining"] = None
  if state == "failed":
    found |= _failure(facts)
  return JobStatus(
    job.name,
    facts.folder,
    state,
    detail,
    # A local queue has no numbers: the name of the submission stands there.
    id=facts.id if facts.id != facts.token else "",
    restarts=facts.restarts,
    epochs=job.epochs,
    **found,
  )


def _state(facts: Facts, scheduler: SchedulerState | None) -> tuple[str, str]:
  """State and detail, by the first rule that applies."""
  try:
    if result_of_job(facts) is not None:
      return "done", ""
  except UserError as error:
    return "failed", str(error)
  if facts.cancelled:
    return "cancelled", "saving" if scheduler is SchedulerState.RUNNING else ""
  if facts.submission is None:
    return "pending", "not submitted"
  last = facts.own_notes[-1] if facts.own_notes else None
  if last is None:
    if not facts.id:
      return "pending", "not submitted, or not written down: submit again"
    if scheduler is not SchedulerState.ABSENT or time.time() - facts.submission.time < _SETTLING:
      return "pending", ""
    return "failed", "the scheduler no longer has it, and it never started"
  settling = time.time() - last.time < _SETTLING
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
  if scheduler is not SchedulerState.ABSENT:
    return "running", ""
  # The scheduler does not have it, and it did not say how it ended.
  ends = facts.ends()
  if ends and {*ends.values()} == {0}:
    return "cancelled", "outside of jaxspeed.launch"
  if settling and not ends:
    return "running", ""
  return "failed", "it is gone, and did not say how it ended"


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
  rows: list[dict[str, Any]] = []
  with contextlib.suppress(UserError):  # a damaged one is named where a run needs it
    rows = read_metrics(folders[-1])[-10:]
  if not rows:
    return {}
  first, last = rows[0], rows[-1]
  accuracies = [row.get(f"eval_{facts.job.metric}") for row in rows]
  known = [value for value in accuracies if value is not None]
  found = {"epoch": float(last["epoch"]), "accuracy": float(known[-1]) if known else None}
  seconds, epochs = last.get("train_seconds"), last["epoch"]
  if seconds is None or not epochs or len(folders) > 1:
    return found
  if epochs > first["epoch"] and first.get("train_seconds") is not None:
    seconds, epochs = seconds - first["train_seconds"], epochs - first["epoch"]
  pace = seconds / epochs + (last.get("eval_seconds") or 0.0)
  return found | {"remaining": max(0.0, facts.job.epochs - last["epoch"]) * pace}


def _failure(facts: Facts) -> dict[str, Any]:
  """Exit code, task and last lines of a failed job."""
  ends = facts.ends()
  number = culprit(ends)
  found: dict[str, Any] = {}
  last = facts.own_notes[-1:]
  if last and last[0].what == "failed" and (said := re.match(r"\d{1,3}\b", last[0].detail)):
    found["exit_code"] = int(said[0])
  if number is not None:
    found = {"exit_code": ends[number]} | found | {"task": number}
  logs = facts.folder / RECORD / "logs"
  lines = _last_lines(logs / f"{number or 0}.log") or _last_lines(logs / "batch.log")
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
