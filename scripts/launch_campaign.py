"""Disturbs sweeps of jaxspeed.launch, for real, and writes the states that were seen.

    python scripts/launch_campaign.py --out=results/launch.md

On a Slurm of two nodes: six quickstart jobs, two of them on both nodes; kill -9, a job of higher
priority, a cancellation, data that are missing at run time, a restart of the controller. On this
machine: twenty jobs on two cores, a closed terminal, and a queue that is killed. Every job must end
with the bits of one that nothing happened to. Needs the test extra, and root for Slurm.
"""

import argparse
import dataclasses
import hashlib
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]
os.environ["JAX_PLATFORMS"] = "cpu"

from faulty_runs import arrays_of  # noqa: E402
from local_cluster import Slurm as Cluster  # noqa: E402
from local_cluster import environment, local_slurm, trainers, wait_until  # noqa: E402

from jaxspeed.files import is_locked  # noqa: E402
from jaxspeed.launch import Run, Slurm  # noqa: E402
from jaxspeed.launch.record import Event, read_events  # noqa: E402
from jaxspeed.launch.state import Statuses  # noqa: E402
from jaxspeed.launch.status import ENDED, JobStatus  # noqa: E402
from jaxspeed.records.provenance import describe_device, versions  # noqa: E402

# Toy runs long enough to be disturbed, which save three times a second.
TOY = {
  "model.width": 4,
  "checkpoint.every_seconds": 0.3,
  "heartbeat_seconds": 100,
  "compile_cache": "",
}
NAMES = ("calm", "killed", "cancelled", "no-data", "two-nodes", "pushed-out")


@dataclasses.dataclass(frozen=True)
class Moment:
  """What was done, and the states that `status` gave then."""

  what: str
  states: dict[str, str]


def toy(programs: pathlib.Path, **fields: object) -> dict[str, object]:
  """The overrides of a toy run."""
  return TOY | {"compile_cache": str(programs)} | fields


def six(name: str, root: pathlib.Path, data: pathlib.Path, *, epochs: float) -> Run:
  """The sweep of six jobs, two of them on two nodes."""
  one, two = Slurm(save_seconds=60), Slurm(nodes=2, save_seconds=60)
  # What is missing at run time was not looked at before.
  run = Run(name, executor=one, root=root, check_data=False)
  for seed, job in enumerate(NAMES):
    overrides = toy(root / "programs", seed=seed, epochs=epochs)
    if job == "no-data":
      overrides |= {"data.path": str(data)}
    executor = two if job in ("two-nodes", "pushed-out") else one
    run.job("configs/quickstart.py", overrides, name=job, executor=executor)
  return run


def shown(status: JobStatus) -> str:
  """A state as the table of moments has it."""
  words = status.state
  if status.state == "failed" and status.exit_code is not None:
    words += f" (exit code {status.exit_code})"
  if status.restarts:
    words += f", restart {status.restarts}"
  return words


class Disturbed:
  """A run that is disturbed, and the moments at which its states were looked at."""

  def __init__(self, run: Run) -> None:
    self.run = run
    self.moments: list[Moment] = []

  def status(self, name: str) -> JobStatus:
    return next(status for status in Run.load(self.run.folder).status() if status.name == name)

  def wait(self, name: str, *states: str, seconds: float = 300) -> JobStatus:
    """Until a job has one of some states."""
    wait_until(lambda: self.status(name).state in states, seconds, f"{name}: {states}")
    return self.status(name)

  def look(self, what: str, **expected: str) -> None:
    """Writes the states down; those of `expected` must begin so."""
    found = {status.name: shown(status) for status in Run.load(self.run.folder).status()}
    self.moments.append(Moment(what, found))
    print(f"{what}: {found}", flush=True)
    for name, state in expected.items():
      job = name.replace("_", "-")
      assert found[job].startswith(state), f"{what}: {job} is {found[job]}, not {state}"

  def saved(self, name: str) -> int:
    """The step of a job's newest checkpoint."""
    names = (path.name for path in (self.run.folder / name).glob("checkpoints/*"))
    return max((int(name) for name in names if name.isdecimal()), default=0)

  def wait_for_save(self, *names: str) -> None:
    before = {name: self.saved(name) for name in names}
    wait_until(
      lambda: all(self.saved(name) > before[name] for name in names), 300, f"checkpoints of {names}"
    )


def trainers_of(cluster: Cluster, id: str) -> list[int]:
  """Process numbers of a job's trainers; an array's job has the number that squeue shows."""
  shown = cluster.run("scontrol", "show", "job", id)
  number = re.search(r"JobId=(\d+)", shown)
  assert number is not None
  return trainers(number[1], cluster.variables["SLURM_CONF"])


