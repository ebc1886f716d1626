"""Slurm from Python: fields, submission, states and cancellation, with fake commands of Slurm."""

import pathlib
import subprocess

import pytest
from fake_jobs import write_job
from fake_slurm import FakeSlurm

from jaxspeed.errors import UserError
from jaxspeed.launch import shared_disk
from jaxspeed.launch import slurm as module
from jaxspeed.launch.executor import Refused, SchedulerState, Task
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.slurm import Slurm

PENDING, RUNNING, ABSENT = SchedulerState


@pytest.fixture
def slurm(tmp_path, monkeypatch):
  fake = FakeSlurm(tmp_path / "slurm")
  for name, value in fake.variables.items():
    monkeypatch.setenv(name, value)
  return fake


def tasks_of(root, executor, names="abc"):
  """Jobs with their scripts in place."""
  tasks = []
  for name in names:
    write_job(root / "run", name)
    folder = root / "run" / name
    task = Task(name, "run", folder, ("python", f"--workdir={folder}"), pathlib.Path("/"))
    (task.record / "script.sh").write_text(executor.script(task)[1])
    tasks.append(task)
  return tasks


# Fields


@pytest.mark.parametrize(
  "time, hours",
  [
    ("", None),
    ("90", 1.5),
    ("30:00", 0.5),
    ("6:01", 361 / 3600),
    ("4:00:00", 4),
    ("1:30:36", 1.51),
    ("2-0", 48),
    ("1-12", 36),
    ("1-12:30", 36.5),
    ("1-12:30:36", 36.51),
  ],
)
def test_time_limits(time, hours):
  found = Slurm(time=time).most_hours
  assert found == (None if hours is None else pytest.approx(hours))


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"time": "4h"}, "Slurm(time='4h'): it must be a time limit as sbatch takes it, such as 4:0"),
    ({"time": "1:2:3:4"}, "Slurm(time='1:2:3:4'): it must be a time limit"),
    ({"time": "-5"}, "Slurm(time='-5'): it must be a time limit"),
    ({"time": 60}, "Slurm(time=60): it must be"),
    ({"time": "6"}, "Slurm(time='6'): jobs begin to save 300 s before that limit, or a minute"),
    ({"time": "10", "save_seconds": 540}, "Slurm(time='10'): jobs begin to save 540 s before"),
    ({"node": 2}, "Slurm has no field node: it has price_per_hour, "),
    ({"nodes": 0}, "Slurm(nodes=0): it must be a whole number from 1"),
    ({"nodes": True}, "Slurm(nodes=True): it must be a whole number"),
    ({"gpus_per_node": -1}, "Slurm(gpus_per_node=-1): it must be a whole number from 0"),
    ({"partition": "a\nb"}, "Slurm(partition='a\\nb'): it must be text without line breaks"),
    ({"options": "--qos=high"}, "Slurm(options='--qos=high'): it must be a list of texts"),
    ({"options": ["qos=high"]}, "Slurm: options has 'qos=high', which is no option of sbatch."),
    ({"options": ["-q\n#SBATCH x"]}, "Slurm: options has '-q\\n#SBATCH x', which is no option"),
    ({"options": ["--array=0-3"]}, "Slurm: options has --array=0-3, which jaxspeed.launch sets"),
    ({"options": ["-a"]}, "Slurm: options has -a, which jaxspeed.launch sets itself."),
    ({"options": ["-N4"]}, "Slurm: options has -N4, which jaxspeed.launch sets itself."),
    ({"options": ["--signal=TERM@9"]}, "Slurm: options has --signal=TERM@9, which jaxspeed.launch"),
    ({"options": ["--no-requeue"]}, "Slurm: options has --no-requeue, which jaxspeed.launch"),
    ({"env": {"workdir": "/x"}}, "Slurm: env has workdir, which the scripts use themselves."),
    ({"options": ["--time=1:00"]}, "Slurm: options has --time=1:00, which jaxspeed.launch sets"),
    ({"options": ["-t1"]}, "Slurm: options has -t1, which jaxspeed.launch sets"),
    ({"env": {"MY_TOKEN": "x"}}, "Slurm: env has MY_TOKEN, which looks like a secret"),
    ({"env": {"A B": "x"}}, "Slurm: env has 'A B', which is no variable's name."),
    ({"env": {"A": "x\ny"}}, "Slurm(env="),
    ({"env": ["A"]}, "Slurm(env=['A']): it must be a dict of environment variables"),
    ({"price_per_hour": float("nan")}, "Slurm(price_per_hour=nan): it must be"),
    ({"max_restarts": -1}, "Slurm(max_restarts=-1): it must be a whole number from 0"),
  ],
)
def test_fields_that_are_refused(fields, message):
  with pytest.raises(UserError) as error:
    Slurm(**fields)
  assert str(error.value).startswith(message)


