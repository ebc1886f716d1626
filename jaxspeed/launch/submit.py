"""Submission: what is written and asked, in an order in which nothing is lost or asked twice."""

import contextlib
import os
import pathlib
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ml_collections import ConfigDict

from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY, dump_json, parse_json, read_json
from jaxspeed.launch import record, runs, sources, state
from jaxspeed.launch.executor import Executor, Planned, Refused
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.local import Local
from jaxspeed.launch.record import Facts, Job, named

PACKAGE = pathlib.Path(__file__).parents[2]


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


def job_of(
  folder: pathlib.Path, planned: Planned, config: ConfigDict, *, index: int = 0, code: str = ""
) -> Job:
  """The record of a job that is planned.

  Args:
    folder: the run's folder.
    planned: what it trains.
    config: its checked config.
    index: its place in the run.
    code: the name of the stored state of the code.
  """
  overrides, executor = dict(planned.overrides), planned.executor
  if executor.price_per_hour:
    overrides.setdefault("cost_per_hour", executor.price_per_hour * executor.job_nodes)
  return record.sealed(
    Job(
      format=record.FORMAT,
      name=planned.name,
      index=index,
      recipe=planned.recipe,
      overrides=parse_json(dump_json(overrides)),
      folder=str(folder / planned.name),
      cwd=str(pathlib.Path.cwd()),
      executor=executor.to_dict(),
      created=time.time(),
      epochs=float(config.epochs),
      metric=config.target_metric,
      sources=code,
    )
  )


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
    present = named(runs.read_jobs(folder))
    for planned, config in jobs:
      if planned.name in present:
        _check_same(present[planned.name], config)
    lost = recover([*present.values()])
    changed = _write_jobs(folder, jobs, present, lost)
    now = named(runs.read_jobs(folder))
    wanted = [now[planned.name] for planned, _ in jobs]
    new = [f for f in wanted if not f.cancelled and (not f.submission or f.job.name in lost)]
    try:
      submitted = submit(new)
    except Refused:
      # No scheduler has any of them: the next start writes them again.
      for planned, _ in jobs:
        if planned.name not in present:
          shutil.rmtree(folder / planned.name / record.RECORD, ignore_errors=True)
          with contextlib.suppress(OSError):  # it holds what was trained before its record was lost
            (folder / planned.name).rmdir()
      if is_new:
        runs.remove_run(folder)
      raise
  begin(folder)
  yield from changed
  is_local = {facts.job.executor["kind"] for facts in wanted} == {Local.kind}
  for name, id in submitted.items():
    yield f"submitted {name}" + ("" if is_local else f" as {id}")
  before = f", {len(wanted) - len(submitted)} were there before" * (len(wanted) > len(submitted))
  number = f"{len(submitted)} job{'s' * (len(submitted) != 1)} submitted"
  place = shlex.quote(str(folder))
  yield f"{number}{before}; look at them with: python -m jaxspeed.launch status {place}"


def _write_jobs(
  folder: pathlib.Path,
  jobs: Sequence[tuple[Planned, ConfigDict]],
  present: Mapping[str, Facts],
  lost: Collection[str],
) -> list[str]:
  """Writes new jobs, and what ended ones start with that changed; returns lines to print."""
  code = sources.store(folder, pathlib.Path.cwd(), PACKAGE)
  found = state.statuses(folder, [*present.values()])
  states = {status.name: status.state for status in found}
  lines = []
  for index, (planned, config) in enumerate(jobs):
    made = job_of(folder, planned, config, index=index, code=code)
    facts = present.get(planned.name)
    if facts is None:
      record.write_job(made, config)
    elif facts.foreign or not facts.job.same_start(made):
      ended = states[planned.name] in ("failed", "cancelled")
      if ended or not facts.submission or planned.name in lost or facts.foreign:
        record.write_job(made, config, facts)
        lines += [
          f"{planned.name} has a new command or executor, with which retry starts it"
        ] * ended
      elif states[planned.name] != "done":
        lines.append(f"{planned.name} was submitted with another command or executor, and keeps it")
  return lines


def _check_same(facts: Facts, config: ConfigDict) -> None:
  """Refuses a job that has the name of one that trains something else."""
  path = facts.folder / record.RECORD / "config.json"
  before = read_json(path, dict[str, object], "put the file back, or give the run exist='new'")
  now = ConfigDict(stored.to_dict(config) | {"format": stored.FORMAT})
  if rows := stored.differences(ConfigDict(before or {}), now):
    raise UserError(
      f"{facts.folder} was submitted with another config ({stored.listed(rows)}): give the new "
      "job a name of its own, or the run with exist='new'."
    )


def recover(jobs: Sequence[Facts]) -> set[str]:
  """Finds jobs of submissions that died before they wrote ids down; returns the names of others."""
  missing = set()
  unsure = [f for f in jobs if f.submission and not f.id and not f.cancelled and not f.foreign]
  for executor, group in by_executor(unsure, lambda facts: facts.job.executor["kind"]):
    tokens = dict.fromkeys(facts.token for facts in group)
    own = {token: [f.job for f in jobs if f.token == token] for token in tokens}
    found = executor.find(own)
    for facts in group:
      # A job that has begun wrote its id down itself; one of a local queue has none.
      begun = (note.detail or facts.token for note in facts.own_notes if note.what == "started")
      if id := found.get(facts.job.name) or next(begun, ""):
        record.request(facts.folder, "submitted", facts.token, id)
      else:
        missing.add(facts.job.name)
  return missing


def by_executor(
  jobs: Sequence[Facts], key: Callable[[Facts], object]
) -> Iterator[tuple[Executor, list[Facts]]]:
  """Jobs in groups of an equal key, each with its executor."""
  groups: dict[object, list[Facts]] = {}
  for facts in jobs:
    groups.setdefault(key(facts), []).append(facts)
  for group in groups.values():
    yield executor_of(group[0].job.executor, str(group[0].folder)), group


def submit(jobs: Sequence[Facts]) -> dict[str, str]:
  """Submits jobs; returns the scheduler's ids by name.

  Raises:
    Refused: a scheduler refused, and none was submitted.
    UserError: a scheduler refused or did not answer; what was submitted is recorded.
  """
  check_own(jobs)
  ids: dict[str, str] = {}
  for executor, group in by_executor(
    jobs, lambda facts: repr([sorted(facts.job.executor.items()), facts.job.cwd])
  ):
    token = secrets.token_hex(6)
    for facts in group:
      record.request(facts.folder, "submit", token)
    try:
      for found in executor.submit([facts.job for facts in group], token):
        for name, id in found.items():
          record.request(named(group)[name].folder, "submitted", token, id)
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


def begin(folder: pathlib.Path) -> None:
  """Starts what executors need besides, such as a queue; without the run's lock."""
  jobs = [f for f in runs.read_jobs(folder) if f.is_open and not f.cancelled]
  for executor, _ in by_executor(jobs, lambda facts: facts.job.executor["kind"]):
    executor.begin(folder)


def chosen(folder: pathlib.Path, names: Collection[str]) -> list[Facts]:
  """The jobs of a run with these names.

  Raises:
    UserError: there is no such run or job.
  """
  runs.read_run(folder)
  jobs = named(runs.read_jobs(folder))
  names = [names] if isinstance(names, str) else names
  if unknown := [name for name in names if name not in jobs]:
    known = ", ".join([*[*jobs][:3], *["..."] * (len(jobs) > 3)])
    raise UserError(f"{folder} has no job {unknown[0]}: it has {known}{'.' * (len(jobs) <= 3)}")
  return [facts for name, facts in jobs.items() if name in names]
