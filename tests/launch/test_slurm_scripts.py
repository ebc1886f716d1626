"""The batch scripts, run by bash with fake commands of Slurm: what they requeue and write down."""

import pathlib
import subprocess

import pytest
from fake_jobs import facts_of, write_job
from fake_slurm import FakeSlurm

from jaxspeed.launch import slurm_script
from jaxspeed.launch.executor import Task
from jaxspeed.launch.slurm import Slurm

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def slurm(tmp_path):
  return FakeSlurm(tmp_path / "slurm")


class Job:
  """A job of the run `root`/run with its script."""

  def __init__(self, slurm, root, name="a", **fields):
    self.slurm = slurm
    self.root = root
    self.folder = root / "run" / name
    self.executor = Slurm(python=slurm.python, **fields)
    write_job(root / "run", name)
    command = (
      slurm.python,
      "-m",
      "jaxspeed.train",
      f"--workdir={self.folder}",
      "--config.name=a b",
    )
    self.task = Task(name, "run", self.folder, command, root)
    self.script = self.folder / "launch" / "script.sh"
    self.script.write_text(self.executor.script(self.task)[1])

  def run(self, *codes, token="t1", **variables):
    done = self.slurm.run(self.script, token, codes=codes, **variables)
    (self.folder / "launch" / "logs" / "batch.out").write_text(done.stdout + done.stderr)
    return done

  @property
  def notes(self):
    return [(note.what, note.detail) for note in facts_of(self.folder).notes]

  @property
  def ends(self):
    tasks = facts_of(self.folder).tasks
    return {i: notes[-1].detail for i, notes in tasks.items()}


@pytest.fixture
def job(slurm, tmp_path):
  return Job(slurm, tmp_path)


REQUEUED = "scontrol requeue 7"
KILLED = "a task was killed by signal 9"
MISTAKE = "a task ended with 2: the command or the data are wrong (see above); not restarted."
# Exit codes of the tasks, the script's own, whether the job is put back into the queue, the note.
ENDS = [
  (["done"], 0, False, ("done", "")),
  (["done", 0], 0, False, ("done", "")),
  ([0], 0, True, ("requeued", "saved after SIGTERM, not finished")),
  ([85], 0, True, ("requeued", "saved before the time limit")),
  ([0, 85], 0, True, ("requeued", "saved before the time limit")),
  (["saves"], 0, True, ("requeued", "saved before the time limit")),
  ([75], 0, True, ("requeued", "a process was lost")),
  ([75, 75], 0, True, ("requeued", "a process was lost")),
  ([75, -9], 0, True, ("requeued", KILLED)),
  ([137], 0, True, ("requeued", KILLED)),
  ([139], 0, True, ("requeued", "a task was killed by signal 11")),
  # srun ended the tasks because another one had ended.
  ([75, 143], 0, True, ("requeued", "a process was lost")),
  ([143], 0, True, ("requeued", "a process was lost")),
  ([255], 0, True, ("requeued", "a task was killed by signal 127")),
  ([1], 1, False, ("failed", "1 a task ended with exit code 1 (see above); not restarted.")),
  (
    [127],
    127,
    False,
    ("failed", "127 a task ended with exit code 127 (see above); not restarted."),
  ),
  ([76], 76, False, ("failed", "76 a task ended with exit code 76 (see above); not restarted.")),
  ([2], 2, False, ("failed", "2 a task ended with exit code 2 (see above); not restarted.")),
  ([2, 143], 2, False, ("failed", f"2 {MISTAKE}")),
  ([137, 2], 2, False, ("failed", f"2 {MISTAKE}")),
]


@pytest.mark.parametrize("codes, code, again, note", ENDS, ids=lambda value: str(value)[:30])
def test_what_ends_a_job_and_what_puts_it_back_into_the_queue(job, codes, code, again, note):
  done = job.run(*codes)
  # Neither 2 nor what hides it is a reason to start again.
  assert ("scontrol update JobId=7 Requeue=0" in job.slurm.calls()) == (2 in codes)
  assert (done.returncode, REQUEUED in job.slurm.calls()) == (code, again), done
  assert job.notes == [("started", "7"), note]
  ends = {"done": "0", "saves": "85", -9: "137"}
  assert job.ends == {i: ends.get(each, str(each)) for i, each in enumerate(codes)}


def test_the_record_says_who_wrote_it(job):
  job.run(85, 0, token="t9", SLURM_RESTART_COUNT=3)
  facts = facts_of(job.folder)
  assert {(note.token, note.restart, note.where) for note in facts.notes} == {("t9", 3, "n[1-2]")}
  assert [(note.what, note.token, note.restart) for note in facts.tasks[1]] == [
    ("started", "t9", 3),
    ("ended", "t9", 3),
  ]
  assert all(note.where for notes in facts.tasks.values() for note in notes)


