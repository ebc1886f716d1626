"""A worker of a local run: supervises one job after the other in its place, until none waits.

  python -m jaxspeed.launch.worker RUN PLACE DESCRIPTOR

The queue is the run's folder. The worker holds the lock that it inherits as DESCRIPTOR, and that of
its place, which the processes of a job hold too: they outlive a worker that is killed, and the next
one waits for their end.
"""

import contextlib
import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any

from jaxspeed.config import output
from jaxspeed.config.flags import finish
from jaxspeed.errors import MISTAKE
from jaxspeed.files import try_lock
from jaxspeed.launch import record, runs
from jaxspeed.launch.executor import executor_of
from jaxspeed.launch.local import JOB, PLACE, Local, leaders, names_in_places
from jaxspeed.launch.record import Facts
from jaxspeed.launch.runs import LAUNCHER
from jaxspeed.launch.supervisor import Start, Verdict, decide, starts_of


def work(run: pathlib.Path, number: int, own: int) -> None:
  """Supervises jobs of a run; after a signal, which its job gets, it ends with that job.

  Args:
    number: the worker's place.
    own: the worker's lock, an open file.
  """
  came: set[int] = set()
  path = run / LAUNCHER / PLACE.format(number)

  def pass_on(number: int, _: Any) -> None:
    came.add(number)
    # A worker that was killed may have left a job.
    if (pid := leaders(run).get(path.read_text())) is not None:
      os.kill(pid, number)

  os.set_inheritable(own, False)
  left_out: set[str] = set()
  with open(path, "a") as place:
    for each in (signal.SIGTERM, signal.SIGUSR1):
      signal.signal(each, pass_on)
    try_lock(place.fileno(), wait=True)
    os.set_inheritable(place.fileno(), True)
    _take_slot(run, number)
    while True:
      place.truncate(0)
      with contextlib.ExitStack() as stack:
        # A command that adds jobs sees either this worker's lock or that it must start one.
        stack.enter_context(runs.lock_run(run))
        others = left_out | names_in_places(run)
        waiting = [facts for facts in _open_jobs(run) if facts.job.name not in others]
        if came or not waiting:
          os.close(own)
          return
        place.write(waiting[0].job.name)
        place.flush()
        try:
          # The lock is held until the job can be signalled.
          _supervise(waiting[0], came, stack.close)
        except OSError as error:
          left_out.add(waiting[0].job.name)
          reason = f"could not be supervised ({error}): resume, when that is mended."
          output.say(f"{waiting[0].folder} {reason}")


def _take_slot(run: pathlib.Path, number: int) -> None:
  """Restricts this process and its jobs to the GPUs and cores of a place."""
  for facts in _open_jobs(run)[:1]:
    executor = executor_of(facts.job)
    assert isinstance(executor, Local)
    gpus, cores = executor.slot(number)
    if hasattr(os, "sched_setaffinity"):  # not on macOS
      os.sched_setaffinity(0, cores)
    if gpus is not None:
      os.environ["CUDA_VISIBLE_DEVICES"] = gpus


def _open_jobs(run: pathlib.Path) -> list[Facts]:
  return [f for f in record.read_jobs(run) if f.is_open and not f.cancelled and not f.foreign]


def _supervise(facts: Facts, came: set[int], on_start: Callable[[], None]) -> None:
  """Runs a job once.

  Raises:
    OSError: the job's folder cannot even hold why it failed.
  """
  executor, token = executor_of(facts.job), facts.token
  start = Start(facts.folder, token, starts_of(facts.folder, token))
  try:
    start.note("started")
    with start.log(0) as log:
      command = ["bash", "-c", executor.script([facts.job], token)]
      own = {JOB: facts.job.folder}
      code = start.run(
        0, command, log, variables=own, own_session=True, came=came, on_start=on_start
      )
    most = executor.max_restarts
    verdict = decide(facts.folder, token, start.restart, code, max_restarts=most)
  except OSError as error:
    verdict = Verdict("failed", MISTAKE, str(error))
  start.conclude(verdict)


if __name__ == "__main__":
  folder, place, descriptor = sys.argv[1:]
  finish(lambda: work(pathlib.Path(folder), int(place), int(descriptor)))
