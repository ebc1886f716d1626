"""The fields that every recipe shares: value, type, range and meaning, each stated here alone.

A recipe is a Python file whose `get_config(variant)` starts from `base()` and sets what differs:

  from jaxspeed.config import fields

  def get_config(variant=""):
    config = fields.base()
    config.epochs = 24.0
    return config

A config holds primitives only. Everything derived (steps, rates, shapes) is worked out by
`planning/` after the overrides, so that `--config.epochs=10` moves the whole schedule along.
`checks` refuses what does not fit in here, `--help` prints it. The fields of `config.model` are
those of the model that `config.model.name` names: see `families.py`.
"""

import os
from typing import Annotated, Any, Literal

from absl import flags
from ml_collections import ConfigDict, config_flags
from pydantic import Field

from jaxspeed.config import kinds
from jaxspeed.config.schema import Group
from jaxspeed.errors import UserError


class Data(Group):
  """The data set."""

  feed: kinds.Text = "resident"
  """resident: the whole data set on every device; stream: images from disk (run.setup.FEEDS)"""
  name: kinds.Text = "cifar10"
  """cifar10, cifar100, digits, where there is no path; for a stream the name of a TFDS set"""
  path: kinds.Text = ""
  """folder or archive: TFDS, official binary files, images.npy and labels.npy; for a stream a
  folder of train/CLASS/*.jpg and val/CLASS/*.jpg, of CLASS/*.jpg, or TFDS"""
  copies: kinds.Text = ""
  """folder of a stream's resized copies; '': the path with -sz behind it"""
  cache: kinds.Text = ""
  """folder of uint8 copies and of sizes; '': ~/.cache/jaxspeed/data"""
  classes: Annotated[int, Field(ge=2, le=1_000_000)] = 10
  """how many classes the data set has; images on disk and arrays of one's own decide it, unless it
  is set"""
  image_size: kinds.Side = 32
  """side of a training image in pixels; that of arrays of one's own, unless it is set"""
  train_images: kinds.Images = 50_000
  """what a plan without the data counts with"""
  eval_images: kinds.Images = 10_000
  """as train_images, for evaluation"""
  mean: kinds.Mean = (125.31, 122.95, 113.87)
  """mean of the pixels, 0 ... 255; (): the training set's own"""
  std: kinds.Std = (62.99, 62.09, 66.70)
  """standard deviation of the pixels; (): the training set's own"""
  last_batch: Literal["drop", "keep", "carry_over"] = "drop"
  """what no batch of an epoch takes; keep: a short batch, of a stream; carry_over: it goes to the
  next epoch, of a set in memory"""
  antialias: bool = True
  """resize images of a stream by Pillow's bilinear filter, as wide as what is shrunk; False:
  between the nearest pixels, TensorFlow's default"""
  on_error: Literal["skip", "raise"] = "skip"
  """skip: an image that cannot be read is replaced and named; raise: it ends the run"""
  max_broken: kinds.Share = 0.01
  """share of a split's images that may be unreadable; above 0, one image may always be"""
  read_threads: Annotated[int, Field(ge=1, le=1024)] = 64
  """images of a stream that are read at a time, which hides a network disk's latency"""
  synthetic: bool = False
  """noise in place of a stream: what the machine does without its disk"""


class Phases(Group):
  """Phases of a stream: columns with a value a phase; (): the field in [] in all of them."""

  first_epoch: tuple[kinds.Epochs, ...] = ()
  """first epoch of each phase, from 0; or its share of the run, below 1; (): there is one phase"""
  image_size: tuple[kinds.Side, ...] = ()
  """[data.image_size]"""
  batch_size: tuple[kinds.Batch, ...] = ()
  """[batch_size]"""
  min_scale: tuple[kinds.PositiveShare, ...] = ()
  """[augment.min_scale]"""
  copies: tuple[kinds.Pixels, ...] = ()
  """short side of the resized copies that are read; 0: the originals [0]"""
  eval_mode: tuple[kinds.EvalMode, ...] = ()
  """[eval.mode]"""