def test_the_command_runs_as_it_was_written(job):
  done = job.run("done", 0)
  words = f"-m jaxspeed.train --workdir={job.folder} --config.name=a b\n"
  assert (job.slurm.folder / "trained").read_text() == words * 2
  logs = job.folder / "launch" / "logs"
  assert [(logs / f"{i}.log").read_text() for i in (0, 1)] == ["task 0 prints\n", "task 1 prints\n"]
  head = "a: job 7 on 2 nodes (n[1-2]), 2 tasks, restart 0, "
  assert done.stdout.startswith(head) and done.stdout.endswith("a: done.\n") and not done.stderr


def test_restarts_have_an_end(slurm, tmp_path):
  job = Job(slurm, tmp_path, max_restarts=2)
  # 30 time limits with a new checkpoint each do not count.
  for restart, code in enumerate([75, *["new"] * 30, 85]):
    assert job.run(code, SLURM_RESTART_COUNT=restart).returncode == 0
    assert REQUEUED in slurm.calls()
  for number, (given, code) in enumerate(((75, 75), (85, 85), (-9, 137), (0, 1))):
    done = job.run(given, SLURM_RESTART_COUNT=32)
    assert done.returncode == code and REQUEUED not in slurm.calls()
    what, detail = job.notes[-1]
    assert what == "failed" and detail.startswith(f"{code} ")
    assert f"not put back into the queue after {2 + number} restarts without" in detail
  # A finished job and a mistake are what they are.
  assert job.run(2, SLURM_RESTART_COUNT=2).returncode == 2
  slurm.write("requeue", "1")
  assert job.run("done", SLURM_RESTART_COUNT=2).returncode == 0
  assert job.notes[-1] == ("done", "")


def test_a_queue_that_does_not_take_the_job_back(job):
  job.slurm.write("refuses")
  done = job.run(85)
  assert done.returncode == 85
  assert job.notes[-1] == (
    "failed",
    "85 saved before the time limit; scontrol could not requeue the job: submit it again.",
  )


def test_a_job_that_may_not_be_requeued_is_still_told_from_a_mistake(job):
  job.slurm.write("requeue", "0")
  done = job.run(85)
  assert done.returncode == 0 and REQUEUED in job.slurm.calls()


def test_setup_and_variables_come_before_the_command(slurm, tmp_path):
  fields = {
    "env": {"B": "it's $HOME", "A": "1"},
    "setup": ['module() { echo "module $*"; }', "module x"],
  }
  job = Job(slurm, tmp_path, **fields)
  (tmp_path / "slurm" / "python").write_text(
    '#!/usr/bin/env bash\necho "A=$A B=$B in $PWD"\nexit 2\n'
  )
  done = job.run(2)
  assert "module x\n" in done.stdout
  log = (job.folder / "launch" / "logs" / "0.log").read_text()
  assert log == f"A=1 B=it's $HOME in {tmp_path}\n"


def test_a_setup_that_stops_at_errors_does_not_stop_a_requeue(slurm, tmp_path):
  job = Job(slurm, tmp_path, setup=["set -e"])
  assert job.run(85).returncode == 0 and REQUEUED in slurm.calls()
  assert job.run(1).returncode == 1 and job.notes[-1][0] == "failed"


def test_a_folder_that_is_gone(slurm, tmp_path):
  job = Job(slurm, tmp_path)
  text = job.script.read_text().replace(f"cd {tmp_path} ", f"cd {tmp_path}/none ")
  job.script.write_text(text)
  assert job.run(0).returncode == 2 and not slurm.calls()


def test_processors_reach_srun(job):
  script = job.script.read_text().replace("flag=", 'echo "cpus=$SRUN_CPUS_PER_TASK"\nflag=')
  job.script.write_text(script)
  assert "cpus=4\n" in job.run(85, SLURM_CPUS_PER_TASK=4).stdout


def test_paths_with_spaces_and_quotes(slurm, tmp_path):
  job = Job(slurm, tmp_path / "a 'b' $c")
  assert job.run("done").returncode == 0
  assert job.notes[-1] == ("done", "") and (job.folder / "result.json").exists()


# Arrays


@pytest.fixture
def array(slurm, tmp_path):
  jobs = [Job(slurm, tmp_path / "the root", name) for name in ("a", "b", "c")]
  options = ["--job-name=jaxspeed-run", "--comment=it's"]
  text = slurm_script.array_script(
    [job.task for job in jobs], "run", options, log=str(tmp_path / "%a.log"), at_once=2
  )
  script = tmp_path / "array.sh"
  script.write_text(text)
  return script, jobs


