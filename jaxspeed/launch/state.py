"""The state of jobs, from their folders first and from the scheduler second; as tables too."""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from jaxspeed.config import output
from jaxspeed.errors import UserError, plural, printable
from jaxspeed.files import read_bytes
from jaxspeed.launch.executor import Found, executor_of
from jaxspeed.launch.record import RECORD, Facts, culprit, ends_of
from jaxspeed.records.results import read_result
from jaxspeed.records.writer import read_metrics

# States of jobs that will not go on by themselves; the others: pending, running, requeued.
ENDED = ("done", "failed", "cancelled")
NEVER = "the scheduler does not have it, and it never started"
UNKNOWN = Found(True, "?")  # the scheduler was not asked, or does not answer
# Bytes at the end of a log that are searched for its last lines, and how many are shown.
_TAIL, _LINES = 8192, 3
# Seconds after its last note in which a job may be between two states, such as a start that the
# scheduler does not list yet.
_SETTLING = 20.0


@dataclasses.dataclass(frozen=True)
class JobStatus:
  """The state of one job.

  Attributes:
    name: the job's name.
    folder: its folder, the workdir of its training.
    state: pending, running, requeued, done, failed or cancelled.
    detail: what there is to say beside the state, in words.
    id: the scheduler's id; '': not submitted.
    restarts: how often the job was restarted by itself since it was submitted.
    epoch: the last finished epoch; None: none yet.
    epochs: the epochs of the whole job.
    accuracy: the last accuracy config.target_metric as a fraction; None: none yet.
    exit_code: of a failed job; None otherwise.
    task: the number of the task that failed; None otherwise.
    last_lines: the last lines of that task.
  """

  name: str
  folder: pathlib.Path
  state: str
  detail: str = ""
  id: str = ""
  restarts: int = 0
  epoch: float | None = None
  epochs: float = 0.0
  accuracy: float | None = None
  exit_code: int | None = None
  task: int | None = None
  last_lines: tuple[str, ...] = ()

  def row(self) -> tuple[str, ...]:
    """The cells of the job in a table."""
    detail = f": {printable(self.detail)}" if self.detail and self.state != "failed" else ""
    epoch = 0.0 if self.epoch is None and self.state == "running" else self.epoch
    return (
      self.name,
      self.state + detail,
      "" if epoch is None else f"{epoch:g}/{self.epochs:g}",
      percent(self.accuracy),
      str(self.restarts or ""),
      printable(self.id),
    )

  def failure(self) -> list[str]:
    """Lines on why it failed."""
    code = [] if self.exit_code is None else [f"exit code {self.exit_code}"]
    task = [] if self.task is None else [f"task {self.task}"]
    facts = f" ({', '.join(code + task)})" if code + task else ""
    why = f": {self.detail}" if self.detail else ""
    lines = (f"{self.name} failed{facts}{why}", *(f"  {line}" for line in self.last_lines))
    return [printable(line) for line in lines]


def percent(share: float | None) -> str:
  """A share with two decimals of a percent; '' for None."""
  return "" if share is None else f"{100 * share:.2f} %"


class Statuses(tuple[JobStatus, ...]):
  """The states of a run's jobs, in their order; printed, they are a table.

  Attributes:
    notes: sentences about the run, such as a scheduler that does not answer.
    stopped: whether nothing starts the jobs that wait, until a command does.
    pause: seconds until it is worth looking again, which for a scheduler is seldom.
  """

  notes: tuple[str, ...] = ()
  stopped: bool = False
  pause: float = 2.0

  def goes_on(self, status: JobStatus) -> bool:
    """Whether a job will change its state without a command."""
    waits = status.detail == "not submitted" or (self.stopped and status.state != "running")
    return status.state not in ENDED and not waits

  def __str__(self) -> str:
    names = ("job", "state", "epoch", "accuracy", "restarts", "id")
    lines = output.table([names, *(status.row() for status in self)])
    states = sorted(status.state for status in self)
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    lines.append(f"{plural(len(states), 'job')}: {', '.join(counts) or 'none'}")
    lines += [f"note: {note}" for note in self.notes]
    return "\n".join(lines + [line for s in self if s.state == "failed" for line in s.failure()])

  __repr__ = __str__


