"""Submission: what is written and asked, in an order in which nothing is lost or asked twice."""

import os
import pathlib
import secrets
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import stored
from jaxspeed.config.overrides import to_flags
from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY, load_json
from jaxspeed.launch import record, runs, sources, state
from jaxspeed.launch.executor import Planned, Refused, Task
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.local import Local
from jaxspeed.launch.record import RECORD, Facts
from jaxspeed.launch.status import ENDED, JobStatus

PACKAGE = pathlib.Path(__file__).parents[2]
_SHOWN = 3  # names in a message


def complete(planned: Planned, common: Mapping[str, Any]) -> Planned:
  """A job with the overrides that all jobs of its run have."""
  return Planned(planned.name, planned.recipe, {**common, **planned.overrides}, planned.executor)


def free_name(root: pathlib.Path, name: str, exist: str) -> str:
  """The name of the run to submit: `name`, or NAME.01 and so on for a new one.

  Raises:
    UserError: the run exists, and `exist` is "error".
  """
  taken = (root / name / runs.RUN_FILE).exists()
  if not taken or exist == "continue":
    return name
  if exist == "error":
    raise UserError(
      f"{root / name} holds a run: choose another name, or exist='continue' or exist='new'."
    )
  numbers = (f"{name}.{i:02d}" for i in range(1, 10_000))
  return next(each for each in numbers if not os.path.lexists(root / each))


def task_of(folder: pathlib.Path, planned: Planned) -> Task:
  """A job as its executor gets it, with the command that trains it."""
  overrides = dict(planned.overrides)
  hourly = planned.executor.hourly
  if hourly and "cost_per_hour" not in overrides:
    overrides["cost_per_hour"] = hourly
  workdir = folder / planned.name
  command = (
    planned.executor.python_path,
    "-m",
    "jaxspeed.train",
    f"--config={planned.recipe}",
    f"--workdir={workdir}",
    *to_flags(overrides),
  )
  return Task(planned.name, folder.name, workdir, command, pathlib.Path.cwd())


def scripts(folder: pathlib.Path, jobs: Sequence[Planned]) -> dict[str, str]:
  """The scripts of jobs, by the paths that they would have."""
  found = {}
  for planned in jobs:
    task = task_of(folder, planned)
    name, text = planned.executor.script(task)
    found[str(task.record / name)] = text
  return found


def start(folder: pathlib.Path, jobs: Sequence[tuple[Planned, ConfigDict]]) -> Iterator[str]:
  """Submits the jobs of a run that are missing; yields lines to print.

  Args:
    folder: the run's folder.
    jobs: the checked jobs with their configs.

  Raises:
    UserError: a job of the same name trains something else, another process submits the run, or a
      scheduler refuses.
  """
  is_new = runs.create_run(folder)
  with runs.lock_run(folder):
    for path in folder.glob(f"{TEMPORARY}*/"):  # half-written by a submission that was killed
      shutil.rmtree(path, ignore_errors=True)
    present = {facts.job.name: facts for facts in runs.read_jobs(folder)}
    _check_present(folder, jobs, present)
    lost = _recover([f for f in present.values() if f.submission and not f.submission.id])
    changed = _write_jobs(folder, jobs, present, lost)
    now = {facts.job.name: facts for facts in runs.read_jobs(folder)}
    wanted = [now[planned.name] for planned, _ in jobs]
    new = [f for f in wanted if not f.cancelled and (f.submission is None or f.job.name in lost)]
    try:
      submitted = _submit(folder, new)
    except Refused:
      # No scheduler has any of them: the next start writes them again.
      for planned, _ in jobs:
        if planned.name not in present:
          shutil.rmtree(folder / planned.name, ignore_errors=True)
      if is_new:
        runs.remove_run(folder)
      raise
  _begin(folder, submitted)
  yield from changed
  yield from _summary(folder, wanted, submitted)


