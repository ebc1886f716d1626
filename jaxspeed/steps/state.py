"""What a run carries from step to step, and all that a checkpoint must hold."""

import dataclasses
from typing import Any

import flax
from jaxtyping import Array, Float, Int, PyTree, UInt32

from jaxspeed.devices.precision import LossScale
from jaxspeed.steps.losses import MetricSums


class TrainState(flax.struct.PyTreeNode):
  """One pytree, replicated over the devices and donated to the next step.

  Attributes:
    step: steps done; the number of the next one, counted from 0.
    key: of the run; every other random number is a function of it and of a step or an epoch.
    params: masters, in the format of sums (`precision.accumulation`).
    batch_stats: running statistics of the norms, averaged over the devices.
    opt_state: of the optimizer.
    average: {"params", "batch_stats"} averaged over the steps; None when the recipe has none.
    slow: likewise, lookahead's, to which params and batch_stats go back from time to time.
    loss_scale: in float16 only, else None.
    proxy: the state of a proxy net, where there is one.
  """

  step: Int[Array, ""]
  key: UInt32[Array, "2"]
  params: PyTree
  batch_stats: PyTree
  opt_state: PyTree
  average: Any
  slow: Any
  loss_scale: LossScale | None
  proxy: "TrainState | None" = None

  def evaluated(self) -> dict[str, PyTree]:
    """The variables that validation and prediction use: the average where there is one."""
    if self.average is not None:
      return self.average
    return {"params": self.params, "batch_stats": self.batch_stats}


class Carry(flax.struct.PyTreeNode):
  """A state and the sums over the examples of the epoch so far."""

  state: TrainState
  sums: MetricSums


@dataclasses.dataclass(frozen=True)
class StepOutput:
  """Steps that are under way on the devices.

  Attributes:
    step: steps of the run that are done with them.
    carry: after them.
    losses: of each of the newest ones, or of the newest one.
  """

  step: int
  carry: Carry
  losses: Float[Array, "*steps"]
