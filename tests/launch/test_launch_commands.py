"""The commands of `python -m jaxspeed.launch`, in this process."""

import json
import os
import sys

import pytest
from commands import ROOT
from fake_jobs import (
  QUICKSTART,
  event,
  facts_of,
  fake_python,
  lock_elsewhere,
  result_of,
  write_events,
  write_job,
  write_run,
)
from in_process import command, mistake
from local_cluster import wait_until

from jaxspeed.files import is_locked
from jaxspeed.launch import command as module
from jaxspeed.launch import local
from jaxspeed.launch.command import FILES, jobset
from jaxspeed.launch.executor import Found

SWEEP = """
from fake_jobs import Fake
from jaxspeed.launch import Local, Run

def sweep():
  with Run("run", executor={executor}, root={root!r}, check_data=False) as run:
    for seed in range(2):
      run.job({recipe!r}, {{"seed": seed}})
  return run
"""
FAKE = {"executor": {"kind": "fake"}}


@pytest.fixture
def sweep(fake, tmp_path):
  file = tmp_path / "sweep.py"
  root = str(tmp_path / "runs")
  file.write_text(SWEEP.format(executor="Fake(gpus=5)", root=root, recipe=QUICKSTART))
  return str(file)


@pytest.fixture
def run(fake, tmp_path):
  """A run of a job that is done, one that failed, one that runs and one that waits."""
  folder = write_run(tmp_path)
  write_job(folder, "a", result=result_of(), overrides={"seed": 0}, **FAKE)
  failed = [event("started"), event("failed", detail="a task ended with exit code 1", code=1)]
  write_job(folder, "b", notes=failed, logs={"0.log": "zero\n", "1.log": "one\n"}, **FAKE)
  fake.said = {"c": Found(True, "7"), "d": Found(False, "8")}
  row = {"epoch": 3, "step": 3, "examples": 3, "world": 1, "dawn_seconds": 1.0, "eval_top1": 0.25}
  write_job(folder, "c", notes=[event("started")], metrics=[row], **FAKE)
  write_job(folder, "d", logs={"batch.log": "the script\n"}, **FAKE)
  return folder


def launch(*arguments, code=0):
  """The output of a command that ends with a code and no error."""
  done = command("launch", *map(str, arguments))
  assert (done.returncode, done.stderr) == (code, ""), done
  return done.stdout


# Mistakes

MISTAKES = [
  ("", "'' is not a command: write one of submit, status, logs, cancel, retry, resume, results,"),
  ("status --follow", "--follow has no effect with status; see --help."),
  ("status --config.seed=3", "--config.seed has no effect with status: only submit takes"),
  ("script", "script needs one of slurm, kubernetes: see --help."),
  ("script slurm --nodes=3", "script slurm takes no --nodes and no --gpus: sbatch does."),
  ("logs", "empty holds no run of jaxspeed.launch: name the folder ROOT/RUN that submit printed."),
  ("logs {run}", "logs needs one job: logs RUN/JOB, or logs RUN JOB."),
  ("logs {run}/c", "{run}/c has no log yet: it has not started."),
  ("cancel {run}", "name jobs, or ask for all: cancel --all"),
  ("cancel {run}/c {other}/a", "{run} has no job {other}/a: it has a, b, c and 1 more."),
  ("retry {run}/b {run}/a", "{run}/a is done: only failed jobs are retried."),
  ("retry {run}/d", "{run}/d is pending: only failed jobs are retried."),
  ("resume {run}", "{run} has no jobs of this machine: its scheduler starts them by itself"),
  ("resume {run}/a", "resume takes a run: resume RUN; a single job is started by retry RUN"),
  ("submit", "submit needs one file, which defines sweep(): submit SWEEP.py; see --help."),
  ("submit none.py", "none.py: there is no such file."),
  ("submit {sweep} --config.batch_size=101", "2 of 2 jobs cannot run, and nothing was submitted"),
  ("submit {sweep} --config.seed=5", "config.seed is set by the job quickstart_seed=0 itself"),
]


@pytest.mark.parametrize("words, message", MISTAKES)
def test_mistakes_change_nothing(run, sweep, fake, tmp_path, monkeypatch, words, message):
  (tmp_path / "empty").mkdir()
  monkeypatch.chdir(tmp_path / "empty")
  other = write_run(tmp_path, "other")
  write_job(other, "a", **FAKE)
  places = {"run": run, "other": other, "sweep": sweep}
  given = [word.format(**places) for word in words.split(" ") if word]
  assert message.format(**places) in mistake("launch", *given)
  assert not (tmp_path / "runs").exists() and [*(tmp_path / "empty").iterdir()] == []
  assert not [ask for ask in fake.asked if ask[0] in ("submit", "cancel")]


