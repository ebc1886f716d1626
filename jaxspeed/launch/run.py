"""A run of many jobs: recipes, overrides and what runs them; states, cancellation, another try."""

import contextlib
import os
import pathlib
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config.checks import to_plain
from jaxspeed.config.recipe import guarded, import_file
from jaxspeed.config.schema import shown
from jaxspeed.errors import UserError, printable
from jaxspeed.launch import record, runs, state, submit
from jaxspeed.launch.executor import Executor, Planned, executor_of
from jaxspeed.launch.local import Local
from jaxspeed.launch.record import Facts
from jaxspeed.launch.state import Statuses
from jaxspeed.launch.sweep import job_name


class SubmittedRun:
  """A run as its folder keeps it."""

  name: str
  root: pathlib.Path  # the folder of the run's folder

  @property
  def folder(self) -> pathlib.Path:
    """The run's folder."""
    return self.root / self.name

  def wait(self) -> Statuses:
    """Waits until all jobs have ended, or none will go on by itself; prints changes of states.

    Ctrl-C ends the waiting; the jobs go on.
    """
    seen: dict[str, str] = {}
    while True:
      found = self.status()
      for status in found:
        if seen.get(status.name) != status.state:
          detail = f", {status.detail}" if status.detail else ""
          print(printable(f"{status.name}: {status.state}{detail}"))
        seen[status.name] = status.state
      if not any(map(found.goes_on, found)):
        return found
      time.sleep(found.pause)

  def status(self) -> Statuses:
    """The states of the jobs, in their order; `print` shows a table.

    Raises:
      UserError: the run does not exist yet, or its file is damaged.
    """
    return state.statuses(self.folder, record.read_jobs(self.folder))

  def cancel(self, names: Collection[str] = (), *, every: bool = False) -> list[str]:
    """Cancels jobs, by their names or all; they save first. Returns which of them had not ended.

    Raises:
      UserError: there is no such job, somebody else submitted it, or a scheduler refuses.
    """
    with self._locked(names, every) as chosen:
      jobs = [facts for facts in chosen if not facts.cancelled]
      said, silent = state.ask(self.folder, jobs)
      if silent:
        raise UserError(f"{silent}: cancel when it does.")
      found = {f.job.name: state.status_of(f, said.get(f.job.name, state.UNKNOWN)) for f in jobs}
      going = [facts for facts in jobs if found[facts.job.name].state not in state.ENDED]
      if ids := [each.id for f in going if (each := said.get(f.job.name)) and each.id]:
        executor_of(going[0].job).cancel(ids)
      if going:
        record.request(self.folder, "cancel", going)
    return [facts.job.name for facts in going]

  def retry(self, names: Collection[str] = (), *, failed: bool = False) -> list[str]:
    """Submits jobs again, by their names or all that failed or were cancelled; returns which.

    They resume from their checkpoints.

    Raises:
      UserError: there is no such job, it has not ended or is done, somebody else submitted it, or a
        scheduler refuses.
    """
    with self._locked(names, failed) as jobs:
      again = []
      for facts, status in zip(jobs, state.statuses(self.folder, jobs), strict=True):
        if status.state in ("failed", "cancelled") and status.detail != "saving":
          again.append(facts)
        elif not failed:
          stands = "still saving" if status.detail == "saving" else status.state
          raise UserError(f"{facts.folder} is {stands}: only failed jobs are retried.")
      submit.submit(self.folder, again)
    if again:
      submit.begin(self.folder)
    return [facts.job.name for facts in again]

  @contextlib.contextmanager
  def _locked(self, names: Collection[str], every: bool) -> Iterator[list[Facts]]:
    """Holds the run's lock; yields its jobs of these names, on which this user may act."""
    if every == bool(names):
      raise UserError(
        "name jobs, or ask for all: cancel --all, retry --failed; every=True and failed=True."
      )
    submit.check_own(record.read_jobs(self.folder, names))
    with runs.lock_run(self.folder):
      yield record.read_jobs(self.folder, names)


