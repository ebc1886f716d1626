"""One run: what those who train, report and save it share."""

import dataclasses
import pathlib

from ml_collections import ConfigDict

from jaxspeed.feeds.protocol import Feed
from jaxspeed.planning.plan import Plan
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import Screen
from jaxspeed.run.control import RunControl
from jaxspeed.run.hooks import Hooks
from jaxspeed.steps.spec import TrainSpec


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
