"""The worker for real, with scripts in place of trainers: nothing is lost or run twice."""

import contextlib
import os
import pathlib
import signal

import pytest
from fake_jobs import config_of, facts_of, fake_python
from local_cluster import wait_until

from jaxspeed.errors import UserError
from jaxspeed.files import is_locked
from jaxspeed.launch import local, record, state, submit
from jaxspeed.launch.executor import Planned
from jaxspeed.launch.local import Local
from jaxspeed.launch.run import Run


class LocalRun:
  """A run `root`/run of jobs that do as a plan says."""

  def __init__(self, root, config):
    self.root = root
    self.folder = root / "run"
    self.launcher = self.folder / ".launch"
    self._config = config

  def start(self, plan, **fields):
    """Submits a job for each name of the plan."""
    executor = Local(**({"python": fake_python(self.root, plan), "gpus": 0} | fields))
    jobs = [(Planned(name, "configs/quickstart.py", {}, executor), self._config) for name in plan]
    return [*submit.start(self.folder, jobs)]

  def go(self, name=""):
    """Lets jobs end that wait: all, or one."""
    (self.root / (f"go.{name}" if name else "go")).touch()

  def events(self, what="+"):
    """The jobs' own lines of a kind, in order: name, and what else they say."""
    lines = (line.split() for line in (self.root / "log").read_text().splitlines())
    return [words[1:] for words in lines if words[0] == what]

  @property
  def begun(self):
    return [words[0] for words in self.events()]

  @property
  def found(self):
    return state.statuses(self.folder, record.read_jobs(self.folder))

  @property
  def states(self):
    return {status.name: status.state for status in self.found}

  def wait(self, *names):
    """Waits until jobs have begun to run."""
    wait_until(lambda: {*names} <= {*self.begun}, 60, f"{names} run: {self.log}")

  def wait_for_end(self):
    wait_until(lambda: not self.workers, 60, f"the end: {self.log}")
    return self.states

  @property
  def workers(self):
    """The workers' processes."""
    locks = filter(is_locked, self.launcher.glob(local.WORKER.format("*")))
    return [int(path.read_text()) for path in locks]

  def signal(self, number):
    """Signals the workers, once they all listen."""
    workers = self.workers
    wait_until(lambda: all(listens(each, number) for each in workers), 60, "workers that listen")
    for worker in workers:
      os.kill(worker, number)

  def kill_workers(self):
    for worker in self.workers:
      os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not self.workers, 60, "the workers' end")

  @property
  def log(self):
    with contextlib.suppress(OSError):
      return (self.launcher / local.LOG).read_text()
    return ""

  def notes(self, name):
    return [(note.what, note.detail) for note in facts_of(self.folder / name).notes]


@pytest.fixture(scope="module")
def config():
  return config_of({})


@pytest.fixture
def run(tmp_path, config):
  made = LocalRun(tmp_path.resolve(), config)
  yield made
  # Nothing outlives a test, whatever it left running.
  with contextlib.suppress(OSError, ValueError):
    made.kill_workers()
  for _, group, *_ in made.events() if (made.root / "log").exists() else []:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(int(group), signal.SIGKILL)


def listens(process, number):
  """Whether a process has a handler for a signal; until then SIGTERM would end it."""
  status = pathlib.Path(f"/proc/{process}/status").read_text()
  return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1


def cores_of(text):
  """The numbers in a list such as 0-2,5."""
  bounds = [part.split("-") for part in text.split(",")]
  return {i for each in bounds for i in range(int(each[0]), int(each[-1]) + 1)}


