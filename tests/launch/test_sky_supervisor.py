"""A task of SkyPilot, run here by bash as SkyPilot runs it; no server of SkyPilot is started."""

import contextlib
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest
from fake_jobs import event, facts_of, python_for, write_events, write_job, write_run
from local_cluster import wait_until

from jaxspeed.cluster.peers import find_peers
from jaxspeed.errors import LOST_PEER, MISTAKE, REQUEUE
from jaxspeed.launch.record import read_lines
from jaxspeed.launch.sky import Sky

# Around `run` SkyPilot writes lines like these, and starts the file with `bash -i`.
BEFORE = "unset RAY_RAYLET_PID; "
AFTER = "\n\ncode_of_the_run=$?\necho flushed\nexit $code_of_the_run"
# What the trainer does is a file for each process and each restart.
TRAINER = """\
echo "trainer $JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS"
cd "$workdir/../.."
. "acts/$JAX_PROCESS_ID.$JAXSPEED_RESTARTS"
"""
DONE = "echo {} >runs/lr=1/result.json"
# Not for ever: a test that fails leaves no process behind for long.
WAIT = "for _ in $(seq 1200); do sleep 0.05; done"
SAVED = "saved, to be started again"
IN_VAIN = "restarts without a new checkpoint"


class Job:
  """A job whose `run` is started here, on one or more nodes."""

  def __init__(self, folder: pathlib.Path, nodes: int = 1, **fields: Any) -> None:
    self.nodes, self.base, self.acts = nodes, folder, folder / "acts"
    self.acts.mkdir()
    (folder / "home").mkdir()
    python = python_for(folder, TRAINER)
    self.executor = Sky(nodes=nodes, mounts={str(folder): "gs://b"}, python=python, **fields)
    values = {"executor": self.executor.to_dict(), "cwd": str(folder)}
    self.folder = write_job(write_run(folder, "runs"), "lr=1", **values).folder
    self.record = self.folder / "launch"

  def act(self, **texts: str) -> None:
    """What the processes do: r0_1 is process 0 after one restart."""
    for name, text in texts.items():
      (self.acts / name[1:].replace("_", ".")).write_text(text + "\n")

  def start(self, rank: int = 0, token: str = "abc") -> subprocess.Popen[str]:
    script = self.base / f"script-{rank}.sh"
    run = self.executor.task(facts_of(self.folder).job, token)["run"]
    script.write_text(BEFORE + run + AFTER)
    own = {
      "HOME": str(self.base / "home"),
      "PYTHONPATH": os.getcwd(),
      "SKYPILOT_NODE_IPS": "\n".join(f"10.0.0.{1 + i}" for i in range(self.nodes)),
      "SKYPILOT_NUM_NODES": str(self.nodes),
      "SKYPILOT_NODE_RANK": str(rank),
      "SKYPILOT_MANAGED_JOB_ID": "7",
    }
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    how = {"env": os.environ | own, "text": True, "start_new_session": True} | pipes
    return subprocess.Popen(["bash", "-i", str(script)], **how)

  def run(self, token: str = "abc") -> tuple[list[int], list[str]]:
    """Exit codes and outputs of all processes of one start."""
    processes = [self.start(rank, token) for rank in range(self.nodes)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    return [process.returncode for process in processes], outputs

  def notes(self, name: str = "job") -> list[tuple[str, int, str]]:
    """What, restart and detail (of a task: its exit code) of each line of a record."""
    events = read_lines(self.record / f"{name}.jsonl")
    ends = [each.detail if name == "job" else str(each.code or "") for each in events]
    return [(each.what, each.restart, end) for each, end in zip(events, ends, strict=True)]

  def log(self, rank: int = 0) -> str:
    path = self.record / "logs" / f"{rank}.log"
    return path.read_text() if path.exists() else ""

  def await_log(self, text: str, rank: int = 0) -> None:
    wait_until(lambda: text in self.log(rank), 60, text)


def below(pid: int) -> list[int]:
  """The processes that a process started, and theirs; they form groups of their own."""
  try:
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
  except OSError:  # it has ended, as each `sleep` of a trainer soon does
    return []
  return [found for child in map(int, text.split()) for found in (child, *below(child))]


def kill(pids: Iterable[int], number: int) -> None:
  for pid in pids:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, number)


@pytest.mark.parametrize(
  "act, code, note",
  [
    ("exit 85", REQUEUE, ("requeued", 0, SAVED)),
    ("kill -9 $$", LOST_PEER, ("requeued", 0, "killed by signal 9")),
    ("exit 0", REQUEUE, ("requeued", 0, "saved after SIGTERM, not finished")),
    ("exit 2", MISTAKE, ("failed", 0, "ended with exit code 2")),
    # It ends the job, where 85 would not.
    ("exit 85", 1, ("failed", 0, f"{SAVED}; not restarted after 0 {IN_VAIN}")),
  ],
)
def test_what_follows_an_exit_code(tmp_path, act, code, note):
  job = Job(tmp_path, max_restarts=0 if code == 1 else 20)
  job.act(r0_0=act)
  codes, (output,) = job.run()
  assert codes == [code] and output.rstrip().endswith("flushed")
  assert job.notes()[1:] == [note]
  recovered = job.executor.task(facts_of(job.folder).job, "t")["resources"]["job_recovery"]
  assert (code in recovered["recover_on_exit_codes"]) == (note[0] == "requeued")


