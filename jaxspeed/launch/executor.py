"""What runs jobs: the fields and the protocol that `Local`, `Slurm` and `Sky` share."""

import abc
import pathlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import pydantic
from annotated_types import Predicate
from pydantic import Field

from jaxspeed.config.schema import Group, Says, accepted, is_plain, shown
from jaxspeed.errors import UserError
from jaxspeed.launch.record import Facts, Job

# Names of variables whose values must not be stored in a job's folder.
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|AUTH|PRIVATE", re.IGNORECASE)
KINDS: dict[str, type["Executor"]] = {}


# Not strict: callers write lists, and JSON has no tuples.
Words = Annotated[tuple[str, ...], Field(strict=False), Says("a list of texts")]
Line = Annotated[str, Predicate(is_plain), Says("text without line breaks or control characters")]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Found(NamedTuple):
  """What a scheduler says about a job: whether it runs (or waits), and its id; '': it has none."""

  runs: bool
  id: str = ""


class Executor(Group, abc.ABC):
  """What runs jobs. Its fields are checked when it is made."""

  model_config = pydantic.ConfigDict(frozen=True)

  kind: ClassVar[str]
  most_at_once: ClassVar[int] = 1_000_000  # jobs of one submission
  sees_data: ClassVar[bool] = True  # whether jobs read `data.path` from disks of this machine
  pause: ClassVar[float] = 30.0  # seconds between two questions about jobs

  price_per_hour: Annotated[float, Field(ge=0, le=1e6)] = 0.0
  """price of one node in USD, for the cost in results; 0: not stated"""
  max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 20
  """how often a job is restarted without a new checkpoint; 0: never"""
  python: Line = ""
  """the Python that runs jobs; '': the one that submits them"""
  setup: Words = ()
  """lines of shell before the command, such as "module load cuda" """
  env: Annotated[
    dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], Line],
    Says("a dict of environment variables and their texts"),
  ] = {}
  """environment variables of the jobs; they are stored in the jobs' folders"""

  def __init_subclass__(cls, **values: Any) -> None:
    super().__init_subclass__(**values)
    KINDS[cls.kind] = cls

  def __init__(self, **values: Any) -> None:
    try:
      super().__init__(**values)
    except pydantic.ValidationError as error:
      raise UserError(self._sentence(error, values)) from None
    for name in self.env:
      if SECRET.search(name):
        raise UserError(
          f"{type(self).__name__}: env has {name}, which looks like a secret and would be stored "
          "in the jobs' folders: set it in the environment of the command that submits."
        )

  def _sentence(self, error: pydantic.ValidationError, values: Mapping[str, Any]) -> str:
    """A sentence on the first mistake; an unknown field is one before all others."""
    found = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    kind, name = type(self).__name__, str(found["loc"][0])
    if (field := type(self).model_fields.get(name)) is None:
      return f"{kind} has no field {name}: it has {', '.join(type(self).model_fields)}."
    must_be = accepted(field.annotation, field.metadata)
    return f"{kind}({name}={shown(values.get(name))}): it must be {must_be}."

  def to_dict(self) -> dict[str, Any]:
    """The kind and the fields, as JSON stores them."""
    return {"kind": self.kind} | self.model_dump(mode="json")

  @abc.abstractmethod
  def devices(self) -> int:
    """Devices that share a batch of one job."""

  @abc.abstractmethod
  def check(self, root: pathlib.Path) -> None:
    """Checks that jobs with folders in `root` can be submitted from here.

    Raises:
      UserError: a program or package is missing, or jobs would not see `root`.
    """

  @abc.abstractmethod
  def script(self, jobs: Sequence[Job], token: str) -> str:
    """What is submitted for some jobs, as text; made when it is needed, and never stored."""

  def supervisor(self, role: str, job: str, token: str) -> str:
    """The line of shell that starts a supervisor; `job`: its folder and digest, as words."""
    python = shlex.quote(self.python or sys.executable)
    return f"{python} -m jaxspeed.launch.supervisor {role} {job} {token}"

  def preparation(self, cwd: str) -> list[str]:
    """Lines of shell before the command."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
    return [f"cd {shlex.quote(cwd)} || exit 2", *exports, *self.setup]

  @abc.abstractmethod
  def submit(self, jobs: Sequence[Job], token: str) -> None:
    """Submits jobs under names that have the token, by which the scheduler is asked about them.

    Args:
      jobs: the jobs, at most `most_at_once`, all with an executor equal to this one.
      token: a new name for this submission, which the jobs write into their records.

    Raises:
      UserError: the scheduler refuses; or it does not answer, and may have them.
    """

  def begin(self, folder: pathlib.Path, jobs: int) -> None:
    """Called once jobs in a run's folder are submitted, with the number of all that are open."""

  def warning(self, folder: pathlib.Path) -> str:
    """What keeps a run's waiting jobs from starting, as a sentence; '' if nothing does."""
    return ""

  @abc.abstractmethod
  def states(self, jobs: Sequence[Facts], folder: pathlib.Path) -> Mapping[str, Found] | None:
    """What the scheduler says about submitted jobs of a run, by name; None if it does not answer.

    A job that is missing is not known to the scheduler.
    """

  @abc.abstractmethod
  def cancel(self, ids: Sequence[str]) -> None:
    """Ends jobs, by the ids that `states` said; they save first.

    Raises:
      UserError: the scheduler refuses or does not answer.
    """


class Planned(NamedTuple):
  """A job before it has a folder: name, recipe, values by dotted field name, what runs it."""

  name: str
  recipe: str
  overrides: Mapping[str, Any]
  executor: Executor


def executor_of(job: Job) -> Executor:
  """The executor that a job's record names.

  Raises:
    UserError: there is no such kind, or a field is not valid.
  """
  fields = {name: value for name, value in job.executor.items() if name != "kind"}
  if (kind := str(job.executor.get("kind"))) not in KINDS:
    raise UserError(f"{job.folder} names the executor {kind!r}: there are {', '.join(KINDS)}.")
  try:
    return KINDS[kind](**fields)
  except UserError as error:
    raise UserError(f"{job.folder}: {error}") from None
