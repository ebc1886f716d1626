"""This machine: jobs as processes, each with its own GPUs and cores, from a queue on disk."""

import contextlib
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple

import pydantic
from pydantic import Field

from jaxspeed.cluster.peers import visible_gpus
from jaxspeed.config import schema
from jaxspeed.devices.cpus import usable_cpus
from jaxspeed.errors import UserError
from jaxspeed.files import is_locked, load_json
from jaxspeed.launch.executor import Count, Executor, SchedulerState, Task, exports, to_tuple
from jaxspeed.launch.record import PROCESS, RECORD, read_facts

# In the run's folder for the launcher's own files.
QUEUE_LOCK, QUEUE, QUEUE_LOG = "queue.lock", "queue.json", "queue.log"
# In a job's record: locked while any process of the job lives, which inherits the open file; it
# holds the number of the job's place.
ALIVE = "alive.lock"
_STARTS_WITHIN = 30.0  # seconds from the start of the queue's process to its lock


class Slot(NamedTuple):
  """The place of one of the jobs that run at the same time.

  Attributes:
    gpus: its CUDA_VISIBLE_DEVICES; None where the machine has no GPUs.
    cores: its cores.
  """

  gpus: str | None
  cores: frozenset[int]


class Local(Executor):
  """Jobs on this machine, `parallel` at a time.

  A process that outlives the terminal takes them from the queue, which is the run's folder.
  """

  kind: ClassVar[str] = "local"

  parallel: Count = 1
  """jobs that run at the same time; they divide the GPUs, or the cores, evenly"""
  gpus: Annotated[
    int | tuple[int, ...] | None,
    pydantic.BeforeValidator(to_tuple),
    schema.Says("a number of GPUs, a list of their numbers, or None"),
  ] = None
  """GPUs to use: how many, or which; None: all that are visible"""
  cores: Annotated[int, Field(ge=0, le=65_536)] = 0
  """cores to use; 0: all that this process may use"""

  def devices(self) -> int:
    gpus = len(self._gpus())
    on_cpu = os.environ.get("JAX_NUM_CPU_DEVICES", "1")
    if gpus:
      return max(1, gpus // self.parallel)
    return max(1, int(on_cpu)) if on_cpu.isdecimal() else 1

  def check(self, root: pathlib.Path) -> None:
    visible, gpus = _visible(), self._gpus()
    if isinstance(self.gpus, int) and not 0 <= self.gpus <= len(visible):
      raise UserError(f"Local(gpus={self.gpus}): this machine has {len(visible)} GPUs.")
    if unknown := [gpu for gpu in gpus if isinstance(self.gpus, tuple) and gpu not in visible]:
      known = ", ".join(visible) or "none"
      raise UserError(f"Local(gpus={self.gpus}): no GPU {unknown[0]}; there is {known}.")
    if len(set(gpus)) < len(gpus):
      raise UserError(f"Local(gpus={self.gpus}): a GPU is named twice.")
    if gpus and len(gpus) % self.parallel:
      raise UserError(
        f"Local(parallel={self.parallel}): {len(gpus)} GPUs do not divide evenly among "
        "as many jobs."
      )
    if self.cores > usable_cpus():
      raise UserError(f"Local(cores={self.cores}): this process may use {usable_cpus()} cores.")

  def slots(self) -> list[Slot]:
    """The places of the jobs that run at the same time."""
    gpus, hidden = self._gpus(), bool(_visible())
    each = len(gpus) // self.parallel
    cores = _cores()[: self.cores or None]
    slots = []
    for i in range(self.parallel):
      # With fewer cores than jobs, several jobs share a core.
      first = i * len(cores) // self.parallel
      last = max(first + 1, (i + 1) * len(cores) // self.parallel)
      own = ",".join(gpus[i * each : (i + 1) * each]) if hidden else None
      slots.append(Slot(own, frozenset(cores[first:last])))
    return slots

  def _gpus(self) -> list[str]:
    visible = _visible()
    if self.gpus is None:
      return visible
    if isinstance(self.gpus, int):
      return visible[: self.gpus]
    return [str(gpu) for gpu in self.gpus]

  def script(self, task: Task) -> tuple[str, str]:
    lines = [
      "#!/usr/bin/env bash",
      f"# Job {task.name} of the run {task.run}, written by jaxspeed.launch. After a failure",
      "# `python -m jaxspeed.launch retry` starts it again; it resumes from its newest checkpoint.",
      f"record={shlex.quote(str(task.record))}",
      "# The submission that this start belongs to, and how often it was restarted.",
      "token=${1:-by-hand} restarts=${2:-0}",
      "note() {",
      r"  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "
      '"$(date +%s)" "$token" "$1" "$restarts" "$HOSTNAME" "$2" \\',
      '    >>"$record/tasks/0.tsv"',
      "}",
      "# This shell stays to write the exit code down while the trainer uses a signal to save, and",
      "# writes it down too if a line of the setup ends it.",
      "ended= told=",
      """trap 'code=$?; [ -n "$ended" ] || note ended "$code"' EXIT""",
      "trap : USR1 INT HUP",
      "trap told=1 TERM",
      'note started "$$"',
      f"cd {shlex.quote(str(task.cwd))} || exit 2",
      *exports(self.env),
      *self.setup,
      "set +eu",
      "# Cancelled during the setup.",
      '[ -z "$told" ] || exit 0',
      f'{shlex.join(task.command)} >>"$record/logs/0.log" 2>&1',
      "code=$? ended=1",
      'note ended "$code"',
      'exit "$code"',
    ]
    return "script.sh", "\n".join(lines) + "\n"

  def submit(
    self, tasks: Sequence[Task], token: str, folder: pathlib.Path
  ) -> Iterator[Mapping[str, str]]:
    # The queue takes what is recorded as submitted.
    yield {task.name: token for task in tasks}

  def begin(self, folder: pathlib.Path) -> None:
    start_queue(folder)

  def states(
    self, jobs: Mapping[str, str], folder: pathlib.Path
  ) -> Mapping[str, SchedulerState] | None:
    if queue_elsewhere(folder):
      return None
    return {
      name: SchedulerState.RUNNING
      if is_locked(folder.parent / name / RECORD / ALIVE)
      else SchedulerState.PENDING
      for name in jobs
    }

  def cancel(self, jobs: Mapping[str, str], folder: pathlib.Path) -> None:
    """Ends jobs: what runs is told to save; the queue skips what does not run."""
    host = queue_elsewhere(folder)
    if host:
      raise UserError(f"the queue of {folder.parent} runs on {host}: cancel there.")
    for name in jobs:
      stop(folder.parent / name)

  def warning(self, folder: pathlib.Path) -> str:
    """What keeps waiting jobs from starting, as a sentence; '' if nothing does."""
    if queue_elsewhere(folder) or queue_runs(folder):
      return ""
    return (
      f"the queue does not run: python -m jaxspeed.launch resume {shlex.quote(str(folder.parent))}"
    )


def stop(folder: pathlib.Path) -> bool:
  """Tells the processes of a job on this machine to save and end; whether there are any to tell."""
  if not is_locked(folder / RECORD / ALIVE):
    return False
  facts = read_facts(folder)
  starts = facts.own(facts.notes) if facts else []
  if not facts or not starts:
    return False
  # The numbers of earlier starts may be those of other processes by now.
  started = [
    n
    for n in facts.own(facts.tasks.get(0, ()))
    if n.what == "started" and n.restart == starts[-1].restart and PROCESS.fullmatch(n.detail)
  ]
  if not started or not _is_of(int(started[-1].detail), started[-1].token):
    return False
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(int(started[-1].detail), signal.SIGTERM)
  return True


def _is_of(process: int, token: str) -> bool:
  """Whether a process runs the script of a submission, which is in its arguments."""
  if process < 2:
    return False
  with contextlib.suppress(OSError):
    command = ["ps", "-ww", "-o", "args=", "-p", str(process)]
    return token in subprocess.run(command, capture_output=True, text=True).stdout.split()
  return False


def start_queue(folder: pathlib.Path) -> None:
  """Starts the process that runs a queue, unless there is one.

  Args:
    folder: the run's folder for the launcher's own files.

  Raises:
    UserError: the process ended at once.
  """
  if queue_runs(folder):
    return
  try:
    log = open(folder / QUEUE_LOG, "ab")
  except OSError as error:
    raise UserError(
      f"{folder / QUEUE_LOG} cannot be written ({error.strerror or error}): only who submitted the "
      "run can start its queue."
    ) from None
  with log:
    command = [sys.executable, "-m", "jaxspeed.launch", "resume", str(folder.parent), "--here"]
    # A session of its own outlives the terminal.
    process = subprocess.Popen(
      command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
  deadline = time.monotonic() + _STARTS_WITHIN
  while not queue_runs(folder):
    # A short queue may be done already.
    if process.poll() == 0:
      return
    if process.poll() is not None or time.monotonic() > deadline:
      raise UserError(
        f"the queue did not start, see {folder / QUEUE_LOG}; then: python -m jaxspeed.launch "
        f"resume {folder.parent}."
      )
    time.sleep(0.05)


def queue_runs(folder: pathlib.Path) -> bool:
  """Whether a queue runs on this machine.

  Args:
    folder: the run's folder for the launcher's own files.
  """
  return is_locked(folder / QUEUE_LOCK)


def queue_elsewhere(folder: pathlib.Path) -> str:
  """The other machine on which a queue was last started; '' for this one, or without a queue."""
  try:
    host = load_json(folder / QUEUE, dict[str, str])["host"]
  except (OSError, ValueError, KeyError):
    return ""
  return "" if host == socket.gethostname() else host


def _visible() -> list[str]:
  """The visible GPUs as CUDA_VISIBLE_DEVICES names them."""
  return [name.removeprefix("nvidia") for name in visible_gpus()[0]]


def _cores() -> list[int]:
  if hasattr(os, "sched_getaffinity"):  # not on macOS
    return sorted(os.sched_getaffinity(0))
  return list(range(usable_cpus()))