class Pretrained(Group):
  """Weights to begin with in place of random ones, of ResNets."""

  path: kinds.Text = ""
  """a .safetensors file under torchvision's or timm's names"""
  head: Literal["keep", "new"] = "keep"
  """keep: the file's last layer; new: a random one, for other classes"""


class Augment(Group):
  """Augmentation of the training images."""

  crop_padding: kinds.Pixels = 0
  """reflected pixels on each side, from which a random crop is taken"""
  min_scale: kinds.PositiveShare = 0.08
  """least share of an image's area in its random crop, for a stream"""
  flip: Literal["none", "random", "alternating"] = "none"
  """random: with probability 1/2; alternating: every other epoch"""
  cutout: kinds.Pixels = 0
  """side of the square that is set to the mean, in pixels"""
  brightness: Annotated[float, Field(ge=0, le=1000)] = 0.0
  """most that is added to a normalised image"""
  contrast: Annotated[float, Field(ge=0, le=1000)] = 0.0
  """most by which its scale differs from 1"""
  cutmix: kinds.Pixels = 0
  """side of the square that comes from another image of the batch, in pixels"""
  cutmix_epochs: kinds.Epochs = 0.0
  """epochs with cutmix, at the end of the run"""


class Optimizer(Group):
  """The optimizer and the factors of its parameter groups."""

  name: Literal["sgd", "muon", "lars"] = "sgd"
  """muon: Muon for the convolutions, SGD for the rest"""
  momentum: kinds.Share = 0.9
  """momentum of SGD and LARS"""
  momentum_segments: kinds.Segments = ()
  """the momentum as in schedule.segments, in place of the one number"""
  nesterov: bool = True
  """whether the gradient is taken where the momentum leads"""
  rate_in_momentum: bool = False
  """v = m v + rate g (myrtle) instead of v = m v + g (PyTorch)"""
  weight_decay: kinds.Factor = 0.0
  """times the weights, added to the gradient"""
  bias_rate: kinds.Factor = 1.0
  """times the rate, for biases"""
  bias_decay: kinds.Factor = 1.0
  """times the weight decay, for biases"""
  scale_decay: kinds.Factor = 1.0
  """times the weight decay, for the scales of norms"""
  head_rate: kinds.Factor = 1.0
  """times the rate, for the last layer"""
  head_decay: kinds.Factor = 1.0
  """times the weight decay, for the last layer"""
  decay_follows_rate: bool = False
  """lars: peak * weight decay stands in the ratio (Fujitsu)"""
  lars_eta: Annotated[float, Field(gt=0, le=1e6)] = 0.001
  """trust coefficient"""
  lars_epsilon: kinds.NotNegative = 0.0
  """added to the denominator of the trust ratio"""
  lars_clip: kinds.TrustRatios = ()
  """least and most trust ratio; (): unbounded"""
  muon_momentum: kinds.Share = 0.6
  """momentum of Muon"""
  muon_decay: kinds.Factor = 0.0
  """times the rate, taken from the weights"""
  muon_coefficients: kinds.Coefficients = (3.4445, -4.7750, 2.0315)
  """coefficients of the Newton-Schulz polynomial"""
  muon_epsilon: Annotated[float, Field(gt=0, le=1e6)] = 1e-10
  """added to the norm of the mean loss's gradient"""
  muon_renormalize: Literal["every_step", "growing"] = "every_step"
  """growing: every 2 to 17 steps (hiverge)"""


class Schedule(Group):
  """The learning rate: linear from start to peak to final, then flat; or in segments."""

  segments: kinds.Segments = ()
  """((first epoch, end, rate there, rate at the end), ...) in place of the rest"""
  read: Literal["start", "end"] = "end"
  """at which end of a step: end (myrtle), start (airbench)"""
  peak: Annotated[float, Field(gt=0, le=1e6)] = 0.1
  """highest rate"""
  start: kinds.NotNegative = 0.0
  """times the peak"""
  final: kinds.NotNegative = 0.0
  """times the peak"""
  warmup: kinds.Share = 0.2
  """fraction of the run at which the peak is reached"""
  flat_epochs: kinds.Epochs = 0.0
  """epochs at the end that keep the final rate"""
  power: Annotated[float, Field(gt=0, le=100)] = 1.0
  """power of the fall from the peak: 1 is linear, 2 LARS's polynomial"""


