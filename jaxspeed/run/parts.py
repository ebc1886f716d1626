"""Parts of a run that Python passes as objects, in place of fields of the config."""

import dataclasses
from typing import Any

import flax.linen as nn
import optax
from ml_collections import ConfigDict

from jaxspeed.config.run_fields import Given
from jaxspeed.feeds.protocol import OpenData
from jaxspeed.models.own import describe_model
from jaxspeed.planning.own_schedule import describe_rates


@dataclasses.dataclass(frozen=True)
class Parts:
  """The objects that a run is given; None: the config names that part.

  Attributes:
    data: data in memory.
    model: a Flax module (docs/extending.md has the contract).
    optimizer: a transformation of gradients without a learning rate.
    schedule: the learning rate by step, counted from 0.
  """

  data: OpenData | None = None
  model: nn.Module | None = None
  optimizer: optax.GradientTransformation | None = None
  schedule: optax.Schedule | None = None

  def given(self) -> list[str]:
    """The names of the objects that there are."""
    return [field.name for field in dataclasses.fields(self) if getattr(self, field.name)]

  def recorded(self, config: ConfigDict) -> ConfigDict:
    """A copy of a config that says what the run is given, but for the schedule."""
    config = config.copy_and_resolve_references()
    words: dict[str, Any] = {}
    if self.model is not None:
      words["model"] = describe_model(self.model)
      config.model = {"name": type(self.model).__name__}
    if self.optimizer is not None:
      words["optimizer"] = "a gradient transformation"
    if self.data is not None:
      words["data"] = self.data.source
      # What the config expects is checked before the data are.
      config.data.train_images, config.data.eval_images = self.data.counts
    if self.schedule is not None:
      words["schedule"] = "a schedule"  # `with_schedule` describes it
    with config.unlocked():
      config.given = Given().model_dump() | words
    return config

  def with_schedule(self, config: ConfigDict, total_steps: int) -> ConfigDict:
    """The config with the learning rates of `schedule`, if there is one, in words."""
    if self.schedule is not None:
      config.given.schedule = describe_rates(self.schedule, total_steps)
    return config


NONE = Parts()
