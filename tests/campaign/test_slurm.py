"""scripts/train.sbatch on a Slurm of two nodes: whatever interrupts a run, it goes on and finishes.

Every interrupted run has to end with the rows of the one that nothing happened to.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import sys
from collections.abc import Iterator

import pytest
from faulty_runs import newest_in
from local_cluster import Slurm, local_slurm, trainers, wait_until

from jaxspeed.errors import MISTAKE

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

EPOCHS = 60
STEPS = 15 * EPOCHS  # of 100 of the 1,500 digits


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
  with local_slurm() as cluster:
    cluster.variables["PYTHON"] = sys.executable
    yield cluster


class Run:
  """The quickstart at width 4 on both nodes, with three checkpoints a second."""

  def __init__(self, slurm: Slurm, folder: pathlib.Path) -> None:
    self.slurm, self.workdir, self.log = slurm, folder / "run", folder / "log"
    self.number = slurm.run(
      *("sbatch", "--parsable", "--nodes=2", f"--output={self.log}", "scripts/train.sbatch"),
      "--config=configs/quickstart.py",
      f"--workdir={self.workdir}",
      "--config.model.width=4",
      f"--config.epochs={EPOCHS}",
      "--config.checkpoint.every_seconds=0.3",
      "--config.heartbeat_seconds=100",
    )

  def field(self, name: str) -> str:
    """A value of `scontrol show job`: JobState, Restarts, ExitCode."""
    return re.findall(rf"\b{name}=(\S+)", self.slurm.run("scontrol", "show", "job", self.number))[0]

  @property
  def printed(self) -> str:
    """What all starts printed."""
    return self.log.read_text(errors="replace") if self.log.exists() else ""

  def has_ended(self) -> bool:
    return self.field("JobState") not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

  def saved(self) -> int:
    return newest_in(self.workdir)

  def tasks(self) -> list[int]:
    """Process numbers of the trainers, in the order of their ranks."""
    return trainers(self.number, self.slurm.variables["SLURM_CONF"])

  def wait_for_a_checkpoint(self) -> None:
    """A newer one than there is; fails where the job ends before."""
    before = self.saved()
    wait_until(lambda: self.saved() > before or self.has_ended(), 180, "a checkpoint")
    assert not self.has_ended() and self.saved() < STEPS, self.printed

  def wait_for_restart(self, restarts: int) -> str:
    """What the start that has ended printed about its end."""
    # A restart is counted when it is asked for; the tasks have ended when nothing is completing.
    wait_until(
      lambda: self.field("Restarts") == str(restarts) and self.field("JobState") != "COMPLETING",
      90,
      f"restart {restarts}: {self.printed}",
    )
    return self.printed.split("run: Slurm job ")[restarts]

  def wait_for_end(self) -> str:
    """The state in which the job has ended."""
    wait_until(self.has_ended, 240, f"the job's end: {self.printed}")
    return self.field("JobState")

  def rows(self) -> list[dict]:
    """The epochs' rows, without their times, of a job that has to finish."""
    assert self.wait_for_end() == "COMPLETED", self.printed
    assert self.printed.rstrip().endswith("run: done"), self.printed
    assert (self.workdir / "result.json").exists() and self.saved() == STEPS
    rows = [json.loads(line) for line in (self.workdir / "metrics.jsonl").read_text().splitlines()]
    kept = ("step", "train_loss", "train_top1", "eval_loss", "eval_top1")
    return [{name: row[name] for name in kept} for row in rows]


@pytest.fixture(scope="module")
def undisturbed(slurm, tmp_path_factory) -> list[dict]:
  run = Run(slurm, tmp_path_factory.mktemp("undisturbed"))
  rows = run.rows()
  assert run.field("Restarts") == "0"
  assert [row["step"] for row in rows] == list(range(15, STEPS + 1, 15))
  assert re.search(r"^0: +device .*2 processes", run.printed, re.MULTILINE)
  return rows


def stop_for_the_time_limit(run: Run, slurm: Slurm) -> None:
  """Lets Slurm's signal come 300 s before the time limit, as scripts/train.sbatch asks for."""
  # Slurm looks every 30 s which jobs come near their end; so long this run must not get on.
  tasks = run.tasks()
  for task in tasks:
    os.kill(task, signal.SIGSTOP)
  hours, minutes, _ = map(int, run.field("RunTime").split(":"))
  job = f"JobId={run.number}"
  slurm.run("scontrol", "update", job, f"TimeLimit={60 * hours + minutes + 3}")
  wait_until(lambda: all(signalled(task) for task in tasks), 90, "SIGUSR1 of Slurm")
  for task in tasks:
    with contextlib.suppress(ProcessLookupError):
      os.kill(task, signal.SIGCONT)


def signalled(pid: int) -> bool:
  """Whether SIGUSR1 waits for a stopped process; Slurm 22.05 lets it go on at once."""
  try:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
  except FileNotFoundError:
    return True
  (pending,) = re.findall(r"^ShdPnd:\s+([0-9a-f]+)", status, re.MULTILINE)
  stopped = "State:\tT" in status
  return not stopped or bool(int(pending, 16) >> (signal.SIGUSR1 - 1) & 1)


def test_interrupted_in_four_ways_a_run_ends_as_the_one_that_was_not(
  slurm, tmp_path, undisturbed, record_property
):
  run = Run(slurm, tmp_path)
  job = f"JobId={run.number}"

  run.wait_for_a_checkpoint()
  slurm.run("scontrol", "requeue", run.number)
  assert "jaxspeed: saved step" in run.wait_for_restart(1)

  run.wait_for_a_checkpoint()
  stop_for_the_time_limit(run, slurm)
  assert "run: requeued: saved, to be started again" in run.wait_for_restart(2)
  slurm.run("scontrol", "update", job, "TimeLimit=UNLIMITED")

  run.wait_for_a_checkpoint()
  os.kill(run.tasks()[1], signal.SIGKILL)
  assert "run: requeued: task 1: killed by signal 9" in run.wait_for_restart(3)

  run.wait_for_a_checkpoint()
  urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
  slurm.run("sbatch", *urgent, "--wrap=sleep 1")
  assert "run: requeued: saved after SIGTERM, not finished" in run.wait_for_restart(4)

  assert run.rows() == undisturbed
  record_property("printed", run.printed)


def test_a_cancelled_job_saves_and_stays_cancelled(slurm, tmp_path):
  run = Run(slurm, tmp_path)
  run.wait_for_a_checkpoint()
  slurm.run("scancel", run.number)
  assert run.wait_for_end() == "CANCELLED" and run.field("Restarts") == "0"
  assert 0 < run.saved() < STEPS and "requeued" not in run.printed


def test_a_mistake_of_one_process_is_not_tried_again(slurm, tmp_path):
  # The folder is another run's: process 0 alone sees that, and the others are ended for it.
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text('{"name": "another"}')
  run = Run(slurm, tmp_path)
  assert run.wait_for_end() == "FAILED"
  assert run.field("ExitCode") == f"{MISTAKE}:0" and run.field("Restarts") == "0"
  assert "config.json is of format None" in run.printed and "run: failed: task" in run.printed
