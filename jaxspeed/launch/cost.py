"""The cost of jobs: the price of their nodes, times the hours in which they had them."""

import os
import pathlib
import time

from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.record import RECORD, Facts

_ENDS = ("requeued", "failed", "done")


def hours_of(facts: Facts, *, running: bool, now: float | None = None) -> float:
  """The hours in which a job had its nodes, over all its starts.

  Args:
    facts: the job.
    running: whether it runs now.
    now: Unix time; None: now.
  """
  seconds, begun = 0.0, None
  for note in facts.notes:
    if note.what == "started":
      # A start without an end was cut off: it counts to its tasks' last sign of life.
      if begun is not None:
        seconds += max(0.0, _last_sign(facts, before=note.time) - begun)
      begun = note.time
    elif note.what in _ENDS and begun is not None:
      seconds += max(0.0, note.time - begun)
      begun = None
  if begun is not None:
    end = (time.time() if now is None else now) if running else _last_sign(facts)
    seconds += max(0.0, end - begun)
  return seconds / 3600


def _last_sign(facts: Facts, before: float = float("inf")) -> float:
  """Unix time of a job's last sign of life: an end of a task, or a change of its log."""
  ends = [n.time for notes in facts.tasks.values() for n in notes if n.time <= before]
  if before == float("inf"):
    ends += [_changed(path) for path in (facts.folder / RECORD / "logs").glob("*.log")]
  return max(ends, default=0.0)


def _changed(path: pathlib.Path) -> float:
  try:
    return os.stat(path).st_mtime
  except OSError:
    return 0.0


def of_job(facts: Facts, *, running: bool) -> float:
  """The cost of a job so far in USD; 0 without a price."""
  hourly = executor_of(facts.job.executor, str(facts.folder)).hourly
  return hourly * hours_of(facts, running=running) if hourly else 0.0