def on_slurm(cluster: Cluster, root: pathlib.Path, epochs: float) -> tuple[list[Moment], int]:
  """Disturbs the sweep of six; returns the moments, and how many jobs have the undisturbed bits."""
  data = make_data(root / "digits")
  undisturbed = six("undisturbed", root, data, epochs=epochs)
  undisturbed.start()
  hidden = data.rename(root / "hidden")
  hidden.rename(data)
  wait_for_all(undisturbed, 900)
  assert {status.state for status in undisturbed.status()} == {"done"}, undisturbed.status()

  hidden = data.rename(root / "hidden")
  disturbed = Disturbed(six("disturbed", root, data, epochs=epochs))
  disturbed.run.start()
  disturbed.look("submitted")
  disturbed.wait("no-data", "failed")
  assert disturbed.status("no-data").exit_code == 2
  lines = " ".join(disturbed.status("no-data").last_lines)
  assert str(data) in lines and "does not exist" in lines, lines
  disturbed.wait_for_save("killed", "cancelled", "pushed-out")
  disturbed.look("all others train", calm="running", no_data="failed (exit code 2)")

  os.kill(trainers_of(cluster, disturbed.status("killed").id)[0], signal.SIGKILL)
  disturbed.wait("killed", "requeued")
  disturbed.look("kill -9 of a trainer", killed="requeued")
  disturbed.run.cancel(["cancelled"])
  disturbed.look("cancel", cancelled="cancelled")
  restart_controller(cluster)
  disturbed.look("the controller ended", pushed_out="running", cancelled="cancelled")
  start_controller(cluster)
  disturbed.look("the controller came back", pushed_out="running", cancelled="cancelled")
  urgent = ["--partition=urgent", "--nodelist=127.0.0.2", "--exclusive", "--output=/dev/null"]
  cluster.run("sbatch", *urgent, "--wrap=sleep 3")
  disturbed.wait("pushed-out", "requeued")
  disturbed.look("a job of higher priority on node 2", pushed_out="requeued")
  hidden.rename(data)
  wait_for_all(disturbed.run, 900)
  disturbed.look("all that was left ended", calm="done", killed="done", pushed_out="done")
  disturbed.run.retry(failed=True)
  disturbed.look("retry --failed")
  wait_for_all(disturbed.run, 900)
  disturbed.look("the end", **{name.replace("-", "_"): "done" for name in NAMES})
  same = [bits(undisturbed.folder / name) == bits(disturbed.run.folder / name) for name in NAMES]
  assert all(same), dict(zip(NAMES, same, strict=True))
  return disturbed.moments, sum(same)


def make_data(folder: pathlib.Path) -> pathlib.Path:
  """The digits as arrays of one's own."""
  import numpy as np
  from sklearn.datasets import load_digits

  digits = load_digits()
  folder.mkdir(parents=True)
  images = np.repeat((digits.images * 15.9375).astype(np.uint8)[..., None], 3, axis=-1)
  np.save(folder / "images.npy", images)
  np.save(folder / "labels.npy", digits.target)
  return folder


def restart_controller(cluster: Cluster) -> None:
  """Ends the controller of the cluster; jobs go on."""
  cluster.run("scontrol", "shutdown", "slurmctld")
  wait_until(lambda: not answers(), 30, "the controller's end")


def start_controller(cluster: Cluster) -> None:
  program = shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin")
  assert program is not None
  subprocess.run([program], env=cluster.variables, check=True, timeout=60)
  wait_until(answers, 30, "the controller")


def answers() -> bool:
  return subprocess.run(["squeue"], capture_output=True, timeout=60).returncode == 0


def wait_for_all(run: Run, seconds: float) -> Statuses:
  deadline = time.monotonic() + seconds
  while True:
    found = run.status()
    if all(status.state in ENDED for status in found):
      return found
    assert time.monotonic() < deadline, f"not within {seconds:g} s:\n{found}"
    time.sleep(0.5)


def bits(folder: pathlib.Path) -> str:
  """A hash of all arrays of a run's last checkpoint."""
  steps = [int(p.name) for p in (folder / "checkpoints").iterdir() if p.name.isdecimal()]
  digest = hashlib.sha256()
  for name, content in sorted(arrays_of(folder / "checkpoints" / str(max(steps))).items()):
    digest.update(name.encode() + content)
  return digest.hexdigest()


def times_of_a_hundred(root: pathlib.Path) -> tuple[float, float]:
  """Seconds to submit 100 jobs that wait, and of `status`, each as a command of its own."""
  # They wait, so that no job's start is in the time.
  file = root / "hundred.py"
  file.write_text(
    "from jaxspeed.launch import Run, Slurm, grid\n"
    "def sweep():\n"
    f"  run = Run('hundred', executor=Slurm(options=['--hold']), root={str(root)!r})\n"
    "  for overrides in grid(seed=range(100)):\n"
    "    run.job('configs/quickstart.py', overrides)\n"
    "  return run\n"
  )
  submitted = timed("submit", str(file))
  seconds = min(timed("status", str(root / "hundred")) for _ in range(3))
  timed("cancel", str(root / "hundred"), "--all")
  return submitted, seconds