def test_files_that_define_no_sweep(tmp_path):
  for text, message in (
    ("", "sweep.py defines no function sweep() that returns a Run of jaxspeed.launch."),
    ("def sweep(): pass", "sweep() must return a Run of jaxspeed.launch, and not None."),
    ("def sweep(): return 1 / 0", "ZeroDivisionError"),
  ):
    (tmp_path / "sweep.py").write_text(text)
    assert message in mistake("launch", "submit", str(tmp_path / "sweep.py"))


# Submission


def test_a_dry_run_prints_the_scripts_and_writes_nothing(fake, sweep, tmp_path, monkeypatch):
  out = launch("submit", sweep, "--dry-run")
  head = f"# ---- {tmp_path}/runs/run/quickstart_seed=0\n# quickstart_seed=0\n# which runs: "
  assert out.startswith(head) and out.count("# ---- ") == 2
  out = launch("submit", sweep, "--dry-run", f"--root={tmp_path}/elsewhere")
  assert f"# ---- {tmp_path}/elsewhere/run/" in out
  assert not [ask for ask in fake.asked if ask[0] == "submit"]
  # It prints what a machine without the scheduler's commands would submit, and says that.
  monkeypatch.setattr(
    fake, "check", lambda *_: (_ for _ in ()).throw(module.UserError("no sbatch."))
  )
  done = command("launch", "submit", sweep, "--dry-run")
  assert done.returncode == 0 and "note: submit would refuse: no sbatch." in done.stderr
  assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"sweep.py"}


def test_submit(fake, sweep, tmp_path):
  (tmp_path / "flags").write_text("--config.epochs=3\n")
  lines = launch(
    "submit", sweep, f"--flagfile={tmp_path}/flags", f"--root={tmp_path}/other"
  ).splitlines()
  folder = tmp_path / "other" / "run"
  assert lines[-1].startswith("2 jobs submitted; ") and lines[-1].endswith(f" status {folder}")
  job = facts_of(folder / "quickstart_seed=1").job
  assert job.epochs == 3.0 and job.overrides == {"epochs": 3, "seed": 1}
  assert launch("status", folder).splitlines()[-1] == "2 jobs: 2 pending"


# Looking


def test_status(run, fake, monkeypatch):
  lines = launch("status", run).splitlines()
  assert [line.split()[0] for line in lines[1:5]] == [*"abcd"]
  assert lines[5] == "4 jobs: 1 done, 1 failed, 1 pending, 1 running" and lines[7] == "  zero"
  assert launch("status", run, "d").splitlines()[2] == "1 job: 1 pending"
  monkeypatch.chdir(run)
  assert launch("status", "b", "./d").splitlines()[3] == "2 jobs: 1 failed, 1 pending"
  fake.said = None
  found = json.loads(launch("status", run, "--json"))
  job = found["jobs"][2]
  assert (job["name"], job["state"], job["epoch"], job["id"]) == ("c", "running", 3.0, "")
  assert job["folder"] == str(run / "c") and len(found["notes"]) == 1


def test_logs(run):
  assert launch("logs", run / "b") == "zero\n"
  assert launch("logs", run, "b", "--task=1") == "one\n"
  # One that has ended is not waited for.
  assert launch("logs", run / "b", "--follow") == "zero\n"
  # A job that could not start its tasks has only the log of its script.
  assert launch("logs", run / "d") == "the script\n"
  # A log may be a stranger's.
  log = run / "b" / "launch" / "logs" / "0.log"
  log.write_text("a\tb\x1b[2J\x07\n")
  assert launch("logs", run / "b") == "a\tb\\x1b[2J\\x07\n"
  log.unlink()
  log.symlink_to(run / "run.json")
  assert "0.log is a link" in mistake("launch", "logs", str(run / "b"))
  log.unlink()
  os.mkfifo(log)
  assert "0.log cannot be used (it is no regular file)" in mistake("launch", "logs", str(run / "b"))


