"""What follows the end of a job's start: the one rule of all executors by which jobs restart."""

import itertools
import pathlib
import signal
from collections.abc import Mapping
from typing import NamedTuple

from jaxspeed.errors import LOST_PEER, REQUEUE
from jaxspeed.launch.record import ends_of, progress_of, read_notes

_ENDED_BY_OTHERS = 128 + signal.SIGTERM  # srun ends a task because another one has ended


class Verdict(NamedTuple):
  """What follows the end of a job's start: "done", "requeued" or "failed", the code, and why."""

  what: str
  code: int
  reason: str


def culprit(ends: Mapping[int, int]) -> int | None:
  """The number of the task that failed first, by the exit codes of all; None if none did."""
  failed = [number for number, code in ends.items() if code not in (0, REQUEUE)]
  # A mistake or an error ended the others, which lost it or were killed.
  order = {_ENDED_BY_OTHERS: 3, LOST_PEER: 2}
  ranks = {number: order.get(ends[number], ends[number] >= 128) for number in failed}
  return min(failed, key=lambda number: (ranks[number], number), default=None)


def decide(
  folder: pathlib.Path,
  token: str,
  restart: int,
  code: int,
  *,
  max_restarts: int,
) -> Verdict:
  """What follows the end of a start, the restart of that number of a job's submission.

  Args:
    code: the exit code of what ran the tasks, which themselves noted theirs.
    max_restarts: how often a job is restarted without a new checkpoint.
  """
  if (folder / "result.json").exists():
    return Verdict("done", 0, "")
  ends = ends_of(folder, token, restart)
  first = culprit(ends)
  if first is not None:
    code = ends[first]
    if code in (LOST_PEER, _ENDED_BY_OTHERS) and REQUEUE in ends.values():
      code = REQUEUE  # it lost a task that had saved
  elif code == 0 and ends:
    code = max(ends.values())
  task = f"task {first}: " if len(ends) > 1 and first is not None else ""
  if code not in (0, REQUEUE, LOST_PEER) and code < 128:
    return Verdict("failed", code, f"{task}ended with exit code {code}")
  if code >= 128 and code != _ENDED_BY_OTHERS:
    reason = f"{task}killed by signal {code - 128}"
  else:
    reasons = {0: "saved after SIGTERM, not finished", REQUEUE: "saved, to be started again"}
    reason = reasons.get(code, "a process was lost")
  # A job that gets on may be interrupted as often as it likes.
  now = progress_of(folder)
  earlier = [note for note in reversed(read_notes(folder)) if note.restart < restart]
  before = [note.progress for note in earlier if (note.token, note.what) == (token, "requeued")]
  in_vain = len([*itertools.takewhile(lambda progress: progress == now, before)])
  if in_vain >= max_restarts:
    times = f"{in_vain} restarts without a new checkpoint"
    return Verdict("failed", code or 1, f"{reason}; not restarted after {times}")
  return Verdict("requeued", code, reason)