def test_fields_come_back_from_a_jobs_folder():
  made = Slurm(nodes=2, gpus_per_node=8, options=["--exclusive"], env={"A": "1"}, time="1-0")
  assert executor_of(made.to_dict(), "a") == made
  with pytest.raises(UserError, match="^a names the executor 'ssh': there are local, slurm, sky"):
    executor_of({"kind": "ssh"}, "a")
  with pytest.raises(UserError, match="^a: Slurm has no field node"):
    executor_of({"kind": "slurm", "node": 2}, "a")


@pytest.mark.parametrize(
  "fields, devices, processes, hourly",
  [
    ({}, 1, 1, 2.0),
    ({"nodes": 2, "gpus_per_node": 8}, 16, 2, 4.0),
    ({"nodes": 2, "gpus_per_node": 8, "tasks_per_node": 8}, 16, 16, 4.0),
    ({"nodes": 3, "tasks_per_node": 2}, 6, 6, 6.0),
  ],
)
def test_devices_and_price(fields, devices, processes, hourly):
  executor = Slurm(price_per_hour=2.0, **fields)
  found = (executor.devices(), executor.processes, executor.hourly)
  assert found == (devices, processes, hourly)


def directives(text):
  """The options of sbatch in a script, as sbatch reads them."""
  rows = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
  words = subprocess.run(
    ["bash", "-c", "printf '%s\\n' " + " ".join(row.removeprefix("#SBATCH ") for row in rows)],
    capture_output=True,
    text=True,
  )
  return words.stdout.splitlines()


def test_options_of_a_job(tmp_path):
  task = Task("a", "run", tmp_path / "a b" / "a", ("true",), tmp_path)
  fields = {"partition": "gpu", "nodes": 2, "gpus_per_node": 8, "gpu": "h100", "time": "4:00:00"}
  more = {"cpus_per_task": 12, "account": "me", "save_seconds": 60, "options": ["--exclusive"]}
  name, text = Slurm(**fields, **more).script(task)
  assert name == "script.sh" and directives(text) == [
    "--job-name=jaxspeed-a",
    "--partition=gpu",
    "--account=me",
    "--nodes=2",
    "--ntasks-per-node=1",
    "--cpus-per-task=12",
    "--time=4:00:00",
    "--gpus-per-node=h100:8",
    "--open-mode=append",
    "--requeue",
    "--signal=USR1@60",
    "--exclusive",
    f"--output={tmp_path}/a b/a/launch/logs/batch.log",
  ]
  assert "--gpus-per-node=8" in directives(Slurm(gpus_per_node=8).script(task)[1])
  plain = directives(Slurm().script(task)[1])
  assert not any(
    word.startswith(("--gpus", "--time", "--part", "--acc", "--cpus")) for word in plain
  )


# Checks


@pytest.mark.parametrize("command", ["sbatch", "squeue", "scancel"])
def test_a_command_that_is_missing(slurm, monkeypatch, command):
  (slurm.bin / command).unlink()
  monkeypatch.setenv("PATH", str(slurm.bin))
  with pytest.raises(UserError, match=f"^{command} is not on the PATH: submit from a login node"):
    Slurm().check(pathlib.Path("/"))
  assert slurm.calls() == []


def test_a_root_that_the_nodes_do_not_see(slurm, monkeypatch, tmp_path):
  monkeypatch.setattr(shared_disk, "file_system", lambda *_: "ext4")
  monkeypatch.setattr(shared_disk, "_exported", lambda *_: [])
  slurm.nodes("127.0.0.1", "192.0.2.7")
  with pytest.raises(UserError, match=r"lies on a ext4 file system .*Slurm\(shared_root=True\)"):
    Slurm().check(tmp_path)
  Slurm(shared_root=True).check(tmp_path)
  slurm.nodes("127.0.0.1", "localhost")
  Slurm().check(tmp_path)


