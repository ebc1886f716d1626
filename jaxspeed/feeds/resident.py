"""The feed of a set in memory."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxspeed.data.batch import WARMUP, purpose_key, seed_key
from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import Program
from jaxspeed.errors import UserError
from jaxspeed.feeds.resident_programs import compile_programs, place
from jaxspeed.steps.losses import Sums
from jaxspeed.steps.spec import Job
from jaxspeed.steps.state import Carry, Steps, TrainState


class ResidentFeed:
  """Trains and evaluates on a set that lives on every device.

  On accelerators an epoch is one program; on CPUs a step is (`compile_programs`).
  """

  def __init__(self, arrays: Arrays, job: Job) -> None:
    self._job = job
    self._arrays = arrays
    self._programs = compile_programs(job)
    self._uncounted = self._programs.all()

  @property
  def programs(self) -> list[Program]:
    """Those compiled by now, a training program first."""
    return [*self._programs.train.values(), *self._programs.all()[:2], self._programs.evaluate]

  @property
  def benchmark(self) -> str:
    """DAWNBench's name of the data set; '' where it is none of its sets."""
    return self._arrays.benchmark

  @property
  def evaluated_on(self) -> str:
    """Which images are evaluated, as in `results.result_row`."""
    return self._arrays.evaluated_on

  @property
  def carry(self) -> Carry:
    """Shapes and shardings of what a run carries."""
    return self._programs.carry

  def wait_for(self, step: int) -> list[str]:
    """Waits for the programs of the epoch of a step: all are there, and nothing is reported."""
    return []

  def new_programs(self) -> list[Program]:
    """All of them the first time, afterwards none."""
    new, self._uncounted = self._uncounted, []
    return new

  def place(self) -> None:
    """Puts the set on the devices."""
    self._resident = jax.block_until_ready(place(self._arrays, self._job))

  def wants_warm_up(self) -> bool:
    """Whether a warm-up is worth its time where the config leaves that open."""
    return self._programs.whole_epochs

  def warm_up(self) -> None:
    """Runs every program once on random labels, from which nothing can be learned.

    The first call of a program on a GPU loads its kernels and makes cuDNN's plans; airbench leaves
    that out of its clock in the same way. The state it ends with is thrown away.
    """
    job, programs, resident = self._job, self._programs, self._resident
    key = mesh_lib.replicate(np.asarray(purpose_key(seed_key(0), WARMUP, 0)), job.mesh)
    labels = np.random.default_rng(0).integers(job.config.data.classes, size=job.plan.train_images)
    train = resident.train.replace(label=mesh_lib.replicate(labels.astype(np.int32), job.mesh))
    state = programs.init.call(key, train.image)
    carry = Carry(state, mesh_lib.replicate(Sums.zero(job.accumulation), job.mesh))
    order = programs.order.call(key, mesh_lib.replicate(np.int32(0), job.mesh))
    for program in programs.train.values():
      carry, _ = program.call(carry, train, order, resident.table)
    jax.block_until_ready(programs.evaluate.call(carry.state.evaluated(), resident.eval))

  def init(self, seed: int) -> TrainState:
    """The state before the first step."""
    return self._programs.init.call(self._key(seed), self._resident.train.image)

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[Steps]:
    """The steps `first_step <= step < last_step`, each yielded once it is under way.

    Args:
      carry: after `first_step` steps; donated.
      seed: of the run.
      first_step: the number of the first one, in the run.
      last_step: the end of the epoch of `first_step`.

    Raises:
      UserError: an accelerator is to begin inside an epoch, which is one program there.
    """
    plan, programs = self._job.plan, self._programs
    data, table = self._resident.train, self._resident.table
    epoch, step_in_epoch = plan.epoch_of(first_step)
    order = programs.order.call(
      self._key(seed), mesh_lib.replicate(np.int32(epoch), self._job.mesh)
    )
    if programs.whole_epochs:
      if step_in_epoch:
        raise UserError(
          "the newest checkpoint lies inside an epoch, where a CPU saved it; "
          "an accelerator goes on from the end of an epoch only: finish the epoch on a CPU."
        )
      carry, losses = programs.train[plan.segments(epoch)].call(carry, data, order, table)
      yield Steps(last_step, carry, losses)
      return
    for step in range(first_step, last_step):
      program = programs.train[((1, (plan.kind_of(step),)),)]
      carry, loss = program.call(carry, data, order, table)
      yield Steps(step + 1, carry, loss)

  def evaluate(self, variables: dict[str, Any], step: int) -> Sums:
    """Sums over the evaluation images, after `step` steps."""
    return self._programs.evaluate.call(variables, self._resident.eval)

  def take_waited_seconds(self) -> float:
    """Seconds in which the devices waited for input: none, it is on them."""
    return 0.0

  def take_broken(self) -> dict[tuple[str, str], str]:
    """Images that could not be read: none, they are in memory."""
    return {}

  def close(self) -> None:
    """Nothing runs in the background."""

  def _key(self, seed: int) -> Any:
    return mesh_lib.replicate(seed_key(seed), self._job.mesh)
