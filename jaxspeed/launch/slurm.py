"""Slurm: jobs as parts of arrays, submitted with sbatch."""

import pathlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from jaxspeed.config import schema
from jaxspeed.errors import UserError
from jaxspeed.launch import shared_disk
from jaxspeed.launch.executor import Count, Executor, Line, Refused, SchedulerState, Words
from jaxspeed.launch.record import Job

# Slurm's MaxArraySize is 1,001 unless the site changes it.
_MOST_IN_ARRAY = 1000
# What sbatch says when it has not submitted; and failures of the connection, after which the
# controller may have the job that it did not confirm.
_REFUSED = re.compile("submission failed|[Ii]nvalid|[Uu]nrecognized")
_UNSURE = re.compile("timed out|Zero Bytes|(receive|send|shutdown) failure|[Cc]onnection|Broken")
_SECONDS = 120  # for one call of a Slurm command; a busy controller takes its time
_RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "SUSPENDED", "STOPPED", "RESIZING"}
# Jobs that have ended stay in squeue's memory for some minutes, with these states among others.
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
# Options of sbatch that `Slurm` sets; a short one's value may follow without a space.
_OWN = (
  "--array --output --nodes --comment --signal --requeue --no-requeue --time --wait".split(),
  ("-a", "-o", "-N", "-t", "-W"),
)


