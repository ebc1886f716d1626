"""A sweep and train.sbatch on a Slurm of two nodes, disturbed in every way: nothing is lost.

Every job must end with the bits of one that nothing happened to. `--junitxml` keeps the states that
were seen; those of results/launch.md came that way.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from faulty_runs import arrays_of, newest_in
from local_cluster import Slurm as Cluster
from local_cluster import local_slurm, wait_until
from recipes import get_config
from tiny_sets import write_npy

from jaxspeed.data.memory.sources import open_arrays
from jaxspeed.errors import MISTAKE
from jaxspeed.launch import Run, Slurm, record
from jaxspeed.launch.state import ENDED, JobStatus

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

NAMES = ("calm", "killed", "cancelled", "no-data", "two-nodes", "pushed-out")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
  with local_slurm() as found, pytest.MonkeyPatch.context() as patch:
    found.variables["PYTHON"] = sys.executable  # of train.sbatch
    for name, value in found.variables.items():
      patch.setenv(name, value)
    yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
  digits = open_arrays(get_config("quickstart").data)
  folder = tmp_path_factory.mktemp("data") / "digits"
  return write_npy(folder, digits.train_images, digits.train_labels)


def six(root: pathlib.Path, data: pathlib.Path) -> Run:
  """The sweep of six jobs, two of them on two nodes."""
  one, two = Slurm(save_seconds=60), Slurm(nodes=2, save_seconds=60)
  # What is missing at run time was not looked at before.
  run = Run("six", executor=one, root=root, check_data=False)
  for seed, job in enumerate(NAMES):
    # Long enough to be disturbed, and with three checkpoints a second.
    overrides = {"seed": seed, "epochs": 40.0, "model.width": 4, "heartbeat_seconds": 100}
    overrides |= {"checkpoint.every_seconds": 0.3}
    if job == "no-data":
      overrides |= {"data.path": str(data)}
    executor = two if job in ("two-nodes", "pushed-out") else one
    run.job("configs/quickstart.py", overrides, name=job, executor=executor)
  return run


@pytest.fixture(scope="module")
def undisturbed(cluster, data, tmp_path_factory) -> pathlib.Path:
  run = six(tmp_path_factory.mktemp("undisturbed"), data)
  run.start()
  assert wait_for_all(run) == {"done"}, run.status()
  return run.folder


def shown(status: JobStatus) -> str:
  code = "" if status.exit_code is None else f" (exit code {status.exit_code})"
  return status.state + code + (f", restart {status.restarts}" if status.restarts else "")


class Disturbed:
  """A run that is disturbed, and the moments at which its states were looked at."""

  def __init__(self, run: Run) -> None:
    self.run = run
    self.moments: dict[str, dict[str, str]] = {}

  def status(self, name: str) -> JobStatus:
    return next(status for status in Run.load(self.run.folder).status() if status.name == name)

  def wait(self, name: str, *states: str) -> None:
    """Until a job has one of some states."""
    wait_until(lambda: self.status(name).state in states, 300, f"{name}: {states}")

  def look(self, what: str, **expected: str) -> None:
    """Writes the states down; those of `expected` must begin so."""
    found = {status.name: shown(status) for status in Run.load(self.run.folder).status()}
    self.moments[what] = found
    for name, state in expected.items():
      job = name.replace("_", "-")
      assert found[job].startswith(state), f"{what}: {job} is {found[job]}, not {state}"


def wait_for_save(*folders: pathlib.Path) -> None:
  """Until each of some runs has a newer checkpoint than now."""
  before = {folder: newest_in(folder) for folder in folders}
  wait_until(lambda: all(newest_in(f) > before[f] for f in folders), 300, f"{folders}")


def bits(folder: pathlib.Path) -> dict[str, bytes]:
  """All arrays of a run's last checkpoint."""
  return arrays_of(folder / "checkpoints" / str(newest_in(folder)))


def answers() -> bool:
  return subprocess.run(["squeue"], capture_output=True, timeout=60).returncode == 0


def wait_for_all(run: Run) -> set[str]:
  """The states in which the jobs have ended."""
  wait_until(lambda: all(each.state in ENDED for each in run.status()), 900, "the end of all jobs")
  return {status.state for status in run.status()}


