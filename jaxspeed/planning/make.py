"""The plan of a config: the only place where its phases and step table are derived and checked.

`python -m jaxspeed.plan` prints the plan.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Int
from ml_collections import ConfigDict

from jaxspeed.config.registry import FAMILIES
from jaxspeed.data.hold_out import held_out_count, require_training_images
from jaxspeed.errors import UserError
from jaxspeed.planning import schedules
from jaxspeed.planning.own_schedule import evaluate, rates_of
from jaxspeed.planning.plan import Phase, Plan

# The table keeps a row per step in memory; ImageNet for 90 epochs at batch size 32 has 3.6 million.
MOST_STEPS = 10_000_000
# Size of one device's batch as uint8; its activations take a hundred times as much.
_MOST_BYTES = 32 * 10**9


def make_plan(
  config: ConfigDict,
  *,
  devices: int = 1,
  train_images: int | Mapping[int, int] = 0,
  eval_images: int = 0,
  schedule: Callable[..., Any] | None = None,
) -> Plan:
  """Return the plan of a config; it finds every mistake, but computes no learning rate yet.

  Args:
    config: a config with the fields of `config.fields.base`.
    devices: the number of devices that share a batch.
    train_images: the size of the training set, or the size of each resized copy by its short
      side; 0: the size that the config expects.
    eval_images: the size of the evaluation set; 0: the size that the config expects.
    schedule: a function from Python in place of `config.schedule`.

  Raises:
    UserError: a field has a value that no run can use, or as `rates_of`.
  """
  if config.tune_on == "validation" and not train_images:
    require_training_images(config.data.hold_out)
    eval_images = held_out_count(config.data.train_images, config.data.hold_out)
    train_images = config.data.train_images - eval_images
  eval_images = eval_images or config.data.eval_images
  rows = _rows(config)
  sizes = train_images or config.data.train_images
  counts = [sizes[row["copies"]] if isinstance(sizes, Mapping) else sizes for row in rows]
  phases, total = _phases(config, rows, counts)
  if total > MOST_STEPS:
    raise UserError(
      f"config.epochs={config.epochs:g} with config.batch_size={config.batch_size} takes {total:,} "
      f"steps, but a plan has at most {MOST_STEPS:,}: lower --config.epochs or raise "
      f"--config.batch_size."
    )
  for phase, count in zip(phases, counts, strict=True):
    _check_sides(config, phase)
    _check_batch(config, phase, devices=devices, train_images=count)
  rates = rates_of(schedule, total) if schedule else None
  bias_steps = _steps(config.whitening.bias_epochs, phases[0].steps_per_epoch)
  if config.compile == "quick" and bias_steps and not config.optimizer.clip_norm:
    bias_steps = total  # a learning rate of 0 holds it as well; its gradient would be clipped
  fixed, augment = config.copy_and_resolve_references(), config.augment
  cutmix_epochs = augment.cutmix_epochs if augment.cutmix else 0
  return Plan(
    phases=phases,
    total_steps=total,
    train_images=counts[0],
    eval_images=eval_images,
    eval_batch_size=min(config.eval.batch_size, -(-eval_images // devices)),
    tabulate=lambda: _table(fixed, phases, total, rates),
    whiten_bias_steps=bias_steps,
    cutmix_steps=_steps(cutmix_epochs, phases[-1].steps_per_epoch),
    proxy_every=config.proxy.every if config.proxy.keep else 0,
    streams=config.data.feed == "stream",
  )


def _check_sides(config: ConfigDict, phase: Phase) -> None:
  """Check that the model accepts the image sizes of a phase."""
  name = config.model.get("name", "")
  least = getattr(FAMILIES.get(name), "least_side", 1)
  trained = "phases.image_size" if config.phases.image_size else "data.image_size"
  evaluated = "eval.image_size" if config.eval.image_size else trained
  for field, side in ((trained, phase.image_size), (evaluated, phase.eval_size)):
    if side < least:
      raise UserError(
        f"config.{field}={side}: {name} needs images of at least {least} pixels a side: enlarge "
        "them, or choose another config.model."
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
  size = batch // devices * phase.image_size**2 * 3
  if size > _MOST_BYTES:
    raise UserError(
      f"config.{field}={batch} images of {phase.image_size} pixels a side take {size / 1e9:.0f} GB "
      f"per device: lower --config.{field} or the image size."
    )
  if batch // devices % config.accumulate:
    raise UserError(
      f"config.{field}={batch} gives each of {devices} devices {batch // devices} images, which "
      f"do not divide into config.accumulate={config.accumulate} micro-batches: choose another "
      f"number."
    )
  if config.proxy.keep // devices % config.accumulate:
    raise UserError(
      f"config.proxy.keep={config.proxy.keep} on {devices} devices does not divide into "
      f"config.accumulate={config.accumulate} micro-batches: choose another number."
    )
  augment = config.augment
  mixing = {"cutmix": augment.cutmix and augment.cutmix_epochs}
  mixing |= {name: augment[name] for name in ("mixup", "cutmix_alpha")}
  if any(mixing.values()) and batch // devices % 2:
    name = next(name for name, value in mixing.items() if value)
    raise UserError(
      f"config.{field}={batch} gives each of {devices} devices {batch // devices} images, which "
      f"config.augment.{name} cannot pair: set --config.{field} to a multiple of {2 * devices}."
    )
  keep = config.proxy.keep
  if keep > batch or keep % devices:
    raise UserError(
      f"config.proxy.keep={keep}: it must be a multiple of the {devices} devices and at most "
      f"config.{field}={batch}."
    )


def _phases(
  config: ConfigDict, rows: list[dict[str, Any]], counts: list[int]
) -> tuple[tuple[Phase, ...], int]:
  """Return the phases and their total steps; `counts` are the images available to each."""
  phases, first_step = [], 0
  ends = [*(row["first_epoch"] for row in rows[1:]), Fraction(str(config.epochs))]
  for row, end, count in zip(rows, ends, counts, strict=True):
    batch, eval_size = row["batch_size"], config.eval.image_size or row["image_size"]
    if config.data.last_batch == "keep":
      steps_per_epoch, images = -(-count // batch), count
    else:
      steps_per_epoch = max(count // batch, 1)
      images = steps_per_epoch * batch
    steps = _steps(end - row["first_epoch"], steps_per_epoch)
    phases.append(
      Phase(
        **row,
        epochs=-(-steps // steps_per_epoch),
        first_step=first_step,
        steps_per_epoch=steps_per_epoch,
        images=images,
        eval_size=eval_size,
        eval_resize=int(eval_size * config.eval.resize),
      )
    )
    first_step += steps
  return tuple(phases), first_step


def _rows(config: ConfigDict) -> list[dict[str, Any]]:
  """Return the fields of each phase; empty ones of `config.phases` are those of the whole run.

  Shares of the run become whole epochs, rounded down. If several phases then start at the same
  epoch, only the last one is kept, so that a short run ends like a long one.
  """
  given = {name: tuple(values) for name, values in config.phases.items() if values}
  if "first_epoch" not in given and config.data.feed == "stream":
    given = {}
  starts = given.get("first_epoch", (0,))
  shares = any(0 < start < 1 for start in starts)
  end = 1 if shares else config.epochs
  if starts[0] != 0 or list(starts) != sorted(set(starts)) or starts[-1] >= end:
    raise UserError(
      f"config.phases.first_epoch={starts}: epochs must start at 0, ascend, and stay below "
      f"config.epochs={config.epochs:g}; set --config.phases.first_epoch to such epochs, or to "
      f"shares of the run, which are below 1."
    )
  if not shares and any(start != int(start) for start in starts):
    raise UserError(
      f"config.phases.first_epoch={starts}: give whole epochs, or shares of the run below 1."
    )
  for name, values in given.items():
    if config.data.feed != "stream":
      raise UserError(
        f"config.phases.{name}={values}: only a stream has phases: set --config.data.feed=stream."
      )
    if len(values) != len(starts):
      raise UserError(
        f"config.phases.{name}={values} has {len(values)} values, but "
        f"config.phases.first_epoch={starts} has {len(starts)}: give one value per phase."
      )
  of_run = {
    "image_size": config.data.image_size,
    "batch_size": config.batch_size,
    "min_scale": config.augment.min_scale,
    "copies": 0,
    "eval_mode": config.eval.mode,
  }
  # 0.6 of 5 epochs is 3, which doubles may miss by their last digit.
  epochs = [int(start * config.epochs + 1e-9) if shares else int(start) for start in starts]
  rows = {}
  for number, epoch in enumerate(epochs):
    of_phase = {name: values[number] for name, values in given.items()}
    rows[epoch] = of_run | of_phase | {"first_epoch": epoch}
  return list(rows.values())


def _steps(epochs: float | Fraction, steps_per_epoch: int) -> int:
  # Exact in decimals: 9.9 epochs of 10 steps are 99 steps, where doubles would round up to 100.
  return math.ceil(Fraction(str(epochs)) * steps_per_epoch)


def _rate(config: ConfigDict, phases: tuple[Phase, ...], total: int) -> np.ndarray:
  fields = config.schedule.to_dict()
  rows, read = fields.pop("segments"), fields.pop("read")
  flat, warmup = fields.pop("flat_epochs"), fields.pop("warmup")
  by_epoch = fields["name"] in ("step", "exponential")
  if read == "start" and not rows and not by_epoch:
    # Positions are steps, and the peak is at a whole step, as in airbench.
    fields["warmup"] = math.floor(warmup * total) / total
    fields["flat"] = flat * phases[-1].steps_per_epoch
    return evaluate(schedules.learning_rate(total=total, **fields), np.arange(total))
  epoch, number, steps = _positions(phases, total)
  if rows:
    return schedules.segments(rows)(epoch, number + 1, steps)
  # As in myrtle and imagenet18, a step reads the schedule at its end, step 0 too.
  at = epoch + (number + (read == "end")) / steps
  if fields["name"] == "step":
    # Each step is on one stair: in its middle, where no rounding moves it to another.
    middle = epoch + (number + 0.5) / steps
    at = np.where(middle < warmup * config.epochs, at, middle)
  schedule = schedules.learning_rate(total=config.epochs, warmup=warmup, flat=flat, **fields)
  return evaluate(schedule, at)


def _positions(
  phases: tuple[Phase, ...], total: int
) -> tuple[Int[np.ndarray, "steps"], Int[np.ndarray, "steps"], Int[np.ndarray, "steps"]]:
  """Return each step's epoch, its number in it (both from 0), and the steps of a full epoch."""
  step = np.arange(total)
  index = np.searchsorted([phase.first_step for phase in phases], step, side="right") - 1
  first_step, first_epoch, steps = (
    np.array([getattr(phase, name) for phase in phases])[index]
    for name in ("first_step", "first_epoch", "steps_per_epoch")
  )
  step_in_epoch = step - first_step
  return first_epoch + step_in_epoch // steps, step_in_epoch % steps, steps