def _write_jobs(
  folder: pathlib.Path,
  jobs: Sequence[tuple[Planned, ConfigDict]],
  present: Mapping[str, Facts],
  lost: Collection[str],
) -> list[str]:
  """Writes the folders of new jobs, and the commands of ended ones that changed; returns lines."""
  code = sources.sources(pathlib.Path.cwd(), PACKAGE)
  stands = state.statuses(folder, [*present.values()])
  states = {status.name: status.state for status in stands}
  lines = []
  for index, (planned, config) in enumerate(jobs):
    task, facts = task_of(folder, planned), present.get(planned.name)
    made = record.make_job(planned, index=index, task=task, config=config, trees=code.trees)
    script = planned.executor.script(task)
    if facts is None:
      record.write_job(task.folder, made, config, script, code.diff)
    elif facts.job.command != made.command or facts.job.executor != made.executor or facts.foreign:
      ended = states[planned.name] in ("failed", "cancelled")
      if ended or facts.submission is None or planned.name in lost or facts.foreign:
        record.update_job(task.folder, made, config, script, code.diff)
        if ended:
          lines.append(f"{planned.name} has a new command or executor, with which retry starts it")
      elif states[planned.name] != "done":
        lines.append(f"{planned.name} was submitted with another command or executor, and keeps it")
  return lines


def _check_present(
  folder: pathlib.Path,
  jobs: Sequence[tuple[Planned, ConfigDict]],
  present: Mapping[str, Facts],
) -> None:
  """Refuses jobs that have the name of a job that trains something else."""
  for planned, config in jobs:
    facts = present.get(planned.name)
    if facts is None:
      continue
    before = ConfigDict(_config_of(facts))
    rows = stored.differences(
      before, ConfigDict(stored.to_dict(config) | {"format": stored.FORMAT})
    )
    if rows:
      raise UserError(
        f"{facts.folder} was submitted with another config ({stored.listed(rows)}): give the new "
        "job a name of its own, or the run with exist='new'."
      )


def _config_of(facts: Facts) -> dict[str, Any]:
  """The stored config of a job.

  Raises:
    UserError: config.json is missing or damaged.
  """
  path = facts.folder / RECORD / "config.json"
  try:
    return load_json(path, dict[str, Any])
  except (FileNotFoundError, ValueError) as error:
    reason = "it is missing" if isinstance(error, FileNotFoundError) else error
    raise UserError(
      f"{path} cannot be used ({reason}): put the file back, or give the run exist='new'."
    ) from None


def _recover(unsure: Sequence[Facts]) -> set[str]:
  """Finds jobs of a submission that died before it wrote their ids; returns the others' names."""
  missing = set()
  for facts in unsure:
    submission = facts.submission
    assert submission is not None
    own = facts.own(facts.notes)
    executor = executor_of(facts.job.executor, str(facts.folder))
    found = executor.find(submission.token, [record.task_of(facts)])
    # A job that has begun wrote its number down itself; one of a local queue has none.
    begun = (n.detail or submission.token for n in own if n.what == "started")
    id = found.get(facts.job.name) or next(begun, "")
    if id:
      record.request(facts.folder, what="submitted", token=submission.token, id=id)
    else:
      missing.add(facts.job.name)
  return missing


def _submit(folder: pathlib.Path, jobs: Sequence[Facts]) -> dict[str, str]:
  """Submits jobs; returns the scheduler's ids by name.

  Raises:
    Refused: a scheduler refused, and none was submitted.
    UserError: a scheduler refused or did not answer; what was submitted is recorded.
  """
  check_own(jobs)
  groups: dict[str, list[Facts]] = {}
  for facts in jobs:
    groups.setdefault(repr(sorted(facts.job.executor.items())), []).append(facts)
  ids: dict[str, str] = {}
  for group in groups.values():
    executor = executor_of(group[0].job.executor, str(group[0].folder))
    token = secrets.token_hex(6)
    for facts in group:
      record.request(facts.folder, what="submit", token=token)
    by_name = {facts.job.name: facts for facts in group}
    tasks = [record.task_of(facts) for facts in group]
    for task in tasks:
      record.write_script(executor, task)
    try:
      for found in executor.submit(tasks, token, folder / runs.LAUNCHER):
        for name, id in found.items():
          record.request(by_name[name].folder, what="submitted", token=token, id=id)
        ids |= found
    except Refused as error:
      if not ids:
        raise
      left = f"{len(ids)} of {len(jobs)} jobs were submitted; the same command submits the rest."
      raise UserError(f"{error} {left}") from None
  return ids


def check_own(jobs: Sequence[Facts]) -> None:
  """Refuses jobs on which no command may act, such as those of a stranger's folder."""
  for facts in jobs:
    if facts.foreign:
      raise UserError(f"{facts.folder} {facts.foreign}.")


