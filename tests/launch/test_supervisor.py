"""What a supervisor notes and decides: as a table, of real processes, and under a fake Slurm."""

import os
import subprocess
import sys

import pytest
from fake_jobs import TOKEN, ended, event, facts_of, program, write_job, write_run
from fake_slurm import FakeSlurm

from jaxspeed.launch.command import FILES
from jaxspeed.launch.local import Local
from jaxspeed.launch.record import ends_of, progress_of
from jaxspeed.launch.slurm import Slurm
from jaxspeed.launch.supervisor import decide

LOST, SAVED = "a process was lost", "saved, to be started again"
TERM = "saved after SIGTERM, not finished"
# Exit codes of the tasks, that of what ran them, and what follows.
ENDS = [
  ((0,), 0, ("requeued", 0, TERM)),
  ((85,), 85, ("requeued", 85, SAVED)),
  # The first to leave ends the others.
  ((85, 143), 143, ("requeued", 85, SAVED)),
  ((85, 85), 143, ("requeued", 85, SAVED)),
  ((75, 85), 85, ("requeued", 85, SAVED)),
  ((75,), 75, ("requeued", 75, LOST)),
  ((75, 137), 137, ("requeued", 137, "task 1: killed by signal 9")),
  # srun ended the tasks because another one had ended.
  ((75, 143), 143, ("requeued", 75, LOST)),
  ((143,), 143, ("requeued", 143, LOST)),
  ((1,), 1, ("failed", 1, "ended with exit code 1")),
  ((76,), 76, ("failed", 76, "ended with exit code 76")),
  ((2, 143), 143, ("failed", 2, "task 0: ended with exit code 2")),
  ((137, 2), 137, ("failed", 2, "task 1: ended with exit code 2")),
  # No task wrote how it ended.
  ((), 3, ("failed", 3, "ended with exit code 3")),
  ((), 137, ("requeued", 137, "killed by signal 9")),
]


@pytest.mark.parametrize("codes, code, verdict", ENDS)
def test_what_follows_the_codes_of_all_tasks(tmp_path, codes, code, verdict):
  facts = write_job(tmp_path, tasks=ended(*codes))
  assert decide(facts.folder, TOKEN, 0, code, max_restarts=20) == verdict
  # Of other starts nothing counts.
  (facts.folder / "result.json").write_text("{}")
  assert decide(facts.folder, TOKEN, 1, code, max_restarts=0).what == "done"


def test_restarts_without_a_new_checkpoint_are_bounded_and_others_are_not(tmp_path):
  notes = [event("requeued", 60, i, progress=f"a {10 * i}") for i in range(50)]
  folder = write_job(tmp_path, notes=notes).folder

  def after(step, most):
    for old in (folder / "checkpoints").glob("*"):
      old.rmdir()
    (folder / "checkpoints" / str(step)).mkdir(parents=True)
    return decide(folder, TOKEN, 50, 85, max_restarts=most)

  assert after(500, 1).what == "requeued"
  assert after(490, 2).what == "requeued"
  words = f"{SAVED}; not restarted after 1 restarts without a new checkpoint"
  assert after(490, 1) == ("failed", 85, words)
  # Another submission counts from 0.
  assert decide(folder, "other", 0, 85, max_restarts=1).what == "requeued"
  # Of several runs the newest checkpoint of the newest counts.
  for place in ("run_000/checkpoints/90", "run_001/checkpoints/9", "run_001/checkpoints/10"):
    (folder / place).mkdir(parents=True)
  (folder / "run_001/checkpoints/.part-1").mkdir()
  assert progress_of(folder) == "run_001 10"


# Processes


def test_the_script_of_a_local_job(tmp_path):
  python = program(tmp_path / "python", '#!/bin/sh\necho "$* in $PWD A=$A B=$B"\n')
  setup = ["module() { export B=$1; }", "module x", "set -euo pipefail"]
  executor = Local(gpus=0, python=python, setup=setup, env={"A": "it's $HOME"})
  job = write_job(write_run(tmp_path, "a 'b'"), cwd=str(tmp_path)).job
  done = subprocess.run(["bash", "-c", executor.script([job], TOKEN)], capture_output=True)
  words = f"-m jaxspeed.train --config=configs/quickstart.py --workdir={job.folder}"
  assert done.stdout.decode() == f"{words} in {tmp_path} A=it's $HOME B=x\n"


# Slurm


@pytest.fixture
def slurm(tmp_path):
  return FakeSlurm(tmp_path / "slurm")


