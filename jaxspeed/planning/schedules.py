"""Schedules, and the other columns of the plan's table.

The learning rate is one of Optax's schedules. The plan evaluates everything here once, on the host
and in float64, and hands the program a table of the values. So a new learning rate needs no
compilation, and the step uses exactly what the plan prints.
"""

from collections.abc import Callable, Sequence

import numpy as np
import optax
from jaxtyping import Float, Int


def learning_rate(
  name: str,
  *,
  total: float,
  peak: float,
  start: float,
  final: float,
  warmup: float,
  flat: float,
  power: float,
  step_size: float,
  gamma: float,
) -> optax.Schedule:
  """The schedule of a name: it rises linearly from start * peak to peak, then decays by its name.

  The decay counts from the end of the warm-up, as in torchvision's references:

    linear       to final * peak, a share t of the way down at
                 peak (final + (1 - final) (1 - t) ** power); MLPerf's LARS has power 2
                 (mlcommons/training, tensorflow2/lars_util.py)
    cosine       to final * peak on half a cosine (Loshchilov and Hutter, arXiv 1608.03983)
    constant     not at all
    step         by the factor gamma after each step_size (torch's StepLR)
    exponential  the same, but continuously

  Args:
    name: one of the names above.
    total: the length of the run, in the unit of the positions: steps or epochs.
    peak: the highest learning rate.
    start: the first learning rate as a share of the peak.
    final: the last learning rate of linear and cosine as a share of the peak.
    warmup: the share of the run after which the peak is reached.
    flat: the length at the end in which linear and cosine keep their final learning rate.
    power: the exponent of the linear decay.
    step_size: the length of a stair.
    gamma: the factor from one stair to the next.
  """
  top = warmup * total
  left = max(total - flat - top, 0.0)
  decay: optax.Schedule
  if name == "constant":
    decay = optax.constant_schedule(peak)
  elif name in ("step", "exponential"):
    decay = optax.exponential_decay(peak, step_size, gamma, staircase=name == "step")
  elif left == 0:
    decay = optax.constant_schedule(peak * final)
  elif name == "cosine":
    decay = optax.cosine_decay_schedule(peak, left, alpha=final)
  elif power == 1:
    decay = optax.linear_schedule(peak, peak * final, left)
  else:
    decay = optax.polynomial_schedule(peak, peak * final, power, left)
  if warmup == 0:
    return decay
  return optax.join_schedules([optax.linear_schedule(peak * start, peak, top), decay], [top])


def segments(
  rows: Sequence[tuple[float, float, float, float]],
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], Float[np.ndarray, "steps"]]:
  """The schedule of linear segments by epoch, read at the end of each step (imagenet18_old).

  Optax has no schedule of epochs with different numbers of steps. A step belongs to the last
  segment that begins at or before its epoch. The first step of a segment is one increment past its
  start; its last step has its final value, and later steps keep it.

  Args:
    rows: (first epoch, end epoch, first value, last value) of each segment, ascending.

  Returns:
    A function of the epoch of each step, from 0, the number of each step in its epoch, from 1, and
    the number of steps in that epoch.
  """
  first, end, start, final = np.asarray(rows, np.float64).T

  def schedule(epoch: np.ndarray, number: np.ndarray, steps: np.ndarray) -> np.ndarray:
    index = np.searchsorted(first, epoch, side="right") - 1
    done = (epoch - first[index]) * steps + number
    length = (end - first)[index] * steps
    rate = start[index] + done * (final - start)[index] / length
    return np.where(done >= length, final[index], rate)

  return schedule


def average_keep(
  number: Int[np.ndarray, "steps"], *, decay: float, every: int, reach: float = 0.0
) -> Float[np.ndarray, "steps"]:
  """The share an exponential moving average keeps of itself at each step: decay ** every, or 1.

  The average is updated every `every` steps, counted from the first step of each epoch, as in
  davidcpage/cifar10-fast (20 updates in 97 steps). Multiplying by 1 in the other steps costs a pass
  over the parameters; with a conditional, an accelerator would wait for its predicate.

  With a `reach`, the averaging window grows with the run: at step t, counted from 1, it spans at
  most reach * t steps, as in power-function averages (Karras et al., arXiv 2312.02696). A step then
  keeps min(decay, 1 - 1 / (reach * t)). So the average forgets the initial weights and, in a short
  run, most of those from the time of high learning rates.

  Args:
    number: the number of each step in its epoch, from 0.
    decay: the share that the average keeps in one step.
    every: the steps from one update to the next.
    reach: the longest window, as a share of the steps so far; 0: unbounded.
  """
  step = np.arange(len(number))
  kept = np.full(len(number), float(decay))
  if reach:
    kept = np.minimum(kept, np.maximum(1 - 1 / (reach * (step + 1)), 0.0))
  return np.where(number % every == 0, kept**every, 1.0)


def lookahead(
  epoch: Int[np.ndarray, "steps"], *, decay: float, every: int, from_epoch: int
) -> tuple[Float[np.ndarray, "steps"], Float[np.ndarray, "steps"]]:
  """The columns of `train_step.lookahead`: the share it keeps, and when it pulls the model back.

  Every `every` steps, after step t of T (counted from 1), the average keeps
  decay ** every * (t / T) ** 3 and the model becomes the average, as it does after the last step.
  With `from_epoch` 0 the average begins as the initial model (KellerJordan/cifar10-airbench), else
  as the model after the first such step of epoch `from_epoch`, from 0 (tysam-code/hlb-CIFAR10).

  Args:
    epoch: the epoch of each step, from 0.
    decay: the share that the average keeps in one step, at the end of the run.
    every: the steps from one update to the next.
    from_epoch: the epoch in which the average begins.

  Returns:
    keep and pull as float64; pull is 0 or 1.
  """
  step = np.arange(1, len(epoch) + 1)
  due = (step % every == 0) & (epoch >= from_epoch)
  keep = np.where(due, decay**every * (step / len(epoch)) ** 3, 1.0)
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
