"""The fields that every recipe shares, with value, type, range and meaning, stated only here.

A recipe is a Python file whose `get_config(variant)` starts from `base()` and sets what differs:

  from jaxspeed.config import fields

  def get_config(variant=""):
    config = fields.base()
    config.epochs = 24.0
    return config

A config holds primitives only. Everything derived (steps, learning rates, shapes) is computed by
`planning/` after the overrides, so that `--config.epochs=10` rescales the whole schedule. `--help`
prints the strings below the fields. The fields of `config.model` are its family's (`families.py`).
"""

import os
from typing import Annotated, Any, Literal

from absl import flags
from ml_collections import ConfigDict, config_flags
from pydantic import Field

from jaxspeed.config import kinds
from jaxspeed.config.given import Given
from jaxspeed.config.schema import Group
from jaxspeed.errors import UserError


class Data(Group):
  """The data set."""

  feed: kinds.Text = "resident"
  """resident: the whole data set on every device; stream: images from disk (run.setup.FEEDS)"""
  name: kinds.Text = "cifar10"
  """cifar10, cifar100 or digits, unless data.path is set; one of --import; in a stream, TFDS's"""
  path: kinds.Text = ""
  """folder or archive: TFDS, the official binary files, or images.npy and labels.npy; for a stream
  a folder: train/CLASS/*.jpg and val/CLASS/*.jpg, CLASS/*.jpg, or TFDS"""
  copies: kinds.Text = ""
  """folder of a stream's resized copies; '': data.path with -sz appended"""
  cache: kinds.Text = ""
  """folder of cached uint8 arrays and image sizes; '': ~/.cache/jaxspeed/data"""
  classes: Annotated[int, Field(ge=2, le=1_000_000)] = 10
  """number of classes; unless it is set, images on disk and your own arrays decide it"""
  image_size: kinds.Side = 32
  """side of a training image in pixels; unless it is set, your own arrays decide it"""
  train_images: kinds.Images = 50_000
  """number of training images, for jaxspeed.plan and for synthetic data; other runs count them"""
  eval_images: kinds.Images = 10_000
  """number of evaluation images, as train_images"""
  mean: kinds.Mean = (125.31, 122.95, 113.87)
  """mean of each channel, 0 ... 255; (): computed from the training images"""
  std: kinds.Std = (62.99, 62.09, 66.70)
  """standard deviation of each channel; (): computed from the training images"""
  last_batch: Literal["drop", "keep", "carry_over"] = "drop"
  """images left after an epoch's last full batch; drop: they are left out; keep: they make a short
  batch (stream only); carry_over: they start the next epoch (resident only)"""
  antialias: bool = True
  """resize a stream's images with Pillow's bilinear filter, which widens as it shrinks an image;
  False: interpolate between the nearest pixels, TensorFlow's default"""
  on_error: Literal["skip", "raise"] = "skip"
  """skip: an unreadable image is replaced and reported; raise: it ends the run"""
  max_broken: kinds.Share = 0.01
  """largest share of unreadable images in a split; above 0, one image is always allowed"""
  read_threads: Annotated[int, Field(ge=1, le=1024)] = 64
  """number of threads that read a stream's images; many hide a network disk's latency"""
  synthetic: bool = False
  """noise in place of a stream's images, to measure the machine without its disk"""


class Phases(Group):
  """The phases of a streamed run, one value per phase; (): all phases use the field in []."""

  first_epoch: tuple[kinds.Epochs, ...] = ()
  """first epoch of each phase, from 0; values below 1 are shares of the run; (): one phase"""
  image_size: tuple[kinds.Side, ...] = ()
  """[data.image_size]"""
  batch_size: tuple[kinds.Batch, ...] = ()
  """[batch_size]"""
  min_scale: tuple[kinds.PositiveShare, ...] = ()
  """[augment.min_scale]"""
  copies: tuple[kinds.Pixels, ...] = ()
  """short side in pixels of the resized copies to read; 0: the original images [0]"""
  eval_mode: tuple[kinds.EvalMode, ...] = ()
  """[eval.mode]"""


