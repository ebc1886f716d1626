"""An evaluation on the host: its sums, its seconds, and its images' predictions."""

import dataclasses
import functools

import jax
import numpy as np

from jaxspeed.records.predictions import Predictions
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.outcomes import Evaluated


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The result of an evaluation on the devices, and the seconds it took.

  Attributes:
    step: the number of steps trained before it.
  """

  step: int
  evaluated: Evaluated
  seconds: float

  @property
  def sums(self) -> MetricSums:
    """Its sums."""
    return self.evaluated.sums

  @functools.cached_property
  def predictions(self) -> Predictions:
    """Its images' predictions, copied from the devices at the first use."""
    return predictions_of(self.evaluated, self.step)


def predictions_of(evaluated: Evaluated, step: int) -> Predictions:
  """The predictions of an evaluation, in the order of the images' numbers."""
  # One call: the copies of all batches are under way before the first is waited for.
  parts = jax.device_get(evaluated.images)
  joined = jax.tree.map(lambda *each: np.concatenate(each), *parts)
  order = np.argsort(joined.index, kind="stable")
  order = order[joined.index[order] >= 0]
  columns = {field.name: getattr(joined, field.name)[order] for field in dataclasses.fields(joined)}
  return Predictions(step, **columns)
