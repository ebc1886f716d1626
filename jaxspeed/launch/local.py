"""This machine: jobs as processes, each with its own GPUs and cores, from a queue on disk."""

import contextlib
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple

import pydantic
from pydantic import Field

from jaxspeed.cluster.peers import visible_gpus
from jaxspeed.config.schema import Says
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError, printable
from jaxspeed.files import is_locked, read_bytes
from jaxspeed.launch.executor import Count, Executor, SchedulerState, to_tuple
from jaxspeed.launch.record import RECORD, Job

LAUNCHER = ".launch"  # the folder of the launcher's own files in a run's folder
# In it: the lock of the process that runs the queue, with its host and number, and its output.
QUEUE_LOCK, QUEUE_LOG = "queue.lock", "queue.log"
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
    Says("a number of GPUs, a list of their numbers, or None"),
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
    if unknown := [gpu for gpu in gpus if gpu not in visible]:
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
    return visible[: self.gpus] if isinstance(self.gpus, int) else [str(gpu) for gpu in self.gpus]

  def script(self, jobs: Sequence[Job], token: str) -> str:
    (job,) = jobs
    local = self.supervisor("local", self.words_of(job), token)
    return "\n".join([*self.preparation(job.cwd), f'exec {local} "${{1:-0}}"']) + "\n"

  def submit(self, jobs: Sequence[Job], token: str) -> Iterator[Mapping[str, str]]:
    # The queue takes what is recorded as submitted.
    yield {job.name: token for job in jobs}

  def begin(self, folder: pathlib.Path) -> None:
    start_queue(folder)

  def states(
    self, ids: Mapping[str, str], folder: pathlib.Path
  ) -> Mapping[str, SchedulerState] | None:
    if queue_elsewhere(folder):
      return None
    alive = {name: is_locked(folder / name / RECORD / ALIVE) for name in ids}
    return {name: SchedulerState.RUNNING if alive[name] else SchedulerState.PENDING for name in ids}

  def cancel(self, ids: Mapping[str, str], folder: pathlib.Path) -> None:
    """Does nothing more: the queue and the supervisors of jobs read what is recorded."""
    if host := queue_elsewhere(folder):
      raise UserError(f"the queue of {folder} runs on {host}: cancel there.")

  def warning(self, folder: pathlib.Path) -> str:
    if queue_elsewhere(folder) or queue_runs(folder):
      return ""
    return f"the queue does not run: python -m jaxspeed.launch resume {shlex.quote(str(folder))}"


def start_queue(folder: pathlib.Path) -> None:
  """Starts the process that runs a run's queue, unless there is one.

  Raises:
    UserError: the process ended at once.
  """
  if queue_runs(folder):
    return
  path = folder / LAUNCHER / QUEUE_LOG
  try:
    log = open(path, "ab")
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): only who submitted the run can start "
      "its queue."
    ) from None
  with log:
    command = [sys.executable, "-m", "jaxspeed.launch", "resume", str(folder), "--here"]
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
        f"the queue did not start, see {path}; then: python -m jaxspeed.launch resume {folder}."
      )
    time.sleep(0.05)


def queue_runs(folder: pathlib.Path) -> bool:
  """Whether a run's queue runs on this machine."""
  return is_locked(folder / LAUNCHER / QUEUE_LOCK)


def queue_elsewhere(folder: pathlib.Path) -> str:
  """The other machine on which a queue was last started; '' for this one, or without a queue."""
  with contextlib.suppress(OSError, ValueError):
    host = read_bytes(folder / LAUNCHER / QUEUE_LOCK)[:300].decode().partition(" ")[0]
    return "" if host == socket.gethostname() else printable(host)
  return ""


def _visible() -> list[str]:
  """The visible GPUs as CUDA_VISIBLE_DEVICES names them."""
  return [name.removeprefix("nvidia") for name in visible_gpus()[0]]


def _cores() -> list[int]:
  if hasattr(os, "sched_getaffinity"):  # not on macOS
    return sorted(os.sched_getaffinity(0))
  return list(range(usable_cpus()))
