"""The plan of a run: its phases, its kinds of steps, and a table with one row per step."""

import collections
import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict
from numpy.typing import DTypeLike


@dataclasses.dataclass(frozen=True)
class Phase:
  """A range of epochs with one image size and one global batch size.

  Attributes:
    images: the number of images seen per epoch.
    min_scale: the smallest share of an image's area in a random crop; only streams use it and
      the fields below.
    copies: the short side of the resized copies to read; 0: the originals.
    eval_mode: a mode of `steps.eval_step`.
    eval_size: the side of the evaluated squares, or the short side of the rectangles.
    eval_resize: the short side to which an image is resized before it is cropped to `eval_size`.
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
  """The options that are compiled into a step and change during a run.

  Attributes:
    whiten_bias: whether the bias of the whitening layer is trained. Once it is frozen, the
      gradient with respect to the whitening layer's output is not computed.
    cutmix: whether cutmix is applied.
    proxy_learns: whether the proxy also takes a training step, or only scores the images.
  """

  whiten_bias: bool = False
  cutmix: bool = False
  proxy_learns: bool = False


# An epoch that drops more than this share of the training images is reported.
_MUCH_LEFT_OUT = 0.01


@dataclasses.dataclass(frozen=True)
class StepRange:
  """Steps of a run, up to step `end`, that are of one kind or take turns.

  Attributes:
    end: the first step of the run after them.
    kinds: step i is of kind i modulo their number. With a proxy, only the first differs.
  """

  end: int
  kinds: tuple[StepKind, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run will do, step by step.

  `tabulate` computes `table`.
  """

  phases: tuple[Phase, ...]
  total_steps: int
  train_images: int
  eval_images: int
  eval_batch_size: int
  tabulate: Callable[[], dict[str, Float[np.ndarray, "steps"]]]
  whiten_bias_steps: int = 0  # first steps, in which the whitening bias is trained
  cutmix_steps: int = 0  # last steps, which use cutmix
  proxy_every: int = 0  # a proxy learns in every n-th step; 0: there is no proxy
  streams: bool = False  # images come from disk, and one program runs one step

  @functools.cached_property
  def table(self) -> dict[str, Float[np.ndarray, "steps"]]:
    """Columns with one value per step, in float64.

    They are `learning_rate` and, if the recipe uses them, `average_keep` and `average_pull`
    (`steps.train_step`), `momentum`, `whiten_bias_rate` and `renormalize` (`optim`). The programs
    take them in the accumulation dtype. They are computed when first asked for: JAX evaluates the
    schedule, and a machine that only submits jobs leaves its GPUs alone.
    """
    return self.tabulate()

  @property
  def epochs(self) -> int:
    """Epochs begun; the last one may be cut short by a fractional `config.epochs`."""
    return self.phases[-1].first_epoch + self.phases[-1].epochs

  def phase_of(self, step: int) -> Phase:
    """The phase of a step, counted from 0; the last phase if `step` is the end of the run."""
    return next(p for p in reversed(self.phases) if p.first_step <= step)

  def epoch_of(self, step: int) -> tuple[int, int]:
    """The epoch of a step and the step's number in it, both counted from 0."""
    phase = self.phase_of(step)
    epoch, step_in_epoch = divmod(step - phase.first_step, phase.steps_per_epoch)
    return phase.first_epoch + epoch, step_in_epoch

  def steps_in_epoch(self, epoch: int) -> int:
    """The number of steps in an epoch; a last epoch that is cut short has fewer."""
    first = self.first_step_of(epoch)
    return min(self.phase_of(first).steps_per_epoch, self.total_steps - first)

  def end_of_epoch(self, step: int) -> int:
    """The first step after the epoch that contains `step`."""
    epoch, _ = self.epoch_of(step)
    return self.first_step_of(epoch) + self.steps_in_epoch(epoch)

  def first_step_of(self, epoch: int) -> int:
    """The first step of an epoch; both are counted from 0."""
    phase = next(p for p in reversed(self.phases) if p.first_epoch <= epoch)
    return phase.first_step + (epoch - phase.first_epoch) * phase.steps_per_epoch

  def examples(self, step: int) -> int:
    """The number of training images seen in the first `step` steps."""
    seen = 0
    for phase in self.phases:
      steps = max(0, min(step - phase.first_step, phase.epochs * phase.steps_per_epoch))
      epochs, rest = divmod(steps, phase.steps_per_epoch)
      seen += epochs * phase.images + rest * phase.batch_size
    return seen

  def table_in(self, dtype: DTypeLike) -> dict[str, Float[np.ndarray, "steps"]]:
    """The table in `dtype`, the accumulation dtype of the programs."""
    return {name: column.astype(dtype) for name, column in self.table.items()}

  def kind_of(self, step: int) -> StepKind:
    """The kind of a step, counted from 0."""
    return StepKind(
      whiten_bias=step < self.whiten_bias_steps,
      cutmix=step >= self.total_steps - self.cutmix_steps,
      proxy_learns=self.proxy_every > 0 and step % self.proxy_every == 0,
    )

  def evaluated_weights(self, step: int) -> str:
    """Which weights an evaluation after `step` steps uses: "average" or "live".

    Lookahead evaluates the live weights. They equal their average right after the steps that pull
    them back to it, and after the last step.
    """
    averaged = "average_keep" in self.table
    if "average_pull" in self.table:
      averaged = bool(self.table["average_pull"][step - 1])
    return "average" if averaged else "live"

  def step_ranges(self) -> tuple[StepRange, ...]:
    """The steps of the run by kind, in their order."""
    bias, cutmix = self.whiten_bias_steps, self.total_steps - self.cutmix_steps
    ends = sorted({min(max(end, 0), self.total_steps) for end in (bias, cutmix)} - {0})
    found, first = [], 0
    for end in dict.fromkeys((*ends, self.total_steps)):
      kind = dataclasses.replace(self.kind_of(first), proxy_learns=False)
      kinds = [kind] * max(self.proxy_every, 1)
      if self.proxy_every:
        kinds[0] = dataclasses.replace(kind, proxy_learns=True)
      found.append(StepRange(end, tuple(kinds)))
      first = end
    return tuple(found)

  def programs(self) -> list[str]:
    """The names of the programs that a run compiles, each with its shape."""
    if self.streams:
      train = (f"train {p.batch_size}x{p.image_size}x{p.image_size}x3" for p in self.phases)
      evaluate = (
        f"evaluate {'rectangles of short side' if 'rect' in p.eval_mode else 'squares of'} "
        f"{p.eval_size}, {self.eval_batch_size} per device at a time"
        for p in self.phases
      )
      return ["init", *dict.fromkeys(train), *dict.fromkeys(evaluate)]
    phase = self.phases[0]
    shape = f"{phase.batch_size}x{phase.image_size}x{phase.image_size}x3"
    kinds = collections.Counter(self.kind_of(step) for step in range(self.total_steps))
    steps = " + ".join(f"{number}{_mark(kind)}" for kind, number in kinds.items())
    return [
      "init",
      f"train {shape}, {steps} steps",
      f"evaluate {self.eval_images} images, {self.eval_batch_size} per device at a time",
    ]


