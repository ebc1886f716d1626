"""Schedules: functions of the step or the epoch that NumPy computes once, before training.

The plan evaluates them on the host in float64 and hands the program a table of the values. So a
new learning rate needs no compilation, and the step uses exactly what the plan prints.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def piecewise_linear(
  knots: Sequence[float], values: Sequence[float], positions: np.ndarray
) -> np.ndarray:
  """Interpolate linearly between knots, flat outside: `PiecewiseLinear` of davidcpage/cifar10-fast.

  Args:
    knots: positions in ascending order.
    values: one value per knot.
    positions: an array of any shape.

  Returns:
    A float64 array of the shape of `positions`.
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
  """A learning rate that rises from start * peak to peak, falls to final * peak, and stays there.

  At a share t of the way down it is peak (final + (1 - final) (1 - t) ** power). MLPerf's LARS has
  power 2 (mlcommons/training, tensorflow2/lars_util.py).

  Args:
    positions: positions in epochs, an array of any shape. myrtle and imagenet18 read the schedule
      at the end of each step: the first of n steps in an epoch has position 1 / n.
    total: the length of the run in epochs.
    peak: the highest learning rate.
    start: the first learning rate as a share of the peak.
    final: the last learning rate as a share of the peak.
    warmup: the share of the run after which the peak is reached.
    flat: the number of epochs at the end that keep the final learning rate.
    power: the exponent of the decay; 1 is linear.
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
  """Linear segments by epoch, read at the end of each step, as in cybertronai/imagenet18_old.

  A step belongs to the last segment that begins at or before its epoch. The first step of a segment
  is one increment past its start; its last step has its final value, and later steps keep it.

  Args:
    epoch: the epoch of each step, from 0.
    number: the number of each step in its epoch, from 1.
    steps: the number of steps in the epoch of each step.
    segments: (first epoch, end epoch, first value, last value) of each segment, ascending.
  """
  first, end, start, final = np.asarray(segments, np.float64).T
  index = np.searchsorted(first, epoch, side="right") - 1
  done = (epoch - first[index]) * steps + number
  rate = start[index] + done * (final - start)[index] / ((end - first)[index] * steps)
  return np.where(done >= (end - first)[index] * steps, final[index], rate)


def average_keep(
  total_steps: int, steps_per_epoch: int, *, decay: float, every: int, reach: float = 0.0
) -> Float[np.ndarray, "steps"]:
  """The share an exponential moving average keeps of itself at each step: decay ** every, or 1.

  The average is updated every `every` steps, counted from the first step of each epoch, as in
  davidcpage/cifar10-fast (20 updates in 97 steps). Multiplying by 1 in the other steps costs a pass
  over the parameters; with a conditional, an accelerator would wait for its predicate.

  With a `reach`, the averaging window grows with the run: at step t, counted from 1, it spans at
  most reach * t steps, as in power-function averages (Karras et al., arXiv 2312.02696). A step then
  keeps min(decay, 1 - 1 / (reach * t)). So the average forgets the initial weights and, in a short
  run, most of those from the time of high learning rates.
  """
  step = np.arange(total_steps)
  kept = np.full(total_steps, float(decay))
  if reach:
    kept = np.minimum(kept, np.maximum(1 - 1 / (reach * (step + 1)), 0.0))
  return np.where(step % steps_per_epoch % every == 0, kept**every, 1.0)


def lookahead(
  total_steps: int, steps_per_epoch: int, *, decay: float, every: int, from_epoch: int
) -> tuple[Float[np.ndarray, "steps"], Float[np.ndarray, "steps"]]:
  """The two columns of `averaging.lookahead`: the share it keeps, and when it pulls the model back.

  Every `every` steps, after step t of T (counted from 1), the average keeps
  decay ** every * (t / T) ** 3 and the model becomes the average, as it does after the last step.
  With `from_epoch` 0 the average begins as the initial model (KellerJordan/cifar10-airbench), else
  as the model after the first such step of epoch `from_epoch`, from 0 (tysam-code/hlb-CIFAR10).

  Returns:
    keep and pull as float64; pull is 0 or 1.
  """
  step = np.arange(1, total_steps + 1)
  due = (step % every == 0) & (np.arange(total_steps) // steps_per_epoch >= from_epoch)
  keep = np.where(due, decay**every * (step / total_steps) ** 3, 1.0)
  pull = due.astype(np.float64)
  if not due.any():
    keep[-1] = 0.0  # a run too short for an average ends with its model, not its first weights
  elif from_epoch:
    keep[due.argmax()] = pull[due.argmax()] = 0.0
  pull[-1] = 1.0
  return keep, pull


def whiten_bias_rate(
  main: Float[np.ndarray, "steps"], *, factor: float, steps: int, falling: bool
) -> Float[np.ndarray, "steps"]:
  """The learning rate of a whitening bias, which is trained for `steps` steps and then frozen.

  Args:
    main: the main learning rate at each step.
    factor: the ratio to the main learning rate.
    steps: the number of steps that train the bias.
    falling: whether the learning rate falls linearly to 0 over these steps, from `factor` times
      the highest of `main` (airbench94_muon, hiverge), instead of following `main` (airbench94).
  """
  step = np.arange(len(main))
  rate = main.max() * (1 - step / max(steps, 1)) if falling else main
  return np.where(step < steps, factor * rate, 0.0)


def renormalize(total_steps: int, *, growing: bool) -> Float[np.ndarray, "steps"]:
  """Whether Muon renormalizes the weights at a step: 1 or 0.

  It does so at every step (airbench94_muon), or with `growing` at growing intervals: at step t of
  T, counted from 1, if the last time was at least 2 + int(15 t / T) steps ago
  (hiverge/cifar10-speedrun).
  """
  if not growing:
    return np.ones(total_steps)
  column, last = np.zeros(total_steps), 0
  for step in range(1, total_steps + 1):
    if step - last >= 2 + int(15 * (step / total_steps)):
      column[step - 1], last = 1.0, step
  return column
