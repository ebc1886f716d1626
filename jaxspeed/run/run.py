"""One run: what those who train, report and save it share, and what its caller wants of it."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.feeds.protocol import Feed
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
class Run:
  """One seed of a recipe, in its folder; `session` makes it.

  Attributes:
    spec: the specification of its training, with its config and plan.
    folder: its folder, which stores its config.
    feed: the feed of its images.
    clock: its clock.
    control: what may end it early.
    hooks: what its caller wants of it.
    screen: where it prints.
    class_names: the names of its classes, by label.
  """

  spec: TrainSpec
  folder: pathlib.Path
  feed: Feed
  clock: Clock
  control: RunControl
  hooks: Hooks
  screen: Screen
  class_names: tuple[str, ...]

  @property
  def config(self) -> ConfigDict:
    """Its config, with everything filled in."""
    return self.spec.config

  @property
  def plan(self) -> Plan:
    """Its plan."""
    return self.spec.plan