def _table(
  config: ConfigDict, phases: tuple[Phase, ...], total: int, rates: np.ndarray | None
) -> dict[str, np.ndarray]:
  """The table of a plan; `rates` replace the learning rates of the config."""
  average, steps_per_epoch = config.average, phases[0].steps_per_epoch
  epochs, numbers, steps = _positions(phases, total)
  rate = _rate(config, phases, total) if rates is None else rates
  columns = {"learning_rate": rate}
  if config.optimizer.momentum_segments:
    momentum = schedules.segments(config.optimizer.momentum_segments)
    columns["momentum"] = momentum(epochs, numbers + 1, steps)
  if average.kind == "ema":
    columns["average_keep"] = schedules.average_keep(
      numbers, decay=average.decay, every=average.every, reach=average.reach
    )
  if average.kind == "lookahead":
    columns["average_keep"], columns["average_pull"] = schedules.lookahead(
      epochs,
      decay=average.decay,
      every=average.every,
      from_epoch=average.from_epoch,
    )
  if config.whitening.bias_epochs:
    columns["whiten_bias_rate"] = schedules.whiten_bias_rate(
      rate,
      factor=config.whitening.bias_rate_factor,
      steps=_steps(config.whitening.bias_epochs, steps_per_epoch),
      falling=config.whitening.bias_falls,
    )
  if config.optimizer.name == "muon":
    columns["renormalize"] = schedules.renormalize(
      total, growing=config.optimizer.muon_renormalize == "growing"
    )
  return columns
