"""A sweep on a Slurm of two nodes, disturbed in every way: nothing is lost.

Every job must end with the bits of one that nothing happened to. `--junitxml` keeps the states that
were seen; those of results/launch.md came that way.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest
from faulty_runs import arrays_of, newest_in
from local_cluster import Slurm as Cluster
from local_cluster import local_slurm, trainers, wait_until
from tiny_sets import write_npy

from jaxspeed.data.memory.sources import open_arrays
from jaxspeed.launch import Run, Slurm
from jaxspeed.launch.state import ENDED, JobStatus

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

NAMES = ("calm", "killed", "cancelled", "no-data", "two-nodes", "pushed-out")


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Cluster]:
  with local_slurm() as found:
    for name, value in found.variables.items():
      monkeypatch.setenv(name, value)
    yield found


def six(name: str, root: pathlib.Path, data: pathlib.Path) -> Run:
  """The sweep of six jobs, two of them on two nodes."""
  one, two = Slurm(save_seconds=60), Slurm(nodes=2, save_seconds=60)
  # What is missing at run time was not looked at before.
  run = Run(name, executor=one, root=root, check_data=False)
  for seed, job in enumerate(NAMES):
    # Long enough to be disturbed, and with three checkpoints a second.
    overrides = {"seed": seed, "epochs": 40.0, "model.width": 4, "heartbeat_seconds": 100}
    overrides |= {"checkpoint.every_seconds": 0.3}
    if job == "no-data":
      overrides |= {"data.path": str(data)}
    executor = two if job in ("two-nodes", "pushed-out") else one
    run.job("configs/quickstart.py", overrides, name=job, executor=executor)
  return run


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

  def wait_for_save(self, *names: str) -> None:
    folders = [self.run.folder / name for name in names]
    before = {folder: newest_in(folder) for folder in folders}
    wait_until(lambda: all(newest_in(f) > before[f] for f in folders), 300, f"{names}")


def bits(folder: pathlib.Path) -> dict[str, bytes]:
  """All arrays of a run's last checkpoint."""
  return arrays_of(folder / "checkpoints" / str(newest_in(folder)))


def answers() -> bool:
  return subprocess.run(["squeue"], capture_output=True, timeout=60).returncode == 0


def wait_for_all(run: Run) -> set[str]:
  """The states in which the jobs have ended."""
  wait_until(lambda: all(each.state in ENDED for each in run.status()), 900, "the end of all jobs")
  return {status.state for status in run.status()}


def test_a_disturbed_sweep_on_slurm_ends_with_the_same_bits(cluster, tmp_path, record_property):
  digits = open_arrays(name="digits", path="", cache="", classes=10)
  data = write_npy(tmp_path / "digits", digits.train_images, digits.train_labels)
  undisturbed = six("undisturbed", tmp_path, data)
  undisturbed.start()
  assert wait_for_all(undisturbed) == {"done"}, undisturbed.status()

  hidden = data.rename(tmp_path / "hidden")
  disturbed = Disturbed(six("disturbed", tmp_path, data))
  disturbed.run.start()
  disturbed.look("submitted")
  disturbed.wait("no-data", "failed")
  lines = " ".join(disturbed.status("no-data").last_lines)
  assert str(data) in lines and "does not exist" in lines, lines
  disturbed.wait_for_save("killed", "cancelled", "pushed-out")
  disturbed.look("all others train", calm="running", no_data="failed (exit code 2)")

  job = cluster.run("scontrol", "show", "job", disturbed.status("killed").id)
  number = re.search(r"JobId=(\d+)", job)
  assert number is not None
  os.kill(trainers(number[1], cluster.variables["SLURM_CONF"])[0], signal.SIGKILL)
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
    assert bits(undisturbed.folder / name) == bits(disturbed.run.folder / name), name
