"""The state of one job, and tables of a run's jobs as text."""

import dataclasses
import pathlib
from collections.abc import Sequence

from jaxspeed.config import output
from jaxspeed.errors import plural, printable
from jaxspeed.records.durations import estimate

# States of jobs that will not go on by themselves; the others: pending, running, requeued.
ENDED = ("done", "failed", "cancelled")


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
    remaining: estimated seconds until the end; None: no estimate.
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
  remaining: float | None = None
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
      "" if self.remaining is None else estimate(self.remaining, digits=2),
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


def status_table(statuses: Sequence[JobStatus], notes: Sequence[str] = ()) -> str:
  """The states of jobs as a table, their counts, notes on the run, and why jobs failed."""
  names = ("job", "state", "epoch", "accuracy", "left", "restarts", "id")
  lines = output.table([names, *(status.row() for status in statuses)])
  states = sorted(status.state for status in statuses)
  counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
  lines.append(f"{plural(len(states), 'job')}: {', '.join(counts) or 'none'}")
  lines += [f"note: {note}" for note in notes]
  return "\n".join(lines + [line for s in statuses if s.state == "failed" for line in s.failure()])
