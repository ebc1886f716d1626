"""What runs jobs: the fields and the protocol that `Local`, `Slurm` and `Sky` share."""

import abc
import dataclasses
import enum
import pathlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import Field

from jaxspeed.config import schema
from jaxspeed.config.schema import Group, must_be
from jaxspeed.errors import UserError

# Names of variables whose values must not be stored in a job's folder.
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|AUTH|PRIVATE", re.IGNORECASE)

# Variables of the scripts that run jobs.
_OF_SCRIPTS = set(
  "code command flag job jobs max_restarts output record restarts script task token workdir".split()
)


def to_tuple(value: Any) -> Any:
  """A list as a tuple, anything else as it is: callers write lists, and JSON has no tuples."""
  return tuple(value) if isinstance(value, list) else value


Words = Annotated[
  tuple[str, ...], pydantic.BeforeValidator(to_tuple), schema.Says("a list of texts")
]
Line = Annotated[
  str, must_be("text without line breaks or control characters", lambda text: schema.is_plain(text))
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Price = Annotated[float, Field(ge=0, le=1e6)]


class Refused(UserError):  # noqa: N818  (a scheduler's answer)
  """A scheduler refused a submission, and surely has none of its jobs."""


class SchedulerState(enum.Enum):
  """What a scheduler says about a job."""

  PENDING = "pending"
  RUNNING = "running"
  ABSENT = "absent"  # the scheduler answers, and does not know the job


@dataclasses.dataclass(frozen=True)
class Planned:
  """What a job will train, before it has a folder.

  Attributes:
    name: the job's name.
    recipe: FILE.py or FILE.py:VARIANT.
    overrides: values by dotted field name.
    executor: what runs it.
  """

  name: str
  recipe: str
  overrides: Mapping[str, Any]
  executor: "Executor"


@dataclasses.dataclass(frozen=True)
class Task:
  """A job as an executor gets it.

  Attributes:
    name: the job's name.
    run: the name of its run.
    folder: the job's folder, absolute: the workdir of the training.
    command: the words of the command.
    cwd: the folder in which the command starts.
  """

  name: str
  run: str
  folder: pathlib.Path
  command: tuple[str, ...]
  cwd: pathlib.Path

  @property
  def record(self) -> pathlib.Path:
    """The folder of the launcher's own files."""
    return self.folder / "launch"


class Executor(Group, abc.ABC):
  """What runs jobs. Its fields are checked when it is made."""

  model_config = pydantic.ConfigDict(frozen=True)

  kind: ClassVar[str]

  price_per_hour: Price = 0.0
  """price of one node in USD; 0: not stated"""
  max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 20
  """how often a job is restarted without a new checkpoint; 0: never"""
  python: Line = ""
  """the Python that runs jobs; '': the one that submits them"""
  setup: Words = ()
  """lines of shell before the command, such as "module load cuda" """
  env: Annotated[
    dict[str, Line],
    schema.Says("a dict of environment variables and their texts"),
  ] = {}
  """environment variables of the jobs; they are stored in the jobs' folders"""

  def __init__(self, **values: Any) -> None:
    try:
      super().__init__(**values)
    except pydantic.ValidationError as error:
      found = schema.first_mistake(error, type(self), values)
      raise UserError(self._sentence(found)) from None
    for name in self.env:
      if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise UserError(f"{type(self).__name__}: env has {name!r}, which is no variable's name.")
      if name in _OF_SCRIPTS:
        raise UserError(f"{type(self).__name__}: env has {name}, which the scripts use themselves.")
      if SECRET.search(name):
        raise UserError(
          f"{type(self).__name__}: env has {name}, which looks like a secret and would be stored "
          "in the jobs' folders: set it in the environment of the command that submits."
        )

  def _sentence(self, problem: schema.Mistake) -> str:
    name = type(self).__name__
    if problem.kind == "unknown":
      fields = ", ".join(type(self).model_fields)
      return f"{name} has no field {problem.name}: it has {fields}."
    if problem.kind == "missing":
      return f"{name} needs {problem.name}: write {name}({problem.name}=...)."
    return f"{name}({problem.name}={schema.shown(problem.value)}): {problem.text}"

  def to_dict(self) -> dict[str, Any]:
    """The kind and the fields, as JSON stores them."""
    return {"kind": self.kind} | self.model_dump(mode="json")

  @property
  def python_path(self) -> str:
    return self.python or sys.executable

  @property
  def hourly(self) -> float:
    """Price of one running job in USD per hour."""
    return self.price_per_hour * self.job_nodes

  @property
  def job_nodes(self) -> int:
    """Nodes of a job."""
    return 1

  @property
  def processes(self) -> int:
    """Processes of a job."""
    return self.job_nodes

  @property
  def most_hours(self) -> float | None:
    """The most hours that a job can take between two restarts; None: no limit is known."""
    return None

  @abc.abstractmethod
  def devices(self) -> int:
    """Devices that share a batch of one job."""

  def accelerator(self) -> str:
    """The kind of GPU in words of its maker, such as "H100"; '' if it is not known."""
    return ""

  def sees_data(self) -> bool:
    """Whether the jobs read `data.path` from disks that this machine sees too."""
    return True

  @abc.abstractmethod
  def check(self, root: pathlib.Path) -> None:
    """Checks that jobs with folders in `root` can be submitted from here.

    Raises:
      UserError: a program or package is missing, or jobs would not see `root`.
    """

  @abc.abstractmethod
  def script(self, task: Task) -> tuple[str, str]:
    """The name and the text of the file that describes a job, as it is submitted."""

  @abc.abstractmethod
  def submit(
    self, tasks: Sequence[Task], token: str, folder: pathlib.Path
  ) -> Iterator[Mapping[str, str]]:
    """Submits jobs whose scripts are in place.

    Args:
      tasks: the jobs, all of executors equal to this one.
      token: a new name for this submission, which the jobs write into their records.
      folder: the run's folder for the launcher's own files.

    Yields:
      The scheduler's ids of the next jobs, by their names, as soon as they are submitted.

    Raises:
      Refused: the scheduler refuses the next jobs.
      UserError: it does not answer, and may have them.
    """

  def begin(self, folder: pathlib.Path) -> None:
    """Called once all jobs of a submission are recorded.

    Args:
      folder: as in `submit`.
    """

  def warning(self, folder: pathlib.Path) -> str:
    """What keeps waiting jobs from starting, as a sentence; '' if nothing does."""
    return ""

  @abc.abstractmethod
  def states(
    self, jobs: Mapping[str, str], folder: pathlib.Path
  ) -> Mapping[str, SchedulerState] | None:
    """What the scheduler says about jobs, by name; None if it does not answer.

    Args:
      jobs: the scheduler's ids by job name; '' for a job whose id was not recorded.
      folder: as in `submit`.
    """

  def find(self, token: str, tasks: Sequence[Task]) -> Mapping[str, str]:
    """Ids, by name, of jobs that a submission which died had submitted and not recorded."""
    return {}

  @abc.abstractmethod
  def cancel(self, jobs: Mapping[str, str], folder: pathlib.Path) -> None:
    """Ends jobs; they save first.

    Args:
      jobs: the scheduler's ids by job name.
      folder: as in `submit`.

    Raises:
      UserError: the scheduler refuses or does not answer.
    """


def exports(env: Mapping[str, str]) -> list[str]:
  """Lines of shell that set environment variables."""
  return [f"export {name}={shlex.quote(value)}" for name, value in sorted(env.items())]
