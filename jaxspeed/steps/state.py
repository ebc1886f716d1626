"""The state that a run carries from step to step; a checkpoint holds all of it."""

import dataclasses
from typing import Any

import flax
from jaxtyping import Array, Float, Int, PyTree, UInt32

from jaxspeed.devices.precision import LossScale
from jaxspeed.steps.losses import MetricSums


def variables_of(params: PyTree, batch_stats: PyTree) -> dict[str, PyTree]:
  """The variables that a model is applied with; without "batch_stats" if there are none."""
  return {"params": params} | ({"batch_stats": batch_stats} if batch_stats else {})


class TrainState(flax.struct.PyTreeNode):
  """A pytree that is replicated over the devices and donated to the next step.

  Attributes:
    step: the number of steps done, which is the next step's number, counted from 0.
    key: the run's key; all randomness is a function of it and of a step or an epoch.
    params: master weights in the accumulation dtype (`precision.accumulation`).
    batch_stats: running statistics of the norms, averaged over the devices; {} if there are none.
    opt_state: the optimizer's state.
    ema: the exponential moving average of the variables (`variables_of`); or None.
    lookahead: the average of the variables that the model is regularly set to; or None.
    loss_scale: the loss scale in float16, else None.
    proxy: the state of the proxy model, if there is one.
  """

  step: Int[Array, ""]
  key: UInt32[Array, "2"]
  params: PyTree
  batch_stats: PyTree
  opt_state: PyTree
  ema: Any
  lookahead: Any
  loss_scale: LossScale | None
  proxy: "TrainState | None" = None

  def eval_variables(self) -> dict[str, PyTree]:
    """The variables that validation and prediction use: the average if there is one."""
    if self.ema is not None:
      return self.ema
    return self.variables()

  def variables(self) -> dict[str, PyTree]:
    """The variables of the live model."""
    return variables_of(self.params, self.batch_stats)


class Carry(flax.struct.PyTreeNode):
  """A state and the metric sums of the epoch so far."""

  state: TrainState
  sums: MetricSums


@dataclasses.dataclass(frozen=True)
class StepOutput:
  """The result of dispatched steps, which the devices may still be computing.

  Attributes:
    step: the number of steps of the run, including these.
    carry: the carry after these steps.
    losses: the mean loss of each of these steps, the first one first, or of the newest one.
    count: the number of losses; what follows them means nothing.
  """

  step: int
  carry: Carry
  losses: Float[Array, "*steps"]
  count: int = 1
