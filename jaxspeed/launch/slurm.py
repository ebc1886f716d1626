"""Slurm: arrays of single-node jobs, and jobs of several nodes, submitted with sbatch."""

import pathlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from jaxspeed.config import schema
from jaxspeed.config.schema import must_be
from jaxspeed.errors import UserError
from jaxspeed.files import write_atomically
from jaxspeed.launch import shared_disk
from jaxspeed.launch.executor import Count, Executor, Line, Refused, SchedulerState, Task, Words
from jaxspeed.launch.slurm_script import SIGNAL, array_script, job_script

# MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS and so on: man sbatch.
_TIME = r"(?:(\d{1,5})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?"
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

Time = Annotated[
  str,
  must_be(
    "a time limit as sbatch takes it, such as 4:00:00 or 1-12:00:00",
    lambda text: not text or bool(re.fullmatch(_TIME, text)),
  ),
]


class Slurm(Executor):
  """Jobs on a Slurm cluster, from a machine with sbatch, squeue and scancel.

  A job saves before its time limit, on a preemption and on `scontrol requeue`, and resumes by
  itself. Jobs on one node are submitted as an array.
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
  time: Time = ""
  """time limit of one start of a job; '': the partition's"""
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
    own = "--array --output --nodes --comment --signal --requeue --no-requeue --time --wait".split()
    for option in self.options:
      if not option.startswith("-") or not schema.is_plain(option):
        raise UserError(f"Slurm: options has {option!r}, which is no option of sbatch.")
      # A short option's value may follow without a space.
      if option.partition("=")[0] in own or option[:2] in ("-a", "-o", "-N", "-t", "-W"):
        raise UserError(f"Slurm: options has {option}, which jaxspeed.launch sets itself.")

    hours = self.most_hours
    # Slurm may send the signal a minute early.
    if hours is not None and 3600 * hours <= self.save_seconds + 60:
      raise UserError(
        f"Slurm(time={self.time!r}): jobs begin to save {self.save_seconds} s before that limit, "
        "or a minute earlier, and would never train: set a longer time, or a shorter save_seconds."
      )

  @property
  def job_nodes(self) -> int:
    return self.nodes

  @property
  def processes(self) -> int:
    return self.nodes * self.tasks_per_node

  @property
  def most_hours(self) -> float | None:
    found = re.fullmatch(_TIME, self.time)
    if not self.time or found is None:
      return None
    days, *rest = found.groups()
    numbers = [int(part) for part in rest if part is not None]
    # After days the first number is hours; a lone number is minutes, and two are minutes:seconds.
    units = [1, 1 / 60, 1 / 3600]
    if days is None and len(numbers) < 3:
      units.pop(0)
    hours = 24 * int(days or 0) + sum(n * unit for n, unit in zip(numbers, units, strict=False))
    return hours or None  # sbatch takes 0 for no limit

  def devices(self) -> int:
    return self.nodes * self.gpus_per_node if self.gpus_per_node else self.processes

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
      shared_disk.check(root, self._hosts(), escape="Slurm(shared_root=True)")

  def _hosts(self) -> list[str]:
    """Addresses of the cluster's nodes.

    Raises:
      UserError: the controller does not answer.
    """
    done = _slurm("scontrol", "--oneliner", "show", "nodes")
    if done.returncode:
      raise UserError(f"Slurm does not answer ({_reason(done)}): submit again when it does.")
    return re.findall(r"\bNodeAddr=(\S+)", done.stdout)

  def script(self, task: Task) -> tuple[str, str]:
    return "script.sh", job_script(task, self, self._options(f"jaxspeed-{task.name}"))

  def _options(self, name: str) -> list[str]:
    fields = {
      "job-name": name,
      "partition": self.partition,
      "account": self.account,
      "nodes": self.nodes,
      "ntasks-per-node": self.tasks_per_node,
      "cpus-per-task": self.cpus_per_task or "",
      "time": self.time,
    }
    if self.gpus_per_node:
      fields["gpus-per-node"] = f"{self.gpu}:{self.gpus_per_node}".lstrip(":")
    given = [f"--{name}={value}" for name, value in fields.items() if value]
    signal = SIGNAL.format(seconds=self.save_seconds)
    return [*given, "--open-mode=append", "--requeue", signal, *self.options]

  def submit(
    self, tasks: Sequence[Task], token: str, folder: pathlib.Path
  ) -> Iterator[Mapping[str, str]]:
    if self.nodes > 1:
      for task in tasks:
        yield {task.name: self._sbatch(task.record / "script.sh", token)}
      return
    for first in range(0, len(tasks), _MOST_IN_ARRAY):
      part = tasks[first : first + _MOST_IN_ARRAY]
      if len(part) == 1:
        yield {part[0].name: self._sbatch(part[0].record / "script.sh", token)}
        continue
      options = self._options(f"jaxspeed-{part[0].run}")
      place = folder / "arrays" / f"{token}-{first}"
      script = _write_array(place, part, options, at_once=self.parallel)
      number = self._sbatch(script, token)
      yield {task.name: f"{number}_{i}" for i, task in enumerate(part)}

  def _sbatch(self, script: pathlib.Path, token: str) -> str:
    # The comment finds the job again if this process dies before it has written the number down.
    done = _slurm("sbatch", "--parsable", f"--comment=jaxspeed:{token}", str(script), token)
    number = done.stdout.strip().partition(";")[0]
    refused = _REFUSED.search(done.stderr) and not _UNSURE.search(done.stderr)
    if done.returncode and refused:
      raise Refused(f"sbatch refused {script} ({_reason(done)}).")
    if done.returncode or not number.isdecimal():
      raise UserError(
        f"sbatch did not submit {script} ({_reason(done)}): repeat the command, which submits what "
        "is missing."
      )
    return number

  def states(
    self, jobs: Mapping[str, str], folder: pathlib.Path
  ) -> Mapping[str, SchedulerState] | None:
    numbers = {id.partition("_")[0] for id in jobs.values() if id}
    if not numbers:
      return {}
    done = _slurm(
      "squeue", "--noheader", "--array", "--states=all", "--format=%i|%T",
      f"--jobs={','.join(sorted(numbers))}",
    )  # fmt: skip
    # Slurm forgets a job some minutes after its end.
    if done.returncode and "Invalid job id" not in done.stderr:
      return None
    listed = dict(line.split("|") for line in done.stdout.split() if line.count("|") == 1)
    return {name: _state(listed.get(id, "")) for name, id in jobs.items() if id}

  def find(self, token: str, tasks: Sequence[Task]) -> Mapping[str, str]:
    done = _slurm("squeue", "--noheader", "--array", "--states=all", "--format=%i|%k|%o")
    if done.returncode:
      raise UserError(f"Slurm does not answer ({_reason(done)}): repeat the command when it does.")
    rows = [line.split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]
    # squeue prints the command without quotes: its last word is the token.
    scripts = {
      id: pathlib.Path(command.removesuffix(f" {token}"))
      for id, comment, command in rows
      if comment == f"jaxspeed:{token}"
    }
    folders = {str(task.folder): task.name for task in tasks}
    found = {_folder_of(id, script): id for id, script in scripts.items()}
    return {folders[folder]: id for folder, id in found.items() if folder in folders}

  def cancel(self, jobs: Mapping[str, str], folder: pathlib.Path) -> None:
    ids = [id for id in jobs.values() if id]
    if not ids:
      return
    # --quiet: jobs that have ended in the meantime are no errors.
    done = _slurm("scancel", "--quiet", *ids)
    if done.returncode and "Invalid job id" not in done.stderr:
      raise UserError(f"Slurm did not cancel ({_reason(done)}): cancel again when it answers.")