class Job:
  """A job of the run `root`/the run, as part of an array."""

  def __init__(self, slurm, root, **fields):
    self.slurm = slurm
    self.executor = Slurm(python=slurm.python, **fields)
    run = write_run(root, "the 'run'")
    values = {"executor": self.executor.to_dict(), "cwd": str(root)}
    self.jobs = [write_job(run, name, **values) for name in "abc"]
    self.folder = self.jobs[1].folder
    self.script = root / "script.sh"
    self.script.write_text(self.executor.script([facts.job for facts in self.jobs], TOKEN))

  def run(self, *codes, **variables):
    numbers = {"SLURM_ARRAY_JOB_ID": 40, "SLURM_ARRAY_TASK_ID": 1, "SLURM_JOB_ID": 42}
    variables = {"PYTHONPATH": os.getcwd()} | numbers | variables
    return self.slurm.run(self.script, codes=codes, **variables)

  @property
  def notes(self):
    return [(note.what, note.detail) for note in facts_of(self.folder).notes]


AGAIN = "scontrol requeue 40_1"


@pytest.mark.parametrize(
  "codes, code, note",
  [
    (["done", 0], 0, ("done", "")),
    (["saves"], 0, ("requeued", SAVED)),
    ([75, -9], 0, ("requeued", "task 1: killed by signal 9")),
    ([137, 2], 2, ("failed", "task 1: ended with exit code 2")),
  ],
)
def test_a_batch_job_runs_its_tasks_and_goes_back_into_the_queue(
  slurm, tmp_path, codes, code, note
):
  job = Job(slurm, tmp_path)
  done = job.run(*codes, SLURM_RESTART_COUNT=3, SLURM_CPUS_PER_TASK=4)
  assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
  assert (AGAIN in slurm.calls()) == (note[0] == "requeued")
  assert job.notes == [("started", "40_1"), note]
  facts = facts_of(job.folder)
  where = {(each.token, each.restart, each.where) for each in facts.notes}
  assert where == {(TOKEN, 3, "n[1-2]")} and len(ends_of(job.folder, TOKEN, 3)) == len(codes)
  words = f"-m jaxspeed.train --config=configs/quickstart.py --workdir={job.folder}\n"
  assert (slurm.folder / "trained").read_text() == words * len(codes)
  logs = job.folder / "launch" / "logs"
  assert (logs / "0.log").read_text() == "task 0 prints\n"
  assert f"b: {note[0]}" in (logs / "batch.log").read_text()
  assert [facts_of(other.folder).notes for other in job.jobs[::2]] == [[], []]


def test_a_queue_that_does_not_take_the_job_back(slurm, tmp_path):
  slurm.write("refuses")
  job = Job(slurm, tmp_path)
  assert job.run(85).returncode == 85
  reason = f"{SAVED}; scontrol could not requeue the job: submit it again"
  assert job.notes[-1] == ("failed", reason)


def test_a_record_that_was_changed_since_its_submission_is_not_run(slurm, tmp_path):
  job = Job(slurm, tmp_path)
  path = job.folder.parent / "run.json"
  path.write_text(path.read_text().replace("configs/quickstart.py", "other.py"))
  assert job.run(0).returncode == 2 and job.notes == []
  log = (job.folder / "launch" / "logs" / "batch.log").read_text()
  assert "does not hold the job that was submitted" in log
  assert (slurm.folder / "trained").read_text() == ""
  path.unlink()
  assert job.run(0).returncode == 2


def test_the_script_for_everyone(slurm, tmp_path):
  words = ["--config=a.py", f"--workdir={tmp_path / 'work'}"]

  def run(*codes, **more):
    more = {"PYTHON": slurm.python, "PYTHONPATH": os.getcwd()} | more
    return slurm.run(FILES / "train.sbatch", *words, codes=codes, **more)

  done = run(85, 0)
  assert done.returncode == 0 and "scontrol requeue 7" in slurm.calls()
  assert f"work: requeued: {SAVED}" in done.stdout
  trained = (slurm.folder / "trained").read_text().splitlines()
  assert trained == [f"-m jaxspeed.train {' '.join(words)}"] * 2
  done = run(75, SLURM_RESTART_COUNT=1, MAX_RESTARTS=1)
  assert done.returncode == 75 and "1 restarts without a new checkpoint" in done.stdout
  assert run("done", SLURM_RESTART_COUNT=2).returncode == 0
  assert {path.name for path in (tmp_path / "work").iterdir()} == {"result.json", "launch"}


@pytest.mark.parametrize(
  "words, variables, message",
  [
    (["--workdir=w"], {"SLURM_JOB_ID": None}, "train.sbatch is a batch script: sbatch train.sbat"),
    (["--config=a.py"], {}, "--workdir=DIR is missing behind the name of train.sbatch."),
    (["--workdir=w"], {"MAX_RESTARTS": "many"}, "MAX_RESTARTS=many: it must be a whole number."),
  ],
)
def test_mistakes_in_the_use_of_the_script_for_everyone(slurm, words, variables, message):
  more = {"PYTHON": sys.executable, "PYTHONPATH": os.getcwd()} | variables
  done = slurm.run(FILES / "train.sbatch", *words, codes=[0], **more)
  assert (done.returncode, done.stdout) == (2, "") and not slurm.calls()
  assert done.stderr.startswith(f"jaxspeed: {message}")