def timed(*arguments: str) -> float:
  begun = time.monotonic()
  command = [sys.executable, "-m", "jaxspeed.launch", *arguments]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  return time.monotonic() - begun


def on_this_machine(root: pathlib.Path, jobs: int, epochs: float) -> str:
  """Twenty local jobs; the terminal closes, the queue is killed, and `resume` ends them all."""
  file = root / "local.py"
  file.write_text(
    "from jaxspeed.launch import Run, Local, grid\n"
    "def sweep():\n"
    f"  run = Run('local', executor=Local(parallel=2), root={str(root)!r})\n"
    f"  for overrides in grid(seed=range({jobs})):\n"
    f"    run.job('configs/quickstart.py', {toy(root / 'programs', epochs=epochs)!r} | overrides,\n"
    "            name=f\"job-{overrides['seed']:02d}\")\n"
    "  return run\n"
  )
  # A shell of its own session, which the closed terminal takes along.
  shell = subprocess.Popen(
    ["bash", "-c", f"{sys.executable} -m jaxspeed.launch submit {file} && sleep 600"],
    cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL,
  )  # fmt: skip
  folder = root / "local"
  queue = folder / ".launch" / "queue.lock"
  wait_until(queue.exists, 60, "the queue")
  wait_until(lambda: count(folder, "done") >= 2, 300, "two jobs")
  os.killpg(shell.pid, signal.SIGHUP)
  shell.wait()
  before = count(folder, "done")
  wait_until(lambda: count(folder, "done") >= before + 2, 300, "two jobs without a terminal")
  os.kill(int(queue.read_text().split()[1]), signal.SIGKILL)
  wait_until(lambda: not is_locked(folder / ".launch" / "queue.lock"), 30, "the queue's end")
  killed_at = count(folder, "done")
  notes = Run.load(folder).status().notes
  assert any("resume" in note for note in notes), notes
  # What ran goes on to its end; nothing new begins.
  wait_until(lambda: count(folder, "running") == 0, 120, "the end of what ran")
  waiting = count(folder, "pending")
  assert waiting >= 1
  timed("resume", str(folder))
  found = wait_for_all(Run.load(folder), 900)
  assert {status.state for status in found} == {"done"}
  starts = [len(list(starts_of(folder / status.name))) for status in found]
  assert set(starts) == {1}, starts
  return (
    f"{jobs} jobs, 2 at a time: the terminal closed (SIGHUP) after {before}, the queue killed (-9) "
    f"after {killed_at}; the two that ran went on to their ends, {waiting} waited; `resume`: all "
    f"{jobs} done, each started once"
  )


def starts_of(folder: pathlib.Path) -> list[Event]:
  events = read_events(folder / "launch" / "job.jsonl")
  return [event for event in events if event.what == "started"]


def count(folder: pathlib.Path, state: str) -> int:
  try:
    return sum(status.state == state for status in Run.load(folder).status())
  except Exception:
    return 0


def table(moments: Sequence[Moment]) -> str:
  names = list(moments[0].states)
  lines = [f"| what was done | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
  lines += [
    f"| {moment.what} | {' | '.join(moment.states[name] for name in names)} |" for moment in moments
  ]
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=pathlib.Path, required=True)
  out = parser.parse_args().out
  parts = [
    "# What happened to sweeps on purpose, and the states that were seen",
    "Written by `python scripts/launch_campaign.py --out=results/launch.md`, which fails where a "
    "state is wrong, a job is lost, or a bit differs. configs/quickstart.py at width 4; "
    f"{describe_device()}, Linux {platform.release()}; "
    + ", ".join(f"{name} {version}" for name, version in versions().items())
    + ".",
  ]
  with tempfile.TemporaryDirectory(prefix="jaxspeed-launch-") as folder:
    root = pathlib.Path(folder)
    os.environ |= environment()
    with local_slurm() as cluster:
      os.environ["SLURM_CONF"] = cluster.variables["SLURM_CONF"]
      moments, same = on_slurm(cluster, root, epochs=40.0)
      submitted, seconds = times_of_a_hundred(root)
    parts += [
      "## Slurm, two nodes",
      table(moments),
      f"After `retry --failed` all six were done; {same} of 6 had the arrays (parameters, running "
      "statistics, momentum) of the undisturbed sweep, bit by bit.",
      f"100 jobs: submitted in {submitted:.1f} s, `status` {seconds:.2f} s (the process from start "
      "to end, the shortest of three), with one call of squeue.",
      "## This machine",
      on_this_machine(root, jobs=20, epochs=20.0) + ".",
    ]
  out.write_text("\n\n".join(parts) + "\n")
  print(out.read_text())


if __name__ == "__main__":
  main()
