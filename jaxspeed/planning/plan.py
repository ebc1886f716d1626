"""What a run will do: phases, kinds of steps, and the table with a row a step."""

import dataclasses
import functools
import itertools

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict
from numpy.typing import DTypeLike


@dataclasses.dataclass(frozen=True)
class Phase:
  """Epochs of one image size and one global batch size.

  Attributes:
    images: seen in an epoch.
    min_scale: least share of an image's area in its random crop; of a stream, as the rest.
    copies: short side of the resized copies that are read; 0: the originals.
    eval_mode: of `steps.eval_step`.
    eval_size: side of the squares that are evaluated, or short side of the rectangles.
    eval_resize: short side to which an image is scaled before that is cut out of it.
  """

  first_epoch: int
  epochs: int
  first_step: int
  steps_per_epoch: int
  image_size: int
  batch_size: int
  images: int
  min_scale: float
  copies: int
  eval_mode: str
  eval_size: int
  eval_resize: int


@dataclasses.dataclass(frozen=True)
class StepKind:
  """What is compiled into a step and differs between the steps of a run.

  Attributes:
    whiten_bias: whether the bias of the whitening layer is trained. Once it is frozen, the
      gradient of the first layers' input is not computed.
    cutmix: whether squares of other images are mixed in.
    proxy_learns: whether the proxy takes a step too, or only scores the images.
  """

  whiten_bias: bool = False
  cutmix: bool = False
  proxy_learns: bool = False


# Share of the training images: an epoch that leaves out more is reported.
_MUCH_LEFT_OUT = 0.01

