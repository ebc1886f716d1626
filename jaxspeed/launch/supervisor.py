"""The process beside each trainer: starts it, passes signals on, notes its end, decides the rest.

  python -m jaxspeed.launch.supervisor sky JOB DIGEST TOKEN             # one machine of a job
  python -m jaxspeed.launch.supervisor slurm JOB DIGEST TOKEN           # a batch job, with srun for
  python -m jaxspeed.launch.supervisor task JOB DIGEST TOKEN RESTART    # each of its tasks
  python -m jaxspeed.launch.supervisor sbatch --workdir=...   # train.sbatch: a job without a sweep

JOB is a job's folder, DIGEST that of its record, TOKEN its submission. `decide` has the one rule of
all executors by which jobs restart.
"""

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from jaxspeed.config import output
from jaxspeed.config.flags import finish
from jaxspeed.errors import LOST_PEER, REQUEUE, UserError
from jaxspeed.launch.executor import Executor, executor_of
from jaxspeed.launch.record import (
  ENDED_BY_OTHERS,
  RECORD,
  Event,
  Job,
  add_line,
  culprit,
  ends_of,
  progress_of,
  read_notes,
  read_run_file,
)

_OTHERS = 3.0  # seconds within which the records of other machines are seen
_PASSED: dict[int, int] = {number: number for number in (signal.SIGTERM, signal.SIGUSR1)}


class Verdict(NamedTuple):
  """What follows the end of a job's start: "done", "requeued" or "failed", the code, and why."""

  what: str
  code: int
  reason: str


