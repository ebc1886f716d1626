"""A run of many jobs as files: what was submitted, what was asked, and what happened since.

`RUN/run.json` holds all jobs of a run, and is replaced as a whole (`RunFile`). `RUN/.launch/` holds
  requests.jsonl  what was asked: submissions and cancellations (`Event`)
  lock            held while a command changes the run
Where a job runs, its supervisor writes into `RUN/JOB/launch/`
  job.jsonl       what happened: starts and ends
  tasks/N.jsonl   the same of task N, with its exit codes
  logs/           the output of each task, and of the batch script
A job's command is made from its record and never stored.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import pydantic

from jaxspeed.config.checks import to_flags
from jaxspeed.errors import LOST_PEER, REQUEUE, UserError, some
from jaxspeed.files import (
  append_line,
  dump_json,
  parse_json,
  read_bytes,
  read_json,
  write_atomically,
)
from jaxspeed.launch.runs import LAUNCHER, NAME, RUN_FILE, link_in, seal_of

RECORD = "launch"  # the folder of these files in a job's folder
REQUESTS = "requests.jsonl"
ENDED_BY_OTHERS = 128 + signal.SIGTERM  # srun ends a task because another one has ended
_EMPTY = ("", None, ())  # fields that a line leaves out


@dataclasses.dataclass(frozen=True)
class Job:
  """A job as run.json has it.

  Attributes:
    name: the job's name.
    recipe: FILE.py or FILE.py:VARIANT.
    overrides: values by dotted field name.
    folder: the job's folder, absolute: the workdir of the training.
    cwd: the folder in which the training starts.
    executor: the executor's kind and fields.
    config: a hash of the checked config.
    epochs: config.epochs.
    metric: config.target_metric.
    sources: the file of the code's state in the run's `.launch/sources`, without its .patch.
  """

  __pydantic_config__ = pydantic.ConfigDict(extra="forbid")

  name: str
  recipe: str
  overrides: dict[str, Any]
  folder: str
  cwd: str
  executor: dict[str, Any]
  config: str
  epochs: float
  metric: Literal["top1", "top5"]
  sources: str

  @property
  def run(self) -> pathlib.Path:
    """The folder of the job's run."""
    return pathlib.Path(self.folder).parent

  @property
  def digest(self) -> str:
    """A hash of the record, which is submitted with the job: what runs is what was submitted."""
    content = dump_json(dataclasses.asdict(self), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]

  def command(self, python: str) -> list[str]:
    """The words of the command that trains the job."""
    fixed = [f"--config={self.recipe}", f"--workdir={self.folder}"]
    return [python, "-m", "jaxspeed.train", *fixed, *to_flags(self.overrides)]


@dataclasses.dataclass(frozen=True)
class RunFile:
  """The content of run.json: all jobs in their order, and the user's seal (`seal_of`)."""

  format: Literal[3]
  jobs: list[Job]
  seal: str


@dataclasses.dataclass(frozen=True)
class Event:
  """A line of a record.

  Attributes:
    time: Unix time on the host that wrote it.
    what: of a request "submit", before a scheduler is asked, or "cancel"; a job is "started",
      "requeued", "failed" or "done"; a task is "started" or "ended".
    token: the name of the submission that it belongs to.
    restart: how often the job was restarted before.
    where: the host or hosts.
    detail: of a start, the scheduler's id; of a job's end, the reason.
    code: of an end, the exit code.
    progress: of a requeued job, its newest checkpoint (`progress_of`).
    jobs: of a request, the names of its jobs, in the order of the submission.
  """

  time: float
  what: str
  token: str = ""
  restart: int = 0
  where: str = ""
  detail: str = ""
  code: int | None = None
  progress: str = ""
  jobs: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Facts:
  """What the files of a run say about a job.

  Attributes:
    folder: the job's folder.
    job: its record.
    is_own: whether this user's own `submit` wrote the record.
    requests: what was asked for the job, in order.
    notes: what happened to it, in order.
  """

  folder: pathlib.Path
  job: Job
  is_own: bool
  requests: Sequence[Event]
  notes: Sequence[Event]

  @property
  def submission(self) -> Event | None:
    """The last submission; None: there was none."""
    return next((r for r in reversed(self.requests) if r.what == "submit"), None)

  @property
  def token(self) -> str:
    """The name of the last submission; '' if there was none."""
    return self.submission.token if self.submission else ""

  @property
  def cancelled(self) -> bool:
    """Whether the job was cancelled since its last submission."""
    return bool(self.requests) and self.requests[-1].what == "cancel"

  @property
  def own_notes(self) -> list[Event]:
    """What happened since the last submission."""
    return [note for note in self.notes if note.token == self.token]

  @property
  def restarts(self) -> int:
    """How often the last submission was restarted."""
    return max((note.restart for note in self.own_notes), default=0)

  @property
  def is_open(self) -> bool:
    """Whether a scheduler may still have the job."""
    if not self.submission or (self.folder / "result.json").exists():
      return False
    return not any(note.what in ("failed", "done") for note in self.own_notes[-1:])

  @property
  def foreign(self) -> str:
    """Why no command may act on the job, as the rest of a sentence on it; '' if one may."""
    if not self.is_own:
      reason = "was submitted by somebody else or changed since"
    elif os.path.realpath(self.job.folder) != os.path.realpath(self.folder):
      reason = "was copied or moved"
    elif self.folder.is_symlink():
      return "is a link, which would lead its files elsewhere: remove it"
    elif link := link_in(self.folder / RECORD):
      return f"would write through the link {link}: remove it"
    else:
      return ""
    return f"{reason}: submit the sweep's own file again with this root, then repeat this"