def test_six_jobs_two_at_a_time_each_with_its_own_cores(run):
  ended = ["sleep 0.1", "done"]
  plan = {
    "a": ["wait", "done"],
    "b": ["wait", "say out of luck", "exit 1"],
    "c": ["once exit 85", *ended],
    "d": ["once kill", *ended],
    "e": ["say jaxspeed: no data in /x.", "exit 2"],
    "f": ended,
  }
  assert run.start(plan, parallel=2)[:6] == [f"submitted {name}" for name in plan]
  run.wait("a", "b")
  assert run.states == dict.fromkeys("ab", "running") | dict.fromkeys("cdef", "pending")
  # Neither the terminal nor its end reaches them: they have sessions and an input of their own.
  groups = {words[0]: int(words[1]) for words in run.events()}
  for process in (*run.workers, *groups.values()):
    assert os.getsid(process) == process != os.getsid(0)
    assert os.readlink(f"/proc/{process}/fd/0") == os.devnull
  places = {(words[2], words[3]) for words in run.events()}
  slots = {Local(parallel=2, gpus=0).slot(i)[1] for i in range(2)}
  assert {frozenset(cores_of(cores)) for cores, _ in places} == slots
  run.go()
  assert run.wait_for_end() == dict.fromkeys("acdf", "done") | dict.fromkeys("be", "failed")
  # A job that ended with 85 or was killed was started again, the others once.
  assert sorted(run.begun) == sorted("abccddef")
  now, most = 0, 0
  for line in (run.root / "log").read_text().splitlines():
    now += {"+": 1, "-": -1}.get(line[0], 0)
    most = max(most, now)
  assert (most, now) == (2, 0)
  status = {each.name: each for each in run.found}
  assert (status["b"].exit_code, status["b"].last_lines) == (1, ("out of luck",))
  assert (status["e"].exit_code, status["e"].last_lines) == (2, ("jaxspeed: no data in /x.",))
  assert (status["c"].restarts, status["d"].restarts, status["f"].restarts) == (1, 1, 0)
  saved = ("requeued", "saved, to be started again")
  assert run.notes("c") == [("started", ""), saved, ("started", ""), ("done", "")]
  assert run.notes("d")[1] == ("requeued", "killed by signal 9")
  assert run.notes("b")[1] == ("failed", "ended with exit code 1")
  words = (run.folder / "a" / "arguments").read_text()
  assert words == f"-m jaxspeed.train --config=configs/quickstart.py --workdir={run.folder}/a\n"
  # Nothing is left to do for the same command.
  assert run.start(plan, parallel=2)[-1].startswith("0 jobs submitted, 6 were there before; ")
  assert sorted(run.begun) == sorted("abccddef")


def test_what_a_job_leaves_in_the_background_ends_with_it(run):
  run.start({"a": ["once kill", "done"], "b": ["done"]}, setup=["sleep 300 &"])
  assert run.wait_for_end() == {"a": "done", "b": "done"}
  assert run.begun == ["a", "a", "b"] or run.begun == ["a", "b", "a"]
  whats = [what for what, _ in run.notes("a")]
  assert whats == ["started", "requeued", "started", "done"]


def test_jobs_whose_folders_take_no_files_do_not_stop_the_others(run):
  run.launcher.mkdir(parents=True)
  for job, place in (("a", "launch"), ("b", "launch/logs")):
    (run.folder / job / place).parent.mkdir(parents=True)
    (run.folder / job / place).write_text("in the way")
  run.start({"a": ["done"], "b": ["done"], "c": ["done"]})
  assert run.wait_for_end() == {"a": "pending", "b": "failed", "c": "done"} and run.begun == ["c"]
  assert "launch'" in run.log and "resume, when that is mended" in run.log
  # Mended, it can be tried again.
  (run.folder / "b" / "launch" / "logs").unlink()
  Run.load(run.folder).retry(["b"])
  assert run.wait_for_end()["b"] == "done"


def test_running_and_waiting_jobs_are_cancelled_and_retried(run):
  plan = {"a": ["wait", "done"], "b": ["done"], "c": ["wait", "done"]}
  run.start(plan)
  run.wait("a")
  assert Run.load(run.folder).cancel(["a", "b"]) == ["a", "b"]
  run.wait("c")
  assert run.events("saved") == [["a"]] and run.begun == ["a", "c"]
  assert run.states == {"a": "cancelled", "b": "cancelled", "c": "running"}
  assert run.notes("a")[-1][0] == "requeued" and run.notes("b") == []
  assert Run.load(run.folder).cancel(["a"]) == []
  # While a worker lives, it takes jobs that come back.
  assert Run.load(run.folder).retry(["b"]) == ["b"]
  run.go("c")
  assert run.wait_for_end() == {"a": "cancelled", "b": "done", "c": "done"}
  # And another begins for those that come later.
  run.go()
  assert Run.load(run.folder).retry(failed=True) == ["a"]
  assert run.wait_for_end() == dict.fromkeys("abc", "done")
  assert run.begun == ["a", "c", "b", "a"]


