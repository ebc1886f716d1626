"""What the fields of a config may hold, one by one; `planning.make` checks them together."""

import math

from ml_collections import ConfigDict

from jaxspeed.config import stored
from jaxspeed.errors import UserError

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
  "optimizer.muon_epsilon": (0, False),
  "schedule.peak": (0, False),
  "schedule.start": (0, True),
  "schedule.final": (0, True),
  "schedule.warmup": (0, True),
  "schedule.flat_epochs": (0, True),
  "schedule.power": (0, False),
  "average.decay": (0, True),
  "average.reach": (0, True),
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
  "allreduce.group_mb": (0, True),
  "watchdog_seconds": (0, True),
  "heartbeat_seconds": (1, True),
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
  "average.reach": 1,
  "seed": 2**31 - 1,
}
_CHOICES: dict[str, tuple[str | bool, ...]] = {
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
  "data.on_error": ("skip", "raise"),
  "data.antialias": (True, False),
  "checkpoint.on_error": ("continue", "stop"),
  "allreduce.dtype": ("float32", "bfloat16", "float16"),
}


# What each feed has, of fields that both have.
_OF_FEED: dict[str, dict[str, tuple[str, ...]]] = {
  "resident": {
    "data.name": ("cifar10", "cifar100", "digits"),
    "data.last_batch": ("drop", "carry_over"),
    "eval.mode": ("center", "flip", "six", "selective"),
  },
  "stream": {
    "data.last_batch": ("drop", "keep"),
    "eval.mode": ("center", "flip", "five", "rect", "rect_flip"),
  },
}


def check(config: ConfigDict) -> None:
  """Makes sure that each field holds a value that it can have.

  Raises:
    UserError: one does not; the message says what it may be.
  """
  fields = dict(stored.leaves(config))
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
      named = ", ".join(map(str, choices))
      raise UserError(f"config.{name}={fields[name]!r}: choose one of {named}.")
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
  if wrong := [o for o in config.compiler_options if "=" not in str(o)]:
    raise UserError(f"config.compiler_options={wrong}: give options of XLA as 'NAME=VALUE'.")
  for name in ("schedule.pieces", "optimizer.momentum_pieces"):
    _check_pieces(name, fields[name])
  for name in ("schedule.pieces", "optimizer.momentum_pieces"):
    if fields[name] and fields[name][-1][1] != config.epochs:
      raise UserError(
        f"config.epochs={config.epochs:g}: config.{name} end with epoch {fields[name][-1][1]:g}, "
        f"they do not scale with the run; set --config.{name} to pieces of that length, and "
        f"--config.phases.first_epoch where the recipe has phases."
      )
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
