"""The state of one job, and tables of a run's jobs as text."""

import dataclasses
import io
import pathlib
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxspeed.errors import printable
from jaxspeed.records.durations import estimate

STATES = ("pending", "running", "requeued", "done", "failed", "cancelled")
# States of jobs that will not go on by themselves.
ENDED = ("done", "failed", "cancelled")
# Wide enough for any table: a terminal wraps what a pipe keeps whole.
_WIDTH = 10_000


@dataclasses.dataclass(frozen=True)
class JobStatus:
  """The state of one job.

  Attributes:
    name: the job's name.
    folder: its folder, the workdir of its training.
    state: one of `STATES`.
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


def status_table(statuses: Sequence[JobStatus], notes: Sequence[str] = ()) -> str:
  """The states of jobs as a table, their counts, notes on the run, and why jobs failed."""
  names = ["job", "state", "epoch", "accuracy", "left", "restarts", "id"]
  rows = []
  for status in statuses:
    row = [
      status.name,
      status.state + (f": {status.detail}" if status.detail and status.state != "failed" else ""),
      _epoch(status),
      "" if status.accuracy is None else f"{100 * status.accuracy:.2f} %",
      "" if status.remaining is None else estimate(status.remaining, digits=2),
      str(status.restarts) if status.restarts else "",
      status.id,
    ]
    rows.append(row)
  lines = [table(names, rows)]
  lines.append(counts(statuses))
  lines += [f"note: {note}" for note in notes]
  for status in statuses:
    if status.state == "failed":
      lines += _failure(status)
  return "\n".join(lines)


def _epoch(status: JobStatus) -> str:
  if status.epoch is None:
    return f"0/{status.epochs:g}" if status.state == "running" else ""
  return f"{status.epoch:g}/{status.epochs:g}"


def counts(statuses: Sequence[JobStatus]) -> str:
  """The number of jobs in each state."""
  states = [status.state for status in statuses]
  found = [f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states))]
  jobs = f"{len(states)} job{'' if len(states) == 1 else 's'}"
  return f"{jobs}: {', '.join(found) or 'none'}"


def _failure(status: JobStatus) -> list[str]:
  facts = [] if status.exit_code is None else [f"exit code {status.exit_code}"]
  facts += [] if status.task is None else [f"task {status.task}"]
  why = f": {status.detail}" if status.detail else ""
  head = f"{status.name} failed" + (f" ({', '.join(facts)})" if facts else "") + why
  return [printable(head), *(f"  {printable(line)}" for line in status.last_lines)]


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """Columns under their names; a column without any value is left out."""
  kept = [i for i in range(len(names)) if i == 0 or any(row[i] for row in rows)]
  drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
  for i in kept:
    drawn.add_column(names[i], no_wrap=True, justify="left" if i < 2 else "right")
  for row in rows:
    drawn.add_row(*(Text(printable(str(row[i]))) for i in kept))
  file = io.StringIO()
  Console(file=file, width=_WIDTH, color_system=None).print(drawn)
  return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())
