"""Slurm from Python: fields, submission, states and cancellation, with fake commands of Slurm."""

import pathlib
import shlex

import pytest
from fake_jobs import facts_of, write_job, write_run
from fake_slurm import FakeSlurm

from jaxspeed.errors import UserError
from jaxspeed.launch import record
from jaxspeed.launch import slurm as module
from jaxspeed.launch.executor import Found, executor_of
from jaxspeed.launch.slurm import Slurm


@pytest.fixture
def slurm(tmp_path, monkeypatch):
  fake = FakeSlurm(tmp_path / "slurm")
  for name, value in fake.variables.items():
    monkeypatch.setenv(name, value)
  return fake


@pytest.fixture
def jobs(tmp_path):
  """The records of five jobs of the run `tmp_path`/the run, which are submitted as t1."""
  run = write_run(tmp_path, "the run")
  made = [write_job(run, name, cwd=str(tmp_path), requests=()) for name in "abcde"]
  record.request(run, "submit", made, "t1")
  return [facts.job for facts in made]


def states(jobs):
  """What Slurm says about the jobs."""
  run = jobs[0].run
  return Slurm().states([facts_of(run / job.name) for job in jobs], run)


# Fields


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"node": 2}, "Slurm has no field node: it has price_per_hour, "),
    ({"nodes": 0}, "Slurm(nodes=0): it must be a whole number from 1"),
    ({"partition": "a\nb"}, "Slurm(partition='a\\nb'): it must be text without line breaks"),
    ({"options": "--qos=high"}, "Slurm(options='--qos=high'): it must be a list of options"),
    ({"options": ["-q\n#SB"]}, "Slurm(options=['-q\\n#SB']): it must be a list of options"),
    ({"options": ["--array=0-3"]}, "Slurm(options=['--array=0-3']): it must be a list of options"),
    ({"options": ["-N4"]}, "Slurm(options=['-N4']): it must be a list of options of sbatch, witho"),
    ({"env": {"MY_TOKEN": "x"}}, "Slurm: env has MY_TOKEN, which looks like a secret"),
    ({"env": {"A B": "x"}}, "Slurm(env={'A B': 'x'}): it must be a dict of environment variables"),
    ({"price_per_hour": float("nan")}, "Slurm(price_per_hour=nan): it must be"),
  ],
)
def test_fields_that_are_refused(fields, message):
  with pytest.raises(UserError) as error:
    Slurm(**fields)
  assert str(error.value).startswith(message)


def test_fields_come_back_from_a_jobs_folder(tmp_path):
  assert Slurm(nodes=2, gpus_per_node=8, tasks_per_node=8).devices() == 16
  assert Slurm(nodes=3, tasks_per_node=2).devices() == 6
  made = Slurm(nodes=2, gpus_per_node=8, options=["--exclusive"], env={"A": "1"}, time="1-0")
  run = write_run(tmp_path)
  assert executor_of(write_job(run, "a", executor=made.to_dict()).job) == made
  with pytest.raises(UserError, match="b names the executor 'ssh': there are local, sky, slurm"):
    executor_of(write_job(run, "b", executor={"kind": "ssh"}).job)
  with pytest.raises(UserError, match="c: Slurm has no field node"):
    executor_of(write_job(run, "c", executor={"kind": "slurm", "node": 2}).job)


def directives(text):
  """The options of sbatch in a script, as sbatch reads them."""
  rows = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
  return [shlex.split(row)[1] for row in rows]