def test_two_processes_that_are_started_again_and_finish(tmp_path):
  job = Job(tmp_path, nodes=2)
  show = "env >env.$JAX_PROCESS_ID"
  job.act(r0_0="exit 85", r1_0="exit 85", r0_1=f"{show}; {DONE}", r1_1=f"{show}; {DONE}")
  assert job.run()[0] == [85, 85]
  codes, outputs = job.run()
  assert codes == [0, 0]
  first = [("started", 0, "7"), ("requeued", 0, SAVED)]
  assert job.notes() == [*first, ("started", 1, "7"), ("done", 1, "")]
  for rank, output in enumerate(outputs):
    starts = [("started", 0, ""), ("ended", 0, "85"), ("started", 1, ""), ("ended", 1, "")]
    assert job.notes(f"tasks/{rank}") == starts
    line = f"trainer {rank} of 2 at 10.0.0.1:61447"
    assert job.log(rank).count(line) == 2 and f"logs/{rank}.log" in output
    rows = (tmp_path / f"env.{rank}").read_text().splitlines()
    peers = find_peers(environment=dict(row.split("=", 1) for row in rows if "=" in row))
    assert peers is not None
    assert (peers.coordinator, peers.processes, peers.process) == ("10.0.0.1:61447", 2, rank)


@pytest.mark.parametrize("first", [0, 1])
def test_processes_agree_on_the_restart_whoever_is_first(tmp_path, first):
  job = Job(tmp_path, nodes=2)
  for name in ("0.0", "1.0", "0.1", "1.1"):
    wait = f"for _ in $(seq 1200); do [ -e end.{name} ] && exit 85; sleep 0.05; done"
    (job.acts / name).write_text(f'echo "act {name}"; {wait}\n')
  for restart in (0, 1):
    started = []
    for rank in (first, 1 - first):
      started.append(job.start(rank))
      job.await_log(f"act {rank}.{restart}", rank)
    for rank in (0, 1):
      (tmp_path / f"end.{rank}.{restart}").touch()
    codes = [process.communicate(timeout=60) and process.returncode for process in started]
    assert codes == [85, 85]
  assert job.notes("tasks/0") == job.notes("tasks/1")


def test_a_start_whose_machine_was_taken_away_counts(tmp_path):
  job = Job(tmp_path)
  job.act(r0_0=f"echo begun; {WAIT}", r0_1=DONE)
  first = job.start()
  job.await_log("begun")
  kill((first.pid, *below(first.pid)), signal.SIGKILL)
  first.communicate(timeout=60)
  assert job.run()[0] == [0]
  assert job.notes() == [("started", 0, "7"), ("started", 1, "7"), ("done", 1, "")]


@pytest.mark.parametrize(
  "number, everyone", [(signal.SIGUSR1, False), (signal.SIGTERM, False), (signal.SIGTERM, True)]
)
def test_a_notice_saves(tmp_path, number, everyone):
  """A signal for the supervisor alone, and for all processes, as SkyPilot ends them."""
  job = Job(tmp_path)
  traps = "trap 'echo saved; exit 85' USR1; trap 'echo saved; exit 0' TERM"
  job.act(r0_0=f"{traps}; echo begun; {WAIT}")
  process = job.start()
  job.await_log("begun")
  supervisor, *others = below(process.pid)
  kill((process.pid, supervisor, *others) if everyone else (supervisor,), number)
  process.communicate(timeout=60)
  assert process.returncode == REQUEUE and "saved\n" in job.log()
  assert job.notes()[-1][0] == "requeued"


def test_a_mistake_of_another_process_is_no_lost_process(tmp_path):
  job = Job(tmp_path, nodes=2)
  loop = "for _ in $(seq 1200); do grep -qs ended $1 && exit 75; sleep 0.05; done"
  job.act(r0_0=f"set runs/lr=1/launch/tasks/1.jsonl; {loop}", r1_0="exit 2")
  assert job.run()[0] == [MISTAKE, MISTAKE]
  assert job.notes()[1:] == [("failed", 0, "task 1: ended with exit code 2")]


def test_a_start_that_was_replaced_says_nothing(tmp_path):
  job = Job(tmp_path)
  # Another machine has begun the next start while this one ends.
  later = [event("started", token="abc"), event("started", token="abc", restart=1)]
  job.act(r0_0=f"cp {tmp_path / 'later'} {job.record / 'job.jsonl'}; exit 75")
  write_events(tmp_path / "later", later)
  job.run()
  assert [note[0] for note in job.notes()] == ["started", "started"]