# Steps in a row, as a number and the kinds that are repeated so often. What an epoch consists of
# names its program.
Segments = tuple[tuple[int, tuple[StepKind, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run will do, step by step.

  `table` holds columns with one value a step: `learning_rate`, and, where the recipe has them,
  `average_keep` and `average_pull` (`optim.averaging`), `momentum`, `whiten_bias_rate` and
  `renormalize` (`optim`). The programs take them in the format of sums.
  """

  phases: tuple[Phase, ...]
  total_steps: int
  train_images: int
  eval_images: int
  eval_batch_size: int
  table: dict[str, Float[np.ndarray, "steps"]]
  whiten_bias_steps: int = 0  # the first ones
  cutmix_steps: int = 0  # the last ones
  proxy_every: int = 0  # steps between two in which a proxy learns; 0: there is none
  streams: bool = False  # images come from disk, and a program is a step

  @property
  def epochs(self) -> int:
    """Epochs begun; the last one may be cut short by a fractional `config.epochs`."""
    return self.phases[-1].first_epoch + self.phases[-1].epochs

  def phase_of(self, step: int) -> Phase:
    """The phase of the step with this number, counted from 0; of the end, the last phase."""
    return next(p for p in reversed(self.phases) if p.first_step <= step)

  def epoch_of(self, step: int) -> tuple[int, int]:
    """(epoch, step in it), both from 0."""
    phase = self.phase_of(step)
    epoch, step_in_epoch = divmod(step - phase.first_step, phase.steps_per_epoch)
    return phase.first_epoch + epoch, step_in_epoch

  def steps_in_epoch(self, epoch: int) -> int:
    """Steps of an epoch, fewer in a last epoch that is cut short."""
    first = self.first_step_of(epoch)
    return min(self.phase_of(first).steps_per_epoch, self.total_steps - first)

  def end_of_epoch(self, step: int) -> int:
    """Number of the first step after the epoch of the step with this number."""
    epoch, _ = self.epoch_of(step)
    return self.first_step_of(epoch) + self.steps_in_epoch(epoch)

  def first_step_of(self, epoch: int) -> int:
    """Number of the first step of an epoch, both from 0."""
    phase = next(p for p in reversed(self.phases) if p.first_epoch <= epoch)
    return phase.first_step + (epoch - phase.first_epoch) * phase.steps_per_epoch

  def examples(self, step: int) -> int:
    """Training images seen in the first `step` steps."""
    seen = 0
    for phase in self.phases:
      steps = max(0, min(step - phase.first_step, phase.epochs * phase.steps_per_epoch))
      epochs, rest = divmod(steps, phase.steps_per_epoch)
      seen += epochs * phase.images + rest * phase.batch_size
    return seen

  def table_in(self, dtype: DTypeLike) -> dict[str, Float[np.ndarray, "steps"]]:
    """The table as programs with sums in `dtype` take it."""
    return {name: column.astype(dtype) for name, column in self.table.items()}

  def kind_of(self, step: int) -> StepKind:
    """The kind of the step with this number, counted from 0."""
    return StepKind(
      whiten_bias=step < self.whiten_bias_steps,
      cutmix=step >= self.total_steps - self.cutmix_steps,
      proxy_learns=self.proxy_every > 0 and step % self.proxy_every == 0,
    )

  def evaluated_weights(self, step: int) -> str:
    """Which weights an evaluation after `step` steps is of: "average" or "live".

    A lookahead's are the live ones, which are their average in the steps that set them back to it,
    the last one among them.
    """
    averaged = "average_keep" in self.table
    if "average_pull" in self.table:
      averaged = bool(self.table["average_pull"][step - 1])
    return "average" if averaged else "live"

  def segments(self, epoch: int) -> Segments:
    """The steps of an epoch as runs of one kind, or of one cycle of a proxy."""
    first, steps = self.first_step_of(epoch), self.steps_in_epoch(epoch)
    first_cutmix = self.total_steps - self.cutmix_steps
    return _segments(
      steps,
      whiten_bias=min(max(self.whiten_bias_steps - first, 0), steps),
      cutmix_from=min(max(first_cutmix - first, 0), steps),
      proxy_every=self.proxy_every,
      begun=first % (self.proxy_every or 1),
    )

  def programs(self) -> list[str]:
    """Names of the programs that a run compiles, each with its shape."""
    if self.streams:
      train = (f"train {p.batch_size}x{p.image_size}x{p.image_size}x3" for p in self.phases)
      evaluate = (
        f"evaluate {'rectangles of short side' if 'rect' in p.eval_mode else 'squares of'} "
        f"{p.eval_size}, {self.eval_batch_size} a device at a time"
        for p in self.phases
      )
      return ["init", *dict.fromkeys(train), *dict.fromkeys(evaluate)]
    epochs = range(self.epochs)
    names = ["init"]
    for phase, segments in dict.fromkeys(
      (self.phase_of(self.first_step_of(epoch)), self.segments(epoch)) for epoch in epochs
    ):
      shape = f"{phase.batch_size}x{phase.image_size}x{phase.image_size}x3"
      steps = " + ".join(f"{n * len(kinds)}{_mark(kinds[0])}" for n, kinds in segments)
      names.append(f"train {shape}, {steps} steps an epoch")
    return [
      *names,
      f"evaluate {self.eval_images} images, {self.eval_batch_size} a device at a time",
    ]


# An epoch in the middle of a run is like the one before it.
@functools.lru_cache(maxsize=64)
def _segments(
  steps: int, *, whiten_bias: int, cutmix_from: int, proxy_every: int, begun: int
) -> Segments:
  """Segments of an epoch of `steps` steps.

  Args:
    steps: in the epoch.
    whiten_bias: the first steps, which train the bias.
    cutmix_from: the first step with cutmix, or `steps`.
    proxy_every: as `Plan.proxy_every`.
    begun: steps since the proxy last learned before the epoch.
  """
  kinds = [
    StepKind(
      whiten_bias=i < whiten_bias,
      cutmix=i >= cutmix_from,
      proxy_learns=proxy_every > 0 and (begun + i) % proxy_every == 0,
    )
    for i in range(steps)
  ]
  cycle = proxy_every or 1
  cycles = (tuple(kinds[i : i + cycle]) for i in range(0, steps, cycle))
  return tuple((len(list(same)), kinds) for kinds, same in itertools.groupby(cycles))


def _mark(kind: StepKind) -> str:
  marks = {"whitening bias": kind.whiten_bias, "cutmix": kind.cutmix, "proxy": kind.proxy_learns}
  return "".join(f" with {name}" for name, marked in marks.items() if marked)


def left_out(config: ConfigDict, plan: Plan) -> list[str]:
  """A line on the images that an epoch leaves out, where these are many of the set.

  Args:
    config: of the plan.
    plan: with the number of images that there are.
  """
  most = max(plan.phases, key=lambda phase: plan.train_images - phase.images)
  number = plan.train_images - most.images
  if config.data.last_batch != "drop" or number <= _MUCH_LEFT_OUT * plan.train_images:
    return []
  field = "phases.batch_size" if config.phases.batch_size else "batch_size"
  keep = ", or --config.data.last_batch=keep leaves none" if plan.streams else ""
  return [
    f"an epoch leaves out {number:,} of {plan.train_images:,} training images "
    f"({number / plan.train_images:.0%}), other ones each time: they fill no batch of "
    f"{most.batch_size} (config.data.last_batch=drop); a smaller --config.{field} leaves out "
    f"fewer{keep}"
  ]


def with_whole_epochs(columns: dict[str, tuple], epochs: float) -> dict[str, tuple]:
  """The columns with epochs in place of shares of the run, rounded down.

  Of phases that then begin with the same epoch the last one stays: a short run ends as a long one.
  """
  # 0.6 of 5 epochs are 3, which doubles may miss by their last digit.
  starts = [int(share * epochs + 1e-9) for share in columns["first_epoch"]]
  kept = [i for i in range(len(starts)) if starts[i] not in starts[i + 1 :]]
  columns = columns | {"first_epoch": tuple(starts)}
  return {name: tuple(values[i] for i in kept) for name, values in columns.items()}