def test_a_disturbed_sweep_ends_with_the_same_bits(
  cluster, data, undisturbed, tmp_path, record_property
):
  hidden = data.rename(tmp_path / "hidden")
  disturbed = Disturbed(six(tmp_path, data))
  folder = disturbed.run.folder
  disturbed.run.start()
  disturbed.look("submitted")
  disturbed.wait("no-data", "failed")
  lines = " ".join(disturbed.status("no-data").last_lines)
  assert str(data) in lines and "does not exist" in lines, lines
  wait_for_save(*(folder / name for name in ("killed", "cancelled", "pushed-out")))
  disturbed.look("all others train", calm="running", no_data="failed (exit code 2)")

  os.kill(cluster.trainers(disturbed.status("killed").id)[0], signal.SIGKILL)
  disturbed.wait("killed", "requeued")
  disturbed.look("kill -9 of a trainer", killed="requeued")
  disturbed.run.cancel(["cancelled"])
  disturbed.look("cancel", cancelled="cancelled")
  cluster.run("scontrol", "shutdown", "slurmctld")
  wait_until(lambda: not answers(), 30, "the controller's end")
  disturbed.look("the controller ended", pushed_out="running", cancelled="cancelled")
  controller = shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin")
  assert controller is not None
  subprocess.run([controller], env=cluster.variables, check=True, timeout=60)
  wait_until(answers, 30, "the controller")
  disturbed.look("the controller came back", pushed_out="running", cancelled="cancelled")
  urgent = ["--partition=urgent", "--nodelist=127.0.0.2", "--exclusive", "--output=/dev/null"]
  cluster.run("sbatch", *urgent, "--wrap=sleep 3")
  disturbed.wait("pushed-out", "requeued")
  disturbed.look("a job of higher priority on node 2", pushed_out="requeued")
  hidden.rename(data)
  wait_for_all(disturbed.run)
  disturbed.look("all that was left ended", calm="done", killed="done", pushed_out="done")
  disturbed.run.retry(failed=True)
  disturbed.look("retry --failed")
  wait_for_all(disturbed.run)
  disturbed.look("the end", **{name.replace("-", "_"): "done" for name in NAMES})
  record_property("moments", disturbed.moments)
  for name in NAMES:
    assert bits(undisturbed / name) == bits(folder / name), name


# scripts/train.sbatch


class Script:
  """The job "two-nodes" of the sweep, started by the script for everyone."""

  def __init__(self, cluster: Cluster, sweep: pathlib.Path, folder: pathlib.Path) -> None:
    self.cluster, self.workdir, self.log = cluster, folder / "run", folder / "log"
    (facts,) = record.read_jobs(sweep, ["two-nodes"])
    words = dataclasses.replace(facts.job, folder=str(self.workdir)).command("")[3:]
    own = ("--parsable", "--nodes=2", f"--output={self.log}")
    self.number = cluster.run("sbatch", *own, "scripts/train.sbatch", *words)

  def restarted(self, restarts: int) -> bool:
    # A restart is counted when it is asked for; its tasks have ended when nothing is completing.
    count, state = (self.cluster.field(self.number, name) for name in ("Restarts", "JobState"))
    return count == str(restarts) and state != "COMPLETING"

  def wait_for(self, state: str) -> str:
    """Until the job has a state; returns what its starts printed."""
    wait_until(lambda: self.cluster.field(self.number, "JobState") == state, 300, state)
    return self.log.read_text(errors="replace")


def signalled(pid: int) -> bool:
  """Whether SIGUSR1 waits for a stopped process; Slurm 22.05 lets it go on at once."""
  try:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
  except FileNotFoundError:
    return True
  (pending,) = re.findall(r"^ShdPnd:\s+([0-9a-f]+)", status, re.MULTILINE)
  stopped = "State:\tT" in status
  return not stopped or bool(int(pending, 16) >> (signal.SIGUSR1 - 1) & 1)


def test_the_script_goes_on_after_its_time_limit_and_a_requeue_with_the_same_bits(
  cluster, undisturbed, tmp_path
):
  script = Script(cluster, undisturbed, tmp_path)
  wait_for_save(script.workdir)
  # Slurm looks every 30 s which jobs come near their end; so long this run must not get on.
  tasks = cluster.trainers(script.number)
  for task in tasks:
    os.kill(task, signal.SIGSTOP)
  hours, minutes, _ = map(int, cluster.field(script.number, "RunTime").split(":"))
  job = f"JobId={script.number}"
  # The signal comes 300 s before it.
  cluster.run("scontrol", "update", job, f"TimeLimit={60 * hours + minutes + 3}")
  wait_until(lambda: all(map(signalled, tasks)), 90, "SIGUSR1 of Slurm")
  for task in tasks:
    with contextlib.suppress(ProcessLookupError):
      os.kill(task, signal.SIGCONT)
  wait_until(lambda: script.restarted(1), 90, "a restart after the time limit")
  cluster.run("scontrol", "update", job, "TimeLimit=UNLIMITED")
  wait_for_save(script.workdir)
  cluster.run("scontrol", "requeue", script.number)
  wait_until(lambda: script.restarted(2), 90, "a restart after the requeue")
  printed = script.wait_for("COMPLETED")
  assert (
    "run: requeued: saved, to be started again" in printed and "jaxspeed: saved step" in printed
  )
  assert printed.rstrip().endswith("run: done") and script.restarted(2)
  assert bits(script.workdir) == bits(undisturbed / "two-nodes")


def test_a_mistake_of_one_process_of_the_script_is_not_tried_again(cluster, undisturbed, tmp_path):
  # The folder is another run's: process 0 alone sees that, and the others are ended for it.
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text('{"name": "another"}')
  script = Script(cluster, undisturbed, tmp_path)
  printed = script.wait_for("FAILED")
  assert cluster.field(script.number, "ExitCode") == f"{MISTAKE}:0" and script.restarted(0)
  assert "config.json: there is no config.model" in printed and "run: failed: task" in printed
