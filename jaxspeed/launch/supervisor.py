"""The process beside each trainer: starts it, passes signals on, notes its end, decides the rest.

  python -m jaxspeed.launch.supervisor local JOB DIGEST TOKEN RESTART   # a job of a local queue
  python -m jaxspeed.launch.supervisor slurm JOB DIGEST TOKEN           # a batch job, with srun for
  python -m jaxspeed.launch.supervisor task JOB DIGEST TOKEN RESTART    # each of its tasks
  python -m jaxspeed.launch.supervisor sky JOB DIGEST TOKEN             # one machine of a job
  python -m jaxspeed.launch.supervisor sbatch --workdir=...   # train.sbatch: a job without a sweep

JOB is a job's folder, DIGEST that of its record, TOKEN its submission. `decision.decide` says what
follows an end.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from jaxspeed.config import output
from jaxspeed.errors import LOST_PEER, MISTAKE, REQUEUE, UserError
from jaxspeed.launch.decision import Verdict, decide
from jaxspeed.launch.executor import Executor
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.record import (
  RECORD,
  Event,
  add_event,
  ends_of,
  progress_of,
  read_events,
  read_facts,
)

_LOOK = 0.5  # seconds between two looks for a cancellation
_OTHERS = 3.0  # seconds within which the records of other machines are seen


class Start:
  """One start of a job: what is noted of it.

  Args:
    folder: the job's folder.
    token: its submission.
    restart: how often it was restarted before.
    where: the host or hosts.
  """

  def __init__(self, folder: pathlib.Path, token: str, restart: int, where: str = "") -> None:
    self.folder, self.token, self.restart = folder, token, restart
    self._where = where or socket.gethostname()

  def note(self, what: str, detail: str = "", task: int | None = None) -> None:
    """Writes down what happened to the job, or to one of its tasks.

    Raises:
      UserError: it cannot be written.
    """
    name = "job.jsonl" if task is None else f"tasks/{task}.jsonl"
    progress = progress_of(self.folder) if what == "requeued" else ""
    event = Event(time.time(), what, self.token, self.restart, self._where, detail, progress)
    add_event(self.folder / RECORD / name, event)

  def conclude(self, verdict: Verdict) -> None:
    """Writes a verdict down, and prints it.

    Raises:
      UserError: it cannot be written.
    """
    detail = f"{verdict.code} {verdict.reason}" if verdict.what == "failed" else verdict.reason
    self.note(verdict.what, detail)
    print(
      f"{self.folder.name}: {verdict.what}{verdict.reason and f': {verdict.reason}'}", flush=True
    )

  def run(
    self,
    task: int,
    command: Sequence[str],
    *,
    log: bool = True,
    tee: bool = False,
    passed: Mapping[int, int] | None = None,
    until_cancelled: bool = False,
    variables: Mapping[str, str] | None = None,
  ) -> int:
    """Runs a trainer to its end; returns its exit code, 128 + N after the signal N.

    Args:
      task: the number of the task.
      command: the words of its command.
      log: whether its output goes into the job's folder.
      tee: whether it is printed too.
      passed: the signals that the trainer gets when this process gets one.
      until_cancelled: whether the trainer is told to end when the job's record is cancelled.
      variables: environment variables to add.
    """
    passed = {} if passed is None else passed
    came: list[int] = []
    trainer: subprocess.Popen[bytes] | None = None

    def handle(number: int, _: object) -> None:
      came.append(number)
      if trainer is not None and number in passed:
        trainer.send_signal(passed[number])

    # This process stays to note the end while the trainer saves.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
      signal.signal(number, handle)
    self.note("started", task=task)
    path = self.folder / RECORD / "logs" / f"{task}.log"
    file = open(path, "ab") if log else None
    # close_fds: the trainer keeps the lock of a local job.
    trainer = subprocess.Popen(
      command,
      stdout=subprocess.PIPE if tee else file,
      stderr=subprocess.STDOUT if log else None,
      close_fds=False,
      env=os.environ | (variables or {}),
    )
    for missed in {*came} & {*passed}:
      trainer.send_signal(passed[missed])
    if tee and file is not None:
      copier = threading.Thread(target=_copy, args=(trainer, file), daemon=True)
      copier.start()
    if until_cancelled:
      threading.Thread(target=self._end_cancelled, args=(trainer,), daemon=True).start()
    code = trainer.wait()
    if tee:
      copier.join(5)  # what the trainer left in the background may hold the pipe
    code = code if code >= 0 else 128 - code
    try:
      self.note("ended", str(code), task)
    except UserError as error:  # as on a full disk: the code itself says enough
      output.say(error)
    return code

  def _end_cancelled(self, trainer: subprocess.Popen[bytes]) -> None:
    path, size = self.folder / RECORD / "requests.jsonl", -1
    while trainer.poll() is None:
      if (now := path.stat().st_size if path.exists() else 0) != size:
        size = now
        if (facts := read_facts(self.folder)) and facts.cancelled and facts.token == self.token:
          return trainer.terminate()
      time.sleep(_LOOK)


def _copy(trainer: subprocess.Popen[bytes], file: object) -> None:
  assert trainer.stdout is not None
  while content := os.read(trainer.stdout.fileno(), 1 << 16):
    os.write(file.fileno(), content)  # type: ignore[attr-defined]
    os.write(1, content)


def _job_of(folder: pathlib.Path, digest: str) -> tuple[Executor, list[str]]:
  """A job's executor, and the command that trains it, made from its checked record."""
  facts = read_facts(folder)
  if facts is None or facts.job.digest != digest:
    raise UserError(f"{folder} does not hold the job that was submitted: submit it again.")
  executor = executor_of(facts.job.executor, str(folder))
  return executor, facts.job.command(executor.python or sys.executable)


