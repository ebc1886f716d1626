"""The task of SkyPilot: its `run`, run here by bash as SkyPilot runs it, and SkyPilot's own checks.

No server of SkyPilot is started. `import sky` writes into HOME, so another process imports it, with
a HOME of its own.
"""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from jaxspeed.cluster.peers import find_peers
from jaxspeed.errors import LOST_PEER, MISTAKE, REQUEUE, SUPERSEDED
from jaxspeed.launch.executor import Task
from jaxspeed.launch.record import Note
from jaxspeed.launch.sky import Sky
from jaxspeed.launch.sky_task import scalar, slug

yaml = pytest.importorskip("yaml", reason="PyYAML is missing: pip install .[test]")

# Around `run` SkyPilot writes lines like these, and starts the file with `bash -i`.
BEFORE = "unset RAY_RAYLET_PID; "
AFTER = "\n\ncode_of_the_run=$?\necho flushed\nexit $code_of_the_run"
# What the trainer does is a file for each process and each restart.
TRAINER = """\
echo "trainer $JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS"
. "$1/$JAX_PROCESS_ID.$JAXSPEED_RESTARTS"
"""
DONE = 'echo {} >"$2/result.json"'
# Not for ever: a test that fails leaves no process behind for long.
WAIT = "for _ in $(seq 1200); do sleep 0.05; done"


