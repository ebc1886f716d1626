"""The fields that every recipe shares, each stated once with value, type, range and meaning.

A recipe is a Python file whose `get_config(variant)` starts from `base()` and sets what differs:

  from jaxspeed.config import fields

  def get_config(variant=""):
    config = fields.base()
    config.epochs = 24.0
    return config

A config holds primitives only. Everything derived (steps, learning rates, shapes) is computed by
`planning/` after the overrides, so that `--config.epochs=10` rescales the whole schedule. `--help`
prints the strings below the fields. The groups of fields are here, in `image_fields.py` and in
`training_fields.py`. The fields of `config.model` are its family's (`families.py`).
"""

import os
from typing import Annotated, Any, Literal

from absl import flags
from ml_collections import ConfigDict, config_flags
from pydantic import Field

from jaxspeed.config import kinds
from jaxspeed.config.given import Given
from jaxspeed.config.image_fields import Augment, Data, Phases, Pretrained
from jaxspeed.config.schema import Group
from jaxspeed.config.training_fields import Average, Optimizer, Proxy, Schedule, Whitening
from jaxspeed.errors import UserError


class Eval(Group):
  """Evaluation."""

  mode: kinds.EvalMode = "center"
  """which views of an image are evaluated: see `steps/eval_step.py`; per phase: phases.eval_mode"""
  batch_size: Annotated[int, Field(ge=1, le=2**20)] = 1000
  """images per device and step of an evaluation"""
  image_size: kinds.Pixels = 0
  """side of an evaluated image of a stream, in pixels; 0: the image size of the phase"""
  resize: Annotated[float, Field(ge=1, le=10)] = 1.14
  """short side of a stream's image before its crop, in multiples of the image size"""
  shapes: Annotated[int, Field(ge=1, le=1000)] = 16
  """largest number of shapes of rectangles"""
  multiple: Annotated[int, Field(ge=1, le=1024)] = 8
  """pixels of which the sides of rectangles are multiples"""
  every_epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
  """epochs from one evaluation to the next; the last epoch is always evaluated"""


class Allreduce(Group):
  """The all-reduce of the gradients, on several devices."""

  group_mb: kinds.NotNegative = 8.0
  """megabytes of gradients after which a group of layers is sent; 0: all layers at once"""
  dtype: Literal["float32", "bfloat16", "float16"] = "float32"
  """dtype in which gradients are sent and summed"""


class Checkpoint(Group):
  """Checkpoints."""

  every_seconds: Annotated[float, Field(ge=0, le=1e9)] = 60.0
  """seconds of training between two checkpoints; the end of a run is always saved"""
  keep: Annotated[int, Field(ge=1, le=1_000_000)] = 2
  """number of newest checkpoints that are kept"""
  keep_best: Literal["none", "top1", "top5", "macro_top1", "loss"] = "none"
  """metric of which the best evaluation's checkpoint is kept too, for --step=best; the result stays
  that of the last epoch: the best one is chosen on the evaluation images, which flatters it"""
  on_error: Literal["continue", "stop"] = "continue"
  """whether a run continues or stops when a checkpoint cannot be written"""


class Records(Group):
  """What follows a run, and facts for its DAWNBench entry."""

  loggers: kinds.Loggers = ("tensorboard",)
  """what follows the rows of metrics.jsonl: TensorBoard, Weights & Biases, Trackio; several as in
  "('tensorboard', 'wandb')"; (): nothing"""
  thumbnails: Annotated[int, Field(ge=0, le=32)] = 24
  """most images of a kind that a run leaves for its report, of at most 64 pixels a side: of the
  highest loss, correct ones, and of a training batch; 0: no thumbnails.npz"""
  author: kinds.Text = "jaxspeed"
  """author in the DAWNBench entry"""
  author_email: kinds.Text = "jaxspeed@example.org"
  """e-mail address in the DAWNBench entry"""
  code_url: kinds.Text = ""
  """address of the code in the DAWNBench entry"""