def test_a_controller_that_does_not_answer_the_check(slurm, tmp_path):
  slurm.write("down")
  expected = (
    r"^Slurm does not answer \(.*Unable to contact slurm controller .*\): submit again when"
  )
  with pytest.raises(UserError, match=expected):
    Slurm().check(tmp_path)


# Submission


def submitted(executor, tasks, root, token="t1"):
  (root / ".launch").mkdir(exist_ok=True)
  return list(executor.submit(tasks, token, root / ".launch"))


def test_jobs_of_one_node_are_an_array(slurm, tmp_path):
  executor = Slurm(parallel=2)
  tasks = tasks_of(tmp_path, executor)
  assert submitted(executor, tasks, tmp_path) == [{"a": "100_0", "b": "100_1", "c": "100_2"}]
  script = tmp_path / ".launch" / "arrays" / "t1-0" / "script.sh"
  assert slurm.calls() == [f"sbatch --parsable --comment=jaxspeed:t1 {script} t1"]
  found = directives(script.read_text())
  assert found[0] == "--job-name=jaxspeed-run" and "--array=0-2%2" in found
  assert f"--output={script.parent}/%a.log" in found


def test_one_job_of_one_node_and_jobs_of_several_have_scripts_of_their_own(slurm, tmp_path):
  tasks = tasks_of(tmp_path, Slurm())
  assert submitted(Slurm(), tasks[:1], tmp_path) == [{"a": "100"}]
  found = submitted(Slurm(nodes=2), tasks, tmp_path, "t2")
  assert found == [{"a": "101"}, {"b": "102"}, {"c": "103"}]
  scripts = [f"{task.folder}/launch/script.sh t2" for task in tasks]
  assert [job[2] for job in slurm.jobs()][1:] == scripts
  assert not (tmp_path / ".launch" / "arrays").exists()


def test_arrays_stay_below_the_limit_of_slurm(slurm, tmp_path, monkeypatch):
  monkeypatch.setattr(module, "_MOST_IN_ARRAY", 2)
  tasks = tasks_of(tmp_path, Slurm(), "abcde")
  found = submitted(Slurm(), tasks, tmp_path)
  assert found == [{"a": "100_0", "b": "100_1"}, {"c": "101_0", "d": "101_1"}, {"e": "102"}]
  # No two scripts have the same place.
  assert len({job[2] for job in slurm.jobs()}) == 3


def test_a_refusal_comes_after_what_was_submitted(slurm, tmp_path):
  tasks = tasks_of(tmp_path, Slurm())
  slurm.write("most", "101")
  ids = []
  with pytest.raises(Refused) as error:
    for found in Slurm(nodes=2).submit(tasks, "t1", tmp_path / ".launch"):
      ids.append(found)
  script = tasks[2].record / "script.sh"
  assert str(error.value) == (
    f"sbatch refused {script} (sbatch: error: Batch job submission failed: Job violates "
    "accounting/QOS policy)."
  )
  assert ids == [{"a": "100"}, {"b": "101"}]


def test_a_lost_number_is_found_again(slurm, tmp_path):
  slurm.write("silent")
  several, single = Slurm(nodes=2), Slurm()
  tasks = tasks_of(tmp_path / "the root", single)
  (tmp_path / "the root" / ".launch").mkdir()
  expected = (
    r"^sbatch did not submit .*script.sh \(exit code 1\): repeat the command, which submits"
  )
  with pytest.raises(UserError, match=expected) as error:
    submitted(single, tasks, tmp_path / "the root", "t1")
  assert not isinstance(error.value, Refused)
  with pytest.raises(UserError, match="exit code 1"):
    submitted(several, tasks[:1], tmp_path / "the root", "t2")
  assert single.find("t1", tasks) == {"a": "100_0", "b": "100_1", "c": "100_2"}
  assert single.find("t1", tasks[1:2]) == {"b": "100_1"}
  assert several.find("t2", tasks) == {"a": "101"}
  assert single.find("t", tasks) == {}
  slurm.write("down")
  with pytest.raises(
    UserError, match="^Slurm does not answer .*: repeat the command when it does."
  ):
    single.find("t1", tasks)