def ask(folder: pathlib.Path, jobs: Sequence[Facts]) -> tuple[dict[str, Found | None], str]:
  """What the scheduler says about the jobs that have not ended, by one question.

  Returns:
    By name, what is known of each job; None: the scheduler does not know it. And that it does not
    answer, as a sentence; '': it does.
  """
  if not (jobs := [facts for facts in jobs if facts.is_open]):
    return {}, ""
  executor = executor_of(jobs[0].job)
  if (found := executor.states(jobs, folder)) is None:
    return {}, f"{executor.kind} does not answer"
  return {facts.job.name: found.get(facts.job.name) for facts in jobs}, ""


def statuses(folder: pathlib.Path, jobs: Sequence[Facts]) -> Statuses:
  """The states of jobs of the run in a folder."""
  said, silent = ask(folder, jobs)
  result = Statuses(status_of(facts, said.get(facts.job.name, UNKNOWN)) for facts in jobs)
  notes = [f"{silent}: the states are those that the jobs wrote last"] if silent else []
  # No command is advised that would act on a stranger's folder.
  own = [facts for facts in jobs if facts.is_open and not facts.cancelled and not facts.foreign]
  warning = executor_of(own[0].job).warning(folder) if own else ""
  result.notes, result.stopped = (*notes, *filter(None, [warning])), bool(warning)
  if said or silent:
    result.pause = executor_of(jobs[0].job).pause
  return result


def status_of(facts: Facts, said: Found | None) -> JobStatus:
  """The state of a job by what its files say, and its scheduler; None: it does not know the job."""
  job = facts.job
  state, detail = _state(facts, said)
  found = _progress(facts)
  if state == "done":
    result = read_result(facts.folder) or {}
    found["accuracy"] = result.get("mean", result.get(job.metric))
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
    if read_result(facts.folder) is not None:
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
    return "failed", last.detail
  if last.what == "done":
    return "failed", "it ended without a result.json"
  if last.what == "requeued":
    if said is None and not settles:
      return "failed", f"{last.detail}; the scheduler no longer has it"
    return "requeued", last.detail
  if said is not None:
    return ("running", "") if said.runs else ("requeued", "interrupted")
  # The scheduler does not have it, and it did not say how it ended.
  ends = ends_of(facts.folder, facts.token, facts.restarts)
  if ends and {*ends.values()} == {0}:
    return "cancelled", "outside of jaxspeed.launch"
  if settles and not ends:
    return "running", ""
  return "failed", "it is gone, and did not say how it ended"


def _progress(facts: Facts) -> dict[str, Any]:
  """The last epoch and the last accuracy in metrics.jsonl."""
  folders = [facts.folder, *sorted(facts.folder.glob("run_[0-9]*"))]
  rows: list[dict[str, Any]] = []
  with contextlib.suppress(UserError):  # a damaged one is named where a run needs it
    rows = read_metrics(folders[-1])
  accuracies = (row.get(f"eval_{facts.job.metric}") for row in reversed(rows))
  accuracy = next((float(each) for each in accuracies if each is not None), None)
  return {"epoch": float(rows[-1]["epoch"]) if rows else None, "accuracy": accuracy}


def _failure(facts: Facts) -> dict[str, Any]:
  """Exit code, task and last lines of a failed job."""
  ends = ends_of(facts.folder, facts.token, facts.restarts)
  number = culprit(ends)
  codes = [None if number is None else ends[number], *(n.code for n in facts.own_notes[-1:])]
  logs = facts.folder / RECORD / "logs"
  lines = _last_lines(logs / f"{number or 0}.log") or _last_lines(logs / "batch.log")
  known = [code for code in codes if code is not None]
  return {"exit_code": known[-1] if known else None, "task": number, "last_lines": tuple(lines)}


def _last_lines(path: pathlib.Path) -> list[str]:
  """The last lines of a log; only those of jaxspeed if the very last lines have some."""
  content = b""
  with contextlib.suppress(OSError, ValueError):
    content = read_bytes(path)
  if len(content) > _TAIL:
    content = content[-_TAIL:].partition(b"\n")[2]
  lines = [line for line in content.decode("utf-8", "replace").split("\n") if line.strip()]
  own = [line for line in lines[-10:] if line.startswith("jaxspeed: ")]
  return (own or lines)[-_LINES:]
