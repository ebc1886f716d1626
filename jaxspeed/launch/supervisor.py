"""The process beside each trainer: starts it, passes signals on, notes its end, decides the rest.

  python -m jaxspeed.launch.supervisor slurm JOB DIGEST TOKEN           # a batch job, with srun for
  python -m jaxspeed.launch.supervisor task JOB DIGEST TOKEN RESTART    # each of its tasks
  python -m jaxspeed.launch.supervisor sky JOB DIGEST TOKEN             # one machine of a job
  python -m jaxspeed.launch.supervisor sbatch --workdir=...   # train.sbatch: a job without a sweep

JOB is a job's folder, DIGEST that of its record, TOKEN its submission. `decision.decide` says what
follows an end. Local jobs have a `worker`.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from jaxspeed.config import output
from jaxspeed.errors import LOST_PEER, MISTAKE, REQUEUE, UserError
from jaxspeed.launch.decision import Verdict, decide
from jaxspeed.launch.executor import Executor, executor_of
from jaxspeed.launch.record import (
  RECORD,
  Event,
  add_line,
  ends_of,
  progress_of,
  read_notes,
  read_run_file,
)

_LOOK = 0.5  # seconds between two looks for a cancellation
_OTHERS = 3.0  # seconds within which the records of other machines are seen
_PASSED = {number: number for number in (signal.SIGTERM, signal.SIGUSR1)}


class Start:
  """One start of a job: what is noted of it.

  Args:
    folder: the job's folder.
    token: its submission.
    restart: how often it was restarted before.
    where: the host or hosts.

  Attributes:
    came: the signals that this process got while the trainer ran.
  """

  def __init__(self, folder: pathlib.Path, token: str, restart: int = 0, where: str = "") -> None:
    self.folder, self.token, self.restart = folder, token, restart
    self.came: list[int] = []
    self._where = where or socket.gethostname()

  def note(self, what: str, detail: str = "", task: int | None = None) -> None:
    """Writes down what happened to the job, or to one of its tasks.

    Raises:
      UserError: it cannot be written.
    """
    name = "job.jsonl" if task is None else f"tasks/{task}.jsonl"
    progress = progress_of(self.folder) if what == "requeued" else ""
    event = Event(time.time(), what, self.token, self.restart, self._where, detail, progress)
    add_line(self.folder / RECORD / name, event)

  def conclude(self, verdict: Verdict) -> None:
    """Writes a verdict down, and prints it.

    Raises:
      UserError: it cannot be written.
    """
    detail = f"{verdict.code} {verdict.reason}" if verdict.what == "failed" else verdict.reason
    self.note(verdict.what, detail)
    reason = f": {verdict.reason}" if verdict.reason else ""
    print(f"{self.folder.name}: {verdict.what}{reason}", flush=True)

  @contextlib.contextmanager
  def log(self, task: int) -> Iterator[IO[bytes]]:
    """The log of a task, to append to."""
    logs = self.folder / RECORD / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with open(logs / f"{task}.log", "ab") as file:
      yield file

  def run(
    self,
    task: int,
    command: Sequence[str],
    log: IO[bytes] | None,
    *,
    passed: Mapping[signal.Signals, signal.Signals] = _PASSED,
    variables: Mapping[str, str] | None = None,
    cancelled: Callable[[], bool] | None = None,
  ) -> int:
    """Runs a trainer to its end; returns its exit code, 128 + N after the signal N.

    Args:
      task: the number of the task.
      command: the words of its command.
      log: takes its output; None: this process's own.
      passed: the signals that the trainer gets when this process gets one.
      variables: environment variables to add.
      cancelled: whether the trainer is to end; the trainer then has a session of its own, and what
        it leaves in the background ends with it.
    """
    self.note("started", task=task)
    own = cancelled is not None
    trainer: subprocess.Popen[bytes] | None = None

    def handle(number: int, _: object) -> None:
      self.came.append(number)
      if trainer is not None and number in passed:
        trainer.send_signal(passed[signal.Signals(number)])

    # This process stays to note the end while the trainer saves.
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
      trainer = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if own else None,
        stdout=log,
        stderr=log and subprocess.STDOUT,
        close_fds=False,  # the trainer keeps the locks of a local job
        env=os.environ | (variables or {}),
        start_new_session=own,
      )
      for missed in {*self.came} & {*passed}:
        trainer.send_signal(passed[signal.Signals(missed)])
      if cancelled is not None:
        threading.Thread(target=_end_if, args=(trainer, cancelled), daemon=True).start()
      code = trainer.wait()
      if own:
        with contextlib.suppress(ProcessLookupError):
          os.killpg(trainer.pid, signal.SIGTERM)
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
    code = code if code >= 0 else 128 - code
    try:
      self.note("ended", str(code), task)
    except UserError as error:  # as on a full disk: the code itself says enough
      output.say(error)
    return code


def _end_if(trainer: subprocess.Popen[bytes], cancelled: Callable[[], bool]) -> None:
  while trainer.poll() is None:
    with contextlib.suppress(OSError, UserError):
      if cancelled():
        return trainer.terminate()
    time.sleep(_LOOK)


def _job_of(folder: pathlib.Path, digest: str) -> tuple[Executor, list[str]]:
  """A job's executor, and the command that trains it, made from its checked record."""
  found = read_run_file(folder.parent)
  jobs = [job for job in found.jobs if job.digest == digest] if found else []
  if not jobs or jobs[0].folder != str(folder):
    raise UserError(f"{folder} does not hold the job that was submitted: submit it again.")
  executor = executor_of(jobs[0])
  return executor, jobs[0].command(executor.python or sys.executable)