@pytest.mark.parametrize(
  "reason",
  [
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "Unable to contact slurm controller (receive failure)",
    "Communication connection failure",
  ],
)
def test_a_lost_connection_is_no_refusal(slurm, tmp_path, reason):
  slurm.write("silent", f"sbatch: error: Batch job submission failed: {reason}")
  tasks = tasks_of(tmp_path, Slurm(), "a")
  with pytest.raises(UserError, match="^sbatch did not submit .*: repeat the command") as error:
    submitted(Slurm(), tasks, tmp_path, "t1")
  assert not isinstance(error.value, Refused)
  assert Slurm().find("t1", tasks) == {"a": "100"}


# States


@pytest.mark.parametrize(
  "word, state",
  [
    *[(word, PENDING) for word in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")],
    *[(word, PENDING) for word in ("REQUEUE_FED", "SPECIAL_EXIT")],
    *[(word, RUNNING) for word in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING")],
    *[(word, RUNNING) for word in ("STAGE_OUT", "RESIZING")],
    *[(word, ABSENT) for word in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")],
    *[(word, ABSENT) for word in ("PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "NEW")],
    ("", ABSENT),
  ],
)
def test_states(slurm, tmp_path, word, state):
  submitted(Slurm(nodes=2), tasks_of(tmp_path, Slurm()), tmp_path)
  slurm.set_state("101", word)
  found = Slurm().states({"a": "100", "b": "101"}, tmp_path)
  assert found == {"a": PENDING, "b": state}


def test_one_question_for_all_jobs(slurm, tmp_path):
  submitted(Slurm(), tasks_of(tmp_path, Slurm()), tmp_path)
  submitted(Slurm(nodes=2), tasks_of(tmp_path / "more", Slurm()), tmp_path)
  slurm.set_state("100_1", "RUNNING")
  slurm.set_state("102", "")
  slurm.write("calls")
  ids = {"a": "100_0", "b": "100_1", "c": "100_7", "d": "101", "e": "102", "f": "", "g": "10"}
  found = Slurm().states(ids, tmp_path)
  assert found == {"a": PENDING, "b": RUNNING, "c": ABSENT, "d": PENDING, "e": ABSENT, "g": ABSENT}
  (call,) = slurm.calls()
  assert "--states=all" in call and "--array" in call and "--jobs=10,100,101,102" in call


def test_jobs_that_slurm_has_forgotten_are_absent(slurm, tmp_path):
  assert Slurm().states({"a": "5"}, tmp_path) == {"a": ABSENT}
  slurm.write("calls")
  assert Slurm().states({"a": ""}, tmp_path) == {} and slurm.calls() == []


def test_no_answer_is_none(slurm, tmp_path, monkeypatch):
  slurm.write("down")
  assert Slurm().states({"a": "5"}, tmp_path) is None
  (slurm.folder / "down").unlink()
  (slurm.bin / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
  monkeypatch.setattr(module, "_SECONDS", 0.2)
  assert Slurm().states({"a": "5"}, tmp_path) is None
  (slurm.bin / "squeue").unlink()
  monkeypatch.setenv("PATH", str(slurm.bin))
  assert Slurm().states({"a": "5"}, tmp_path) is None


# Cancellation


def test_cancellation(slurm, tmp_path):
  Slurm().cancel({"a": "100_0", "b": "", "c": "7"}, tmp_path)
  Slurm().cancel({"b": ""}, tmp_path)
  assert slurm.calls() == ["scancel --quiet 100_0 7"]
  (slurm.bin / "scancel").write_text(
    "#!/bin/sh\necho 'scancel: error: Invalid job id 7' >&2; exit 1"
  )
  Slurm().cancel({"c": "7"}, tmp_path)


def test_a_cancellation_that_is_not_done(slurm, tmp_path):
  slurm.write("down")
  expected = r"^Slurm did not cancel \(.*Unable to contact .*\): cancel again when it answers.$"
  with pytest.raises(UserError, match=expected):
    Slurm().cancel({"a": "7"}, tmp_path)
