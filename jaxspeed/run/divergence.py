"""Losses and weights that are not finite: what is said of them, and where they end a run."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.devices.precision import MOST_SKIPPED, TOO_MANY_SKIPPED
from jaxspeed.errors import UserError
from jaxspeed.steps.losses import MetricSums


def check_loss(
  loss: float, step: int, *, total_steps: int, config: ConfigDict, newest: Callable[[], int | None]
) -> None:
  """Ends a run whose training loss is not finite, or whose float16 steps are all skipped.

  Args:
    loss: of a step, as `LossScale.told` gives it.
    step: its number, from 0.
    total_steps: of the run.
    config: of the run.
    newest: gives the step of the newest checkpoint.

  Raises:
    UserError: what happened, and what stays.
  """
  if math.isfinite(loss):
    return
  what, advice = f"the training loss is {loss}", "lower --config.schedule.peak"
  if loss == TOO_MANY_SKIPPED:
    what = (
      f"{MOST_SKIPPED} steps in a row were skipped, as their float16 gradients were not finite,"
    )
    advice = (
      f"--config.loss_scale={config.loss_scale:g} is too large, 0 finds a scale by itself"
      if config.loss_scale
      else "lower --config.schedule.peak, or set another --config.precision"
    )
  raise UserError(
    f"{what} at step {step + 1} of {total_steps}: the run stops, {_stays(newest())}; {advice}."
  )


def check_weights(params: Any, step: int, *, newest: Callable[[], int | None]) -> None:
  """Ends a run whose weights are not finite, of which no checkpoint would be of use.

  The loss of the step that made them so may be finite. All processes have the same weights.

  Args:
    params: the weights after `step` steps.
    step: steps done.
    newest: as `check_loss` takes it.

  Raises:
    UserError: what happened, and what stays.
  """
  if not all(np.isfinite(np.asarray(each)).all() for each in jax.tree.leaves(params)):
    raise UserError(
      f"the weights after step {step} are not finite: the run stops, {_stays(newest())}; lower "
      "--config.schedule.peak."
    )


def _stays(newest: int | None) -> str:
  return "there is no checkpoint yet" if newest is None else f"the checkpoint of {newest} stays"


def check_evaluation(
  sums: MetricSums, step: int, *, classes: int, last: bool
) -> tuple[dict[str, float], list[str]]:
  """The means of an evaluation, without accuracies where the loss is not finite, and what to say.

  Args:
    sums: over the evaluation's images.
    step: after which it was made.
    classes: that are told apart.
    last: whether it is that of the run's end.

  Raises:
    UserError: the last one has a loss that is not finite, from which there is no result.
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