class Pretrained(Group):
  """Pretrained initial weights, for ResNets and ViTs."""

  path: kinds.Text = ""
  """a .safetensors file with torchvision's or timm's parameter names"""
  head: Literal["keep", "new"] = "keep"
  """keep: use the file's last layer; new: initialise it at random, for other classes"""


class Augment(Group):
  """Augmentation of the training images."""

  crop_padding: kinds.Pixels = 0
  """pixels of reflection padding on each side, before a random crop"""
  min_scale: kinds.PositiveShare = 0.08
  """smallest share of an image's area in its random crop, for a stream"""
  flip: Literal["none", "random", "alternating"] = "none"
  """random: flip with probability 1/2; alternating: flip every other epoch"""
  cutout: kinds.Pixels = 0
  """side in pixels of the square that is set to the mean; 0: no cutout"""
  brightness: Annotated[float, Field(ge=0, le=1000)] = 0.0
  """largest number added to or subtracted from a normalised image, at random"""
  contrast: Annotated[float, Field(ge=0, le=1000)] = 0.0
  """largest difference from 1 of the random factor on a normalised image"""
  cutmix: kinds.Pixels = 0
  """side in pixels of the square pasted from another image of the batch; 0: no cutmix"""
  cutmix_epochs: kinds.Epochs = 0.0
  """number of epochs with cutmix, at the end of the run"""


class Optimizer(Group):
  """The optimizer and the factors of its parameter groups."""

  name: kinds.OptimizerName = "sgd"
  """muon: Muon for the kernels, SGD for the rest; or one that --import registers"""
  momentum: kinds.Share = 0.9
  """momentum of SGD and LARS"""
  momentum_segments: kinds.Segments = ()
  """momentum over the epochs, written as schedule.segments; replaces momentum"""
  nesterov: bool = True
  """whether momentum is Nesterov momentum"""
  rate_in_momentum: bool = False
  """v = m v + lr g (myrtle) instead of v = m v + g (PyTorch), with lr the learning rate"""
  weight_decay: kinds.Factor = 0.0
  """this times the weights is added to the gradient"""
  bias_rate: kinds.Factor = 1.0
  """factor on the learning rate of biases"""
  bias_decay: kinds.Factor = 1.0
  """factor on the weight decay of biases"""
  scale_decay: kinds.Factor = 1.0
  """factor on the weight decay of the scales of normalization layers"""
  head_rate: kinds.Factor = 1.0
  """factor on the learning rate of the last layer"""
  head_decay: kinds.Factor = 1.0
  """factor on the weight decay of the last layer"""
  decay_follows_rate: bool = False
  """lars: the trust ratio uses schedule.peak * weight_decay (Fujitsu) in place of weight_decay"""
  lars_eta: Annotated[float, Field(gt=0, le=1e6)] = 0.001
  """trust coefficient of LARS"""
  lars_epsilon: kinds.NotNegative = 0.0
  """added to the denominator of the trust ratio"""
  lars_clip: kinds.TrustRatios = ()
  """smallest and largest trust ratio; (): unbounded"""
  muon_momentum: kinds.Share = 0.6
  """momentum of Muon"""
  muon_decay: kinds.Factor = 0.0
  """decoupled weight decay of Muon, multiplied by the learning rate"""
  muon_coefficients: kinds.Coefficients = (3.4445, -4.7750, 2.0315)
  """coefficients of the Newton-Schulz polynomial"""
  muon_epsilon: Annotated[float, Field(gt=0, le=1e6)] = 1e-10
  """added to the norm by which Muon divides the mean loss's gradient"""
  muon_renormalize: Literal["every_step", "growing"] = "every_step"
  """when weights are scaled back to a fixed norm; growing: every 2 to 17 steps (hiverge)"""


