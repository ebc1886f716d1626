"""The executors by their kinds, as run folders name them."""

from collections.abc import Mapping
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.launch.executor import Executor
from jaxspeed.launch.local import Local
from jaxspeed.launch.sky import Sky
from jaxspeed.launch.slurm import Slurm

EXECUTORS: dict[str, type[Executor]] = {kind.kind: kind for kind in (Local, Slurm, Sky)}


def executor_of(stored: Mapping[str, Any], source: str) -> Executor:
  """The executor that a job's folder names.

  Args:
    stored: `Executor.to_dict`.
    source: the job's folder, for messages.

  Raises:
    UserError: there is no such kind, or a field is not valid.
  """
  fields = {name: value for name, value in stored.items() if name != "kind"}
  kind = stored.get("kind")
  if not isinstance(kind, str) or kind not in EXECUTORS:
    raise UserError(f"{source} names the executor {kind!r}: there are {', '.join(EXECUTORS)}.")
  try:
    return EXECUTORS[kind](**fields)
  except UserError as error:
    raise UserError(f"{source}: {error}") from None
