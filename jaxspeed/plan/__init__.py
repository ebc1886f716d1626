"""From a config to the table of every step: the one place where values are derived and checked.

  python -m jaxspeed.plan --config=configs/cifar10_resnet9.py:ema

prints phases, steps, rates and shapes, with --csv every step; nothing is loaded or compiled for it.
"""

import dataclasses
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np
from absl import flags
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from jaxspeed import config as config_lib
from jaxspeed import schedules
from jaxspeed.errors import UserError


@dataclasses.dataclass(frozen=True)
class Phase:
  """Epochs of one image size and one global batch size.

  Attributes:
    images: seen in an epoch.
    min_scale: least share of an image's area in its random crop; of a stream, as the rest.
    copies: short side of the resized copies that are read; 0: the originals.
    eval_mode: of `validate`.
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


# Steps in a row, as a number and the kinds that are repeated so often. What an epoch consists of
# names its program.
Segments = tuple[tuple[int, tuple[StepKind, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run will do, step by step.

  `table` holds columns with one value a step: `learning_rate`, and, where the recipe has them,
  `average_keep` and `average_pull` (`averaging`), `momentum`, `whiten_bias_rate` and `renormalize`
  (`optim`).
  The programs take them as float32.
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
    seen = 0
    for phase in self.phases:
      steps = max(0, min(step - phase.first_step, phase.epochs * phase.steps_per_epoch))
      epochs, within = divmod(steps, phase.steps_per_epoch)
      seen += epochs * phase.images + within * phase.batch_size
    return seen

  def table32(self) -> dict[str, Float[np.ndarray, "steps"]]:
    """The table as the programs take it."""
    return {name: column.astype(np.float32) for name, column in self.table.items()}

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


def _mark(kind: StepKind) -> str:
  marks = {"whitening bias": kind.whiten_bias, "cutmix": kind.cutmix, "proxy": kind.proxy_learns}
  return "".join(f" with {name}" for name, marked in marks.items() if marked)


def make_plan(
  config: ConfigDict,
  *,
  devices: int = 1,
  train_images: int | Mapping[int, int] = 0,
  eval_images: int = 0,
) -> Plan:
  """The plan of a config.

  Args:
    config: as `config.base` describes it.
    devices: over which a batch is split.
    train_images: images of the training set, or of each of its resized copies by their short
      side; 0: as many as the config expects.
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
  columns = _columns(config)
  if not isinstance(train_images, Mapping):
    train_images = dict.fromkeys(columns["copies"], train_images)
  counts = [train_images[copies] for copies in columns["copies"]]
  phases, total = _phases(config, columns, counts)
  for phase, count in zip(phases, counts, strict=True):
    _check_batch(config, phase, devices=devices, train_images=count)
  first, last = phases[0], phases[-1]
  return Plan(
    phases=phases,
    total_steps=total,
    train_images=counts[0],
    eval_images=eval_images,
    eval_batch_size=min(config.eval.batch_size, -(-eval_images // devices)),
    table=_table(config, phases, total),
    whiten_bias_steps=_steps(config.whitening.bias_epochs, first.steps_per_epoch),
    cutmix_steps=_steps(config.augment.cutmix_epochs, last.steps_per_epoch)
    if config.augment.cutmix
    else 0,
    proxy_every=config.proxy.every if config.proxy.keep else 0,
    streams=config.data.feed == "stream",
  )


def _check_batch(config: ConfigDict, phase: Phase, *, devices: int, train_images: int) -> None:
  batch = phase.batch_size
  field = "phases.batch_size" if config.phases.batch_size else "batch_size"
  if batch > train_images:
    raise UserError(
      f"config.{field}={batch} is larger than the training set of {train_images} images: "
      f"set --config.{field} to at most {train_images}."
    )
  if batch % devices:
    raise UserError(
      f"config.{field}={batch} does not divide over {devices} devices: "
      f"set --config.{field} to a multiple of {devices}."
    )
  if batch // devices % config.accumulate:
    raise UserError(
      f"config.{field}={batch} gives each of {devices} devices {batch // devices} images, which "
      f"do not divide in config.accumulate={config.accumulate} parts: choose another number."
    )
  if config.proxy.keep // devices % config.accumulate:
    raise UserError(
      f"config.proxy.keep={config.proxy.keep} does not divide in "
      f"config.accumulate={config.accumulate} parts on {devices} devices: choose another number."
    )
  if config.augment.cutmix and config.augment.cutmix_epochs and batch // devices % 2:
    raise UserError(
      f"config.{field}={batch} gives each of {devices} devices {batch // devices} images, which "
      f"config.augment.cutmix cannot pair: set --config.{field} to a multiple of {2 * devices}."
    )
  keep = config.proxy.keep
  if keep > batch or keep % devices:
    raise UserError(
      f"config.proxy.keep={keep}: it must be a multiple of the {devices} devices and at most "
      f"config.{field}={batch}."
    )


def _phases(
  config: ConfigDict, columns: dict[str, tuple], counts: list[int]
) -> tuple[tuple[Phase, ...], int]:
  """The phases, and the steps of all; `counts` are images to choose from."""
  starts = columns["first_epoch"]
  phases, first_step = [], 0
  for index, start in enumerate(starts):
    batch, image_size = columns["batch_size"][index], columns["image_size"][index]
    train_images = counts[index]
    eval_size = config.eval.image_size or image_size
    if config.data.last_batch == "keep":
      steps_per_epoch, images = -(-train_images // batch), train_images
    else:
      steps_per_epoch = max(train_images // batch, 1)
      images = steps_per_epoch * batch
    if index + 1 < len(starts):
      epochs = starts[index + 1] - start
      steps = epochs * steps_per_epoch
    else:
      steps = _steps(Fraction(str(config.epochs)) - start, steps_per_epoch)
      epochs = -(-steps // steps_per_epoch)
    phases.append(
      Phase(
        first_epoch=start,
        epochs=epochs,
        first_step=first_step,
        steps_per_epoch=steps_per_epoch,
        image_size=image_size,
        batch_size=batch,
        images=images,
        min_scale=columns["min_scale"][index],
        copies=columns["copies"][index],
        eval_mode=columns["eval_mode"][index],
        eval_size=eval_size,
        eval_resize=int(eval_size * config.eval.resize),
      )
    )
    first_step += steps
  return tuple(phases), first_step


def _columns(config: ConfigDict) -> dict[str, tuple]:
  """The columns of `config.phases`, empty ones filled from the fields that hold for all phases."""
  given = {name: tuple(values) for name, values in config.phases.items()}
  starts = given["first_epoch"] or (0,)
  if starts[0] != 0 or list(starts) != sorted(set(starts)) or starts[-1] >= config.epochs:
    raise UserError(
      f"config.phases.first_epoch={starts}: epochs count from 0, ascend, and end before "
      f"config.epochs={config.epochs:g}."
    )
  rest = {
    "first_epoch": 0,
    "image_size": config.data.image_size,
    "batch_size": config.batch_size,
    "min_scale": config.augment.min_scale,
    "copies": 0,
    "eval_mode": config.eval.mode,
  }
  for name, values in given.items():
    if values and config.data.feed != "stream":
      raise UserError(
        f"config.phases.{name}={values}: only a stream has phases, set --config.data.feed=stream."
      )
    if values and len(values) != len(starts):
      raise UserError(
        f"config.phases.{name}={values} has {len(values)} values, but "
        f"config.phases.first_epoch={starts} has {len(starts)}: give one for each phase."
      )
    least = {"copies": 0, "min_scale": 1e-6}.get(name, 1)
    if name not in ("first_epoch", "eval_mode") and any(value < least for value in values):
      raise UserError(f"config.phases.{name}={values}: each must be at least {least}.")
  return {name: given[name] or (rest[name],) * len(starts) for name in rest}


def _steps(epochs: float | Fraction, steps_per_epoch: int) -> int:
  # The fraction is that of the decimal number: 9.9 epochs of 10 steps are 99 steps, not 100.
  return math.ceil(Fraction(str(epochs)) * steps_per_epoch)


def _rate(config: ConfigDict, phases: tuple[Phase, ...], total: int) -> np.ndarray:
  schedule = config.schedule
  if schedule.pieces:
    epoch, number, steps = _positions(phases, total)
    return schedules.pieces(epoch, number + 1, steps, schedule.pieces)
  shape = {name: schedule[name] for name in ("peak", "start", "final", "power")}
  if schedule.read == "end":
    # One step in, as myrtle and imagenet18: step 0 has the position of its end.
    epoch, number, steps = _positions(phases, total)
    return schedules.triangle(
      epoch + (number + 1) / steps,
      total=config.epochs,
      warmup=schedule.warmup,
      flat=schedule.flat_epochs,
      **shape,
    )
  # In steps, with the peak at a whole one (airbench).
  return schedules.triangle(
    np.arange(total),
    total=total,
    warmup=math.floor(schedule.warmup * total) / total,
    flat=schedule.flat_epochs * phases[-1].steps_per_epoch,
    **shape,
  )


def _positions(
  phases: tuple[Phase, ...], total: int
) -> tuple[Int[np.ndarray, "steps"], Int[np.ndarray, "steps"], Int[np.ndarray, "steps"]]:
  """Of each step its epoch, its number in it, both from 0, and how many a whole one has."""
  step = np.arange(total)
  index = np.searchsorted([phase.first_step for phase in phases], step, side="right") - 1
  first_step, first_epoch, steps = (
    np.array([getattr(phase, name) for phase in phases])[index]
    for name in ("first_step", "first_epoch", "steps_per_epoch")
  )
  within = step - first_step
  return first_epoch + within // steps, within % steps, steps


def _table(config: ConfigDict, phases: tuple[Phase, ...], total: int) -> dict[str, np.ndarray]:
  average, steps_per_epoch = config.average, phases[0].steps_per_epoch
  rate = _rate(config, phases, total)
  columns = {"learning_rate": rate}
  if config.optimizer.momentum_pieces:
    epoch, number, steps = _positions(phases, total)
    columns["momentum"] = schedules.pieces(
      epoch, number + 1, steps, config.optimizer.momentum_pieces
    )
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
  return columns


# Smallest value of a field, and whether that value itself is allowed.
_LEAST = {
  "epochs": (0, False),
  "batch_size": (1, True),
  "accumulate": (1, True),
  "runs": (1, True),
  "data.classes": (2, True),
  "data.image_size": (1, True),
  "data.train_images": (1, True),
  "data.eval_images": (1, True),
  "augment.crop_padding": (0, True),
  "augment.min_scale": (0, False),
  "augment.cutout": (0, True),
  "augment.brightness": (0, True),
  "augment.contrast": (0, True),
  "augment.cutmix": (0, True),
  "augment.cutmix_epochs": (0, True),
  "optimizer.momentum": (0, True),
  "optimizer.weight_decay": (0, True),
  "optimizer.bias_rate": (0, True),
  "optimizer.bias_decay": (0, True),
  "optimizer.scale_decay": (0, True),
  "optimizer.lars_eta": (0, False),
  "optimizer.lars_epsilon": (0, True),
  "optimizer.head_rate": (0, True),
  "optimizer.head_decay": (0, True),
  "optimizer.muon_momentum": (0, True),
  "optimizer.muon_decay": (0, True),
  "schedule.peak": (0, False),
  "schedule.start": (0, True),
  "schedule.final": (0, True),
  "schedule.warmup": (0, True),
  "schedule.flat_epochs": (0, True),
  "schedule.power": (0, False),
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
  "eval.image_size": (0, True),
  "eval.resize": (1, True),
  "eval.shapes": (1, True),
  "eval.multiple": (1, True),
  "checkpoint.every_seconds": (0, True),
  "checkpoint.keep": (1, True),
  "cost_per_hour": (0, True),
  "label_smoothing": (0, True),
  "loss_scale": (0, True),
  "target": (0, True),
  "seed": (0, True),
}
_MOST = {
  "epochs": 100_000,  # the table of the steps is in memory
  "label_smoothing": 1,
  "target": 1,
  "schedule.warmup": 1,
  "augment.min_scale": 1,
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
  "target_metric": ("top1", "top5"),
  "optimizer.name": ("sgd", "muon", "lars"),
  "optimizer.muon_renormalize": ("every_step", "growing"),
  "schedule.read": ("start", "end"),
  "average.kind": ("none", "ema", "lookahead"),
  "data.feed": ("resident", "stream"),
  "pretrained.head": ("keep", "new"),
  "data.last_batch": ("drop", "keep"),
  "data.on_error": ("skip", "raise"),
}


# What each feed has, of fields that both have.
_OF_FEED: dict[str, dict[str, tuple[str, ...]]] = {
  "resident": {
    "data.name": ("cifar10", "cifar100", "digits"),
    "eval.mode": ("center", "flip", "six", "selective"),
  },
  "stream": {"eval.mode": ("center", "flip", "five", "rect", "rect_flip")},
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
  for name, choices in (_CHOICES | _OF_FEED.get(config.data.feed, {})).items():
    if fields[name] not in choices:
      raise UserError(f"config.{name}={fields[name]!r}: choose one of {', '.join(choices)}.")
  modes = _OF_FEED[config.data.feed]["eval.mode"]
  if unknown := [mode for mode in config.phases.eval_mode if mode not in modes]:
    raise UserError(f"config.phases.eval_mode={unknown}: choose one of {', '.join(modes)}.")
  if config.data.feed == "stream" and config.warmup == "on":
    raise UserError("config.warmup='on': a stream has no warm-up, set --config.warmup=auto.")
  for name in ("data.mean", "data.std"):
    value = fields[name]
    numbers = all(isinstance(v, int | float) and math.isfinite(v) for v in value)
    if len(value) not in (0, 3) or not numbers:
      raise UserError(
        f"config.{name}={value}: give three numbers in units of 0 ... 255, "
        f"or () for the training set's own."
      )
    if config.data.feed == "stream" and not value:
      raise UserError(f"config.{name}=(): of a stream it is not computed, give three numbers.")
  if any(v <= 0 for v in fields["data.std"]):
    raise UserError(f"config.data.std={fields['data.std']}: each must be greater than 0.")
  coefficients = config.optimizer.muon_coefficients
  if len(coefficients) != 3:
    raise UserError(f"config.optimizer.muon_coefficients={coefficients}: give three numbers.")
  clip = config.optimizer.lars_clip
  if clip and not (len(clip) == 2 and 0 <= clip[0] <= clip[1]):
    raise UserError(
      f"config.optimizer.lars_clip={clip}: give the least and the most trust ratio, or ()."
    )
  for name in ("schedule.pieces", "optimizer.momentum_pieces"):
    _check_pieces(name, fields[name])
  for name in ("augment.cutout", "augment.crop_padding", "augment.cutmix"):
    if fields[name] >= config.data.image_size:
      raise UserError(
        f"config.{name}={fields[name]}: it must be less than "
        f"config.data.image_size={config.data.image_size}."
      )


def _check_pieces(name: str, pieces: tuple) -> None:
  starts = [piece[0] for piece in pieces if len(piece) == 4 and piece[0] < piece[1]]
  if len(starts) < len(pieces) or starts[:1] not in ([], [0]) or starts != sorted(set(starts)):
    raise UserError(
      f"config.{name}={pieces}: give pieces of four numbers (first epoch, end, value there, value "
      f"at the end), the first from epoch 0 on, in the order of their epochs."
    )
  if any(not 0 <= value < math.inf for piece in pieces for value in piece[2:]):
    raise UserError(f"config.{name}={pieces}: values must be at least 0.")


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
  lines.append(f"evaluation: {plan.eval_images} images, mode {config.eval.mode}")
  lines += [f"program: {name}" for name in plan.programs()]
  return "\n".join(lines)


def csv_lines(config: ConfigDict, plan: Plan) -> Iterator[str]:
  """A header and a line for every step: epochs from 0, steps in them from 1.

  The batch counts images that the step learns from, so that it is smaller in the short last step of
  an epoch. Numbers have all the digits that tell them from their neighbours.
  """
  yield "epoch,step_in_epoch,image_size,global_batch,learning_rate,momentum,min_scale"
  rate = plan.table["learning_rate"].tolist()
  momentum = plan.table.get("momentum", np.full(plan.total_steps, config.optimizer.momentum))
  seen = 0
  for step, (r, m) in enumerate(zip(rate, momentum.tolist(), strict=True)):
    phase, (epoch, within) = plan.phase_of(step), plan.epoch_of(step)
    before, seen = seen, plan.examples(step + 1)
    yield f"{epoch},{within + 1},{phase.image_size},{seen - before},{r!r},{m!r},{phase.min_scale!r}"


def _main(arguments: list[str]) -> None:
  config_lib.nothing_left(arguments)
  config = _FLAG.value
  if config is None:
    raise UserError("--config=FILE.py names the recipe whose plan is wanted.")
  plan = make_plan(config)
  try:
    print("\n".join(csv_lines(config, plan)) if _CSV.value else describe(config, plan), flush=True)
  except BrokenPipeError:
    # A reader such as `head` has enough; without this the interpreter complains as it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
  _FLAG = config_lib.define_config_flag()
  _CSV = flags.DEFINE_bool("csv", False, "Prints every step of the plan as comma-separated values.")
  config_lib.run(_main)
