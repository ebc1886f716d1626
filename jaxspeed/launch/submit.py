"""Submission: what is written and asked, in an order in which nothing is lost or asked twice."""

import dataclasses
import hashlib
import pathlib
import secrets
import shlex
from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from jaxspeed.config import stored
from jaxspeed.errors import UserError, plural, some
from jaxspeed.files import dump_json, parse_json
from jaxspeed.launch import record, runs, sources, state
from jaxspeed.launch.executor import Planned, executor_of
from jaxspeed.launch.record import Facts, Job
from jaxspeed.records.results import FILE as RESULT

PACKAGE = pathlib.Path(__file__).parents[2]


def job_of(folder: pathlib.Path, planned: Planned, config: ConfigDict, *, code: str = "") -> Job:
  """The record of a planned job of the run in a folder; `code` names the state of the sources."""
  overrides, executor = dict(planned.overrides), planned.executor
  if executor.price_per_hour:
    nodes = getattr(executor, "nodes", 1)
    overrides.setdefault("cost_per_hour", executor.price_per_hour * nodes)
  values = dict(stored.leaves(stored.to_dict(config)))
  trained = {name: each for name, each in values.items() if not name.startswith(stored.PLACES)}
  return Job(
    name=planned.name,
    recipe=planned.recipe,
    overrides=parse_json(dump_json(overrides)),
    folder=str(folder / planned.name),
    cwd=str(pathlib.Path.cwd()),
    executor=executor.to_dict(),
    config=hashlib.sha256(dump_json(trained, sort_keys=True).encode()).hexdigest()[:32],
    epochs=float(config.epochs),
    metric=config.target_metric,
    sources=code,
  )


def start(folder: pathlib.Path, jobs: Sequence[tuple[Planned, ConfigDict]]) -> Iterator[str]:
  """Submits those of a run's checked jobs that are missing; yields lines to print.

  Raises:
    UserError: a job of the same name trains something else, another process submits the run, or a
      scheduler refuses.
  """
  runs.create_run(folder)
  with runs.lock_run(folder):
    before = record.jobs_of(folder)
    if not all(facts.is_own for facts in before):  # what somebody else asked does not count
      (folder / runs.LAUNCHER / record.REQUESTS).unlink(missing_ok=True)
      before = record.jobs_of(folder)
    said, silent = state.ask(folder, [facts for facts in before if not facts.cancelled])
    # A submission that died may not have reached its scheduler.
    unsure = {f.job.name for f in before if f.is_open and not f.own_notes and not f.cancelled}
    if silent and unsure:
      raise UserError(f"{silent}: repeat the command when it does.")
    lost = {name for name in unsure if said[name] is None}
    code = sources.store(folder, pathlib.Path.cwd(), PACKAGE)
    made = [job_of(folder, planned, config, code=code) for planned, config in jobs]
    present, lines = {facts.job.name: facts for facts in before}, []
    records = {facts.job.name: facts.job for facts in before if facts.is_own}
    for job in made:
      if (facts := present.get(job.name)) is not None:
        ended = state.status_of(facts, said.get(job.name, state.UNKNOWN)).state in state.ENDED
        job, line = _updated(facts, job, job.name in lost, ended)
        lines += [line] * bool(line)
      records[job.name] = job
    # The scheduler of one is asked about all.
    kinds = sorted({str(job.executor.get("kind")) for job in records.values()})
    if len(kinds) > 1:
      raise UserError(f"{folder} would have jobs of {some(kinds, 3)}: make a run for each of them.")
    order = dict.fromkeys([*(job.name for job in made), *records])
    record.write_jobs(folder, [records[name] for name in order])
    wanted = record.read_jobs(folder, [job.name for job in made])
    new = [f for f in wanted if not f.cancelled and (not f.submission or f.job.name in lost)]
    submit(folder, new)
  begin(folder)
  yield from lines
  yield from (f"submitted {facts.job.name}" for facts in new)
  there = f", {len(wanted) - len(new)} were there before" * (len(wanted) > len(new))
  yield (
    f"{plural(len(new), 'job')} submitted{there}; look at them with: python -m jaxspeed.launch "
    f"status {shlex.quote(str(folder))}"
  )


def _updated(facts: Facts, made: Job, lost: bool, ended: bool) -> tuple[Job, str]:
  """The record of a job that is there already and is `made` again, and a line to print.

  Its last submission may be `lost`, not have reached its scheduler; or it may have `ended`.

  Raises:
    UserError: it trains something else.
  """
  old, begun = facts.job, bool(facts.notes) or (facts.submission is not None and not lost)
  if begun and old.config != made.config:
    rows = stored.differences(old.overrides, made.overrides) or ["its recipe has changed"]
    raise UserError(
      f"{facts.folder} was submitted with another config ({some(rows, 5)}): give the new "
      "job, or the run, a name of its own."
    )
  if not begun or lost or facts.foreign:
    return made, ""
  # What differs besides does not start anything else.
  if dataclasses.replace(made, sources=old.sources) == old or (facts.folder / RESULT).exists():
    return old, ""
  if not ended:
    return old, f"{made.name} was submitted with another command or executor, and keeps it"
  return made, f"{made.name} has a new command or executor, with which retry starts it"


def submit(folder: pathlib.Path, jobs: Sequence[Facts]) -> None:
  """Submits jobs of a run.

  Raises:
    UserError: a scheduler refused or did not answer; what was submitted before stays.
  """
  check_own(jobs)
  groups: dict[str, list[Facts]] = {}
  for facts in jobs:
    groups.setdefault(repr([sorted(facts.job.executor.items()), facts.job.cwd]), []).append(facts)
  for group in groups.values():
    executor = executor_of(group[0].job)
    for first in range(0, len(group), executor.most_at_once):
      part, token = group[first : first + executor.most_at_once], secrets.token_hex(6)
      record.request(folder, "submit", part, token)
      executor.submit([facts.job for facts in part], token)


def check_own(jobs: Sequence[Facts]) -> None:
  """Refuses jobs on which no command may act, such as those of a stranger's folder."""
  for facts in jobs:
    if facts.foreign:
      raise UserError(f"{facts.folder} {facts.foreign}.")


def begin(folder: pathlib.Path) -> bool:
  """Starts what executors need besides, such as a worker, without the run's lock; if jobs wait."""
  runs.refuse_links(folder)
  jobs = [facts for facts in record.read_jobs(folder) if facts.is_open and not facts.cancelled]
  if jobs:
    executor_of(jobs[0].job).begin(folder, len(jobs))
  return bool(jobs)