class Slurm(Executor):
  """Jobs on a Slurm cluster, from a machine with sbatch, squeue and scancel.

  A job saves before its time limit, on a preemption and on `scontrol requeue`, and resumes by
  itself.
  """

  kind: ClassVar[str] = "slurm"

  partition: Line = ""
  """partition; '': the cluster's default"""
  nodes: Count = 1
  """nodes of one job"""
  gpus_per_node: Annotated[int, Field(ge=0, le=1024)] = 0
  """GPUs on each node; 0: none, the job trains on CPUs"""
  tasks_per_node: Annotated[int, Field(ge=1, le=1024)] = 1
  """processes on each node; 1: one drives all its GPUs"""
  cpus_per_task: Annotated[int, Field(ge=0, le=4096)] = 0
  """CPUs of each process; 0: the cluster's default"""
  gpu: Line = ""
  """kind of GPU, as in the cluster's --gpus-per-node=KIND:NUMBER; '': any"""
  time: Line = ""
  """time limit of one start of a job as sbatch takes it, such as 4:00:00; '': the partition's"""
  account: Line = ""
  """account that pays; '': the user's default"""
  parallel: Annotated[int, Field(ge=0, le=1_000_000)] = 0
  """most jobs of an array that run at the same time; 0: no limit"""
  save_seconds: Annotated[int, Field(ge=1, le=65_535)] = 300
  """seconds before the time limit at which a job begins to save"""
  options: Words = ()
  """more options of sbatch, such as "--exclusive" or "--qos=high" """
  shared_root: bool = False
  """whether all nodes see the runs' root, where that cannot be found out"""

  def __init__(self, **values: object) -> None:
    super().__init__(**values)
    for option in self.options:
      if not option.startswith("-") or not schema.is_plain(option):
        raise UserError(f"Slurm: options has {option!r}, which is no option of sbatch.")
      if option.partition("=")[0] in _OWN[0] or option[:2] in _OWN[1]:
        raise UserError(f"Slurm: options has {option}, which jaxspeed.launch sets itself.")

  @property
  def job_nodes(self) -> int:
    return self.nodes

  def devices(self) -> int:
    return self.nodes * (self.gpus_per_node or self.tasks_per_node)

  def accelerator(self) -> str:
    return self.gpu

  def check(self, root: pathlib.Path) -> None:
    for command in ("sbatch", "squeue", "scancel"):
      if shutil.which(command) is None:
        raise UserError(
          f"{command} is not on the PATH: submit from a login node of the Slurm cluster, or use "
          "Local() in place of Slurm()."
        )
    if "%" in str(root):
      raise UserError(f"root {root} has a %, which Slurm replaces: choose another.")
    if not self.shared_root:
      done = _slurm("scontrol", "--oneliner", "show", "nodes")
      if done.returncode:
        raise UserError(f"Slurm does not answer ({_reason(done)}): submit again when it does.")
      hosts = re.findall(r"\bNodeAddr=(\S+)", done.stdout)
      shared_disk.check(root, hosts, escape="Slurm(shared_root=True)")

  def script(self, jobs: Sequence[Job], token: str) -> str:
    fields = {
      "job-name": f"jaxspeed-{jobs[0].run if len(jobs) > 1 else jobs[0].name}",
      "partition": self.partition,
      "account": self.account,
      "nodes": self.nodes,
      "ntasks-per-node": self.tasks_per_node,
      "cpus-per-task": self.cpus_per_task,
      "time": self.time,
      "gpus-per-node": f"{self.gpu}:{self.gpus_per_node}".lstrip(":") if self.gpus_per_node else "",
      # Slurm looks every 60 s or so and may be as much early, never late.
      "signal": f"USR1@{self.save_seconds}",
      "array": f"0-{len(jobs) - 1}" + (f"%{self.parallel}" if self.parallel else ""),
      # What happens before a job's own log is open.
      "output": pathlib.Path(jobs[0].folder).parent / ".launch" / "slurm" / "%A_%a.log",
    }
    options = [f"--{name}={value}" for name, value in fields.items() if value]
    options += ["--open-mode=append", "--requeue", *self.options]
    folders = [f"  {self.words_of(job)} \\" for job in jobs]
    lines = [
      "#!/usr/bin/env bash",
      f"# {len(jobs)} jobs of the run {jobs[0].run}: part i of the array is the job i.",
      # sbatch splits a directive like a shell does, without its variables.
      *(f"#SBATCH {shlex.quote(option)}" for option in options),
      "set -- \\",
      *folders[:-1],
      folders[-1].removesuffix(" \\"),
      "shift $((2 * SLURM_ARRAY_TASK_ID))",
      'exec >>"$1/launch/logs/batch.log" 2>&1',
      *self.preparation(jobs[0].cwd),
      "exec " + self.supervisor("slurm", '"$1" "$2"', token),
    ]
    return "\n".join(lines) + "\n"

  def submit(self, jobs: Sequence[Job], token: str) -> Iterator[Mapping[str, str]]:
    logs = pathlib.Path(jobs[0].folder).parent / ".launch" / "slurm"
    try:
      logs.mkdir(exist_ok=True)
    except OSError as error:
      raise Refused(f"{logs} cannot be written ({error.strerror or error}).") from None
    for first in range(0, len(jobs), _MOST_IN_ARRAY):
      part = jobs[first : first + _MOST_IN_ARRAY]
      # The comment finds jobs again if this process dies before it has written their ids down.
      comment = f"--comment=jaxspeed:{token}:{first}"
      done = _slurm("sbatch", "--parsable", comment, script=self.script(part, token))
      number = done.stdout.strip().partition(";")[0]
      what = f"the job{'s' * (len(part) > 1)} {part[0].name}" + (" ..." if len(part) > 1 else "")
      refused = _REFUSED.search(done.stderr) and not _UNSURE.search(done.stderr)
      if done.returncode and refused:
        raise Refused(f"sbatch refused {what} ({_reason(done)}).")
      if done.returncode or not number.isdecimal():
        raise UserError(
          f"sbatch did not submit {what} ({_reason(done)}): repeat the command, which submits what "
          "is missing."
        )
      yield {job.name: f"{number}_{i}" for i, job in enumerate(part)}

  def states(
    self, ids: Mapping[str, str], folder: pathlib.Path
  ) -> Mapping[str, SchedulerState] | None:
    numbers = {id.partition("_")[0] for id in ids.values() if id}
    if not numbers:
      return {}
    done = _slurm(*_SQUEUE, "--format=%i|%T", f"--jobs={','.join(sorted(numbers))}")
    # Slurm forgets a job some minutes after its end.
    if done.returncode and "Invalid job id" not in done.stderr:
      return None
    listed = dict(line.split("|") for line in done.stdout.split() if line.count("|") == 1)
    return {name: _state(listed.get(id, "")) for name, id in ids.items() if id}

  def find(self, jobs: Mapping[str, Sequence[Job]]) -> Mapping[str, str]:
    done = _slurm(*_SQUEUE, "--format=%i|%k")
    if done.returncode:
      raise UserError(f"Slurm does not answer ({_reason(done)}): repeat the command when it does.")
    found = {}
    for id, token, first in re.findall(
      r"^(\d+_\d+)\|jaxspeed:(\w+):(\d+)$", done.stdout, re.MULTILINE
    ):
      place = int(first) + int(id.rpartition("_")[2])
      if place < len(own := jobs.get(token, ())):
        found[own[place].name] = id
    return found

  def cancel(self, ids: Mapping[str, str], folder: pathlib.Path) -> None:
    known = [id for id in ids.values() if id]
    # --quiet: jobs that have ended in the meantime are no errors.
    done = _slurm("scancel", "--quiet", *known) if known else None
    if done and done.returncode and "Invalid job id" not in done.stderr:
      raise UserError(f"Slurm did not cancel ({_reason(done)}): cancel again when it answers.")


_SQUEUE = ("squeue", "--noheader", "--array", "--states=all")


def _state(words: str) -> SchedulerState:
  if words in _PENDING:
    return SchedulerState.PENDING
  return SchedulerState.RUNNING if words in _RUNNING else SchedulerState.ABSENT


def _slurm(*command: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
  """Runs a command of Slurm; its failure is in the result, also when there is no such command."""
  try:
    return subprocess.run(
      command, input=script, capture_output=True, text=True, errors="replace", timeout=_SECONDS
    )
  except subprocess.TimeoutExpired:
    return subprocess.CompletedProcess(command, 1, "", f"no answer within {_SECONDS} s")
  except OSError as error:
    return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {error.strerror or error}")


def _reason(done: subprocess.CompletedProcess[str]) -> str:
  text = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
  lines = text.splitlines()
  # An unknown option is named in the first line; the last one points to --help.
  return lines[0 if "--help" in lines[-1] else -1].rstrip(".")