class Average(Group):
  """The average of parameters and running statistics over the steps."""

  kind: Literal["none", "ema", "lookahead"] = "none"
  """lookahead: the model goes back to its average"""
  decay: kinds.Share = 0.99
  """what the average keeps of itself a step; with lookahead it grows to that from 0"""
  reach: kinds.Share = 0.0
  """most of the steps so far that an ema reaches back over, as a share; 0: unbounded"""
  every: Annotated[int, Field(ge=1, le=1_000_000)] = 1
  """steps between two updates, each with decay ** every"""
  from_epoch: Annotated[int, Field(ge=0, le=100_000)] = 0
  """lookahead begins with the first update of this epoch"""


class Whitening(Group):
  """The first layer of models that begin with a whitening convolution."""

  images: kinds.Images = 10_000
  """first images of the training set, whose patches are decorrelated"""
  epsilon: kinds.NotNegative = 1e-2
  """added to the eigenvalues"""
  centered: bool = False
  """whether the covariance is about the mean"""
  bias_epochs: kinds.Epochs = 0.0
  """epochs from the first on in which a whitening layer's bias is trained"""
  bias_rate: kinds.Factor = 1.0
  """times the rate"""
  bias_decay: kinds.Factor = 1.0
  """times the weight decay"""
  bias_falls: bool = False
  """its rate falls to 0 over its own epochs"""


class Proxy(Group):
  """A small model that trains along and leaves the easy images out (airbench)."""

  keep: Annotated[int, Field(ge=0, le=2**24)] = 0
  """images of a batch, those with the highest loss, of each device as many; 0: no proxy"""
  every: Annotated[int, Field(ge=1, le=1_000_000)] = 4
  """steps between two in which it learns"""
  widths: tuple[kinds.Width, kinds.Width, kinds.Width] = (32, 64, 64)
  """channels of its three groups of layers"""


class Eval(Group):
  """Evaluation."""

  mode: kinds.EvalMode = "center"
  """what is evaluated of an image: see `steps/eval_step.py`; of phases, phases.eval_mode"""
  batch_size: Annotated[int, Field(ge=1, le=2**20)] = 1000
  """images that a device evaluates at a time"""
  image_size: kinds.Pixels = 0
  """side of an evaluated image of a stream; 0: that of the phase"""
  resize: Annotated[float, Field(ge=1, le=10)] = 1.14
  """times the image size: the short side of an image of a stream before it is cropped"""
  shapes: Annotated[int, Field(ge=1, le=1000)] = 16
  """most shapes of rectangles"""
  multiple: Annotated[int, Field(ge=1, le=1024)] = 8
  """the sides of rectangles are multiples of this, in pixels"""
  every_epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
  """epochs from one evaluation to the next; one more at the end"""


class Allreduce(Group):
  """The all-reduce of the gradients, where there are several devices."""

  group_mb: kinds.NotNegative = 8.0
  """megabytes at which a group of layers is closed and sent; 0: all in one"""
  dtype: Literal["float32", "bfloat16", "float16"] = "float32"
  """dtype in which gradients travel"""


class Checkpoint(Group):
  """Checkpoints."""

  every_seconds: Annotated[float, Field(ge=0, le=1e9)] = 60.0
  """seconds of training between two checkpoints; one more is saved at the end"""
  keep: Annotated[int, Field(ge=1, le=1_000_000)] = 2
  """how many checkpoints stay"""
  on_error: Literal["continue", "stop"] = "continue"
  """what happens where a checkpoint cannot be written"""


