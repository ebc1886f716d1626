"""The interface of a feed, which brings images to the steps."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int, UInt8
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.data.batch import Batch
from jaxspeed.data.disk.sets import ImageSets
from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.devices.compile import Program
from jaxspeed.planning.plan import Phase
from jaxspeed.steps.outcomes import EvalResult
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry, StepOutput, TrainState

# Why images cannot be read, by split ("train" or "eval") and name.
Broken = dict[tuple[str, str], str]
# Evaluates once; returns the result, and the images that could not be read.
RunEvaluation = Callable[[], tuple[EvalResult, Broken]]
# What a feed has opened.
OpenData = Arrays | ImageSets
Pixels = UInt8[np.ndarray, "m h w 3"]


@dataclasses.dataclass(frozen=True)
class DataRequest:
  """What a feed is asked to open.

  Attributes:
    config: the config; uses `data`, `tune_on` and `phases`.
    console: the console that shows the progress of long reads.
    follow: the fields, such as data.classes, that the data may decide.
    phases: the phases to evaluate, without training; None: all phases, to train.
    given: arrays from Python in place of the config's data.
  """

  config: ConfigDict
  console: Console
  follow: Collection[str]
  phases: Sequence[Phase] | None
  given: Arrays | None


class Feed(Protocol):
  """Brings images to the steps of a run, and holds the programs for them.

  A feed derives from this class; methods with a body are defaults. `run.setup.FEEDS` lists the
  feeds by name. Steps are those of the run, counted from 0.
  """

  data: Any
  """The result of `open_data`."""
  spec: TrainSpec
  """The specification of the run."""
  carry: Carry
  """Shapes and shardings of a run's carry, to restore a checkpoint into."""
  whole_epochs: bool = False
  """Whether `train` takes the steps of an epoch at once."""
  broken: Broken
  """The images that this process could not read; the run takes them out."""
  waited_seconds: float = 0.0
  """The seconds so far in which the devices had no images to work on."""

  @staticmethod
  def open_data(asked: DataRequest) -> Any:
    """Opens the data set of a config, an `OpenData`.

    Raises:
      UserError: the data cannot be read, or do not fit the config; the feed takes no arrays.
    """
    ...

  @staticmethod
  def prepare_evaluation(data: Any, spec: TrainSpec, phase: Phase, variables: Any) -> RunEvaluation:
    """Compiles the programs of a phase's evaluation; returns a function that runs it.

    `data` is the result of `open_data`, and the model's `variables` are on the devices.
    """
    ...

  def __init__(self, data: Any, spec: TrainSpec) -> None:
    """Compiles the programs of a run, or of several that differ in their seeds, or starts to.

    `data` is the result of `open_data`.
    """
    self.data, self.spec, self.broken = data, spec, {}

  @property
  def programs(self) -> list[Program]:
    """The programs compiled by now, a training program first."""
    return []

  def wait_for(self, step: int) -> None:
    """Waits for the programs of the epoch of `step`, and what else is loaded meanwhile."""
    return

  def place(self) -> None:
    """Loads what the steps need, after `wait_for(0)`."""
    return

  def warm_up(self) -> None:
    """Runs the programs once, without learning, if the config asks for it."""
    return

  def init(self, seed: int) -> TrainState:
    """The state before the first step."""
    ...

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    """Takes the steps `first_step <= step < last_step`; yields each once it is under way.

    `carry`, after `first_step` steps, is donated; `last_step` is the end of that step's epoch.
    """
    ...

  def evaluate(self, variables: dict[str, Any], step: int) -> EvalResult:
    """Evaluates all evaluation images, each counted once, as in the phase of step `step - 1`."""
    ...

  def eval_names(self, step: int) -> Sequence[str]:
    """The paths below their folder of the images that `evaluate` numbers; () for none on disk."""
    return ()

  def show_evaluated(self, numbers: Int[np.ndarray, "k"], step: int) -> Pixels:
    """Evaluation images of one size by `evaluate`'s numbers, for a report."""
    ...

  def show_trained(self, seed: int, step: int, count: int) -> Batch:
    """The first `count` images of the epoch that begins with `step`, not yet augmented.

    They are on the host, and at most a batch. A report of a feed without this has no images.
    """
    ...

  def close(self) -> None:
    """Ends what runs in the background."""
    return