def _begin(folder: pathlib.Path, submitted: Collection[str]) -> None:
  """Starts what executors need besides, such as a queue; without the run's lock."""
  launcher = folder / runs.LAUNCHER
  for facts in runs.read_jobs(folder):
    if facts.job.executor.get("kind") != Local.kind or facts.cancelled or not state.is_open(facts):
      continue
    executor = executor_of(facts.job.executor, str(facts.folder))
    # A queue that was killed is missed by earlier jobs.
    if facts.job.name in submitted or executor.warning(launcher):
      executor.begin(launcher)
      return


def _summary(
  folder: pathlib.Path, wanted: Sequence[Facts], submitted: Mapping[str, str]
) -> Iterator[str]:
  kinds = {facts.job.executor.get("kind") for facts in wanted}
  for name, id in submitted.items():
    yield f"submitted {name}" + (f" as {id}" if kinds != {Local.kind} else "")
  before = len(wanted) - len(submitted)
  counts = [f"{len(submitted)} job{'s' * (len(submitted) != 1)} submitted"]
  counts += [f"{before} were there before"] if before else []
  place = shlex.quote(str(folder))
  yield f"{', '.join(counts)}; look at them with: python -m jaxspeed.launch status {place}"


def _chosen(folder: pathlib.Path, names: Collection[str]) -> list[Facts]:
  """The jobs of a run with these names.

  Raises:
    UserError: there is no such run or job.
  """
  runs.read_run(folder)
  jobs = {facts.job.name: facts for facts in runs.read_jobs(folder)}
  if isinstance(names, str):
    names = [names]
  if unknown := [name for name in names if name not in jobs]:
    known = ", ".join([*jobs][:_SHOWN]) + (", ..." if len(jobs) > _SHOWN else "")
    raise UserError(f"{folder} has no job {unknown[0]}: it has {known}.")
  return [facts for name, facts in jobs.items() if name in names]


def cancel(folder: pathlib.Path, names: Collection[str], *, every: bool) -> list[str]:
  """Cancels jobs; as `Run.cancel`."""
  runs.read_run(folder)
  check_own(runs.read_jobs(folder) if every else _chosen(folder, names))
  with runs.lock_run(folder, wait=30.0):

    def read() -> list[Facts]:
      return runs.read_jobs(folder) if every else _chosen(folder, names)

    # A scheduler may have jobs of a submission that died before it wrote their ids.
    _recover([f for f in read() if f.submission and not f.submission.id and not f.cancelled])
    jobs = read()
    open_jobs = [
      facts
      for facts, status in zip(jobs, state.statuses(folder, jobs), strict=True)
      if status.state not in ENDED
    ]
    for kind in dict.fromkeys(facts.job.executor.get("kind") for facts in open_jobs):
      own = [facts for facts in open_jobs if facts.job.executor.get("kind") == kind]
      ids = {facts.job.name: facts.submission.id for facts in own if facts.submission}
      # Asked first: a queue starts no job after it is told which are cancelled.
      executor = executor_of(own[0].job.executor, str(own[0].folder))
      if isinstance(executor, Local):
        _note_cancelled(own)
        executor.cancel(ids, folder / runs.LAUNCHER)
      else:
        executor.cancel(ids, folder / runs.LAUNCHER)
        _note_cancelled(own)
  return [facts.job.name for facts in open_jobs]


def _note_cancelled(jobs: Sequence[Facts]) -> None:
  for facts in jobs:
    record.request(facts.folder, what="cancel")


def retry(folder: pathlib.Path, names: Collection[str], *, failed: bool) -> list[str]:
  """Submits jobs again; as `Run.retry`."""
  check_own(runs.read_jobs(folder) if failed else _chosen(folder, names))
  with runs.lock_run(folder, wait=30.0):
    chosen = runs.read_jobs(folder) if failed else _chosen(folder, names)
    again = []
    for facts, status in zip(chosen, state.statuses(folder, chosen), strict=True):
      if status.state in ("failed", "cancelled") and status.detail != "saving":
        again.append(facts)
      elif not failed:
        raise UserError(f"{facts.folder} is {_stands(status)}: only failed jobs are retried.")
    submitted = _submit(folder, again)
  if submitted:
    _begin(folder, submitted)
  return [facts.job.name for facts in again]


def _stands(status: JobStatus) -> str:
  return f"still {status.detail}" if status.detail == "saving" else status.state
