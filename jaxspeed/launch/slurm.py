"""Slurm: jobs as parts of arrays, submitted with sbatch."""

import pathlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from annotated_types import Predicate
from pydantic import Field

from jaxspeed.config.schema import Says
from jaxspeed.errors import UserError
from jaxspeed.launch.executor import Count, Executor, Found, Line
from jaxspeed.launch.record import Facts, Job
from jaxspeed.launch.runs import LAUNCHER

_SECONDS = 120  # for one call of a Slurm command; a busy controller takes its time
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
# Options of sbatch that `Slurm` sets, which `options` may not.
_OWN = re.compile(
  "(--(array|output|nodes|job-name|signal|requeue|no-requeue|time|wait)(=.*)?|-[aoNJtW].*)"
)
_Option = Annotated[Line, Field(pattern="^-"), Predicate(lambda word: not _OWN.fullmatch(word))]


class Slurm(Executor):
  """Jobs on a Slurm cluster, from a machine with sbatch, squeue and scancel.

  A job saves before its time limit, on a preemption and on `scontrol requeue`, and resumes by
  itself.
  """

  kind: ClassVar[str] = "slurm"
  most_at_once: ClassVar[int] = 1000  # MaxArraySize is 1,001 unless the site changes it

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
  options: Annotated[
    tuple[_Option, ...],
    Field(strict=False),
    Says("a list of options of sbatch, without those that jaxspeed.launch sets (--dry-run)"),
  ] = ()
  """more options of sbatch, such as "--exclusive" or "--qos=high" """

  def devices(self) -> int:
    return self.nodes * (self.gpus_per_node or self.tasks_per_node)

  def check(self, root: pathlib.Path) -> None:
    for command in ("sbatch", "squeue", "scancel"):
      if shutil.which(command) is None:
        raise UserError(
          f"{command} is not on the PATH: submit from a login node of the Slurm cluster, or use "
          "Local() in place of Slurm()."
        )
    if "%" in str(root):
      raise UserError(f"root {root} has a %, which Slurm replaces: choose another.")

  def script(self, jobs: Sequence[Job], token: str) -> str:
    fields = {
      "job-name": _name(jobs[0].run, token),
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
      "output": jobs[0].run / LAUNCHER / "slurm" / "%A_%a.log",
    }
    options = [f"--{name}={value}" for name, value in fields.items() if value]
    options += ["--open-mode=append", "--requeue", *self.options]
    folders = [f"  {shlex.quote(job.folder)} {job.digest} \\" for job in jobs]
    lines = [
      "#!/usr/bin/env bash",
      f"# {len(jobs)} jobs of the run {jobs[0].run.name}: part i of the array is the job i.",
      # sbatch splits a directive like a shell does, without its variables.
      *(f"#SBATCH {shlex.quote(option)}" for option in options),
      "set -- \\",
      *folders[:-1],
      folders[-1].removesuffix(" \\"),
      "shift $((2 * SLURM_ARRAY_TASK_ID))",
      'mkdir -p "$1/launch/logs" && exec >>"$1/launch/logs/batch.log" 2>&1 || exit 2',
      *self.preparation(jobs[0].cwd),
      "exec " + self.supervisor("slurm", '"$1" "$2"', token),
    ]
    return "\n".join(lines) + "\n"

  def submit(self, jobs: Sequence[Job], token: str) -> None:
    (jobs[0].run / LAUNCHER / "slurm").mkdir(exist_ok=True)
    _, failure = _slurm("sbatch", "--parsable", script=self.script(jobs, token))
    if failure:
      what = f"the job{'s' * (len(jobs) > 1)} {jobs[0].name}" + " ..." * (len(jobs) > 1)
      raise UserError(
        f"sbatch did not submit {what} ({failure}): repeat the command, which submits what is "
        "missing."
      )

  def states(self, jobs: Sequence[Facts], folder: pathlib.Path) -> Mapping[str, Found] | None:
    names = sorted({_name(folder, facts.token) for facts in jobs})
    listed, failure = _slurm(
      "squeue", "--noheader", "--array", f"--name={','.join(names)}", "--format=%i|%T|%j"
    )
    if failure:
      return None
    rows = re.findall(r"^(\d+_(\d+))\|(\w+)\|(.+)$", listed, re.MULTILINE)
    found = {(name, int(place)): Found(word not in _PENDING, id) for id, place, word, name in rows}
    places = {
      f.job.name: (_name(folder, f.token), f.submission.jobs.index(f.job.name))
      for f in jobs
      if f.submission
    }
    return {name: found[place] for name, place in places.items() if place in found}

  def cancel(self, ids: Sequence[str]) -> None:
    # --quiet: jobs that have ended in the meantime are no errors.
    _, failure = _slurm("scancel", "--quiet", *ids)
    if failure and "Invalid job id" not in failure:
      raise UserError(f"Slurm did not cancel ({failure}): cancel again when it answers.")


def _name(run: pathlib.Path, token: str) -> str:
  """The name of a submission in Slurm's queue, by which its jobs are found."""
  return f"jaxspeed-{run.name.replace(',', '.')}-{token}"


def _slurm(*command: str, script: str | None = None) -> tuple[str, str]:
  """What a command of Slurm prints, and why it failed; '': it did not."""
  try:
    done = subprocess.run(
      command, input=script, capture_output=True, text=True, errors="replace", timeout=_SECONDS
    )
  except subprocess.TimeoutExpired:
    return "", f"no answer within {_SECONDS} s"
  except OSError as error:
    return "", f"{command[0]}: {error.strerror or error}"
  if done.returncode == 0:
    return done.stdout, ""
  text = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
  return "", " ".join(text.split()).rstrip(".")
