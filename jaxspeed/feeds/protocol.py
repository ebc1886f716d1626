"""What a run asks of a feed, which brings images to the steps, and of the data that it opens."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.devices.compile import Program
from jaxspeed.planning.plan import Phase
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry, StepOutput, TrainState

# Reasons why images cannot be read, by "train" or "eval" and their names.
Broken = dict[tuple[str, str], str]
# Evaluates once: sums, and the images that could not be read, by name, with the reason.
RunEvaluation = Callable[[], tuple[MetricSums, dict[str, str]]]


class OpenData(Protocol):
  """A data set that a feed has opened: a frozen dataclass with `notes` among its fields."""

  @property
  def class_names(self) -> tuple[str, ...]:
    """Names of the classes, by label."""

  @property
  def source(self) -> str:
    """Where the images come from, in words."""

  @property
  def notes(self) -> tuple[str, ...]:
    """Lines on what the user should know."""

  @property
  def evaluated_on(self) -> str:
    """Which images are evaluated, as in `results.result_row`."""

  @property
  def benchmark(self) -> str:
    """DAWNBench's name of the data set; '' where it is none of its sets."""

  @property
  def counts(self) -> tuple[int | Mapping[int, int], int]:
    """Images to train on, all or by the short side of their copies, and images to evaluate on."""

  @property
  def decides(self) -> dict[str, int]:
    """Fields of `config.data` that the data decide, with their values."""

  @property
  def decider(self) -> str:
    """Who decides them, for a sentence: "the arrays decide"."""

  def evaluated_count(self, copies: int) -> int:
    """Images that a phase with these copies (`Phase.copies`) evaluates."""

  def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the channels, 0 ... 255, where the config has none."""


class Feed(Protocol):
  """Brings images to the steps of a run, and has the programs for them.

  A feed derives from this class, whose methods with a body serve where nothing is to be said. Its
  name stands in `run.setup.FEEDS`. Steps are those of the run, counted from 0.
  """

  carry: Carry
  """Shapes and shardings of what a run carries, for a checkpoint to be read into."""
  benchmark: str
  """As `OpenData.benchmark`."""
  evaluated_on: str
  """As `OpenData.evaluated_on`."""

  @staticmethod
  def open_data(
    config: ConfigDict,
    console: Console,
    *,
    follow: Collection[str],
    phases: Sequence[Phase] | None,
  ) -> Any:
    """Opens the data set of a config, an `OpenData`.

    Args:
      config: its `data` and `tune_on` count, and the phases.
      console: where long readings are shown.
      follow: fields, such as data.classes, that the data may decide.
      phases: those whose images are evaluated, and no others are wanted; None: all, to train.

    Raises:
      UserError: the data cannot be read, or do not fit the config.
    """
    ...

  @staticmethod
  def prepare_evaluation(data: Any, spec: TrainSpec, phase: Phase, variables: Any) -> RunEvaluation:
    """What evaluates a model as a phase does, without a feed; its programs are compiled.

    Args:
      data: of `open_data`.
      spec: of the model.
      phase: of its plan.
      variables: on the devices.
    """
    ...

  def __init__(self, data: Any, spec: TrainSpec) -> None:
    """Compiles the programs of a run, or begins to.

    Args:
      data: of `open_data`.
      spec: of the run; of several runs, whose seeds differ, the first.
    """

  @property
  def programs(self) -> list[Program]:
    """Those compiled by now, a training program first."""
    return []

  def new_programs(self) -> list[Program]:
    """Those that were compiled since the last call."""
    return []

  def wait_for(self, step: int) -> list[str]:
    """Waits for the programs of the epoch of a step; lines on when they were ready."""
    return []

  def place(self) -> None:
    """Puts in place what the steps need, after `wait_for(0)`."""
    return

  @property
  def needs_warm_up(self) -> bool:
    """Whether `warm_up` is worth its time."""
    return False

  def warm_up(self) -> None:
    """Runs the programs once, without learning."""
    return

  def init(self, seed: int) -> TrainState:
    """The state before the first step."""
    ...

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    """The steps `first_step <= step < last_step`, each yielded once it is under way.

    Args:
      carry: after `first_step` steps; donated.
      seed: of the run.
      first_step: the number of the first one.
      last_step: the end of the epoch of `first_step`.
    """
    ...

  def evaluate(self, variables: dict[str, Any], step: int) -> MetricSums:
    """Sums over the evaluation images, each of them once, as in the phase that `step` steps end."""
    ...

  def take_waited_seconds(self) -> float:
    """Seconds in which the devices had nothing to do for want of images, since the last call."""
    return 0.0

  def take_broken(self) -> Broken:
    """Images that this process could not read, since the last call."""
    return {}

  def close(self) -> None:
    """Ends what runs in the background."""
    return