def test_options_of_a_job(jobs):
  fields = {"partition": "gpu", "nodes": 2, "gpus_per_node": 8, "gpu": "h100", "time": "4:00:00"}
  more = {"cpus_per_task": 12, "account": "me", "save_seconds": 60, "options": ["--exclusive"]}
  name, output = "--job-name=jaxspeed-the run-t1", f"--output={jobs[0].run}/.launch/slurm/%A_%a.log"
  all_words = (
    "--partition=gpu --account=me --nodes=2 --ntasks-per-node=1 --cpus-per-task=12 --time=4:00:00 "
    "--gpus-per-node=h100:8 --signal=USR1@60 --array=0-0 "
  )
  found = directives(Slurm(**fields, **more).script(jobs[:1], "t1"))
  last = ["--open-mode=append", "--requeue"]
  assert found == [name, *all_words.split(), output, *last, "--exclusive"]
  few = "--nodes=1 --ntasks-per-node=1 --gpus-per-node=8 --signal=USR1@300 --array=0-4%2"
  plain = directives(Slurm(parallel=2, gpus_per_node=8).script(jobs, "t1"))
  assert plain == [name, *few.split(), output, *last]


# Checks


def test_a_command_that_is_missing(slurm, monkeypatch):
  (slurm.bin / "scancel").unlink()
  monkeypatch.setenv("PATH", str(slurm.bin))
  with pytest.raises(UserError, match="^scancel is not on the PATH: submit from a login node"):
    Slurm().check(pathlib.Path("/"))
  assert slurm.calls() == []


# Submission


def test_jobs_are_an_array_that_is_found_by_its_name(slurm, jobs):
  Slurm(nodes=2).submit(jobs, "t1")
  assert slurm.calls() == ["sbatch --parsable"]
  assert (slurm.folder / "script.100").read_text() == Slurm(nodes=2).script(jobs, "t1")
  assert states(jobs) == {name: Found(False, f"100_{i}") for i, name in enumerate("abcde")}


def test_after_a_lost_connection_jobs_are_found_again_and_a_refusal_is_a_sentence(slurm, jobs):
  slurm.write("most", "99")
  with pytest.raises(UserError, match=r"submit the job e \(sbatch: error: .* policy\): repeat the"):
    Slurm().submit(jobs[4:], "t1")
  slurm.write("most", "9999")
  slurm.write("silent", "sbatch: error: Socket timed out on send/recv operation")
  with pytest.raises(UserError, match=r"^sbatch did not submit the jobs a \.\.\. .*: repeat"):
    Slurm().submit(jobs, "t1")
  assert states(jobs)["e"] == Found(False, "100_4")


# States


@pytest.mark.parametrize(
  "word, runs", [("CONFIGURING", False), ("REQUEUE_HOLD", False), ("RUNNING", True), ("X", True)]
)
def test_states_by_one_question(slurm, jobs, word, runs):
  Slurm().submit(jobs, "t1")
  Slurm().submit(jobs[2:], "other")
  slurm.set_state("100_1", word)
  # Forgotten, which Slurm is some minutes after the end.
  slurm.set_state("100_2", "")
  slurm.write("calls")
  found = states(jobs)
  assert found["a"] == Found(False, "100_0") and found["b"] == Found(runs, "100_1")
  assert [*found] == ["a", "b", "d", "e"]
  name = "jaxspeed-the run-t1"
  assert slurm.calls() == [f"squeue --noheader --array --name={name} --format=%i|%T|%j"]


def test_no_answer_is_none(slurm, jobs, monkeypatch):
  slurm.write("down")
  assert states(jobs) is None
  (slurm.folder / "down").unlink()
  (slurm.bin / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
  monkeypatch.setattr(module, "_SECONDS", 0.2)
  assert states(jobs) is None


# Cancellation


def test_cancellation(slurm):
  Slurm().cancel(["100_0", "7"])
  assert slurm.calls() == ["scancel --quiet 100_0 7"]
  slurm.write("down")
  expected = r"^Slurm did not cancel \(.*Unable to contact .*\): cancel again when it answers.$"
  with pytest.raises(UserError, match=expected):
    Slurm().cancel(["7"])
  (slurm.bin / "scancel").write_text(
    "#!/bin/sh\necho 'scancel: error: Invalid job id 7' >&2; exit 1"
  )
  Slurm().cancel(["7"])