def read_run_file(folder: pathlib.Path) -> RunFile | None:
  """The content of a run's run.json; None if there is none.

  Raises:
    UserError: it is damaged.
  """
  advice = "put the file back, or remove it and submit the run again, which goes on with its jobs"
  if (found := read_json(folder / RUN_FILE, RunFile, advice)) is None:
    return None
  return RunFile(found["format"], [Job(**job) for job in found["jobs"]], found["seal"])


def write_jobs(folder: pathlib.Path, jobs: Sequence[Job]) -> None:
  """Writes a run's run.json, with the user's seal.

  Raises:
    OSError: it cannot be written.
  """
  content = [dataclasses.asdict(job) for job in jobs]
  found = {"format": 3, "jobs": content, "seal": seal_of(content)}
  write_atomically(folder / RUN_FILE, dump_json(found, indent=1) + "\n")


def jobs_of(folder: pathlib.Path) -> list[Facts]:
  """What the files of a run say about its jobs, in their order; none if the folder holds no run.

  Raises:
    UserError: the run is damaged.
  """
  if (found := read_run_file(folder)) is None:
    return []
  is_own = found.seal == seal_of([dataclasses.asdict(job) for job in found.jobs])
  requests: dict[str, list[Event]] = {}
  for line in read_lines(folder / LAUNCHER / REQUESTS):
    for name in line.jobs:
      requests.setdefault(name, []).append(line)
  return [
    Facts(folder / job.name, job, is_own, requests.get(job.name, []), read_notes(folder / job.name))
    for job in found.jobs
    if NAME.fullmatch(job.name)
  ]


def read_jobs(folder: pathlib.Path, names: Collection[str] = ()) -> list[Facts]:
  """`jobs_of`, of the jobs with these names; of all without names.

  Raises:
    UserError: there is no such run or job, or the run is damaged.
  """
  if not (found := jobs_of(folder)):
    raise UserError(
      f"{folder} holds no run of jaxspeed.launch: name the folder ROOT/RUN that submit printed."
    )
  names = {names} if isinstance(names, str) else {*names}
  have = [facts.job.name for facts in found]
  if unknown := sorted(names.difference(have)):
    raise UserError(f"{folder} has no job {unknown[0]}: it has {some(have, 3)}.")
  return [facts for facts in found if not names or facts.job.name in names]


def request(folder: pathlib.Path, what: str, jobs: Sequence[Facts], token: str = "") -> None:
  """Writes down what is asked for some jobs of a run.

  Raises:
    OSError: it cannot be written.
  """
  line = Event(time.time(), what, token, jobs=[facts.job.name for facts in jobs])
  add_line(folder / LAUNCHER / REQUESTS, line)


def read_notes(folder: pathlib.Path, name: str = "job") -> list[Event]:
  """What happened to a job, or as "tasks/N" to its task N, in order."""
  return read_lines(folder / RECORD / f"{name}.jsonl")


def read_lines(path: pathlib.Path) -> list[Event]:
  """The lines of a record; damaged ones, and a last one that was cut off, do not count."""
  found = []
  with contextlib.suppress(FileNotFoundError, ValueError):
    for line in read_bytes(path).rpartition(b"\n")[0].splitlines():
      with contextlib.suppress(TypeError, ValueError):
        found.append(Event(**parse_json(line, Event)))
  return found


def ends_of(folder: pathlib.Path, token: str, restart: int) -> dict[int, int]:
  """Exit codes of the tasks of a job's start, by their numbers."""
  found = {}
  for path in (folder / RECORD / "tasks").glob("*.jsonl"):
    if re.fullmatch(r"\d{1,7}", path.stem):
      for event in read_lines(path):
        own = (event.what, event.token, event.restart) == ("ended", token, restart)
        if own and event.code is not None:
          found[int(path.stem)] = event.code
  return dict(sorted(found.items()))


def culprit(ends: Mapping[int, int]) -> int | None:
  """The number of the task that failed first, by the exit codes of all; None if none did."""
  failed = [number for number, code in ends.items() if code not in (0, REQUEUE)]
  # A mistake or an error ended the others, which lost it or were killed.
  order = {ENDED_BY_OTHERS: 3, LOST_PEER: 2}
  ranks = {number: order.get(ends[number], ends[number] >= 128) for number in failed}
  return min(failed, key=lambda number: (ranks[number], number), default=None)


def add_line(path: pathlib.Path, line: Event) -> None:
  """Appends a line to a record, without its empty fields.

  Raises:
    OSError: it cannot be written.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  values = dataclasses.asdict(line)
  append_line(path, dump_json({name: each for name, each in values.items() if each not in _EMPTY}))


def progress_of(folder: pathlib.Path) -> str:
  """The newest checkpoint of a job, as text that changes with each; '' without one."""
  found = [*folder.glob("checkpoints/*"), *folder.glob("run_*/checkpoints/*")]
  steps = [(p.parents[1].name, int(p.name[:15])) for p in found if p.name.isdecimal()]
  return " ".join(map(str, max(steps, default=())))