def _mark(kind: StepKind) -> str:
  marks = {"whitening bias": kind.whiten_bias, "cutmix": kind.cutmix, "proxy": kind.proxy_learns}
  return "".join(f" with {name}" for name, marked in marks.items() if marked)


def momenta(config: ConfigDict, plan: Plan) -> Float[np.ndarray, "steps"]:
  """The momentum of each step; AdamW's is b1, the share that the mean of the gradients keeps."""
  fields = config.optimizer
  constant = fields.b1 if fields.name == "adamw" else fields.momentum
  return plan.table.get("momentum", np.full(plan.total_steps, constant))


def left_out(config: ConfigDict, plan: Plan) -> list[str]:
  """Return one line about the images that an epoch leaves out, or none if they are few.

  Args:
    config: the config that the plan was made from.
    plan: a plan made with the actual number of images.
  """
  most = max(plan.phases, key=lambda phase: plan.train_images - phase.images)
  number = plan.train_images - most.images
  if config.data.last_batch != "drop" or number <= _MUCH_LEFT_OUT * plan.train_images:
    return []
  field = "phases.batch_size" if config.phases.batch_size else "batch_size"
  keep = ", or --config.data.last_batch=keep leaves none" if plan.streams else ""
  return [
    f"an epoch leaves out {number:,} of {plan.train_images:,} training images "
    f"({number / plan.train_images:.0%}), different ones each time: they do not fill a batch of "
    f"{most.batch_size} (config.data.last_batch=drop); a smaller --config.{field} leaves out "
    f"fewer{keep}"
  ]
