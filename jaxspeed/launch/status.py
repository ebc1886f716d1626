"""The state of one job, as `status` reports it."""

import dataclasses
import pathlib

STATES = ("pending", "running", "requeued", "done", "failed", "cancelled")
# States of jobs that will not go on by themselves.
ENDED = ("done", "failed", "cancelled")


@dataclasses.dataclass(frozen=True)
class JobStatus:
  """The state of one job.

  Attributes:
    name: the job's name.
    folder: its folder, the workdir of its training.
    state: one of `STATES`.
    detail: what there is to say beside the state, in words.
    id: the scheduler's id; '': not submitted.
    restarts: how often the job was restarted by itself since it was submitted.
    epoch: the last finished epoch; None: none yet.
    epochs: the epochs of the whole job.
    accuracy: the last accuracy config.target_metric as a fraction; None: none yet.
    remaining: estimated seconds until the end; None: no estimate.
    exit_code: of a failed job; None otherwise.
    task: the number of the task that failed; None otherwise.
    last_lines: the last lines of that task.
    cost: USD so far; 0 without a price.
  """

  name: str
  folder: pathlib.Path
  state: str
  detail: str = ""
  id: str = ""
  restarts: int = 0
  epoch: float | None = None
  epochs: float = 0.0
  accuracy: float | None = None
  remaining: float | None = None
  exit_code: int | None = None
  task: int | None = None
  last_lines: tuple[str, ...] = ()
  cost: float = 0.0
