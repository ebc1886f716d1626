"""From a config to the table of every step: the one place where values are derived and checked.

  python -m jaxspeed.plan --config=configs/cifar10_resnet9.py:ema

prints phases, steps, rates and shapes; nothing is loaded or compiled for it.
"""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from jaxspeed import config as config_lib
from jaxspeed import schedules
from jaxspeed.errors import UserError


@dataclasses.dataclass(frozen=True)
class Phase:
  """Epochs of one image size and one global batch size."""

  first_epoch: int
  epochs: int
  first_step: int
  steps_per_epoch: int
  image_size: int
  batch_size: int


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


# Steps in a row, as a number and the kinds that are repeated so often. What an epoch consists of
# names its program.
Segments = tuple[tuple[int, tuple[StepKind, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run will do, step by step.

  `table` holds float32 columns with one value a step: `learning_rate`, and, where the recipe has
  them, `average_keep` and `average_pull` (`averaging`), `whiten_bias_rate` and `renormalize`
  (`optim`).
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
    epoch, within = divmod(step - phase.first_step, phase.steps_per_epoch)
    return phase.first_epoch + epoch, within

  def steps_in_epoch(self, epoch: int) -> int:
    """Steps of an epoch, fewer in a last epoch that is cut short."""
    first = self.first_step_of(epoch)
    return min(self.phase_of(first).steps_per_epoch, self.total_steps - first)

  def first_step_of(self, epoch: int) -> int:
    """Number of the first step of an epoch, both from 0."""
    phase = next(p for p in reversed(self.phases) if p.first_epoch <= epoch)
    return phase.first_step + (epoch - phase.first_epoch) * phase.steps_per_epoch

  def examples(self, step: int) -> int:
    """Training images seen in the first `step` steps."""
    return sum(
      p.batch_size * max(0, min(step - p.first_step, p.epochs * p.steps_per_epoch))
      for p in self.phases
    )

  def kind_of(self, step: int) -> StepKind:
    """The kind of the step with this number, counted from 0."""
    return StepKind(
      whiten_bias=step < self.whiten_bias_steps,
      cutmix=step >= self.total_steps - self.cutmix_steps,
      proxy_learns=self.proxy_every > 0 and step % self.proxy_every == 0,
    )

  def segments(self, epoch: int) -> Segments:
    """The steps of an epoch as runs of one kind, or of one cycle of a proxy."""
    first, steps, cycle = (
      self.first_step_of(epoch),
      self.steps_in_epoch(epoch),
      self.proxy_every or 1,
    )
    kinds = [self.kind_of(first + i) for i in range(steps)]
    cycles = (tuple(kinds[i : i + cycle]) for i in range(0, steps, cycle))
    return tuple((len(list(same)), kinds) for kinds, same in itertools.groupby(cycles))

  def programs(self) -> list[str]:
    """Names of the programs that a run compiles, each with its shape."""
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


def _mark(kind: StepKind) -> str:
  marks = {"whitening bias": kind.whiten_bias, "cutmix": kind.cutmix, "proxy": kind.proxy_learns}
  return "".join(f" with {name}" for name, marked in marks.items() if marked)


def make_plan(
  config: ConfigDict, *, devices: int = 1, train_images: int = 0, eval_images: int = 0
) -> Plan:
  """The plan of a config.

  Args:
    config: as `config.base` describes it.
    devices: over which a batch is split.
    train_images: images of the training set; 0: as many as the config expects.
    eval_images: likewise.

  Raises:
    UserError: a value that no run can have, with the field's name.
  """
  _check(config)
  if config.tune_on == "validation" and not train_images:
    eval_images = config.data.train_images // 10 or 1  # as `data.arrays.hold_out`
    train_images = config.data.train_images - eval_images
  train_images = train_images or config.data.train_images
  eval_images = eval_images or config.data.eval_images
  batch = config.batch_size
  if batch > train_images:
    raise UserError(
      f"config.batch_size={batch} is larger than the training set of {train_images} images: "
      f"set --config.batch_size to at most {train_images}."
    )
  if batch % devices:
    raise UserError(
      f"config.batch_size={batch} does not divide over {devices} devices: "
      f"set --config.batch_size to a multiple of {devices}."
    )
  if config.augment.cutmix and config.augment.cutmix_epochs and batch // devices % 2:
    raise UserError(
      f"config.batch_size={batch} gives each of {devices} devices {batch // devices} images, which "
      f"config.augment.cutmix cannot pair: set --config.batch_size to a multiple of {2 * devices}."
    )
  keep = config.proxy.keep
  if keep > batch or keep % devices:
    raise UserError(
      f"config.proxy.keep={keep}: it must be a multiple of the {devices} devices and at most "
      f"config.batch_size={batch}."
    )
  steps_per_epoch = train_images // batch  # the last, smaller batch is dropped, as myrtle does
  total = _steps(config.epochs, steps_per_epoch)
  phase = Phase(
    first_epoch=0,
    epochs=math.ceil(total / steps_per_epoch),
    first_step=0,
    steps_per_epoch=steps_per_epoch,
    image_size=config.data.image_size,
    batch_size=batch,
  )
  return Plan(
    phases=(phase,),
    total_steps=total,
    train_images=train_images,
    eval_images=eval_images,
    eval_batch_size=min(config.eval.batch_size, -(-eval_images // devices)),
    table=_table(config, total, steps_per_epoch),
    whiten_bias_steps=_steps(config.whitening.bias_epochs, steps_per_epoch),
    cutmix_steps=_steps(config.augment.cutmix_epochs, steps_per_epoch)
    if config.augment.cutmix
    else 0,
    proxy_every=config.proxy.every if config.proxy.keep else 0,
  )


def _steps(epochs: float, steps_per_epoch: int) -> int:
  # The fraction is that of the decimal number: 9.9 epochs of 10 steps are 99 steps, not 100.
  return math.ceil(Fraction(str(epochs)) * steps_per_epoch)


def _table(config: ConfigDict, total: int, steps_per_epoch: int) -> dict[str, np.ndarray]:
  schedule, average = config.schedule, config.average
  shape = dict(peak=schedule.peak, start=schedule.start, final=schedule.final)
  if schedule.read == "end":
    # One step in, as myrtle and imagenet18: step 0 has the position of its end.
    rate = schedules.triangle(
      (np.arange(total) + 1) / steps_per_epoch,
      total=config.epochs,
      warmup=schedule.warmup,
      flat=schedule.flat_epochs,
      **shape,
    )
  else:
    # In steps, with the peak at a whole one (airbench).
    rate = schedules.triangle(
      np.arange(total),
      total=total,
      warmup=math.floor(schedule.warmup * total) / total,
      flat=schedule.flat_epochs * steps_per_epoch,
      **shape,
    )
  columns = {"learning_rate": rate}
  if average.kind == "ema":
    columns["average_keep"] = schedules.average_keep(
      total, steps_per_epoch, decay=average.decay, every=average.every
    )
  if average.kind == "lookahead":
    columns["average_keep"], columns["average_pull"] = schedules.lookahead(
      total,
      steps_per_epoch,
      decay=average.decay,
      every=average.every,
      from_epoch=average.from_epoch,
    )
  if config.whitening.bias_epochs:
    columns["whiten_bias_rate"] = schedules.whiten_bias_rate(
      rate,
      factor=config.whitening.bias_rate,
      steps=_steps(config.whitening.bias_epochs, steps_per_epoch),
      falling=config.whitening.bias_falls,
    )
  if config.optimizer.name == "muon":
    columns["renormalize"] = schedules.renormalize(
      total, growing=config.optimizer.muon_renormalize == "growing"
    )
  return {name: column.astype(np.float32) for name, column in columns.items()}


# Smallest value of a field, and whether that value itself is allowed.
_LEAST = {
  "epochs": (0, False),
  "batch_size": (1, True),
  "runs": (1, True),
  "data.classes": (2, True),
  "data.image_size": (1, True),
  "data.train_images": (1, True),
  "data.eval_images": (1, True),
  "augment.crop_padding": (0, True),
  "augment.cutout": (0, True),
  "augment.brightness": (0, True),
  "augment.contrast": (0, True),
  "augment.cutmix": (0, True),
  "augment.cutmix_epochs": (0, True),
  "optimizer.momentum": (0, True),
  "optimizer.weight_decay": (0, True),
  "optimizer.bias_rate": (0, True),
  "optimizer.bias_decay": (0, True),
  "optimizer.head_rate": (0, True),
  "optimizer.head_decay": (0, True),
  "optimizer.muon_momentum": (0, True),
  "optimizer.muon_decay": (0, True),
  "schedule.peak": (0, False),
  "schedule.start": (0, True),
  "schedule.final": (0, True),
  "schedule.warmup": (0, True),
  "schedule.flat_epochs": (0, True),
  "average.decay": (0, True),
  "average.every": (1, True),
  "average.from_epoch": (0, True),
  "whitening.images": (1, True),
  "whitening.epsilon": (0, True),
  "whitening.bias_epochs": (0, True),
  "whitening.bias_rate": (0, True),
  "whitening.bias_decay": (0, True),
  "proxy.keep": (0, True),
  "proxy.every": (1, True),
  "eval.batch_size": (1, True),
  "eval.every_epochs": (1, True),
  "checkpoint.every_seconds": (0, True),
  "checkpoint.keep": (1, True),
  "records.cost_per_hour": (0, True),
  "label_smoothing": (0, True),
  "target": (0, True),
  "seed": (0, True),
}
_MOST = {
  "epochs": 100_000,  # the table of the steps is in memory
  "label_smoothing": 1,
  "target": 1,
  "schedule.warmup": 1,
  "optimizer.momentum": 1,
  "optimizer.muon_momentum": 1,
  "average.decay": 1,
  "seed": 2**31 - 1,
}
_CHOICES = {
  "precision": ("auto", "float32", "bfloat16", "float16"),
  "warmup": ("auto", "on", "off"),
  "tune_on": ("test", "validation"),
  "augment.flip": ("none", "random", "alternating"),
  "optimizer.name": ("sgd", "muon"),
  "optimizer.muon_renormalize": ("every_step", "growing"),
  "schedule.read": ("start", "end"),
  "average.kind": ("none", "ema", "lookahead"),
  "eval.views": ("center", "flip", "six", "selective"),
  "data.name": ("cifar10", "cifar100", "digits"),
}


def _check(config: ConfigDict) -> None:
  fields = dict(config_lib.leaves(config))
  for name, (least, allowed) in _LEAST.items():
    value = fields[name]
    if not math.isfinite(value) or value < least or (value == least and not allowed):
      relation = "at least" if allowed else "greater than"
      raise UserError(f"config.{name}={value}: it must be {relation} {least}.")
  for name, most in _MOST.items():
    if fields[name] > most:
      raise UserError(f"config.{name}={fields[name]}: it must be at most {most}.")
  for name, choices in _CHOICES.items():
    if fields[name] not in choices:
      raise UserError(f"config.{name}={fields[name]!r}: choose one of {', '.join(choices)}.")
  for name in ("data.mean", "data.std"):
    value = fields[name]
    numbers = all(isinstance(v, int | float) and math.isfinite(v) for v in value)
    if len(value) not in (0, 3) or not numbers:
      raise UserError(
        f"config.{name}={value}: give three numbers in units of 0 ... 255, "
        f"or () for the training set's own."
      )
  if any(v <= 0 for v in fields["data.std"]):
    raise UserError(f"config.data.std={fields['data.std']}: each must be greater than 0.")
  coefficients = config.optimizer.muon_coefficients
  if len(coefficients) != 3:
    raise UserError(f"config.optimizer.muon_coefficients={coefficients}: give three numbers.")
  for name in ("augment.cutout", "augment.crop_padding", "augment.cutmix"):
    if fields[name] >= config.data.image_size:
      raise UserError(
        f"config.{name}={fields[name]}: it must be less than "
        f"config.data.image_size={config.data.image_size}."
      )


def describe(config: ConfigDict, plan: Plan) -> str:
  """The plan as lines of text: phases, rates at their turning points, shapes, programs."""
  rate = plan.table["learning_rate"]
  turns = sorted({0, int(np.argmax(rate)), plan.total_steps - 1})
  lines = [f"{config.name}: {plan.total_steps} steps, {plan.examples(plan.total_steps)} images"]
  for phase in plan.phases:
    lines.append(
      f"epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}: "
      f"{phase.steps_per_epoch} steps an epoch, batch {phase.batch_size}, "
      f"{phase.image_size} x {phase.image_size} pixels"
    )
  lines += [f"rate at step {step + 1}: {rate[step]:.6g}" for step in turns]
  lines.append(f"evaluation: {plan.eval_images} images, views {config.eval.views}")
  lines += [f"program: {name}" for name in plan.programs()]
  return "\n".join(lines)


def _main(arguments: list[str]) -> None:
  config_lib.nothing_left(arguments)
  config = _FLAG.value
  if config is None:
    raise UserError("--config=FILE.py names the recipe whose plan is wanted.")
  print(describe(config, make_plan(config)))


if __name__ == "__main__":
  _FLAG = config_lib.define_config_flag()
  config_lib.run(_main)