def test_a_log_is_followed_until_the_job_ends(run, fake, monkeypatch):
  log = run / "c" / "launch" / "logs" / "0.log"
  looks = []

  def sleep(seconds):
    looks.append(seconds)
    if len(looks) <= 3:
      with log.open("ab") as file:
        file.write((b"one\n", b"two \xc3", b"\xbc\n")[len(looks) - 1])
    if len(looks) == 100:
      notes = [event("started"), event("failed", detail="why", code=1)]
      write_events(run / "c" / "launch" / "job.jsonl", notes)

  # No second passes; the clock goes on with each look.
  monkeypatch.setattr(module.time, "sleep", sleep)
  monkeypatch.setattr(module.time, "monotonic", lambda: 1000 + sum(looks))
  assert launch("logs", run / "c", "-f") == "one\ntwo \u00fc\n"
  assert 100 <= len(looks) <= 120
  # The scheduler was asked twice a minute at most.
  assert [ask for ask in fake.asked if ask[0] == "states"] == [("states", "c")] * 2


def test_results_and_scripts(run):
  lines = launch("results", run).splitlines()
  assert lines[1].split()[:3] == ["a", "95.00", "%"] and lines[-1] == "3 jobs have not finished"
  found = json.loads(launch("results", run, "--json", "--metric=train"))
  assert [job["name"] for job in found["jobs"]] == ["a"] and found["over_seeds"] == []
  assert launch("results", run / "b") == "no job has finished\n1 job has not finished\n"
  assert launch("script", "slurm") == (FILES / "train.sbatch").read_text()
  assert launch("script", "kubernetes", "--nodes=3") == jobset(3)


def test_tensorboard(run, monkeypatch):
  started, there = [], [True]
  monkeypatch.setattr(module.os, "execv", lambda *arguments: started.append(arguments))
  monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: there and there.pop() or None)
  assert launch("tensorboard", run, "--port=6010") == ""
  words = [sys.executable, "-m", "tensorboard.main", f"--logdir={run}", "--port=6010"]
  assert started == [(sys.executable, words)]
  text = mistake("launch", "tensorboard", str(run))
  assert text == "tensorboard is not installed: pip install tensorboard."


# Changing


def test_cancel_and_retry(run, fake):
  assert launch("cancel", run / "c") == "cancelled c\n"
  assert launch("cancel", run, "--all") == "cancelled d\n"
  nothing = "none to cancel: all have ended or were cancelled before\n"
  assert launch("cancel", run, "--all") == nothing
  assert launch("retry", run, "c") == "submitted c again\n"
  assert launch("retry", run, "--failed") == "submitted b, d again\n"
  assert launch("retry", run, "--failed") == "no job failed\n"
  assert [ask[1] for ask in fake.asked if ask[0] == "submit"] == ["c", "b", "d"]


# A local queue


@pytest.fixture
def stopped(tmp_path):
  """A local run whose workers were killed before its job."""
  python = fake_python(tmp_path, {"a": ["done"]})
  executor = local.Local(python=python, gpus=0)
  folder = write_run(tmp_path)
  write_job(folder, "a", executor=executor.to_dict(), cwd=str(ROOT))
  return folder


def test_resume(stopped):
  note = f"note: no worker runs, see .launch/worker.log: python -m jaxspeed.launch resume {stopped}"
  assert launch("status", stopped).splitlines()[-1] == note
  assert launch("resume", stopped) == "the run goes on\n"
  wait_until(lambda: not is_locked(stopped / ".launch" / "worker.0.lock"), 60, "the worker's end")
  assert launch("status", stopped).splitlines()[-1] == "1 job: 1 done"
  assert "retry --failed starts what failed again" in launch("resume", stopped)


def test_resume_beside_a_worker_starts_no_other_and_writes_into_no_link(stopped):
  with lock_elsewhere(stopped / ".launch" / "worker.0.lock"):
    assert launch("resume", stopped) == "the run goes on\n"
  assert facts_of(stopped / "a").notes == []
  (stopped / ".launch" / "worker.log").symlink_to(stopped / "run.json")
  before = (stopped / "run.json").read_bytes()
  assert "worker.log is a link" in mistake("launch", "resume", str(stopped))
  assert (stopped / "run.json").read_bytes() == before


@pytest.mark.parametrize("step, code", [("done", 0), ("exit 2", 2)])
def test_submit_waits_and_fails_with_its_jobs(sweep, tmp_path, monkeypatch, step, code):
  monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
  python = fake_python(tmp_path, {"quickstart_seed=0": ["done"], "quickstart_seed=1": [step]})
  executor = f"Local(python={python!r}, gpus=0)"
  text = SWEEP.format(executor=executor, root=str(tmp_path), recipe=QUICKSTART)
  (tmp_path / "sweep.py").write_text(text)
  done = command("launch", "submit", sweep, "--wait")
  said = f"seed=1: no result; status {tmp_path}/run says why" in " ".join(done.stderr.split())
  assert (done.returncode, said) == (code, code == 2), done.stderr
