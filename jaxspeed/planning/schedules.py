"""Functions of the step, or of anything that grows: schedules as NumPy computes them once, ahead.

The plan evaluates them on the host in float64 and hands the program a table of the values, so
that a change of rate compiles nothing and what the plan prints is what the step uses.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


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
  power: float = 1.0,
) -> np.ndarray:
  """From start * peak up to peak, down to final * peak, then flat.

  At a share t of the way down the rate is final + (peak - final) (1 - t) ** power: the polynomial
  decay of MLPerf's LARS has power 2 (mlcommons/training, tensorflow2/lars_util.py).

  Args:
    positions: in epochs, any shape; myrtle and imagenet18 read the schedule one step in, so the
      first step of an epoch of n has position 1 / n.
    total: length of the run in epochs.
    peak: highest rate.
    start: first rate as a share of the peak.
    final: last rate as a share of the peak.
    warmup: share of the run at which the peak is reached.
    flat: epochs at the end that keep the final rate.
    power: 1 is linear.
  """
  top = warmup * total
  end = max(total - flat, top)
  if warmup == 0:
    linear = piecewise_linear([0.0, end], [peak, peak * final], positions)
  else:
    linear = piecewise_linear([0.0, top, end], [peak * start, peak, peak * final], positions)
  if power == 1:
    return linear
  left = 1 - piecewise_linear([top, end], [0.0, 1.0], positions)
  return np.where(np.asarray(positions) > top, peak * (final + (1 - final) * left**power), linear)


def segments(
  epoch: np.ndarray,
  number: np.ndarray,
  steps: np.ndarray,
  segments: Sequence[tuple[float, float, float, float]],
) -> Float[np.ndarray, "steps"]:
  """Linear segments by epoch, each step at its own end, as cybertronai/imagenet18_old has them.

  The segment of a step is the last one that begins with its epoch or before. Its first step is one
  increment in, its last step has the value of its end; steps after that keep it.

  Args:
    epoch: of each step, from 0.
    number: of each step in its epoch, from 1.
    steps: in the epoch of each step.
    segments: (first epoch, end, rate there, rate at the end), ascending.
  """
  first, end, start, final = np.asarray(segments, np.float64).T
  index = np.searchsorted(first, epoch, side="right") - 1
  done = (epoch - first[index]) * steps + number
  rate = start[index] + done * (final - start)[index] / ((end - first)[index] * steps)
  return np.where(done >= (end - first)[index] * steps, final[index], rate)


def average_keep(
  total_steps: int, steps_per_epoch: int, *, decay: float, every: int, reach: float = 0.0
) -> Float[np.ndarray, "steps"]:
  """What an exponential moving average keeps of itself at each step: decay ** every, or 1.

  The average is updated every `every` steps, counted from the first step of each epoch, as in
  davidcpage/cifar10-fast (20 updates in 97 steps). Multiplying by 1 on the other steps costs a
  pass over the parameters; a conditional costs an accelerator a wait for its predicate.

  With a `reach` it grows with the run: at step t, counted from 1, it weighs steps over reach * t of
  them at most, as in power-function averages (Karras et al., arXiv 2312.02696). A step then keeps
  1 - 1 / (reach * t) where that is less than `decay`, so that nothing is left of the weights before
  the first step, and little of those of a short run's high rates.
  """
  step = np.arange(total_steps)
  kept = np.full(total_steps, float(decay))
  if reach:
    kept = np.minimum(kept, np.maximum(1 - 1 / (reach * (step + 1)), 0.0))
  return np.where(step % steps_per_epoch % every == 0, kept**every, 1.0)


def lookahead(
  total_steps: int, steps_per_epoch: int, *, decay: float, every: int, from_epoch: int
) -> tuple[Float[np.ndarray, "steps"], Float[np.ndarray, "steps"]]:
  """What `averaging.lookahead` keeps of the average, and whether it pulls the model back to it.

  After step t of T, counted from 1, every `every` steps: decay ** every * (t / T) ** 3 is kept,
  and the model becomes the average; it also does after the last step. With `from_epoch` 0 the
  average begins as the model before the first step (KellerJordan/cifar10-airbench), else as the
  model after the first such step of epoch `from_epoch`, counted from 0 (tysam-code/hlb-CIFAR10).

  Returns:
    keep and pull, float64; pull is 0 or 1.
  """
  step = np.arange(1, total_steps + 1)
  due = (step % every == 0) & (np.arange(total_steps) // steps_per_epoch >= from_epoch)
  keep = np.where(due, decay**every * (step / total_steps) ** 3, 1.0)
  pull = due.astype(np.float64)
  if not due.any():
    keep[-1] = 0.0  # a run too short for an average ends as the model, not as its beginning
  elif from_epoch:
    keep[due.argmax()] = pull[due.argmax()] = 0.0
  pull[-1] = 1.0
  return keep, pull


def whiten_bias_rate(
  main: Float[np.ndarray, "steps"], *, factor: float, steps: int, falling: bool
) -> Float[np.ndarray, "steps"]:
  """The rate of a whitening layer's bias, which trains for `steps` steps and is then frozen at 0.

  Args:
    main: the rate of the other parameters at each step.
    factor: times `main`.
    steps: in which the bias is trained.
    falling: linearly to 0 over these steps, from `factor` times the highest rate of `main`
      (airbench94_muon, hiverge), instead of with `main` (airbench94).
  """
  step = np.arange(len(main))
  rate = main.max() * (1 - step / max(steps, 1)) if falling else main
  return np.where(step < steps, factor * rate, 0.0)


def renormalize(total_steps: int, *, growing: bool) -> Float[np.ndarray, "steps"]:
  """Whether Muon brings the norms of the weights back at a step: 1 or 0.

  At every step (airbench94_muon), or `growing` (hiverge/cifar10-speedrun): at step t of T, counted
  from 1, when the last time is 2 + int(15 t / T) steps ago or more.
  """
  if not growing:
    return np.ones(total_steps)
  column, last = np.zeros(total_steps), 0
  for step in range(1, total_steps + 1):
    if step - last >= 2 + int(15 * (step / total_steps)):
      column[step - 1], last = 1.0, step
  return column