class Records(Group):
  """What a run writes about itself."""

  author: kinds.Text = "jaxspeed"
  """author of the DAWNBench entry"""
  author_email: kinds.Text = "jaxspeed@example.org"
  """address of the DAWNBench entry"""
  code_url: kinds.Text = ""
  """address of the code of the DAWNBench entry"""


class Config(Group):
  """Every field of a config."""

  name: kinds.Name = ""
  """names the run's folder and its rows"""
  seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
  """seed of initialisation, order and augmentation"""
  runs: Annotated[int, Field(ge=1, le=10_000)] = 1
  """runs N seeds (seed, seed + 1, ...) with one compilation"""
  epochs: Annotated[float, Field(gt=0, le=100_000)] = 1.0
  """may be fractional: steps = ceil(epochs * steps an epoch)"""
  batch_size: kinds.Batch = 512
  """images of a batch on all devices together"""
  accumulate: Annotated[int, Field(ge=1, le=65_536)] = 1
  """parts of a device's batch, one after the other, each with its own norms"""
  precision: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float64"] = "auto"
  """auto: the fastest that the device has; tf32: float32 whose products GPUs round to TF32;
  float64: on CPUs, to compare programs"""
  loss_scale: Annotated[float, Field(ge=0, le=1e38)] = 0.0
  """factor on the loss in float16; 0: as large as it will go"""
  label_smoothing: kinds.Share = 0.0
  """share of the target that all classes have alike"""
  target: kinds.Share = 0.94
  """accuracy as a fraction; the time at which it was first reached is reported"""
  target_metric: Literal["top1", "top5"] = "top1"
  """which accuracy the target is of"""
  stop_at_target: bool = False
  """whether the run ends once the target is reached"""
  tune_on: Literal["test", "validation"] = "test"
  """validation: a tenth of the training images, held out"""
  warmup: Literal["auto", "on", "off"] = "auto"
  """a run on random labels before the clock; auto: on accelerators"""
  cost_per_hour: Annotated[float, Field(ge=0, le=1e9)] = 0.0
  """USD of all the hardware; 0: not stated"""
  compile_cache: kinds.Text = ""
  """folder of compiled programs, not stored; '': JAXSPEED_COMPILE_CACHE or
  ~/.cache/jaxspeed/programs"""
  data: Data = Data()
  phases: Phases = Phases()
  pretrained: Pretrained = Pretrained()
  augment: Augment = Augment()
  model: dict[str, Any] = {}
  """name, and the fields of the model that it names"""
  optimizer: Optimizer = Optimizer()
  schedule: Schedule = Schedule()
  average: Average = Average()
  whitening: Whitening = Whitening()
  proxy: Proxy = Proxy()
  eval: Eval = Eval()
  allreduce: Allreduce = Allreduce()
  compiler_options: tuple[kinds.XlaOption, ...] = ()
  """options of XLA for the training programs: ("NAME=VALUE", ...)"""
  checkpoint: Checkpoint = Checkpoint()
  watchdog_seconds: kinds.WatchdogSeconds = 600.0
  """seconds after which a run that stands still is ended; 0: never"""
  heartbeat_seconds: Annotated[int, Field(ge=1, le=86_400)] = 30
  """seconds after which a process that is not heard of counts as lost"""
  records: Records = Records()


def base() -> ConfigDict:
  """Every shared field with its default; a recipe sets `model`, its name and own fields.

  It is locked: a name that is no field raises an error where the recipe assigns to it.
  """
  return ConfigDict(Config().model_dump()).lock()


def imagenet() -> ConfigDict:
  """What ImageNet's recipes share: the set, ResNet-50, SGD without decay of norms, 93 % top-5.

  The bias of the last layer decays with it, as in the original recipes.
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
    # 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225 of the range.
    mean=(123.675, 116.28, 103.53),
    std=(58.395, 57.12, 57.375),
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
  """Dotted names of the fields that the command line sets, once it is parsed."""
  return tuple(config_flags.get_override_values(flags.FLAGS["config"]))
