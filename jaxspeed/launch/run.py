"""A run: jobs that are submitted, watched, cancelled and retried together."""

import os
import pathlib
import time
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Literal

from ml_collections import ConfigDict

from jaxspeed.config.schema import shown
from jaxspeed.errors import UserError, printable
from jaxspeed.launch import runs, state, submit
from jaxspeed.launch.executor import Executor, Planned
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.names import job_name
from jaxspeed.launch.state import Statuses

_EXIST = ("continue", "new", "error")
# Seconds between two looks at the jobs by a start that waits for them.
_LOOK = 2.0
_ENDED = ("done", "failed", "cancelled")


class Run:
  """An experiment of one or many jobs, each a training in the folder `root/NAME/JOB`.

  with Run("lr-sweep", executor=Slurm(nodes=2, gpus_per_node=8), root="/shared/runs") as run:
    for overrides in grid(**{"schedule.peak": [1.0, 2.0], "seed": range(3)}):
      run.job("configs/imagenet18.py:4", overrides)
  run.start(detach=True)

  The end of the `with` block checks all jobs.

  Args:
    name: the run's name, which is its folder's.
    executor: what runs the jobs: `Local`, `Slurm` or `Sky`.
    root: a folder that all machines of the jobs share.
    exist: what to do if the run exists: "continue" submits what is missing, "new" begins NAME.01,
      NAME.02 and so on, "error" refuses.
    max_cost: USD beyond which no more jobs are submitted; 0: no limit.
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
    exist: Literal["continue", "new", "error"] = "continue",
    max_cost: float = 0.0,
    check_data: bool = True,
  ) -> None:
    if not isinstance(executor, Executor):
      raise UserError(f"executor={shown(executor)}: give Local(...), Slurm(...) or Sky(...).")
    if exist not in _EXIST:
      raise UserError(f"exist={exist!r}: choose one of {', '.join(_EXIST)}.")
    if isinstance(max_cost, bool) or not isinstance(max_cost, int | float) or not max_cost >= 0:
      raise UserError(f"max_cost={shown(max_cost)}: it must be a number of USD, or 0.")
    self.name = runs.check_name("run", name)
    self.executor = executor
    self.root = submit.absolute(root)
    self.exist = exist
    self.max_cost = float(max_cost)
    self.check_data = check_data
    self._planned: list[Planned] = []
    self._common: dict[str, Any] = {}
    self._configs: dict[str, ConfigDict] | None = None

  @classmethod
  def load(cls, folder: str | os.PathLike[str]) -> "Run":
    """The run in a folder, from any process.

    Raises:
      UserError: the folder holds no run.
    """
    path = submit.absolute(folder)
    found = runs.read_run(path)
    jobs = runs.read_jobs(path)
    if not jobs:
      raise UserError(f"{path} holds a run without jobs: submit it again.")
    executor = executor_of(jobs[0].job.executor, str(jobs[0].folder))
    return cls(path.name, executor=executor, root=path.parent, max_cost=found.max_cost)

  @property
  def folder(self) -> pathlib.Path:
    """The run's folder."""
    return self.root / self.name

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
    if not isinstance(recipe, str) or not recipe:
      raise UserError(f"job({shown(recipe)}): name a recipe, as in configs/cifar10.py.")
    overrides = {} if overrides is None else overrides
    if not isinstance(overrides, Mapping):
      raise UserError(f"job(overrides={shown(overrides)}): give a dict of fields and values.")
    executor = self.executor if executor is None else executor
    if not isinstance(executor, Executor):
      raise UserError(f"job(executor={shown(executor)}): give Local(...), Slurm(...) or Sky(...).")
    name = job_name(recipe, overrides) if name is None else runs.check_name("job", name)
    # Some file systems do not tell upper from lower case.
    if any(planned.name.lower() == name.lower() for planned in self._planned):
      raise UserError(
        f"two jobs of the run {self.name} have the name {name}: give each its own with "
        "job(..., name=...), or remove one."
      )
    self._planned.append(Planned(name, recipe, dict(overrides), executor))
    self._configs = None
    return name

  def override(self, overrides: Mapping[str, Any]) -> None:
    """Sets fields of all jobs, unless a job sets them itself; the jobs keep their names."""
    self._common |= overrides
    self._configs = None

  def __enter__(self) -> "Run":
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    if kind is None:
      self.check()

  def check(self) -> None:
    """Checks every job as `jaxspeed.plan` does.

    Raises:
      UserError: all the mistakes, in one sentence each.
    """
    # Imported here, so that what only looks at a run does not wait for JAX.
    from jaxspeed.launch.check import check_jobs

    if self._configs is None:
      if not self._planned:
        raise UserError(f"the run {self.name} has no jobs: add some with run.job(RECIPE).")
      self._configs = check_jobs(self._complete(), data=self.check_data)

  def check_executors(self) -> None:
    """Checks that the executors can be used from here, and that they see the root.

    Raises:
      UserError: a program or a package is missing, or the root is not writable or not shared.
    """
    submit.check_executors(self._executors(), self.root, self.max_cost)

  def _complete(self) -> list[Planned]:
    """The jobs with the overrides that all have, and the price of their hardware."""
    return [submit.complete(planned, self._common) for planned in self._planned]

  def _executors(self) -> list[Executor]:
    found: list[Executor] = []
    for planned in self._planned:
      if planned.executor not in found:
        found.append(planned.executor)
    return found

  def start(self, *, detach: bool = True) -> None:
    """Submits the jobs that are missing, and prints how to look at them.

    Args:
      detach: whether to return once all are submitted; False waits until all have ended.

    Raises:
      UserError: a job cannot run, and nothing was submitted; or a scheduler refuses, and what was
        submitted before stays.
    """
    self.check_executors()
    self.check()
    assert self._configs is not None
    self.name = submit.free_name(self.root, self.name, self.exist)
    jobs = [(planned, self._configs[planned.name]) for planned in self._complete()]
    for line in submit.start(self.folder, jobs, max_cost=self.max_cost):
      print(printable(line))
    if not detach:
      self.wait()

  def scripts(self) -> dict[str, str]:
    """The scripts that `start` would submit, by the paths that they would have."""
    self.check()
    name = submit.free_name(self.root, self.name, self.exist)
    folder = self.root / name
    return submit.scripts(folder, self._complete())

  def wait(self) -> Statuses:
    """Waits until all jobs have ended, and prints changes of their states.

    Ctrl-C ends the waiting; the jobs go on.
    """
    seen: dict[str, str] = {}
    while True:
      found = self.status()
      for status in found:
        if seen.get(status.name) != status.state:
          print(
            printable(
              f"{status.name}: {status.state}" + (f", {status.detail}" if status.detail else "")
            )
          )
        seen[status.name] = status.state
      if all(status.state in _ENDED for status in found):
        return found
      time.sleep(_LOOK)

  def status(self) -> Statuses:
    """The states of the jobs, in their order; `print` shows a table.

    Raises:
      UserError: the run does not exist yet, or a job's folder is damaged.
    """
    runs.read_run(self.folder)
    return state.statuses(self.folder, runs.read_jobs(self.folder))

  def cancel(self, names: Collection[str] = (), *, every: bool = False) -> list[str]:
    """Cancels jobs, which save before they end; returns the names of those that had not ended.

    Args:
      names: the jobs' names.
      every: whether to cancel all jobs.

    Raises:
      UserError: there is no such job, or a scheduler refuses.
    """
    return submit.cancel(self.folder, names, every=every)

  def retry(self, names: Collection[str] = (), *, failed: bool = False) -> list[str]:
    """Submits jobs again that ended without a result, which resume; returns their names.

    Args:
      names: the jobs' names.
      failed: whether to retry all jobs that failed or were cancelled.

    Raises:
      UserError: there is no such job, it has not ended or is done, or a scheduler refuses.
    """
    return submit.retry(self.folder, names, failed=failed)
