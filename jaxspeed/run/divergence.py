"""Checks that losses and weights are finite, and the errors that end a run when they are not."""

import math
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.devices.precision import MOST_SKIPPED, TOO_MANY_SKIPPED
from jaxspeed.errors import UserError
from jaxspeed.steps.losses import MetricSums


def check_loss(loss: float, step: int, *, total_steps: int, config: ConfigDict, saved: int) -> None:
  """Ends a run if its training loss is not finite or its float16 steps are all skipped.

  Args:
    loss: the loss of a step, as `LossScale.reported_loss` gives it.
    step: the step's number, from 0.
    total_steps: the number of steps of the run.
    config: the run's config.
    saved: the step of the newest checkpoint; 0: none.

  Raises:
    UserError: the run ends; the message says why, and which checkpoint stays.
  """
  if math.isfinite(loss):
    return
  what, advice = f"the training loss is {loss}", "lower --config.schedule.peak"
  if loss == TOO_MANY_SKIPPED:
    what, advice = _skipped(config.loss_scale)
  raise UserError(
    f"{what} at step {step + 1} of {total_steps}: the run stops, {_stays(saved)}; {advice}."
  )


def _skipped(loss_scale: float) -> tuple[str, str]:
  """What happened where all float16 steps are skipped, and what to do."""
  what = f"{MOST_SKIPPED} steps in a row were skipped, as their float16 gradients were not finite,"
  if loss_scale:
    return what, f"--config.loss_scale={loss_scale:g} is too large, 0 finds a scale by itself"
  return what, "lower --config.schedule.peak, or set another --config.precision"


def check_weights(params: Any, step: int, *, saved: int) -> None:
  """Ends a run if its weights are not finite: a checkpoint of them would be useless.

  The loss of the step that spoiled them may be finite. All processes have the same weights.

  Args:
    params: the weights after `step` steps.
    step: the number of steps done.
    saved: as in `check_loss`.

  Raises:
    UserError: the run ends; the message says why, and which checkpoint stays.
  """
  if not all(np.isfinite(np.asarray(each)).all() for each in jax.tree.leaves(params)):
    raise UserError(
      f"the weights after step {step} are not finite: the run stops, {_stays(saved)}; lower "
      "--config.schedule.peak."
    )


def _stays(saved: int) -> str:
  return f"the checkpoint of {saved} stays" if saved else "there is no checkpoint yet"


def check_evaluation(
  sums: MetricSums, step: int, *, classes: int, last: bool
) -> tuple[dict[str, float], list[str]]:
  """The means of an evaluation, and lines to print; no accuracies if the loss is not finite.

  Args:
    sums: the sums over the evaluation's images.
    step: the number of steps before the evaluation.
    classes: the number of classes.
    last: whether this is the run's last evaluation.

  Raises:
    UserError: the last evaluation has a loss that is not finite, so there is no result.
  """
  means = sums.means(classes)
  if math.isfinite(means["loss"]):
    return means, []
  said = f"the loss of the evaluation after step {step} is {means['loss']}"
  if last:
    raise UserError(
      f"{said}: the logits are not finite, and there is no result; lower --config.schedule.peak, "
      "or set another --config.precision."
    )
  return {"loss": means["loss"]}, [f"{said}: its accuracies do not count"]