class Job:
  """A job whose `run` is started here, on one or more nodes."""

  def __init__(self, folder: pathlib.Path, nodes: int = 1, **fields: Any) -> None:
    self.nodes, self.base = nodes, folder
    self.workdir, self.acts = folder / "runs" / "lr=1", folder / "acts"
    self.record = self.workdir / "launch"
    for place in (self.workdir, self.acts, folder / "bin", folder / "home"):
      place.mkdir(parents=True)
    (folder / "trainer.sh").write_text(TRAINER)
    # The wait for the records of other nodes is 3 s.
    (folder / "bin" / "sleep").write_text(f'#!/bin/sh\n[ "$1" = 3 ] && set 0.3\n{SLEEP} "$1"\n')
    (folder / "bin" / "sleep").chmod(0o755)
    command = ("bash", str(folder / "trainer.sh"), str(self.acts), str(self.workdir))
    task = Task("lr=1", "sweep", self.workdir, command, folder)
    executor = Sky(nodes=nodes, mounts={str(folder / "runs"): "gs://bucket"}, **fields)
    self.loaded = yaml.safe_load(executor.script(task)[1])

  def act(self, name: str, text: str) -> None:
    (self.acts / name).write_text(text + "\n")

  def start(self, rank: int = 0, token: str = "abc", job: int = 7) -> subprocess.Popen[str]:
    script = self.base / f"script-{rank}.sh"
    script.write_text(BEFORE + self.loaded["run"] + AFTER)
    ips = "\n".join(f"10.0.0.{1 + i}" for i in range(self.nodes))
    own = {
      "PATH": f"{self.base / 'bin'}:{os.environ['PATH']}",
      "HOME": str(self.base / "home"),
      "SKYPILOT_NODE_IPS": ips,
      "SKYPILOT_NUM_NODES": str(self.nodes),
      "SKYPILOT_NODE_RANK": str(rank),
      "SKYPILOT_MANAGED_JOB_ID": str(job),
    }
    return subprocess.Popen(
      ["bash", "-i", str(script)],
      env=self.loaded["envs"] | own | {"JAXSPEED_TOKEN": token},
      cwd=self.base,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      start_new_session=True,
    )

  def run(self, token: str = "abc") -> tuple[list[int], list[str]]:
    """Exit codes and outputs of all processes of one start."""
    processes = [self.start(rank, token) for rank in range(self.nodes)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    return [process.returncode for process in processes], outputs

  def notes(self, name: str = "job") -> list[tuple[str, int, str]]:
    """What, restart and detail of each line of a record."""
    path = self.record / (f"{name}.tsv" if name == "job" else f"tasks/{name}.tsv")
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    assert all(len(row) == len(Note._fields) and row[0].isdecimal() for row in rows)
    return [(row[2], int(row[3]), row[5]) for row in rows]

  def await_log(self, text: str, rank: int = 0) -> None:
    log = self.record / "logs" / f"{rank}.log"
    deadline = time.monotonic() + 60
    while not (log.exists() and text in log.read_text()):
      assert time.monotonic() < deadline
      time.sleep(0.02)


SLEEP = "exec " + next(p for p in ("/bin/sleep", "/usr/bin/sleep") if os.path.exists(p))


def below(pid: int) -> list[int]:
  """The processes that a process started, and theirs; they form groups of their own."""
  text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
  return [found for child in map(int, text.split()) for found in (child, *below(child))]


def test_a_job_that_finishes(tmp_path):
  job = Job(tmp_path)
  job.act("0.0", DONE)
  codes, (output,) = job.run()
  assert codes == [0]
  assert job.notes() == [("started", 0, "7"), ("done", 0, "")]
  assert job.notes("0") == [("started", 0, ""), ("ended", 0, "0")]
  line = "trainer 0 of 1 at 10.0.0.1:61447"
  assert line in output and line in (job.record / "logs" / "0.log").read_text()
  assert output.rstrip().endswith("flushed")
  row = (job.record / "job.tsv").read_text().splitlines()[0].split("\t")
  assert abs(float(row[0]) - time.time()) < 60 and (row[1], row[4]) == ("abc", "10.0.0.1")


@pytest.mark.parametrize(
  "act, code, notes",
  [
    ("exit 85", REQUEUE, [("requeued", 0, "saved, to be started again")]),
    ("exit 75", LOST_PEER, [("requeued", 0, "a process was lost")]),
    ("kill -9 $$", LOST_PEER, [("requeued", 0, "killed by signal 9")]),
    ("exit 0", REQUEUE, [("requeued", 0, "saved after SIGTERM, not finished")]),
    ("exit 2", MISTAKE, [("failed", 0, "2 ended with exit code 2 (see above); not restarted.")]),
    ("exit 1", 1, [("failed", 0, "1 ended with exit code 1 (see above); not restarted.")]),
    ("exit 76", SUPERSEDED, []),
  ],
)
def test_what_follows_an_exit_code(tmp_path, act, code, notes):
  job = Job(tmp_path)
  job.act("0.0", act)
  codes, (output,) = job.run()
  assert codes == [code] and output.rstrip().endswith("flushed")
  assert job.notes()[1:] == notes
  recovered = job.loaded["resources"]["job_recovery"]
  assert recovered["max_restarts_on_errors"] == 0
  assert (code in recovered["recover_on_exit_codes"]) == ("requeued" in str(notes))


def test_two_processes_that_are_started_again_and_finish(tmp_path):
  job = Job(tmp_path, nodes=2)
  for rank in (0, 1):
    job.act(f"{rank}.0", "exit 85")
    job.act(f"{rank}.1", DONE)
  assert job.run()[0] == [85, 85]
  codes, outputs = job.run()
  assert codes == [0, 0]
  reason = "saved, to be started again"
  assert job.notes() == [
    ("started", 0, "7"),
    ("requeued", 0, reason),
    ("started", 1, "7"),
    ("done", 1, ""),
  ]
  for rank in ("0", "1"):
    starts = [("started", 0, ""), ("ended", 0, "85"), ("started", 1, ""), ("ended", 1, "0")]
    assert job.notes(rank) == starts
    line = f"trainer {rank} of 2 at 10.0.0.1:61447"
    assert line in outputs[int(rank)]
    assert (job.record / "logs" / f"{rank}.log").read_text().count(line) == 2
  # Another submission counts from 0.
  job.act("0.0", "exit 85")
  job.run(token="def")
  assert job.notes()[-2:] == [("started", 0, "7"), ("requeued", 0, reason)]


@pytest.mark.parametrize("first", [0, 1])
def test_processes_agree_on_the_restart_whoever_is_first(tmp_path, first):
  job = Job(tmp_path, nodes=2)
  for name in ("0.0", "1.0", "0.1", "1.1"):
    wait = f'for _ in $(seq 1200); do [ -e "$1/{name}.end" ] && exit 85; sleep 0.05; done'
    job.act(name, f'echo "act {name}"; {wait}')
  for restart in (0, 1):
    started = []
    for rank in (first, 1 - first):
      started.append(job.start(rank))
      job.await_log(f"act {rank}.{restart}", rank)
    for rank in (0, 1):
      (job.acts / f"{rank}.{restart}.end").touch()
    assert [process.communicate(timeout=60) and process.returncode for process in started] == [
      85,
      85,
    ]
  assert job.notes("0") == job.notes("1")


def test_processes_find_each_other(tmp_path):
  job = Job(tmp_path, nodes=2)
  for rank in (0, 1):
    job.act(f"{rank}.0", f'env >"$2/{rank}.env"')
  job.run()
  for rank in (0, 1):
    rows = (job.workdir / f"{rank}.env").read_text().splitlines()
    found = find_peers(environment=dict(row.split("=", 1) for row in rows if "=" in row))
    assert found is not None
    assert (found.coordinator, found.processes, found.process) == ("10.0.0.1:61447", 2, rank)
    assert "JAXSPEED_RESTARTS=0" in rows


def test_only_restarts_without_a_new_checkpoint_have_a_bound(tmp_path):
  job = Job(tmp_path, max_restarts=1)
  acts = ['mkdir -p "$2/checkpoints/$JAXSPEED_RESTARTS"; exit 85'] * 4 + ["exit 75"] * 2
  for restart, act in enumerate(acts):
    job.act(f"0.{restart}", act)
  assert [job.run()[0] for _ in acts] == [[85]] * 4 + [[75], [1]]
  what, restart, detail = job.notes()[-1]
  assert (what, restart) == ("failed", 5) and "not restarted after 1 restarts without" in detail


def test_a_job_that_was_told_to_end_too_often_is_no_success(tmp_path):
  job = Job(tmp_path, max_restarts=0)
  job.act("0.0", "exit 0")
  assert job.run()[0] == [1]
  assert job.notes()[-1][2].startswith("1 saved after SIGTERM, not finished; not restarted")


def test_a_start_whose_machine_was_taken_away_counts(tmp_path):
  job = Job(tmp_path)
  job.act("0.0", f"echo begun; {WAIT}")
  job.act("0.1", DONE)
  first = job.start()
  job.await_log("begun")
  for pid in (first.pid, *below(first.pid)):
    os.kill(pid, signal.SIGKILL)
  first.communicate(timeout=60)
  assert job.run()[0] == [0]
  assert job.notes() == [("started", 0, "7"), ("started", 1, "7"), ("done", 1, "")]


@pytest.mark.parametrize("everyone", [False, True])
def test_a_notice_saves(tmp_path, everyone):
  """SIGTERM for the shell alone, and for all processes, as SkyPilot ends them."""
  job = Job(tmp_path)
  traps = "trap 'echo saved; exit 85' USR1; trap 'echo saved; exit 0' TERM"
  job.act("0.0", f"{traps}; echo begun; {WAIT}")
  process = job.start()
  job.await_log("begun")
  shell, *others = below(process.pid)
  for pid in (process.pid, shell, *others) if everyone else (shell,):
    os.kill(pid, signal.SIGTERM)
  output, _ = process.communicate(timeout=60)
  assert process.returncode == REQUEUE and "saved\n" in output
  assert "saved\n" in (job.record / "logs" / "0.log").read_text()
  assert job.notes()[-1][0] == "requeued"


def test_a_mistake_of_another_process_is_no_lost_process(tmp_path):
  job = Job(tmp_path, nodes=2)
  job.act("0.0", "sleep 0.2; exit 75")
  job.act("1.0", "exit 2")
  assert job.run()[0] == [MISTAKE, MISTAKE]
  last = ("failed", 0, "2 process 1 ended with exit code 2; not restarted.")
  assert job.notes()[1:] == [last]


def test_a_start_that_was_replaced_says_nothing(tmp_path):
  job = Job(tmp_path)
  job.act("0.0", 'echo begun; while [ ! -e "$1/end" ]; do sleep 0.05; done; exit 75')
  job.act("0.1", DONE)
  first = job.start()
  job.await_log("begun")
  assert job.run()[0] == [0]
  (job.acts / "end").touch()
  first.communicate(timeout=60)
  assert job.notes() == [("started", 0, "7"), ("started", 1, "7"), ("done", 1, "")]


def test_a_job_by_hand_counts_its_own_restarts(tmp_path):
  job = Job(tmp_path)
  job.act("0.0", "exit 85")
  assert job.loaded["envs"] == {"JAXSPEED_TOKEN": "by-hand"}
  for number in (7, 8):
    job.start(token="by-hand", job=number).communicate(timeout=60)
  rows = (job.record / "job.tsv").read_text().splitlines()
  found = [(row.split("\t")[1], row.split("\t")[3]) for row in rows]
  assert found == [("by-hand-7", "0")] * 2 + [("by-hand-8", "0")] * 2


@pytest.mark.parametrize(
  "text",
  ["", "yes", "On", "null", "12", "1e3", "4+", "a: b", "a #b", "a:", "é", "*x", "~", '"', "\\"],
)
def test_texts_stay_texts(text):
  assert yaml.safe_load(f"a: {scalar(text)}") == {"a": text}


def test_names_are_short_and_distinct_from_flags():
  assert slug("imagenet18-4_peak=2.0_seed=1") == "imagenet18-4-peak-2.0-seed-1"
  assert slug("_=_") == "job" and len(slug("x" * 100)) == 40


FIELDS: dict[str, dict[str, Any]] = {
  "cpu": {"cpus": "4+", "infra": "aws", "use_spot": True, "disk_size": 100, "env": {"A": "b: #"}},
  "k8s": {"nodes": 2, "cpus": "2", "infra": "k8s", "mounts": {"/runs": "team-runs"}},
  "gpu": {
    "accelerators": "H100:8",
    "nodes": 16,
    "infra": "gcp/us-central1",
    "image": "docker:nvcr.io/nvidia/jax:25.10-py3",
    "mounts": {"/runs": "gs://bucket/runs", "/data": "s3://imagenet"},
    "setup": ("pip install -e .[cuda13]", "nvidia-smi"),
  },
}
OWN_CLASSES = """
import json, sys
import sky
found = {}
for path in sys.argv[1:]:
  task = sky.Task.from_yaml(path)
  before = json.dumps(task.to_yaml_config())
  again = sky.Task.from_yaml_config(json.loads(before))
  task.update_envs({"JAXSPEED_TOKEN": "abc"})
  if not path.endswith("gpu.yaml"):
    task.validate()
  found[path.rpartition("/")[2]] = {
    "first": json.loads(before), "second": again.to_yaml_config(),
    "envs": task.envs, "run": task.run,
  }
try:
  sky.Task.from_yaml_config({"num_node": 2, "run": "true"})
except Exception as error:
  found["misspelt"] = str(error)
found["states"] = [status.value for status in sky.jobs.ManagedJobStatus]
found["ends"] = [status.value for status in sky.jobs.ManagedJobStatus.terminal_statuses()]
print(json.dumps(found))
"""


def in_sky(home: pathlib.Path, code: str, *arguments: str) -> Any:
  """What a program prints as JSON in a process of its own, where it may import SkyPilot."""
  environment = os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
  done = subprocess.run(
    [sys.executable, "-c", code, *arguments],
    env=environment, cwd=home, capture_output=True, text=True, timeout=120,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Any:
  if importlib.util.find_spec("sky") is None:
    pytest.skip("SkyPilot is missing: pip install .[sky]")
  home = tmp_path_factory.mktemp("home")
  for name, fields in FIELDS.items():
    task = Task("lr=1", "sweep", pathlib.Path("/runs/sweep/lr=1"), ("python", "a b"), home)
    text = Sky(**({"mounts": {"/runs": "s3://bucket"}} | fields)).script(task)[1]
    (home / f"{name}.yaml").write_text(text)
  return in_sky(home, OWN_CLASSES, *(str(home / f"{name}.yaml") for name in FIELDS))


@pytest.mark.parametrize("name", FIELDS)
def test_skypilot_reads_the_file_and_writes_the_same(own, name):
  """Its schema knows every field; without a server it can validate tasks without GPUs alone."""
  found = own[f"{name}.yaml"]
  # What the user wrote is kept beside it, once with comments and once without.
  assert found["first"].pop("_user_specified_yaml") and found["second"].pop("_user_specified_yaml")
  assert found["first"] == found["second"]
  assert found["first"]["num_nodes"] == FIELDS[name].get("nodes", 1)
  assert found["first"]["resources"]["job_recovery"] == {
    "strategy": None,
    "max_restarts_on_errors": 0,
    "recover_on_exit_codes": [REQUEUE, LOST_PEER],
  }
  assert found["envs"]["JAXSPEED_TOKEN"] == "abc"
  assert "command=(python 'a b')" in found["run"].splitlines()


def test_skypilot_gets_what_the_fields_say(own):
  cpu, k8s, gpu = (own[f"{name}.yaml"]["first"] for name in ("cpu", "k8s", "gpu"))
  assert cpu["resources"]["cpus"] == "4+" and cpu["resources"]["use_spot"] is True
  assert cpu["envs"]["A"] == "b: #" and cpu["resources"]["disk_size"] == 100
  assert k8s["volumes"] == {"/runs": "team-runs"} and not k8s["file_mounts"]
  assert gpu["resources"]["accelerators"] == {"H100": 8}
  assert gpu["resources"]["infra"] == "gcp/us-central1"
  modes = {path: (m["source"], m["mode"]) for path, m in gpu["file_mounts"].items()}
  assert modes == {
    "/runs": ("gs://bucket/runs", "MOUNT_CACHED"),
    "/data": ("s3://imagenet", "MOUNT"),
  }
  assert gpu["setup"] == "set -e\npip install -e .[cuda13]\nnvidia-smi\n"
  assert "did you mean 'num_nodes'" in own["misspelt"].lower()


def test_every_state_of_skypilot_is_known(own):
  from jaxspeed.launch import sky

  assert sky._PENDING | sky._RUNNING == set(own["states"]) - set(own["ends"])
