"""This machine: jobs as processes, each with its own GPUs and cores, started by a worker."""

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import psutil
from pydantic import Field

from jaxspeed.cluster.peers import visible_gpus
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError
from jaxspeed.files import is_locked, open_locked
from jaxspeed.launch.executor import Count, Executor, Found
from jaxspeed.launch.record import Facts, Job
from jaxspeed.launch.runs import LAUNCHER

# In the run's LAUNCHER, for place N: locked while its worker lives, with the process; with a job's
# name, locked while any process of the job lives, which inherits the open file; workers' output.
WORKER, PLACE, LOG = "worker.{}.lock", "place.{}.lock", "worker.log"
JOB = "JAXSPEED_JOB"  # the variable of a job's processes that has its folder


class Local(Executor):
  """Jobs on this machine, `parallel` at a time.

  A worker for each place (`jaxspeed.launch.worker`), which outlives the terminal, takes them one by
  one.
  """

  kind: ClassVar[str] = "local"
  pause: ClassVar[float] = 2.0

  parallel: Count = 1
  """jobs that run at the same time; they divide the GPUs, or the cores, evenly"""
  gpus: Annotated[int, Field(ge=0)] | None = None
  """GPUs to use, the first of the visible ones; None: all of them"""

  def devices(self) -> int:
    if gpus := len(self._gpus()):
      return max(1, gpus // self.parallel)
    on_cpu = os.environ.get("JAX_NUM_CPU_DEVICES", "1")
    return max(1, int(on_cpu)) if on_cpu.isdecimal() else 1

  def check(self, root: pathlib.Path) -> None:
    gpus = len(self._gpus())
    if gpus < (self.gpus or 0):
      raise UserError(f"Local(gpus={self.gpus}): this machine has {gpus} GPUs.")
    if gpus % self.parallel:
      raise UserError(
        f"Local(parallel={self.parallel}): {gpus} GPUs do not divide evenly among as many jobs."
      )

  def slot(self, number: int) -> tuple[str | None, frozenset[int]]:
    """CUDA_VISIBLE_DEVICES (None: there are no GPUs) and the cores of a place, from 0."""
    gpus, cores = self._gpus(), _cores()
    each = len(gpus) // self.parallel
    # With fewer cores than jobs, several jobs share a core.
    first = number * len(cores) // self.parallel
    last = max(first + 1, (number + 1) * len(cores) // self.parallel)
    own = ",".join(gpus[number * each : (number + 1) * each]) if _visible() else None
    return own, frozenset(cores[first:last])

  def _gpus(self) -> list[str]:
    return _visible()[: self.gpus]

  def script(self, jobs: Sequence[Job], token: str) -> str:
    (job,) = jobs
    command = shlex.join(job.command(self.python or sys.executable))
    return "\n".join([*self.preparation(job.cwd), f"exec {command}"]) + "\n"

  def submit(self, jobs: Sequence[Job], token: str) -> None:
    """Does nothing more: the worker takes what is recorded as submitted."""

  def begin(self, folder: pathlib.Path, jobs: int) -> None:
    for place in range(min(self.parallel, jobs)):
      path = folder / LAUNCHER / WORKER.format(place)
      if (descriptor := open_locked(path)) is None:
        time.sleep(0.05)  # a command that asks whether a worker runs holds it for an instant
        descriptor = open_locked(path)
      if descriptor is None:
        continue  # the worker sees what is new
      with open(descriptor, "w") as lock, open(folder / LAUNCHER / LOG, "ab") as log:
        # A session of its own outlives the terminal. It inherits the lock, held from now on.
        words = ["jaxspeed.launch.worker", str(folder), str(place), str(descriptor)]
        process = subprocess.Popen(
          [sys.executable, "-m", *words],
          stdin=subprocess.DEVNULL,
          stdout=log,
          stderr=log,
          pass_fds=(descriptor,),
          start_new_session=True,
        )
        lock.truncate()
        lock.write(f"{process.pid}\n")

  def states(self, jobs: Sequence[Facts], folder: pathlib.Path) -> Mapping[str, Found]:
    living = names_in_places(folder)
    pids = leaders(folder) if living else {}
    names = [facts.job.name for facts in jobs]
    return {name: Found(name in living, str(pids.get(name, ""))) for name in names}

  def cancel(self, ids: Sequence[str]) -> None:
    for pid in ids:
      with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGTERM)

  def warning(self, folder: pathlib.Path) -> str:
    if any(map(is_locked, (folder / LAUNCHER).glob(WORKER.format("*")))):
      return ""
    resume = f"python -m jaxspeed.launch resume {shlex.quote(str(folder))}"
    return f"no worker runs, see {LAUNCHER}/{LOG}: {resume}"


def names_in_places(folder: pathlib.Path) -> set[str]:
  """The names of a run's jobs of which a process lives on this machine."""
  places = filter(is_locked, (folder / LAUNCHER).glob(PLACE.format("*")))
  return {path.read_text() for path in places}


def leaders(folder: pathlib.Path) -> dict[str, int]:
  """The processes of a run's jobs on this machine that led their sessions first, by job."""
  run, found = folder.resolve(), dict[str, int]()
  processes = psutil.process_iter(["environ", "create_time"])
  # A job's own programs may lead sessions too, as wandb-core does: they are younger.
  for process in sorted(processes, key=lambda each: each.info["create_time"] or 0.0):
    job = pathlib.Path((process.info["environ"] or {}).get(JOB, "/"))
    if job.parent.resolve() == run:
      with contextlib.suppress(ProcessLookupError):
        if os.getsid(process.pid) == process.pid:
          found.setdefault(job.name, process.pid)
  return found


def _visible() -> list[str]:
  """The visible GPUs as CUDA_VISIBLE_DEVICES names them."""
  return [name.removeprefix("nvidia") for name in visible_gpus()[0]]


def _cores() -> list[int]:
  if hasattr(os, "sched_getaffinity"):  # not on macOS
    return sorted(os.sched_getaffinity(0))
  return list(range(usable_cpus()))