def test_a_part_of_an_array_runs_its_job(slurm, array):
  script, jobs = array
  variables = {"SLURM_ARRAY_JOB_ID": 40, "SLURM_ARRAY_TASK_ID": 1, "SLURM_JOB_ID": 42}
  done = slurm.run(script, "t1", codes=[85], **variables)
  assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
  # The number alone would be that of the whole array.
  assert "scontrol requeue 40_1" in slurm.calls() and "scontrol show job 40_1" in slurm.calls()
  assert jobs[1].notes == [("started", "40_1"), ("requeued", "saved before the time limit")]
  assert {note.token for note in facts_of(jobs[1].folder).notes} == {"t1"}
  assert jobs[0].notes == jobs[2].notes == []
  log = (jobs[1].folder / "launch" / "logs" / "batch.log").read_text()
  assert "b: job 40_1 on 1 nodes" in log and log.endswith("back into the queue.\n")
  slurm.write("requeue", "1")
  assert slurm.run(script, "t1", codes=[2], **variables).returncode == 2
  assert "scontrol update JobId=40_1 Requeue=0" in slurm.calls()


def test_an_array_limits_how_many_jobs_run_at_once(array):
  lines = array[0].read_text().splitlines()
  assert "#SBATCH --array=0-2%2" in lines
  text = slurm_script.array_script([job.task for job in array[1]], "run", [], log="%a", at_once=0)
  assert "#SBATCH --array=0-2\n" in text


# By hand


@pytest.fixture
def standalone(tmp_path):
  script = tmp_path / "train.sbatch"
  script.write_text(slurm_script.standalone())
  (tmp_path / "work").mkdir()
  return script


@pytest.mark.parametrize("codes, code, again, note", ENDS, ids=lambda value: str(value)[:30])
def test_the_script_for_everyone_decides_the_same(
  slurm, standalone, tmp_path, codes, code, again, note
):
  words = ["--config=a.py", f"--workdir={tmp_path / 'work'}"]
  done = slurm.run(standalone, *words, codes=codes, PYTHON=slurm.python)
  assert (done.returncode, REQUEUED in slurm.calls()) == (code, again), done
  reason = "done." if note[0] == "done" else note[1].removeprefix(f"{code} ")
  assert f"train.sbatch: {reason}" in done.stdout + done.stderr
  trained = (slurm.folder / "trained").read_text().splitlines()
  assert trained == [f"-m jaxspeed.train {' '.join(words)}"] * len(codes)
  # There is no record, and none is written.
  names = {path.name for path in (tmp_path / "work").iterdir()}
  assert names <= {"result.json", "restarts.txt"}


def test_the_script_for_everyone_has_a_limit_of_restarts(slurm, standalone, tmp_path):
  words = [f"--workdir={tmp_path / 'work'}"]
  variables = {"PYTHON": slurm.python, "SLURM_RESTART_COUNT": 30}
  for code, most, end in (("new", 1, 0), (75, 1, 0), ("new", 1, 0), (75, 1, 75), ("new", 0, 85)):
    done = slurm.run(standalone, *words, codes=[code], MAX_RESTARTS=most, **variables)
    assert done.returncode == end
    assert ("without a new checkpoint" in done.stderr) == (end > 0)
  # The folder may not exist yet.
  gone = [f"--workdir={tmp_path / 'gone'}"]
  assert slurm.run(standalone, *gone, codes=[75], MAX_RESTARTS=30, **variables).returncode == 75
  assert slurm.run(standalone, *gone, codes=[75], MAX_RESTARTS=31, **variables).returncode == 0


def test_mistakes_in_the_use_of_the_script_for_everyone(slurm, standalone):
  done = slurm.run(standalone, "--workdir=w", codes=[0], SLURM_JOB_ID=None)
  assert (done.returncode, done.stdout) == (2, "")
  expected = "train.sbatch: this is a batch script: sbatch scripts/train.sbatch --config=FILE"
  assert done.stderr.startswith(expected)
  done = slurm.run(standalone, "--config=a.py", codes=[0])
  assert (done.returncode, done.stdout) == (2, "") and not slurm.calls()
  assert done.stderr == "train.sbatch: --workdir=DIR is missing behind the script's name.\n"


def test_the_repository_has_the_script_that_the_code_writes():
  assert (ROOT / "scripts" / "train.sbatch").read_text() == slurm_script.standalone()


def test_every_script_is_shell(job, array, standalone):
  for script in (job.script, array[0], standalone):
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash" and all(len(line) < 400 for line in lines)
    # sbatch reads directives up to the first command.
    commands = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert directives and max(directives) < min(commands)
