"""A job's folder as the launcher keeps it: what was submitted, and what happened since.

`JOB/launch/` holds
  job.json        recipe, overrides, executor; a command is made from it and never stored
  config.json     the checked config
  requests.jsonl  what was asked: submissions with the scheduler's ids, cancellations
  job.jsonl       what happened: starts and ends, written where the job runs
  tasks/N.jsonl   the same of task N, with its exit codes
  logs/           the output of each task, and of the batch script
Each line of a .jsonl is an `Event`. They are apart because different hosts append to them.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict
from pydantic import Field

from jaxspeed.config import stored
from jaxspeed.config.overrides import to_flags
from jaxspeed.config.schema import shown
from jaxspeed.errors import UserError, mend
from jaxspeed.files import (
  append_line,
  dump_json,
  load_json,
  new_folder,
  parse_json,
  read_bytes,
  write_atomically,
)
from jaxspeed.launch.seal import seal_of

RECORD = "launch"
FORMAT: Literal[2] = 2


@dataclasses.dataclass(frozen=True)
class Job:
  """The content of job.json.

  Attributes:
    format: `FORMAT`.
    name: the job's name.
    index: the job's place in its run.
    recipe: FILE.py or FILE.py:VARIANT.
    overrides: values by dotted field name.
    folder: the job's folder, absolute: the workdir of the training.
    cwd: the folder in which the training starts.
    executor: the executor's kind and fields.
    created: Unix time.
    epochs: config.epochs.
    metric: config.target_metric.
    sources: the folder of the code's state in the run's `.launch/sources`.
    seal: `seal_of` the other fields.
  """

  format: Literal[2]
  name: str
  index: Annotated[int, Field(ge=0)]
  recipe: str
  overrides: dict[str, Any]
  folder: str
  cwd: str
  executor: dict[str, Any]
  created: float
  epochs: float
  metric: Literal["top1", "top5"]
  sources: str
  seal: str = ""

  @property
  def record(self) -> pathlib.Path:
    """The folder of the launcher's own files."""
    return pathlib.Path(self.folder) / RECORD

  @property
  def run(self) -> str:
    """The name of the job's run."""
    return pathlib.Path(self.folder).parent.name

  @property
  def digest(self) -> str:
    """A hash of the record, which is submitted with the job: what runs is what was submitted."""
    content = dump_json(dataclasses.asdict(self), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]

  def command(self, python: str) -> list[str]:
    """The words of the command that trains the job."""
    flags = to_flags(self.overrides)
    fixed = [f"--config={self.recipe}", f"--workdir={self.folder}"]
    return [python, "-m", "jaxspeed.train", *fixed, *flags]

  def same_start(self, other: "Job") -> bool:
    """Whether two jobs start the same training in the same way."""
    own = (self.recipe, self.overrides, self.folder, self.cwd, self.executor)
    return own == (other.recipe, other.overrides, other.folder, other.cwd, other.executor)


@dataclasses.dataclass(frozen=True)
class Event:
  """A line of a record.

  Attributes:
    time: Unix time on the host that wrote it.
    what: a request is "submit" before a submission, "submitted" after it, or "cancel"; a job is
      "started", "requeued", "failed" or "done"; a task is "started" or "ended".
    token: the name of the submission that it belongs to.
    restart: how often the job was restarted before.
    where: the host or hosts.
    detail: the scheduler's id; a reason, after an exit code if it failed; a task's exit code.
    progress: of a requeued job, its newest checkpoint (`progress_of`).
    seal: of a request, the user's for this line in this job: what it names may be cancelled.
  """

  time: float
  what: str
  token: str = ""
  restart: int = 0
  where: str = ""
  detail: str = ""
  progress: str = ""
  seal: str = ""

  def sealed(self, folder: pathlib.Path) -> "Event":
    """The request of the job in `folder` with its seal."""
    content = dataclasses.asdict(self) | {"job": folder.name}
    return dataclasses.replace(self, seal=seal_of(content))


# What a job writes to in its record: a link there would lead it elsewhere.
_WRITTEN = ("", "logs", "logs/batch.log", "tasks")


@dataclasses.dataclass(frozen=True)
class Facts:
  """What a job's folder says.

  Attributes:
    folder: the job's folder.
    job: its job.json.
    requests: what was asked, in order.
    notes: what happened to the job, in order.
  """

  folder: pathlib.Path
  job: Job
  requests: Sequence[Event]
  notes: Sequence[Event]

  @property
  def submission(self) -> Event | None:
    """The last "submit"; None: there was none."""
    return next((r for r in reversed(self.requests) if r.what == "submit"), None)

  @property
  def token(self) -> str:
    """The name of the last submission; '' if there was none."""
    return self.submission.token if self.submission else ""

  @property
  def id(self) -> str:
    """The scheduler's id of the last submission; '' if it was not recorded."""
    ids = [r.detail for r in self.requests if r.what == "submitted" and r.token == self.token]
    return ids[-1] if ids else ""

  @property
  def cancelled(self) -> bool:
    """Whether the last submission was cancelled."""
    kinds = [request.what for request in self.requests if request.what != "submitted"]
    return kinds[-1:] == ["cancel"]

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

  def ends(self) -> dict[int, int]:
    """Exit codes of the tasks of the last start, by their numbers."""
    return ends_of(self.folder, self.token, self.restarts)

  @property
  def is_requested_by_others(self) -> bool:
    """Whether a request is not sealed by the user."""
    return any(request != request.sealed(self.folder) for request in self.requests)

  @property
  def foreign(self) -> str:
    """Why no command may act on the job, as the rest of a sentence on it; '' if one may."""
    is_sealed = self.job.seal == seal_of(dataclasses.asdict(self.job))
    if is_sealed and not _is_same(self.job.folder, self.folder):
      reason = "was copied or moved"
    elif not is_sealed or self.is_requested_by_others:
      reason = "was submitted by somebody else or changed since"
    elif any((self.folder / RECORD / part).is_symlink() for part in _WRITTEN):
      reason = "has links in its record"
    else:
      return ""
    return f"{reason}: submit the sweep's own file again with this root, then repeat this"


