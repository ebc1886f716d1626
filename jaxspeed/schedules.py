"""Functions of the step, or of anything that grows: schedules as NumPy computes them once, ahead.

The plan evaluates them on the host in float64 and hands the program a table of float32 values, so
that a change of rate compiles nothing and what the plan prints is what the step uses.
"""

from collections.abc import Sequence

import numpy as np


def piecewise_linear(
  knots: Sequence[float], values: Sequence[float], positions: np.ndarray
) -> np.ndarray:
  """Linear between the knots, flat outside them (`PiecewiseLinear` of davidcpage/cifar10-fast).

  Args:
    knots: positions in ascending order.
    values: one a knot.
    positions: any shape.

  Returns:
    float64 of the shape of `positions`.
  """
  return np.interp(np.asarray(positions, np.float64), knots, values)


def triangle(
  positions: np.ndarray,
  *,
  total: float,
  peak: float,
  start: float,
  final: float,
  warmup: float,
  flat: float,
) -> np.ndarray:
  """From start * peak up to peak, down to final * peak, then flat.

  Args:
    positions: in epochs, any shape; myrtle and imagenet18 read the schedule one step in, so the
      first step of an epoch of n has position 1 / n.
    total: length of the run in epochs.
    peak: highest rate.
    start: first rate as a share of the peak.
    final: last rate as a share of the peak.
    warmup: share of the run at which the peak is reached.
    flat: epochs at the end that keep the final rate.
  """
  top = warmup * total
  end = max(total - flat, top)
  if warmup == 0:
    return piecewise_linear([0.0, end], [peak, peak * final], positions)
  return piecewise_linear([0.0, top, end], [peak * start, peak, peak * final], positions)


def average_keep(total_steps: int, steps_per_epoch: int, *, decay: float, every: int) -> np.ndarray:
  """What an exponential moving average keeps of itself at each step: decay ** every, or 1.

  The average is updated every `every` steps, counted from the first step of each epoch, as in
  davidcpage/cifar10-fast (20 updates in 97 steps). Multiplying by 1 on the other steps costs a
  pass over the parameters; a conditional costs an accelerator a wait for its predicate.
  """
  step_in_epoch = np.arange(total_steps) % steps_per_epoch
  return np.where(step_in_epoch % every == 0, decay**every, 1.0)
