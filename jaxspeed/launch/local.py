"""This machine: jobs as processes, each with its own GPUs and cores, taken by workers."""

import contextlib
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple

import pydantic
from pydantic import Field

from jaxspeed.cluster.peers import visible_gpus
from jaxspeed.config.schema import Says
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError, printable
from jaxspeed.files import is_locked, open_locked, read_bytes
from jaxspeed.launch.executor import Count, Executor, Found, to_tuple
from jaxspeed.launch.record import LAUNCHER, RECORD, Facts, Job

# In the run's LAUNCHER: locked while worker N lives, with its host and number; the workers' output.
WORKER, LOG = "worker.{}.lock", "workers.log"
# In a job's record: locked while any process of the job lives, which inherits the open file.
ALIVE = "alive.lock"


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

  As many workers (`jaxspeed.launch.worker`), which outlive the terminal, take them one by one.
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

  def slot(self, number: int) -> Slot:
    """The place `number`, from 0, of the jobs that run at the same time."""
    gpus, cores = self._gpus(), _cores()[: self.cores or None]
    each = len(gpus) // self.parallel
    # With fewer cores than jobs, several jobs share a core.
    first = number * len(cores) // self.parallel
    last = max(first + 1, (number + 1) * len(cores) // self.parallel)
    own = ",".join(gpus[number * each : (number + 1) * each]) if _visible() else None
    return Slot(own, frozenset(cores[first:last]))

  def _gpus(self) -> list[str]:
    visible = _visible()
    if self.gpus is None:
      return visible
    return visible[: self.gpus] if isinstance(self.gpus, int) else [str(gpu) for gpu in self.gpus]

  def script(self, jobs: Sequence[Job], token: str) -> str:
    (job,) = jobs
    command = shlex.join(job.command(self.python or sys.executable))
    return "\n".join([*self.preparation(job.cwd), f"exec {command}"]) + "\n"

  def submit(self, jobs: Sequence[Job], token: str) -> None:
    """Does nothing more: the workers take what is recorded as submitted."""

  def begin(self, folder: pathlib.Path, jobs: int) -> None:
    """Starts the workers that do not run.

    Raises:
      UserError: this user may not start them.
    """
    try:
      with open(folder / LAUNCHER / LOG, "ab") as log:
        for number in range(min(jobs, self.parallel)):
          self._start(folder, number, log.fileno())
    except OSError as error:
      raise UserError(
        f"{folder / LAUNCHER} cannot be written ({error.strerror or error}): only who submitted "
        "the run can start its workers."
      ) from None

  def _start(self, folder: pathlib.Path, number: int, log: int) -> None:
    path = folder / LAUNCHER / WORKER.format(number)
    if (descriptor := open_locked(path)) is None:
      time.sleep(0.05)  # a command that asks whether a worker runs holds the lock for an instant
      descriptor = open_locked(path)
    if descriptor is None:
      return
    try:
      command = [sys.executable, "-m", "jaxspeed.launch.worker", str(folder), str(number)]
      # A session of its own outlives the terminal. It inherits the lock, which is held from now on.
      process = subprocess.Popen(
        [*command, str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(descriptor,),
        start_new_session=True,
      )
      os.ftruncate(descriptor, 0)
      os.write(descriptor, f"{socket.gethostname()} {process.pid}\n".encode())
    finally:
      os.close(descriptor)

  def states(self, jobs: Sequence[Facts], folder: pathlib.Path) -> Mapping[str, Found] | None:
    if workers_elsewhere(folder):
      return None
    return {facts.job.name: Found(is_locked(facts.folder / RECORD / ALIVE)) for facts in jobs}

  def silence(self, folder: pathlib.Path) -> str:
    return f"the workers of {folder} run on {workers_elsewhere(folder)}"

  def cancel(self, ids: Sequence[str]) -> None:
    """Does nothing more: the workers read what is recorded."""

  def warning(self, folder: pathlib.Path) -> str:
    if workers_elsewhere(folder) or workers_run(folder):
      return ""
    resume = f"python -m jaxspeed.launch resume {shlex.quote(str(folder))}"
    return f"no worker runs, see {LAUNCHER}/{LOG}: {resume}"


def workers_run(folder: pathlib.Path) -> bool:
  """Whether a worker of a run lives on this machine."""
  return any(map(is_locked, (folder / LAUNCHER).glob(WORKER.format("*"))))


def workers_elsewhere(folder: pathlib.Path) -> str:
  """Another machine on which workers were last started and have not ended; '' without one."""
  for path in (folder / LAUNCHER).glob(WORKER.format("*")):
    with contextlib.suppress(OSError, ValueError):
      host = read_bytes(path)[:300].decode().partition(" ")[0]
      if host not in ("", socket.gethostname()):
        return printable(host)
  return ""


def _visible() -> list[str]:
  """The visible GPUs as CUDA_VISIBLE_DEVICES names them."""
  return [name.removeprefix("nvidia") for name in visible_gpus()[0]]


def _cores() -> list[int]:
  if hasattr(os, "sched_getaffinity"):  # not on macOS
    return sorted(os.sched_getaffinity(0))
  return list(range(usable_cpus()))
