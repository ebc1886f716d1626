"""From a config to the table of every step: the one place where values are derived and checked.

  python -m jaxspeed.plan --config=configs/cifar10_resnet9.py:ema

prints phases, steps, rates and shapes; nothing is loaded or compiled for it.
"""

import dataclasses
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
class Plan:
  """What a run will do, step by step.

  `table` holds float32 columns with one value a step: `learning_rate`, and `average_keep` when
  the recipe averages.
  """

  phases: tuple[Phase, ...]
  total_steps: int
  train_images: int
  eval_images: int
  eval_batch_size: int
  table: dict[str, Float[np.ndarray, "steps"]]

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

  def programs(self) -> list[str]:
    """Names of the programs that a run compiles, each with its shape."""
    lengths = {
      (self.steps_in_epoch(e), self.phase_of(self.first_step_of(e))) for e in range(self.epochs)
    }
    names = ["init"]
    for steps, phase in sorted(lengths, key=lambda row: (row[1].first_step, -row[0])):
      shape = f"{phase.batch_size}x{phase.image_size}x{phase.image_size}x3"
      names.append(f"train {shape}, {steps} steps an epoch")
    return [
      *names,
      f"evaluate {self.eval_images} images, {self.eval_batch_size} a device at a time",
    ]


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
  steps_per_epoch = train_images // batch  # the last, smaller batch is dropped, as myrtle does
  # The fraction is that of the decimal number: 9.9 epochs of 10 steps are 99 steps, not 100.
  total = math.ceil(Fraction(str(config.epochs)) * steps_per_epoch)
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
  )


def _table(config: ConfigDict, total: int, steps_per_epoch: int) -> dict[str, np.ndarray]:
  schedule = config.schedule
  # Read one step in, as myrtle and imagenet18 do: step 0 has the position of its end.
  positions = (np.arange(total) + 1) / steps_per_epoch
  columns = {
    "learning_rate": schedules.triangle(
      positions,
      total=config.epochs,
      peak=schedule.peak,
      start=schedule.start,
      final=schedule.final,
      warmup=schedule.warmup,
      flat=schedule.flat_epochs,
    )
  }
  if config.average.decay:
    columns["average_keep"] = schedules.average_keep(
      total, steps_per_epoch, decay=config.average.decay, every=config.average.every
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
  "optimizer.momentum": (0, True),
  "optimizer.weight_decay": (0, True),
  "optimizer.bias_rate": (0, True),
  "optimizer.bias_decay": (0, True),
  "schedule.peak": (0, False),
  "schedule.start": (0, True),
  "schedule.final": (0, True),
  "schedule.warmup": (0, True),
  "schedule.flat_epochs": (0, True),
  "average.decay": (0, True),
  "average.every": (1, True),
  "whitening.images": (1, True),
  "whitening.epsilon": (0, True),
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
  "average.decay": 1,
  "seed": 2**31 - 1,
}
_CHOICES = {
  "precision": ("auto", "float32", "bfloat16", "float16"),
  "warmup": ("auto", "on", "off"),
  "eval.views": ("center", "flip"),
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
  for name in ("augment.cutout", "augment.crop_padding"):
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
