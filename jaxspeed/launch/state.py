"""The state of jobs: from their folders first, from the scheduler second."""

import contextlib
import pathlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.files import read_bytes
from jaxspeed.launch.decision import culprit
from jaxspeed.launch.executor import Executor, Found
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.local import Local
from jaxspeed.launch.record import RECORD, Facts
from jaxspeed.launch.status import JobStatus, status_table
from jaxspeed.records.results import read_result
from jaxspeed.records.writer import read_metrics

NEVER = "the scheduler does not have it, and it never started"
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


def ask(folder: pathlib.Path, jobs: Sequence[Facts]) -> tuple[dict[str, Found | None], list[str]]:
  """What the schedulers say about the jobs that have not ended, with one question to each.

  Returns:
    By name, what is known of each job; None: its scheduler does not know it. And a sentence on each
    that does not answer.
  """
  said: dict[str, Found | None] = {}
  silent = []
  for executor, group in by_kind([facts for facts in jobs if facts.is_open]):
    found = executor.states(group, folder)
    if found is None:
      silent.append(executor.silence(folder))
    else:
      said |= {facts.job.name: found.get(facts.job.name) for facts in group}
  return said, silent


def by_kind(jobs: Iterable[Facts]) -> Iterator[tuple[Executor, list[Facts]]]:
  """Jobs in groups of one kind of executor, each with the executor of its first job."""
  groups: dict[str, list[Facts]] = {}
  for facts in jobs:
    groups.setdefault(facts.job.kind, []).append(facts)
  for group in groups.values():
    yield executor_of(group[0].job.executor, str(group[0].folder)), group


def statuses(folder: pathlib.Path, jobs: Sequence[Facts]) -> Statuses:
  """The states of jobs.

  Args:
    folder: the run's folder.
    jobs: what its files say about them.
  """
  said, silent = ask(folder, jobs)
  result = Statuses(status_of(facts, said.get(facts.job.name, UNKNOWN)) for facts in jobs)
  notes = [f"{each}: the states are those that the jobs wrote last" for each in silent]
  # No command is advised that would act on a stranger's folder.
  own = [facts for facts in jobs if facts.is_open and not facts.cancelled and not facts.foreign]
  warnings = [*filter(None, (executor.warning(folder) for executor, _ in by_kind(own)))]
  result.notes, result.stopped = (*notes, *warnings), bool(warnings)
  result.is_local = {facts.job.kind for facts in jobs if facts.is_open} <= {Local.kind}
  return result


UNKNOWN = Found(True, "?")  # the scheduler was not asked, or does not answer


def status_of(facts: Facts, said: Found | None) -> JobStatus:
  """The state of a job.

  Args:
    facts: what the files say.
    said: what the scheduler says; None: it does not know the job.
  """
  job = facts.job
  state, detail = _state(facts, said)
  found = _progress(facts)
  if state == "done":
    result = result_of_job(facts) or {}
    found["accuracy"] = result.get("mean", result.get(job.metric))
  if state != "running":
    found["remaining"] = None
  if state == "failed":
    found |= _failure(facts)
  starts = [note.detail for note in facts.own_notes if note.what == "started" and note.detail]
  return JobStatus(
    job.name,
    facts.folder,
    state,
    detail,
    id=(said.id if said and said is not UNKNOWN else "") or "".join(starts[-1:]),
    restarts=facts.restarts,
    epochs=job.epochs,
    **found,
  )


def _state(facts: Facts, said: Found | None) -> tuple[str, str]:
  """State and detail, by the first rule that applies."""
  try:
    if result_of_job(facts) is not None:
      return "done", ""
  except UserError as error:
    return "failed", str(error)
  if facts.cancelled:
    saves = said is not None and said is not UNKNOWN and said.runs
    return "cancelled", "saving" if saves else ""
  if facts.submission is None:
    return "pending", "not submitted"
  last = facts.own_notes[-1] if facts.own_notes else None
  settles = time.time() - (last or facts.submission).time < _SETTLING
  if last is None:
    if said is not None or settles:
      return "pending", ""
    return "failed", f"{NEVER}: do its machines see {facts.folder.parent}?"
  if last.what == "failed":
    code, _, reason = last.detail.partition(" ")
    # A trainer ends with 0 and without a result only after SIGTERM.
    return ("cancelled" if code == "0" else "failed"), reason
  if last.what == "done":
    return "failed", "it ended without a result.json"
  if last.what == "requeued":
    if said is None and not settles:
      return "failed", f"{last.detail}; the scheduler no longer has it"
    return "requeued", last.detail
  if said is not None:
    return ("running", "") if said.runs else ("requeued", "interrupted")
  # The scheduler does not have it, and it did not say how it ended.
  ends = facts.ends()
  if ends and {*ends.values()} == {0}:
    return "cancelled", "outside of jaxspeed.launch"
  if settles and not ends:
    return "running", ""
  return "failed", "it is gone, and did not say how it ended"


def result_of_job(facts: Facts) -> dict[str, Any] | None:
  """The content of a job's result.json; None if it has not finished.

  Raises:
    UserError: the file contains something else.
  """
  return read_result(facts.folder)


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
  content = b""
  with contextlib.suppress(OSError, ValueError):
    content = read_bytes(path)
  if len(content) > _TAIL:
    content = content[-_TAIL:].partition(b"\n")[2]
  text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", content.decode("utf-8", "replace"))
  # A progress bar overwrites its line: what it showed last counts.
  lines = [line.rstrip().rpartition("\r")[2] for line in text.split("\n") if line.strip()]
  own = [line for line in lines[-10:] if line.startswith("jaxspeed: ")]
  return (own or lines)[-_LINES:]