def test_a_cancellation_reaches_the_trainer_not_what_it_started_in_a_session_of_its_own(run):
  run.start({"a": ["apart", "wait", "done"]})
  wait_until(lambda: run.events("apart") == [["a"]], 60, "a's own session")
  assert Run.load(run.folder).cancel(["a"]) == ["a"]
  wait_until(lambda: run.events("saved") == [["a"]], 60, "a saves")


def test_what_saves_after_a_cancellation_keeps_its_place(run):
  plan = {"a": ["wait", "done"], "b": ["done"]}
  run.start(plan)
  run.wait("a")
  (_, group, *_), *_ = run.events()
  os.killpg(int(group), signal.SIGSTOP)
  Run.load(run.folder).cancel(["a"])
  assert [status.detail for status in run.found] == ["saving", ""]
  with pytest.raises(UserError, match="a is still saving: only failed jobs are retried."):
    Run.load(run.folder).retry(["a"])
  assert run.begun == ["a"]
  os.killpg(int(group), signal.SIGCONT)
  assert run.wait_for_end() == {"a": "cancelled", "b": "done"}


def test_jobs_of_killed_workers_are_cancelled_and_get_the_signals_of_the_next(run):
  run.start({name: ["wait", "done"] for name in "abcde"}, parallel=3)
  run.wait("a", "b", "c")
  run.kill_workers()
  # What died with them is started again, and what lives can be cancelled.
  groups = {words[0]: int(words[1]) for words in run.events()}
  os.kill(groups["c"], signal.SIGKILL)
  wait_until(lambda: run.states["c"] == "requeued", 60, "the end of c")
  assert Run.load(run.folder).cancel(["a"]) == ["a"]
  wait_until(lambda: run.events("saved") == [["a"]], 60, "a saves")
  submit.begin(run.folder)
  run.wait("d")
  wait_until(lambda: run.begun.count("c") == 2, 60, "c runs again")
  run.signal(signal.SIGTERM)
  saved = [["a"], ["b"], ["c"], ["d"]]
  wait_until(lambda: sorted(run.events("saved")) == saved, 60, "b, which had no worker, c and d")
  ended = {"a": "cancelled"} | dict.fromkeys("bcd", "requeued") | {"e": "pending"}
  assert run.wait_for_end() == ended
  assert [each.restarts for each in run.found] == [0, 0, 1, 0, 0]


def test_other_workers_take_over_what_killed_ones_left(run, monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
  plan = {name: ["wait", "done"] for name in "abcd"}
  run.start(plan, parallel=2, gpus=2)
  run.wait("a", "b")
  run.go("a")
  run.wait("c")
  run.kill_workers()
  assert run.states == {"a": "done", "b": "running", "c": "running", "d": "pending"}
  (note,) = run.found.notes
  assert note.startswith("no worker runs, see .launch/worker.log: python -m jaxspeed.launch resume")
  # One ends in the meantime, with a result.
  run.go("c")
  wait_until(lambda: ["c", "0"] in run.events("-"), 60, "the end of c")
  submit.begin(run.folder)
  run.wait("d")
  # d has the place of c; b, which goes on, keeps its own.
  places = {words[0]: words[3] for words in run.events()}
  assert places["c"] == places["d"] == places["a"] != places["b"]
  assert run.states == {"a": "done", "b": "running", "c": "done", "d": "running"}
  submit.begin(run.folder)
  run.go()
  assert run.wait_for_end() == dict.fromkeys("abcd", "done")
  assert sorted(run.begun) == [*"abcd"]


def test_a_submission_that_dies_while_a_worker_lives_is_not_repeated(run, monkeypatch):
  plan = {"a": ["wait", "done"], "b": ["done"], "c": ["wait", "exit 2"]}

  def killed(*_):
    raise KeyboardInterrupt

  run.start({"a": plan["a"]}, parallel=2)
  run.wait("a")
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(Local, "submit", killed)
    run.start(plan, parallel=2)
  run.go("a")
  run.wait("b", "c")
  # The worker took them at once: one has ended, one runs.
  assert run.start(plan, parallel=2)[-1].startswith("0 jobs submitted, 3 were there before; ")
  run.go()
  assert run.wait_for_end() == {"a": "done", "b": "done", "c": "failed"}
  assert sorted(run.begun) == sorted("abc")
  assert run.notes("c") == [("started", ""), ("failed", "ended with exit code 2")]