def _write_array(
  place: pathlib.Path, tasks: Sequence[Task], options: Sequence[str], *, at_once: int
) -> pathlib.Path:
  """Writes the script of an array into a new folder; returns its path.

  Raises:
    Refused: it cannot be written.
  """
  script = place / "script.sh"
  text = array_script(tasks, tasks[0].run, options, log=str(place / "%a.log"), at_once=at_once)
  try:
    place.mkdir(parents=True)
    write_atomically(script, text, sync=False)
  except OSError as error:
    raise Refused(f"{script} cannot be written ({error.strerror or error}).") from None
  return script


def _folder_of(id: str, script: pathlib.Path) -> str:
  """The folder of the job that a submitted script runs; '' if it cannot be found."""
  if "_" not in id:
    return str(script.parent.parent)
  index = id.rpartition("_")[2]
  try:
    lines = re.findall(r"^  (.+)$", script.read_text(), re.MULTILINE)
  except OSError:
    return ""
  return shlex.split(lines[int(index)])[0] if index.isdecimal() and int(index) < len(lines) else ""


def _state(words: str) -> SchedulerState:
  if words in _PENDING:
    return SchedulerState.PENDING
  return SchedulerState.RUNNING if words in _RUNNING else SchedulerState.ABSENT


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
  """Runs a command of Slurm; its failure is in the result, also when there is no such command."""
  try:
    return subprocess.run(
      command, capture_output=True, text=True, errors="replace", timeout=_SECONDS
    )
  except subprocess.TimeoutExpired:
    return subprocess.CompletedProcess(command, 1, "", f"no answer within {_SECONDS} s")
  except OSError as error:
    return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {error.strerror or error}")


def _reason(done: subprocess.CompletedProcess[str]) -> str:
  lines = (
    done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
  ).splitlines()
  # An unknown option is named in the first line; the last one points to --help.
  return lines[0 if "--help" in lines[-1] else -1].rstrip(".")