class Schedule(Group):
  """The learning rate: linear from start to peak to final, then flat; or in segments."""

  segments: kinds.Segments = ()
  """((first epoch, end, learning rate there, and at the end), ...); replaces the other fields"""
  read: Literal["start", "end"] = "end"
  """point of a step at which the schedule is read: its end (myrtle) or its start (airbench)"""
  peak: Annotated[float, Field(gt=0, le=1e6)] = 0.1
  """highest learning rate; an override of it scales the segments of a recipe"""
  start: kinds.NotNegative = 0.0
  """initial learning rate, as a factor of the peak"""
  final: kinds.NotNegative = 0.0
  """final learning rate, as a factor of the peak"""
  warmup: kinds.Share = 0.2
  """share of the run after which the peak is reached"""
  flat_epochs: kinds.Epochs = 0.0
  """number of epochs at the end with the final learning rate"""
  power: Annotated[float, Field(gt=0, le=100)] = 1.0
  """exponent of the decay from the peak: 1 is linear, 2 the polynomial decay of LARS"""


class Average(Group):
  """The average of parameters and running statistics over the steps."""

  kind: Literal["none", "ema", "lookahead"] = "none"
  """ema: exponential moving average; lookahead: the model is also set back to its average"""
  decay: kinds.Share = 0.99
  """share of the average kept at each step; lookahead raises it from 0 to this"""
  reach: kinds.Share = 0.0
  """ema: longest window of the average, as a share of the steps so far; 0: unbounded"""
  every: Annotated[int, Field(ge=1, le=1_000_000)] = 1
  """steps from one update of the average to the next; each uses decay ** every"""
  from_epoch: Annotated[int, Field(ge=0, le=100_000)] = 0
  """epoch, counted from 0, in which lookahead begins"""


class Whitening(Group):
  """The first layer of models that begin with a whitening convolution."""

  images: kinds.Images = 10_000
  """number of training images, the first ones, from which the filters are computed"""
  epsilon: kinds.NotNegative = 1e-2
  """added to the eigenvalues of the patches' covariance"""
  centered: bool = False
  """whether the mean is subtracted before the covariance is computed"""
  bias_epochs: kinds.Epochs = 0.0
  """number of epochs, from the first, in which the whitening layer's bias is trained"""
  bias_rate: kinds.Factor = 1.0
  """factor on the learning rate of that bias"""
  bias_decay: kinds.Factor = 1.0
  """factor on the weight decay of that bias"""
  bias_falls: bool = False
  """whether that bias's learning rate decays to 0 over bias_epochs"""


class Proxy(Group):
  """A small model trained alongside, which selects the hard images of a batch (airbench)."""

  keep: Annotated[int, Field(ge=0, le=2**24)] = 0
  """images of a batch to train on, those with the highest loss, as many on each device; 0: no
  proxy"""
  every: Annotated[int, Field(ge=1, le=1_000_000)] = 4
  """steps from one update of the proxy to the next"""
  widths: tuple[kinds.Width, kinds.Width, kinds.Width] = (32, 64, 64)
  """channels of the proxy's three groups of layers"""


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
  """number of checkpoints that are kept"""
  on_error: Literal["continue", "stop"] = "continue"
  """whether a run continues or stops when a checkpoint cannot be written"""


class Records(Group):
  """Facts for the DAWNBench entry of a run."""

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
  label_smoothing: kinds.Share = 0.0
  """share of the target that is spread evenly over all classes"""
  target: kinds.Share = 0.94
  """accuracy to reach, as a fraction; the time when it is first reached is reported"""
  target_metric: Literal["top1", "top5"] = "top1"
  """accuracy that is compared with the target"""
  stop_at_target: bool = False
  """whether the run ends once the target is reached"""
  tune_on: Literal["test", "validation"] = "test"
  """images to evaluate on; validation: a tenth of the training images, held out"""
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
