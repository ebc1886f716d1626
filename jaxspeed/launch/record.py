"""A job's folder as the launcher keeps it: what was submitted, and what happened since.

`JOB/launch/` holds
  job.json          recipe, overrides, command, executor, commits
  config.json       the checked config
  script.sh         the script as it was submitted (task.yaml for clouds)
  environment.json  variables that can change a run; secrets are left out
  diff.patch        changes of the working trees since their commits
  requests.jsonl    what was asked: submissions with the scheduler's ids, cancellations
  job.tsv           what happened: starts and ends, written where the job runs
  tasks/N.tsv       the same of task N, with its exit codes
  logs/             the output of each task, and of the batch script
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from ml_collections import ConfigDict
from pydantic import Field

from jaxspeed.config import stored
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
from jaxspeed.launch.executor import Executor, Planned, Task
from jaxspeed.launch.seal import seal_of
from jaxspeed.launch.sources import environment

RECORD = "launch"
FORMAT: Literal[1] = 1
_NUMBER = re.compile(r"[0-9]{1,12}")
PROCESS = re.compile(r"[0-9]{1,7}")  # Linux has at most 4 million


@dataclasses.dataclass(frozen=True)
class JobFile:
  """The content of job.json.

  Attributes:
    format: `FORMAT`.
    name: the job's name.
    index: the job's place in its run.
    recipe: FILE.py or FILE.py:VARIANT.
    overrides: values by dotted field name.
    command: the words of the command.
    cwd: the folder in which the command starts.
    executor: the executor's kind and fields.
    created: Unix time.
    epochs: config.epochs.
    metric: config.target_metric.
    sources: folder, commit and whether files had changed, of each working tree.
    seal: `seal_of` the other fields.
  """

  format: Literal[1]
  name: str
  index: Annotated[int, Field(ge=0)]
  recipe: str
  overrides: dict[str, Any]
  command: list[str]
  cwd: str
  executor: dict[str, Any]
  created: float
  epochs: float
  metric: Literal["top1", "top5"]
  sources: list[dict[str, Any]]
  seal: str = ""


# What a job writes to in its record: a link there would lead it elsewhere.
_WRITTEN = ("", "logs", "logs/batch.log", "tasks")


@dataclasses.dataclass(frozen=True)
class Request:
  """A line of requests.jsonl.

  Attributes:
    time: Unix time.
    what: "submit" before a submission, "submitted" with the id after it, or "cancel".
    token: the name of the submission.
    id: the scheduler's id of the job.
    seal: the user's, for this line in this job: what it names may be cancelled.
  """

  time: float
  what: Literal["submit", "submitted", "cancel"]
  token: str = ""
  id: str = ""
  seal: str = ""

  def sealed(self, folder: pathlib.Path) -> "Request":
    """The request of the job in `folder` with its seal."""
    content = dataclasses.asdict(self) | {"job": folder.name}
    return dataclasses.replace(self, seal=seal_of(content))


class Note(NamedTuple):
  """A line of job.tsv or of a task's file.

  Attributes:
    time: Unix time on the host that wrote it.
    token: the submission that it belongs to.
    what: of a job "started", "requeued", "failed" or "done"; of a task "started" or "ended".
    restart: how often the job was restarted before.
    where: the host or hosts.
    detail: a reason; the exit code of a task.
  """

  time: float
  token: str
  what: str
  restart: int
  where: str
  detail: str


@dataclasses.dataclass(frozen=True)
class Facts:
  """What a job's folder says.

  Attributes:
    folder: the job's folder.
    job: its job.json.
    requests: what was asked, in order.
    notes: what happened to the job, in order.
    tasks: what happened to each task, by its number.
  """

  folder: pathlib.Path
  job: JobFile
  requests: tuple[Request, ...]
  notes: tuple[Note, ...]
  tasks: Mapping[int, tuple[Note, ...]]

  @property
  def submission(self) -> Request | None:
    """The last submission; its id is '' if it was not recorded. None: there was none."""
    asked = [request for request in self.requests if request.what == "submit"]
    if not asked:
      return None
    ids = [r for r in self.requests if r.what == "submitted" and r.token == asked[-1].token]
    return ids[-1] if ids else asked[-1]

  @property
  def cancelled(self) -> bool:
    """Whether the last submission was cancelled."""
    kinds = [request.what for request in self.requests if request.what != "submitted"]
    return kinds[-1:] == ["cancel"]

  @property
  def foreign(self) -> str:
    """Why no command may act on the job, as the rest of a sentence on it; '' if one may."""
    requested = all(request == request.sealed(self.folder) for request in self.requests)
    sealed = self.job.seal == seal_of(dataclasses.asdict(self.job))
    if sealed and not _is_at(self.folder, self.job.command):
      reason = "was copied or moved"
    elif not (sealed and requested):
      reason = "was submitted by somebody else or changed since"
    elif any((self.folder / RECORD / part).is_symlink() for part in _WRITTEN):
      reason = "has links in its record"
    else:
      return ""
    return f"{reason}: submit the sweep's own file again with this root, and retry"

  def own(self, notes: Sequence[Note]) -> list[Note]:
    """The notes of the last submission."""
    token = self.submission.token if self.submission else ""
    return [note for note in notes if note.token == token]


def _is_at(folder: pathlib.Path, command: Sequence[str]) -> bool:
  """Whether a command trains in a folder."""
  workdirs = [word[10:] for word in command if word.startswith("--workdir=")]
  with contextlib.suppress(OSError):
    return len(workdirs) == 1 and os.path.samefile(workdirs[0], folder)
  return False


def read_facts(folder: pathlib.Path) -> Facts | None:
  """What a job's folder says; None if it is no job's.

  Raises:
    UserError: job.json or requests.jsonl is damaged.
  """
  record = folder / RECORD
  try:
    found = load_json(record / "job.json", JobFile)
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise UserError(
      f"{record / 'job.json'} cannot be used ({error}): put the file back, or remove {record} and "
      "submit the job again, which resumes it."
    ) from None
  if not isinstance(kind := found["executor"].get("kind"), str):
    raise UserError(f"{record / 'job.json'} names the executor {shown(kind)}: submit it again.")
  tasks = {}
  with contextlib.suppress(OSError):
    for path in (record / "tasks").iterdir():
      if path.suffix == ".tsv" and path.stem.isdecimal():
        tasks[int(path.stem)] = tuple(_notes(path))
  known = {field.name for field in dataclasses.fields(JobFile)}
  return Facts(
    folder,
    JobFile(**{name: value for name, value in found.items() if name in known}),
    tuple(_requests(record / "requests.jsonl")),
    tuple(_notes(record / "job.tsv")),
    dict(sorted(tasks.items())),
  )


def _requests(path: pathlib.Path) -> Iterator[Request]:
  for number, line in enumerate(_lines(path), start=1):
    try:
      yield Request(**parse_json(line, Request))
    except (TypeError, ValueError) as error:
      raise UserError(
        f"{path}, line {number}, is no request ({error}): repair or delete the line."
      ) from None


def _notes(path: pathlib.Path) -> Iterator[Note]:
  """The notes of a record that shells write; damaged lines do not count."""
  for line in _lines(path):
    found = line.decode("utf-8", "replace").split("\t")
    if len(found) == 6 and _NUMBER.fullmatch(found[0]) and _NUMBER.fullmatch(found[3]):
      yield Note(float(found[0]), found[1], found[2], int(found[3]), found[4], found[5])


def _lines(path: pathlib.Path) -> list[bytes]:
  """The lines of a record; a last one that a kill or a full disk cut off does not count."""
  try:
    return read_bytes(path).rpartition(b"\n")[0].splitlines()
  except FileNotFoundError:
    return []
  except ValueError as error:
    raise UserError(f"{path} cannot be read ({error}): move it away.") from None


def request(folder: pathlib.Path, **values: Any) -> None:
  """Appends a `Request` to a job's record.

  Raises:
    UserError: it cannot be written.
  """
  made = Request(time.time(), **values).sealed(folder)
  _append(folder / RECORD / "requests.jsonl", dump_json(dataclasses.asdict(made)))


def note(folder: pathlib.Path, token: str, what: str, restart: int, detail: str = "") -> None:
  """Appends a `Note` to a job's record, for the executor that runs jobs itself.

  Raises:
    UserError: it cannot be written.
  """
  words = (f"{time.time():.0f}", token, what, str(restart), os.uname().nodename, detail)
  _append(folder / RECORD / "job.tsv", "\t".join(words))


def _append(path: pathlib.Path, line: str) -> None:
  try:
    append_line(path, line)
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): {mend(error)}, and repeat "
      "the command."
    ) from None


def write_job(
  folder: pathlib.Path, job: JobFile, config: ConfigDict, script: tuple[str, str], diff: bytes
) -> None:
  """Creates a job's folder with all that is known before its submission.

  Raises:
    UserError: it cannot be written; nothing is left of it.
  """
  try:
    with new_folder(folder) as partial:
      record = partial / RECORD
      (record / "tasks").mkdir(parents=True)
      (record / "logs").mkdir()
      _write_files(record, job, config, script, diff)
  except OSError as error:
    raise UserError(
      f"{folder} cannot be written ({error.strerror or error}): {mend(error)} or choose another "
      "root."
    ) from None


def task_of(facts: Facts) -> Task:
  """A job as its executor gets it, from its folder."""
  job = facts.job
  run, cwd = facts.folder.parent.name, pathlib.Path(job.cwd)
  return Task(job.name, run, facts.folder, tuple(job.command), cwd)


def write_script(executor: Executor, task: Task) -> pathlib.Path:
  """Writes the script of a job; returns its path.

  Raises:
    UserError: it cannot be written.
  """
  name, text = executor.script(task)
  try:
    write_atomically(task.record / name, text, sync=False)
  except OSError as error:
    raise UserError(
      f"{task.record / name} cannot be written ({error.strerror or error})."
    ) from None
  return task.record / name


def update_job(
  folder: pathlib.Path, job: JobFile, config: ConfigDict, script: tuple[str, str], diff: bytes
) -> None:
  """Gives a job that does not run another command, for its next submission.

  Raises:
    UserError: it cannot be written.
  """
  try:
    _write_files(folder / RECORD, job, config, script, diff)
  except OSError as error:
    raise UserError(
      f"{folder} cannot be written ({error.strerror or error}): {mend(error)} and repeat the "
      "command."
    ) from None


def _write_files(
  record: pathlib.Path, job: JobFile, config: ConfigDict, script: tuple[str, str], diff: bytes
) -> None:
  """Writes job.json last: a folder without it is no job's."""
  stored.save(config, record / "config.json", sync=False)
  variables = dump_json(environment(), indent=1) + "\n"
  about = dump_json(dataclasses.asdict(job), indent=1) + "\n"
  for name, content in (
    script,
    ("diff.patch", diff),
    ("environment.json", variables),
    ("job.json", about),
  ):
    write_atomically(record / name, content, sync=False)


def make_job(
  planned: Planned, *, index: int, task: Task, config: ConfigDict, trees: list[dict[str, Any]]
) -> JobFile:
  """The content of job.json of a job.

  Args:
    planned: what it trains.
    index: its place in its run.
    task: its command and folder.
    config: its checked config.
    trees: as in `Sources`.
  """
  job = JobFile(
    format=FORMAT,
    name=planned.name,
    index=index,
    recipe=planned.recipe,
    overrides=parse_json(dump_json(dict(planned.overrides))),
    command=list(task.command),
    cwd=str(task.cwd),
    executor=planned.executor.to_dict(),
    created=time.time(),
    epochs=float(config.epochs),
    metric=config.target_metric,
    sources=trees,
  )
  return dataclasses.replace(job, seal=seal_of(dataclasses.asdict(job)))
