"""One run: what those who train, report and save it share, and what its caller gives and wants."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import optax
from ml_collections import ConfigDict

from jaxspeed.config.registry import AnyModel
from jaxspeed.feeds.protocol import Feed, OpenData
from jaxspeed.models.own import describe_model
from jaxspeed.planning.own_schedule import describe_rates
from jaxspeed.planning.plan import Plan
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import Screen
from jaxspeed.records.loggers import Logger
from jaxspeed.run.control import RunControl
from jaxspeed.steps.spec import TrainSpec

# Gets the row of each epoch; True ends the run after it.
OnEpoch = Callable[[dict[str, Any]], bool | None]


@dataclasses.dataclass(frozen=True)
class Hooks:
  """What the caller of `session.train` wants.

  Attributes:
    call: the call in words, for result.json, of a caller in Python: its process, signal handlers
      and screen are not the run's. None: the run is a command's, which owns all three.
    make_screen: makes the screen that the runs print on.
    on_epoch: called with each epoch's row, in the caller's thread; True ends the run.
    profile: the first and the last step to trace (`run.profile`); None: none.
    loggers: functions that follow the run, besides those of `config.records.loggers`.
  """

  call: str | None = None
  make_screen: Callable[[], Screen] = Screen
  on_epoch: OnEpoch | None = None
  profile: tuple[int, int] | None = None
  loggers: tuple[Logger, ...] = ()


COMMAND = Hooks()


@dataclasses.dataclass(frozen=True)
class Parts:
  """The objects that a run is given; None: the config names that part."""

  data: OpenData | None = None  # in memory
  model: AnyModel | None = None  # docs/extending.md has the contract
  optimizer: optax.GradientTransformation | None = None  # without a learning rate
  schedule: optax.Schedule | None = None  # the learning rate by step, counted from 0

  def recorded(self, config: ConfigDict) -> ConfigDict:
    """A copy of a config that says what the run is given, but for the schedule."""
    config = config.copy_and_resolve_references()
    if self.model is not None:
      config.given.model = describe_model(self.model)
      config.model = {"name": type(self.model).__name__}
    if self.optimizer is not None:
      config.given.optimizer = "a gradient transformation"
    if self.data is not None:
      config.given.data = self.data.source
      # What the config expects is checked before the data are.
      config.data.train_images, config.data.eval_images = self.data.counts
    if self.schedule is not None:
      config.given.schedule = "a schedule"  # `with_schedule` describes it
    return config

  def with_schedule(self, config: ConfigDict, total_steps: int) -> ConfigDict:
    """The config with the learning rates of `schedule`, if there is one, in words."""
    if self.schedule is not None:
      config.given.schedule = describe_rates(self.schedule, total_steps)
    return config


NONE = Parts()


@dataclasses.dataclass(frozen=True)
class Run:
  """One seed of a recipe, in its folder; `session` makes it."""

  spec: TrainSpec  # of its training, with its config and plan
  folder: pathlib.Path  # stores its config
  feed: Feed
  clock: Clock
  control: RunControl  # what may end it early
  hooks: Hooks  # what its caller wants of it
  screen: Screen
  class_names: tuple[str, ...]  # by label

  @property
  def config(self) -> ConfigDict:
    """Its config, with everything filled in."""
    return self.spec.config

  @property
  def plan(self) -> Plan:
    """Its plan."""
    return self.spec.plan