def local(start: Start, command: Sequence[str]) -> int:
  """The trainer of a local job."""
  passed = {int(number): int(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
  return start.run(0, command, passed=passed, until_cancelled=True)


def task(start: Start, command: Sequence[str], *, log: bool = True) -> int:
  """The trainer of a task of srun; Slurm signals every process of a task by itself."""
  return start.run(int(os.environ["SLURM_PROCID"]), command, log=log)


def slurm(
  folder: pathlib.Path,
  digest: str,
  token: str,
  max_restarts: int,
  arguments: Sequence[str] = (),
) -> int:
  """The batch job of Slurm: its tasks, and whether it goes back into the queue."""
  variables = os.environ
  job = variables["SLURM_JOB_ID"]
  if "SLURM_ARRAY_JOB_ID" in variables:
    job = f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
  restart = int(variables.get("SLURM_RESTART_COUNT", "0"))
  start = Start(folder, token, restart, variables.get("SLURM_JOB_NODELIST", ""))
  start.note("started", job)
  print(
    f"{folder.name}: Slurm job {job} on {variables.get('SLURM_JOB_NODELIST')}, restart {restart}"
  )
  sys.stdout.flush()
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
  (folder / RECORD / "tasks").mkdir(parents=True, exist_ok=True)
  token = f"by-hand-{os.environ['SLURM_JOB_ID']}"
  return slurm(folder, "-", token, int(most), arguments)


def sky(folder: pathlib.Path, token: str, executor: Executor, command: Sequence[str]) -> int:
  """One machine of a managed job of SkyPilot, with one process that drives all its GPUs."""
  variables = os.environ
  rank = int(variables.get("SKYPILOT_NODE_RANK", "0"))
  ips = variables.get("SKYPILOT_NODE_IPS", "127.0.0.1").split()
  number = int(variables.get("SKYPILOT_MANAGED_JOB_ID", "0"))

  def starts(name: str) -> int:
    events = read_events(folder / RECORD / f"{name}.jsonl")
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
  passed = dict.fromkeys((int(signal.SIGTERM), int(signal.SIGUSR1)), int(signal.SIGUSR1))
  code = start.run(rank, command, tee=True, passed=passed, variables=own)
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
      return task(Start(folder, token, int(more[0])), command, log=False)
    executor, command = _job_of(folder, digest)
    if role == "slurm":
      return slurm(folder, digest, token, executor.max_restarts)
    if role == "sky":
      return sky(folder, token, executor, command)
    return (local if role == "local" else task)(Start(folder, token, int(more[0])), command)
  except (OSError, UserError) as error:
    output.say(error)
    return MISTAKE


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