def slurm(
  folder: pathlib.Path,
  digest: str,
  token: str,
  max_restarts: int,
  arguments: Sequence[str] = (),
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
  if verdict.what == "requeued":
    # This ends the batch job.
    if subprocess.run(["scontrol", "requeue", job]).returncode == 0:
      return 0
    reason = f"{verdict.reason}; scontrol could not requeue the job: submit it again"
    verdict = Verdict("failed", verdict.code or 1, reason)
    start.conclude(verdict)
  return verdict.code


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


def sky(folder: pathlib.Path, token: str, executor: Executor, command: Sequence[str]) -> int:
  """One machine of a managed job of SkyPilot, with one process that drives all its GPUs."""
  variables = os.environ
  rank = int(variables.get("SKYPILOT_NODE_RANK", "0"))
  ips = variables.get("SKYPILOT_NODE_IPS", "127.0.0.1").split()
  number = int(variables.get("SKYPILOT_MANAGED_JOB_ID", "0"))

  def starts(name: str) -> int:
    events = read_notes(folder, name)
    return sum(event.token == token and event.what == "started" for event in events)

  # A machine that is taken away notes no end. Process 0 may have noted this start already.
  restart = starts("job")
  if rank:
    restart = max(starts(f"tasks/{rank}"), restart - 1)
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
  passed = dict.fromkeys(_PASSED, signal.SIGUSR1)
  with start.log(rank) as log:
    # Its output is SkyPilot's too; what copies it outlives signals to all processes.
    copy = ["bash", "-c", "trap '' TERM USR1 INT HUP; exec tee -a \"$0\"", str(log.name)]
    tee = subprocess.Popen(copy, stdin=subprocess.PIPE, bufsize=0)
    code = start.run(rank, command, tee.stdin, passed=passed, variables=own)
    tee.stdin.close()  # type: ignore[union-attr]
    with contextlib.suppress(subprocess.TimeoutExpired):
      tee.wait(5)  # what the trainer left in the background may hold the pipe
  deadline = time.monotonic() + _OTHERS
  while len(ends_of(folder, token, restart)) < len(ips) and time.monotonic() < deadline:
    time.sleep(0.1)
  if rank and code == 0:
    # Process 0 says whether the run is finished: the others may end before it has written that.
    return 0
  verdict = decide(folder, token, restart, code, max_restarts=executor.max_restarts)
  # A start that was replaced, on a machine that was believed lost, says nothing about the job.
  if rank == 0 and starts("job") <= restart + 1:
    start.conclude(verdict)
  if verdict.what == "requeued":
    return REQUEUE if verdict.code in (0, REQUEUE) else LOST_PEER
  # Codes after which SkyPilot would start the job again do not end it.
  return 1 if verdict.code in (REQUEUE, LOST_PEER) else verdict.code


def main(arguments: Sequence[str]) -> int:
  """Plays one of the roles; returns the exit code."""
  try:
    role, *rest = arguments
    if role == "sbatch":
      return sbatch(rest)
    folder, digest, token, *more = pathlib.Path(rest[0]), *rest[1:]
    if role == "task" and more[1:]:
      command = [os.environ.get("PYTHON") or sys.executable, "-m", "jaxspeed.train", *more[1:]]
      return task(Start(folder, token, int(more[0])), command, own_log=False)
    executor, command = _job_of(folder, digest)
    if role == "slurm":
      return slurm(folder, digest, token, executor.max_restarts)
    if role == "sky":
      return sky(folder, token, executor, command)
    return task(Start(folder, token, int(more[0])), command, own_log=True)
  except (OSError, UserError) as error:
    output.say(error)
    return MISTAKE


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