def decide(
  folder: pathlib.Path, token: str, restart: int, code: int, *, max_restarts: int
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
    if code in (LOST_PEER, ENDED_BY_OTHERS) and REQUEUE in ends.values():
      code = REQUEUE  # it lost a task that had saved
  elif code in (0, ENDED_BY_OTHERS) and ends:
    code = max(ends.values())
  task = f"task {first}: " if len(ends) > 1 and first is not None else ""
  if code not in (0, REQUEUE, LOST_PEER) and code < 128:
    return Verdict("failed", code, f"{task}ended with exit code {code}")
  if code >= 128 and code != ENDED_BY_OTHERS:
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


class Start:
  """One start of a submitted job, on a host or several: what is noted of it."""

  def __init__(self, folder: pathlib.Path, token: str, restart: int = 0, where: str = "") -> None:
    self.folder, self.token, self.restart = folder, token, restart
    self._where = where or socket.gethostname()

  def note(
    self, what: str, detail: str = "", code: int | None = None, task: int | None = None
  ) -> None:
    """Writes down what happened to the job, or to one of its tasks.

    Raises:
      OSError: it cannot be written.
    """
    name = "job.jsonl" if task is None else f"tasks/{task}.jsonl"
    progress = progress_of(self.folder) if what == "requeued" else ""
    event = Event(time.time(), what, self.token, self.restart, self._where, detail, code, progress)
    add_line(self.folder / RECORD / name, event)

  def conclude(self, verdict: Verdict) -> None:
    """Writes a verdict down, and prints it."""
    self.note(verdict.what, verdict.reason, verdict.code if verdict.what == "failed" else None)
    reason = f": {verdict.reason}" if verdict.reason else ""
    print(f"{self.folder.name}: {verdict.what}{reason}", flush=True)

  def log(self, task: int) -> IO[bytes]:
    """The log of a task, to append to."""
    logs = self.folder / RECORD / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return open(logs / f"{task}.log", "ab")

  def run(
    self,
    task: int,
    command: Sequence[str],
    log: IO[bytes] | None,
    *,
    passed: Mapping[int, int] = _PASSED,
    variables: Mapping[str, str] | None = None,
    own_session: bool = False,
    came: set[int] | None = None,
    on_start: Callable[[], None] = lambda: None,
  ) -> int:
    """Runs the trainer of a task to its end; returns its exit code, 128 + N after the signal N.

    Args:
      log: takes its output; None: this process's own.
      passed: the signals that the trainer gets when this process gets one.
      variables: environment variables to add.
      own_session: whether signals of a terminal do not reach the trainer, and what it leaves in the
        background ends with it.
      came: the signals that this process has got, of which the trainer gets those from before too.
      on_start: called when the trainer is there.
    """
    self.note("started", task=task)
    came = set() if came is None else came
    trainer: subprocess.Popen[bytes] | None = None

    def handle(number: int, _: object) -> None:
      came.add(number)
      if trainer is not None and number in passed:
        trainer.send_signal(passed[number])

    # This process stays to note the end while the trainer saves.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
      signal.signal(number, handle)
    trainer = subprocess.Popen(
      command,
      stdin=subprocess.DEVNULL if own_session else None,
      stdout=log,
      stderr=log and subprocess.STDOUT,
      close_fds=False,  # the trainer keeps the lock of its place
      env=os.environ | (variables or {}),
      start_new_session=own_session,
    )
    on_start()
    for missed in came & passed.keys():
      trainer.send_signal(passed[missed])
    code = trainer.wait()
    if own_session:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(trainer.pid, signal.SIGTERM)
    code = code if code >= 0 else 128 - code
    try:
      self.note("ended", code=code, task=task)
    except OSError as error:  # as on a full disk: the code itself says enough
      output.say(error)
    return code


def _job_of(folder: pathlib.Path, digest: str) -> Job:
  """The record of a job, which must be that which was submitted."""
  found = read_run_file(folder.parent)
  for job in found.jobs if found else ():
    if job.digest == digest and job.folder == str(folder):
      return job
  raise UserError(f"{folder} does not hold the job that was submitted: submit it again.")


def starts_of(folder: pathlib.Path, token: str, name: str = "job") -> int:
  """How often a job of this submission, or its task with this record, has started."""
  return sum((each.token, each.what) == (token, "started") for each in read_notes(folder, name))


def slurm(
  folder: pathlib.Path, digest: str, token: str, max_restarts: int, arguments: Sequence[str] = ()
) -> int:
  """The batch job of Slurm: its tasks, and whether it goes back into the queue.

  Args:
    arguments: those of the training, if there is no record of the job.
  """
  variables = os.environ
  job, hosts = variables["SLURM_JOB_ID"], variables.get("SLURM_JOB_NODELIST", "")
  if "SLURM_ARRAY_JOB_ID" in variables:
    job = f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
  restart = int(variables.get("SLURM_RESTART_COUNT", "0"))
  start = Start(folder, token, restart, hosts)
  start.note("started", job)
  print(f"{folder.name}: Slurm job {job} on {hosts}, restart {restart}", flush=True)
  # --kill-on-bad-exit: after one lost task the others, which may hang in a collective, are ended.
  # --cpu-bind: the input pipeline of a task wants all processors of the node, not one core.
  command = ["srun", "--kill-on-bad-exit=1", "--cpu-bind=none", *(["--label"] if arguments else [])]
  command += [sys.executable, "-m", "jaxspeed.launch.supervisor", "task", str(folder), digest]
  # Since Slurm 22.05 srun does not take its processors from sbatch.
  if cpus := variables.get("SLURM_CPUS_PER_TASK"):
    variables["SRUN_CPUS_PER_TASK"] = cpus
  # SIGTERM ends this process at once, on purpose: scancel and scontrol requeue send it, and what
  # follows cannot put a cancelled job back into the queue. When a job of higher priority comes,
  # the tasks alone are signalled.
  code = subprocess.run([*command, token, str(restart), *arguments]).returncode
  code = code if code >= 0 else 128 - code
  verdict = decide(folder, token, restart, code, max_restarts=max_restarts)
  start.conclude(verdict)
  if verdict.what != "requeued":
    return verdict.code
  # This ends the batch job.
  if subprocess.run(["scontrol", "requeue", job]).returncode == 0:
    return 0
  reason = f"{verdict.reason}; scontrol could not requeue the job: submit it again"
  start.conclude(Verdict("failed", verdict.code or 1, reason))
  return verdict.code or 1


def task(start: Start, command: Sequence[str], *, own_log: bool) -> int:
  """The trainer of a task of srun; Slurm signals every process of a task by itself."""
  number = int(os.environ["SLURM_PROCID"])
  with start.log(number) if own_log else contextlib.nullcontext() as log:
    return start.run(number, command, log, passed={})


def sbatch(arguments: Sequence[str]) -> int:
  """`train.sbatch`: a batch job whose training is stated by its arguments."""
  if "SLURM_JOB_ID" not in os.environ:
    raise UserError(
      "train.sbatch is a batch script: sbatch train.sbatch --config=FILE --workdir=DIR."
    )
  workdirs = [word.partition("=")[2] for word in arguments if word.startswith("--workdir=")]
  if not workdirs or not workdirs[-1]:
    # A finished run is known by its result.json, so the folder must be known here.
    raise UserError("--workdir=DIR is missing behind the name of train.sbatch.")
  most = os.environ.get("MAX_RESTARTS", "20")
  if not most.isdecimal():
    raise UserError(f"MAX_RESTARTS={most}: it must be a whole number.")
  folder = pathlib.Path(os.path.abspath(os.path.expanduser(workdirs[-1])))
  token = f"by-hand-{os.environ['SLURM_JOB_ID']}"
  return slurm(folder, "-", token, int(most), arguments)


def sky(job: Job, token: str, executor: Executor) -> int:
  """One machine of a managed job of SkyPilot, with one process that drives all its GPUs."""
  folder, variables = pathlib.Path(job.folder), os.environ
  rank = int(variables.get("SKYPILOT_NODE_RANK", "0"))
  ips = variables.get("SKYPILOT_NODE_IPS", "127.0.0.1").split()
  number = int(variables.get("SKYPILOT_MANAGED_JOB_ID", "0"))
  # A machine that is taken away notes no end. Process 0 may have noted this start already.
  restart = starts_of(folder, token)
  if rank:
    restart = max(starts_of(folder, token, f"tasks/{rank}"), restart - 1)
  start = Start(folder, token, restart, ",".join(ips))
  if rank == 0:
    start.note("started", str(number))
  own = {
    "JAXSPEED_RESTARTS": str(restart),  # by it a new start may take the folder over from the last
    # The port differs between jobs, which may share machines.
    "JAX_COORDINATOR_ADDRESS": f"{ips[0]}:{61440 + number % 4096}",
    "JAX_NUM_PROCESSES": variables.get("SKYPILOT_NUM_NODES", "1"),
    "JAX_PROCESS_ID": str(rank),
  }
  # A notice that the machine goes away makes all processes save and leave with REQUEUE.
  passed = dict.fromkeys(_PASSED, int(signal.SIGUSR1))
  with start.log(rank) as log:
    print(f"{job.name}: its output is in {log.name}", flush=True)
    code = start.run(rank, job.command(executor.python), log, passed=passed, variables=own)
  deadline = time.monotonic() + _OTHERS
  while len(ends_of(folder, token, restart)) < len(ips) and time.monotonic() < deadline:
    time.sleep(0.1)
  if rank and code == 0:
    # Process 0 says whether the run is finished: the others may end before it has written that.
    return 0
  verdict = decide(folder, token, restart, code, max_restarts=executor.max_restarts)
  # A start that was replaced, on a machine that was believed lost, says nothing about the job.
  if rank == 0 and starts_of(folder, token) <= restart + 1:
    start.conclude(verdict)
  if verdict.what == "requeued":
    return REQUEUE if verdict.code in (0, REQUEUE) else LOST_PEER
  # Codes after which SkyPilot would start the job again do not end it.
  return 1 if verdict.code in (REQUEUE, LOST_PEER) else verdict.code


def main(arguments: Sequence[str]) -> int:
  """Plays one of the roles; returns the exit code."""
  role, *rest = arguments
  if role == "sbatch":
    return sbatch(rest)
  folder, digest, token, *more = pathlib.Path(rest[0]), *rest[1:]
  if role == "task" and more[1:]:
    command = [os.environ.get("PYTHON") or sys.executable, "-m", "jaxspeed.train", *more[1:]]
    return task(Start(folder, token, int(more[0])), command, own_log=False)
  job = _job_of(folder, digest)
  executor = executor_of(job)
  if role == "slurm":
    return slurm(folder, digest, token, executor.max_restarts)
  if role == "task":
    command = job.command(executor.python or sys.executable)
    return task(Start(folder, token, int(more[0])), command, own_log=True)
  return sky(job, token, executor)


if __name__ == "__main__":
  finish(lambda: sys.exit(main(sys.argv[1:])), output_is_result=False)