class Run(SubmittedRun):
  """An experiment of one or many jobs, each a training in the folder `root/NAME/JOB`.

  with Run("lr-sweep", executor=Slurm(nodes=2, gpus_per_node=8), root="/shared/runs") as run:
    for overrides in grid(**{"schedule.peak": [1.0, 2.0], "seed": range(3)}):
      run.job("configs/imagenet18.py:4", overrides)
  run.start()

  The end of the `with` block checks all jobs.

  Args:
    name: the run's name, which is its folder's.
    executor: what runs the jobs: `Local`, `Slurm` or `Sky`.
    root: a folder that all machines of the jobs share.
    check_data: whether to open the jobs' data before they are submitted.

  Raises:
    UserError: a value is not valid.
  """

  def __init__(
    self,
    name: str,
    *,
    executor: Executor,
    root: str | os.PathLike[str],
    check_data: bool = True,
  ) -> None:
    self.name = runs.check_name("run", name)
    self.root = runs.absolute(root)
    self.executor = _checked(executor)
    self.check_data = check_data
    self._planned: list[Planned] = []
    self._configs: dict[str, ConfigDict] | None = None

  @classmethod
  def load(cls, folder: str | os.PathLike[str]) -> "Run":
    """The run in a folder, from any process.

    Raises:
      UserError: the folder holds no run.
    """
    path = runs.absolute(folder)
    first, *_ = record.read_jobs(path)
    return cls(path.name, executor=executor_of(first.job), root=path.parent)

  def job(
    self,
    recipe: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    executor: Executor | None = None,
  ) -> str:
    """Adds a job, a training of a recipe; returns its name.

    Args:
      recipe: FILE.py or FILE.py:VARIANT, relative to the current folder.
      overrides: values by dotted field name.
      name: the job's name, by which a later start knows it; None: made from the arguments above.
      executor: what runs this job; None: what runs the run.

    Raises:
      UserError: another job has the name, or a value has a wrong type.
    """
    overrides = to_plain(overrides or {})
    executor = self.executor if executor is None else _checked(executor)
    name = job_name(recipe, overrides) if name is None else runs.check_name("job", name)
    # Some file systems do not tell upper from lower case.
    if any(planned.name.lower() == name.lower() for planned in self._planned):
      raise UserError(
        f"two jobs of the run {self.name} have the name {name}: give each its own with "
        "job(..., name=...), or remove one."
      )
    self._planned.append(Planned(name, recipe, overrides, executor))
    self._configs = None
    return name

  def override(self, overrides: Mapping[str, Any]) -> None:
    """Sets fields of all jobs so far, which keep their names.

    Raises:
      UserError: there is no job yet, or one sets one of the fields itself.
    """
    if overrides and not self._planned:
      raise UserError("override() changes the jobs so far, and there is none: first call job().")
    for planned in self._planned:
      if both := sorted(overrides.keys() & planned.overrides.keys()):
        raise UserError(
          f"config.{both[0]} is set by the job {planned.name} itself: change it in the script."
        )
    self._planned = [
      each._replace(overrides={**overrides, **each.overrides}) for each in self._planned
    ]
    self._configs = None

  def __enter__(self) -> "Run":
    return self

  def __exit__(self, kind: object, *_: object) -> None:
    if kind is None:
      self.check()

  def check(self) -> dict[str, ConfigDict]:
    """Checks every job as `jaxspeed.plan` does; returns the jobs' configs by name.

    Raises:
      UserError: all the mistakes, in one sentence each.
    """
    # Imported here, so that what only looks at a run does not wait for JAX.
    from jaxspeed.launch.check import check_jobs

    if self._configs is None:
      if not self._planned:
        raise UserError(f"the run {self.name} has no jobs: add some with run.job(RECIPE).")
      self._configs = check_jobs(self._planned, data=self.check_data)
    return self._configs

  def check_executors(self) -> None:
    """Checks that the executors can be used from here, and that they see the root.

    Raises:
      UserError: a program or a package is missing, or the root is not shared.
    """
    executors = {repr(planned.executor): planned.executor for planned in self._planned}
    for executor in executors.values():
      executor.check(self.root)
    if isinstance(self.executor, Local) and len(executors) > 1:
      raise UserError("the jobs of one run share one Local(...), whose places they take in turn.")

  def start(self) -> None:
    """Submits the jobs that the run does not have yet, and prints how to look at them.

    Raises:
      UserError: a job cannot run, and nothing was submitted; or a scheduler refuses, and what was
        submitted before stays.
    """
    self.check_executors()
    configs = self.check()
    jobs = [(planned, configs[planned.name]) for planned in self._planned]
    for line in submit.start(self.folder, jobs):
      print(printable(line))

  def scripts(self) -> dict[str, str]:
    """What `start` would submit for each job, and the command that trains it, by its folder."""
    configs = self.check()
    found = {}
    for planned in self._planned:
      job = submit.job_of(self.folder, planned, configs[planned.name])
      command = " ".join(job.command(planned.executor.python or "python"))
      script = planned.executor.script([job], "TOKEN")
      own = isinstance(planned.executor, Local)  # its script has the command itself
      found[job.folder] = script if own else f"{script}# which runs: {printable(command)}\n"
    return found


def _checked(executor: Any) -> Executor:
  if not isinstance(executor, Executor):
    raise UserError(f"executor={shown(executor)}: give Local(...), Slurm(...) or Sky(...).")
  return executor


def load_sweep(file: str) -> Run:
  """The run that `sweep()` of a file returns.

  Raises:
    UserError: there is no such file, it raises an exception, or it returns no run.
  """
  if not os.path.isfile(file):
    raise UserError(f"{file}: there is no such file.")
  function = getattr(import_file(file), "sweep", None)
  if not callable(function):
    raise UserError(f"{file} defines no function sweep() that returns a Run of jaxspeed.launch.")
  if not isinstance(run := guarded(function, file), Run):
    raise UserError(f"{file}: sweep() must return a Run of jaxspeed.launch, and not {shown(run)}.")
  return run