def _is_same(first: str, second: pathlib.Path) -> bool:
  with contextlib.suppress(OSError, ValueError):
    return os.path.samefile(first, second)
  return False


def read_facts(folder: pathlib.Path) -> Facts | None:
  """What a job's folder says; None if it is no job's.

  Raises:
    UserError: job.json is damaged.
  """
  path = folder / RECORD / "job.json"
  try:
    found = load_json(path, Job)
    if not isinstance(kind := found["executor"].get("kind"), str):
      raise ValueError(f"executor.kind={shown(kind)}")
    job = Job(**found)
  except FileNotFoundError:
    return None
  except (TypeError, ValueError) as error:
    raise UserError(
      f"{path} cannot be used ({error}): put the file back, or remove {path.parent} and submit the "
      "job again, which resumes it."
    ) from None
  events = (read_events(path.parent / f"{name}.jsonl") for name in ("requests", "job"))
  return Facts(folder, job, *events)


def read_events(path: pathlib.Path) -> list[Event]:
  """The events of a record; damaged lines, and a last one that was cut off, do not count."""
  events = []
  with contextlib.suppress(FileNotFoundError, ValueError):
    for line in read_bytes(path).rpartition(b"\n")[0].splitlines():
      with contextlib.suppress(TypeError, ValueError):
        events.append(Event(**parse_json(line, Event)))
  return events


def ends_of(folder: pathlib.Path, token: str, restart: int) -> dict[int, int]:
  """Exit codes of the tasks of a job's start, by their numbers."""
  found = {}
  with contextlib.suppress(OSError):
    for path in (folder / RECORD / "tasks").iterdir():
      if re.fullmatch(r"\d{1,7}\.jsonl", path.name):
        ended = [
          e for e in read_events(path) if (e.what, e.token, e.restart) == ("ended", token, restart)
        ]
        if ended and re.fullmatch(r"\d{1,3}", ended[-1].detail):
          found[int(path.stem)] = int(ended[-1].detail)
  return dict(sorted(found.items()))


def add_event(path: pathlib.Path, event: Event) -> None:
  """Appends an event to a record, without its empty fields.

  Raises:
    UserError: it cannot be written.
  """
  values = {name: value for name, value in dataclasses.asdict(event).items() if value != ""}
  try:
    append_line(path, dump_json(values))
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): {mend(error)}, and repeat the "
      "command."
    ) from None


def request(folder: pathlib.Path, what: str, token: str = "", id: str = "") -> None:
  """Appends what was asked to a job's record.

  Raises:
    UserError: it cannot be written.
  """
  asked = Event(time.time(), what, token, detail=id).sealed(folder)
  add_event(folder / RECORD / "requests.jsonl", asked)


def progress_of(folder: pathlib.Path) -> str:
  """The newest checkpoint of a job, as text that changes with each; '' without one."""
  steps = [path for path in folder.glob("checkpoints/*") if path.name.isdecimal()]
  steps += [path for path in folder.glob("run_*/checkpoints/*") if path.name.isdecimal()]
  places = ((path.parent.parent.name, int(path.name[:15])) for path in steps)
  run, step = max(places, default=("", 0))
  return f"{run} {step}" if steps else ""


def write_job(job: Job, config: ConfigDict, before: Facts | None = None) -> None:
  """Writes all that is known of a job before its submission; job.json last.

  Args:
    job: the job.
    config: its checked config.
    before: what its folder says; None: nothing. A folder that is missing is created whole or not at
      all; one that has lost its record, with what it has trained, gets a new one.

  Raises:
    UserError: it cannot be written.
  """
  folder = pathlib.Path(job.folder)
  try:
    is_there = before or (folder.is_dir() and not (folder / RECORD / "job.json").exists())
    with contextlib.nullcontext(folder) if is_there else new_folder(folder) as place:
      record = place / RECORD
      for name in ("tasks", "logs"):
        (record / name).mkdir(parents=True, exist_ok=True)
      if before and before.is_requested_by_others:
        (record / "requests.jsonl").unlink()
      stored.save(config, record / "config.json", sync=False)
      about = dump_json(dataclasses.asdict(job), indent=1) + "\n"
      write_atomically(record / "job.json", about, sync=False)
  except OSError as error:
    raise UserError(
      f"{folder} cannot be written ({error.strerror or error}): {mend(error)} or choose another "
      "root."
    ) from None


def sealed(job: Job) -> Job:
  """A job with its seal."""
  return dataclasses.replace(job, seal=seal_of(dataclasses.asdict(job)))


def named(jobs: Iterable[Facts]) -> Mapping[str, Facts]:
  """Jobs by their names."""
  return {facts.job.name: facts for facts in jobs}