class Config(Group):
  """Every field of a config."""

  name: kinds.Name = ""
  """name of the run and of its folder"""
  seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
  """seed of initialisation, shuffling and augmentation"""
  runs: Annotated[int, Field(ge=1, le=10_000)] = 1
  """number of runs, which share one compilation; their seeds are seed, seed + 1, ..."""
  epochs: Annotated[float, Field(gt=0, le=100_000)] = 1.0
  """number of epochs; may be fractional: steps = ceil(epochs * steps per epoch)"""
  batch_size: kinds.Batch = 512
  """images in a batch, summed over all devices"""
  accumulate: Annotated[int, Field(ge=1, le=65_536)] = 1
  """micro-batches per device, run one after the other, each with its own batch norm"""
  precision: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float64"] = "auto"
  """auto: the fastest for the device; tf32: float32 with products that GPUs round to TF32;
  float64: for CPUs, to compare programs"""
  loss_scale: Annotated[float, Field(ge=0, le=1e38)] = 0.0
  """factor on the loss in float16; 0: dynamic, as large as gradients allow"""
  label_smoothing: kinds.ShareBelowOne = 0.0
  """share of the target that is spread evenly over all classes"""
  target: kinds.Share = 0.94
  """accuracy to reach, as a fraction; the time when it is first reached is reported; 0: none"""
  target_metric: Literal["top1", "top5"] = "top1"
  """accuracy that is compared with the target, and that patience watches"""
  stop_at_target: bool = False
  """whether the run ends once the target is reached"""
  patience: Annotated[int, Field(ge=0, le=100_000)] = 0
  """evaluations without a better target_metric after which the run ends; 0: it never ends early. An
  early end leaves out the low learning rates at the end of a schedule, which help most"""
  tune_on: Literal["test", "validation"] = "test"
  """images to evaluate on; validation: training images that are held out (data.hold_out)"""
  warmup: Literal["auto", "on", "off"] = "auto"
  """training on random labels before the clock starts; auto: on accelerators only"""
  cost_per_hour: Annotated[float, Field(ge=0, le=1e9)] = 0.0
  """price of all the hardware in USD; 0: not stated"""
  compile_cache: kinds.Text = ""
  """folder of compiled programs, not stored with the run; '': JAXSPEED_COMPILE_CACHE or
  ~/.cache/jaxspeed/programs"""
  data: Data = Data()
  phases: Phases = Phases()
  pretrained: Pretrained = Pretrained()
  augment: Augment = Augment()
  model: dict[str, Any] = {}
  """the model's name and fields"""
  optimizer: Optimizer = Optimizer()
  schedule: Schedule = Schedule()
  average: Average = Average()
  whitening: Whitening = Whitening()
  proxy: Proxy = Proxy()
  eval: Eval = Eval()
  allreduce: Allreduce = Allreduce()
  compiler_options: tuple[kinds.XlaOption, ...] = ()
  """XLA options for the training programs: ("NAME=VALUE", ...)"""
  command_buffers: bool = False
  """whether a GPU launches convolutions and loops from command buffers (CUDA graphs), as XLA does
  with other kernels by default; not timed yet"""
  deterministic: bool = False
  """whether a GPU uses deterministic kernels only, chosen without timing, so that a run and its
  resumption have the same bits: slower, how much depends on the GPU. CPUs need nothing for it"""
  checkpoint: Checkpoint = Checkpoint()
  watchdog_seconds: kinds.WatchdogSeconds = 600.0
  """seconds without progress after which a run is ended; 0: never"""
  heartbeat_seconds: Annotated[int, Field(ge=1, le=86_400)] = 30
  """seconds without a sign of life after which a process counts as lost"""
  records: Records = Records()
  given: Given = Given()


def base() -> ConfigDict:
  """Every shared field with its default; a recipe sets `name`, `model` and what differs.

  The config is locked: a recipe that assigns to an unknown field gets an error on that line.
  """
  return ConfigDict(Config().model_dump()).lock()


def imagenet() -> ConfigDict:
  """The base of ImageNet's recipes: data, ResNet-50, SGD without decay of norms, 93 % top-5.

  The bias of the last layer decays like its weights, as in the original recipes.
  """
  config = base()
  config.loss_scale = 1024.0
  config.target = 0.93
  config.target_metric = "top5"
  config.data.update(
    feed="stream",
    name="imagenet2012",
    classes=1000,
    image_size=224,
    train_images=1_281_167,
    eval_images=50_000,
    mean=(123.675, 116.28, 103.53),  # 0.485, 0.456, 0.406 of the range
    std=(58.395, 57.12, 57.375),  # 0.229, 0.224, 0.225
    last_batch="keep",
  )
  config.augment.flip = "random"
  config.model = dict(
    name="resnet",
    depth=50,
    width=64,
    zero_init=True,
    blurpool=False,
    head_init="normal",
    ghost_splits=1,
    norm_momentum=0.9,
  )
  config.optimizer.update(
    momentum=0.9, nesterov=False, weight_decay=1e-4, bias_decay=0.0, scale_decay=0.0
  )
  config.eval.update(batch_size=256, resize=1.14)
  return config


def variant_of(variant: str | None, variants: tuple[str, ...], file: str) -> str:
  """The variant after the colon of `--config=FILE:VARIANT`, or a UserError that lists them."""
  if variant in variants:
    return str(variant)
  raise UserError(
    f"{os.path.basename(file)} has no variant {variant!r}: write "
    f"--config={os.path.basename(file)}:NAME with NAME one of {', '.join(variants)}."
  )


def overridden() -> tuple[str, ...]:
  """Dotted names of the fields that the command line sets; call it after flags are parsed."""
  return tuple(config_flags.get_override_values(flags.FLAGS["config"]))
