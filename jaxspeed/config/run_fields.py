"""The fields that every recipe shares, each stated once with value, type, range and meaning.

Those of images are in `image_fields.py`; `config.model` has its family's (`registry.py`).
"""

from typing import Annotated, Literal

from pydantic import Field

from jaxspeed.config import kinds
from jaxspeed.config import schema as on
from jaxspeed.config.image_fields import NO_MODEL, STREAM, Augment, Data, Phases, Pretrained
from jaxspeed.config.registry import Model
from jaxspeed.config.schema import COMMON, EVALUATE, PLACE, PREDICT, SWITCH, Group

_LARS = on.only("optimizer.name", "lars")
_NOT_LARS = on.unless("optimizer.name", "lars")
_MUON, _NOT_MUON = on.only("optimizer.name", "muon"), on.unless("optimizer.name", "muon")
_ADAMW = on.only("optimizer.name", "adamw")
_MOMENTUM = on.unless("optimizer.name", "adamw")
_NOT_BACKBONE = on.unless("pretrained.freeze", "backbone")
_ONE_MOMENTUM = on.unless("optimizer.momentum_segments")
_DECAYS = on.only("optimizer.weight_decay")
_STEPWISE = on.only("schedule.name", "step", "exponential")
_FALLING = on.only("schedule.name", "linear", "cosine")
_BIAS_TRAINED = on.only("whitening.bias_epochs")
_SCHEDULE = on.not_given("schedule")
_WARMED_UP = on.When(lambda c: c["schedule.warmup"] or c["schedule.start"] == 1, "set a warm-up")
_WHITENS = on.When(lambda c: c["model.whiten"] is not False, "set --config.model.whiten too")


class Optimizer(Group):
  """The optimizer and the factors of its parameter groups."""

  name: Annotated[kinds.OptimizerName, COMMON] = "sgd"
  """the optimizer (`opt`, `optim`); muon: Muon for kernels, SGD for the rest; or one of --import"""
  clip_norm: Annotated[kinds.NotNegative, SWITCH] = 0.0
  """largest L2 norm (`clip_grad`, `max_grad_norm`) of the gradient of all trained parameters
  together, which is scaled down to it, as torch's clip_grad_norm_ does; 0: no clipping"""
  layer_decay: Annotated[kinds.PositiveShare, SWITCH, _NOT_BACKBONE, _NOT_MUON] = 1.0
  """factor on the learning rate from a layer to the one before, as timm's --layer-decay: the last
  layer has the whole rate, and the blocks of a ResNet or ViT are layers; 1: none"""
  momentum: Annotated[kinds.ShareBelowOne, _MOMENTUM, _ONE_MOMENTUM] = 0.9
  """momentum of SGD and LARS"""
  momentum_segments: Annotated[kinds.Segments, _MOMENTUM] = ()
  """momentum over the epochs, written as schedule.segments; replaces momentum"""
  nesterov: Annotated[bool, _MOMENTUM] = True
  """whether momentum is Nesterov momentum"""
  rate_in_momentum: Annotated[bool, _MOMENTUM, _NOT_LARS] = False
  """v = m v + lr g (myrtle) instead of v = m v + g (PyTorch), with lr the learning rate"""
  weight_decay: Annotated[kinds.NotNegative, COMMON] = 0.0
  """this times the weights is added to the gradient (`wd`); adamw: to the step, before the learning
  rate (torch's and optax's AdamW)"""
  bias_rate_factor: Annotated[kinds.NotNegative, _NOT_LARS] = 1.0
  """factor on the learning rate of biases"""
  bias_decay_factor: Annotated[kinds.NotNegative, _DECAYS, _NOT_LARS] = 1.0
  """factor on the weight decay of biases, with adamw the last layer's too; adamw: 1 is torch's
  default, and 0 timm's"""
  scale_decay_factor: Annotated[
    kinds.NotNegative, _DECAYS, on.unless("optimizer.name", "lars", "muon")
  ] = 1.0
  """factor on the weight decay of the scales of normalization layers, and of embeddings; adamw: 1
  is torch's default, and 0 timm's"""
  head_rate_factor: Annotated[kinds.NotNegative, _NOT_LARS] = 1.0
  """factor on the learning rate of the last layer"""
  head_decay_factor: Annotated[kinds.NotNegative, _NOT_LARS, _DECAYS] = 1.0
  """factor on the weight decay of the last layer; its bias: see bias_decay_factor"""
  b1: Annotated[kinds.ShareBelowOne, _ADAMW] = 0.9
  """adamw: share that the mean of the gradients keeps in a step (`beta1`)"""
  b2: Annotated[kinds.ShareBelowOne, _ADAMW] = 0.999
  """adamw: share that the mean of their squares keeps in a step (`beta2`)"""
  epsilon: Annotated[kinds.Positive, _ADAMW] = 1e-8
  """adamw: added to the root of that mean"""
  decay_follows_rate: Annotated[bool, _LARS, _DECAYS] = False
  """lars: the trust ratio uses schedule.peak * weight_decay (Fujitsu) in place of weight_decay"""
  lars_eta: Annotated[kinds.Positive, _LARS] = 0.001
  """trust coefficient of LARS"""
  lars_epsilon: Annotated[kinds.NotNegative, _LARS] = 0.0
  """added to the denominator of the trust ratio"""
  muon_momentum: Annotated[kinds.Share, _MUON] = 0.6
  """momentum of Muon"""
  muon_decay: Annotated[kinds.NotNegative, _MUON] = 0.0
  """decoupled weight decay of Muon, multiplied by the learning rate"""
  muon_coefficients: Annotated[kinds.ThreeNumbers, _MUON] = (3.4445, -4.7750, 2.0315)
  """coefficients of the Newton-Schulz polynomial"""
  muon_epsilon: Annotated[kinds.Positive, _MUON] = 1e-10
  """added to the norm by which Muon divides the mean loss's gradient"""
  muon_renormalize: Annotated[Literal["every_step", "growing"], _MUON] = "every_step"
  """when weights are scaled back to a fixed norm; growing: every 2 to 17 steps (hiverge)"""


class Schedule(Group):
  """The learning rate: linear from start to peak, then down by its name; or in segments."""

  name: Annotated[Literal["linear", "cosine", "constant", "step", "exponential"], COMMON] = "linear"
  """the decay after the warm-up, by Optax (`scheduler`); step: times gamma after every step_size
  epochs, as torch's StepLR; exponential: the same, but continuously"""
  segments: Annotated[kinds.Segments, _SCHEDULE, SWITCH] = ()
  """((first epoch, end, learning rate there, and at the end), ...); replaces the other fields"""
  read: Literal["start", "end"] = "end"
  """point of a step at which the schedule is read: its end (myrtle) or its start (airbench)"""
  peak: Annotated[kinds.Positive, COMMON, _SCHEDULE, SWITCH] = 0.1
  """highest learning rate (`lr`, `learning_rate`, `base_lr`, `max_lr`); an override of it scales
  the segments of a recipe"""
  start: Annotated[kinds.NotNegative, _WARMED_UP] = 0.0
  """initial learning rate, as a factor of the peak"""
  final: Annotated[kinds.NotNegative, _FALLING] = 0.0
  """final learning rate of linear and cosine (`min_lr`), as a factor of the peak"""
  warmup: kinds.ShareBelowOne = 0.2
  """share of the run after which the peak is reached (`warmup_epochs`)"""
  flat_epochs: Annotated[kinds.Epochs, _FALLING] = 0.0
  """number of epochs at the end with the final learning rate"""
  power: Annotated[float, Field(gt=0, le=100), on.only("schedule.name", "linear")] = 1.0
  """exponent of the linear decay from the peak: 2 is the polynomial decay of LARS"""
  step_size: Annotated[float, Field(ge=0.001, le=100_000), _STEPWISE] = 30.0
  """epochs (`decay_epochs`) in which step and exponential multiply the learning rate by gamma"""
  gamma: Annotated[kinds.PositiveShare, _STEPWISE] = 0.1
  """factor on the learning rate in step_size epochs (`decay_rate`)"""


class Average(Group):
  """The average of parameters and running statistics over the steps."""

  kind: Annotated[Literal["none", "ema", "lookahead"], SWITCH] = "none"
  """`ema`: exponential moving average; lookahead: the model is also set back to its average"""
  decay: kinds.ShareBelowOne = 0.99
  """share of the average kept at each step (`ema_decay`); lookahead raises it from 0 to this"""
  reach: Annotated[kinds.Share, on.only("average.kind", "ema")] = 0.0
  """ema: longest window of the average, as a share of the steps so far, so that early steps keep
  less of it, as with timm's EMA warm-up; 0: unbounded"""
  every: kinds.Count = 1
  """steps from one update of the average to the next; each uses decay ** every"""
  from_epoch: Annotated[int, Field(ge=0, le=100_000), on.only("average.kind", "lookahead")] = 0
  """epoch, counted from 0, in which lookahead begins"""


class Whitening(Group):
  """The first layer of models that begin with a whitening convolution."""

  images: kinds.Count = 10_000
  """number of training images, the first ones, from which the filters are computed; no more than
  have 134 million pixels, and of a stream at most 256"""
  epsilon: kinds.NotNegative = 1e-2
  """added to the eigenvalues of the patches' covariance"""
  centered: bool = False
  """whether the mean is subtracted before the covariance is computed"""
  bias_epochs: kinds.Epochs = 0.0
  """number of epochs, from the first, in which the whitening layer's bias is trained"""
  bias_rate_factor: Annotated[kinds.NotNegative, _BIAS_TRAINED] = 1.0
  """factor on the learning rate of that bias"""
  bias_decay_factor: Annotated[kinds.NotNegative, _BIAS_TRAINED, _DECAYS] = 1.0
  """factor on the weight decay of that bias"""
  bias_falls: Annotated[bool, _BIAS_TRAINED] = False
  """whether that bias's learning rate decays to 0 over bias_epochs"""


class Proxy(Group):
  """A small model trained alongside, which selects the hard images of a batch (airbench)."""

  keep: Annotated[int, Field(ge=0, le=2**24), SWITCH] = 0
  """images of a batch to train on, those with the highest loss, as many on each device; 0: no
  proxy"""
  every: kinds.Count = 4
  """steps from one update of the proxy to the next"""
  widths: tuple[kinds.Width, kinds.Width, kinds.Width] = (32, 64, 64)
  """channels of the proxy's three groups of layers"""


class Eval(Group):
  """Evaluation."""

  mode: Annotated[kinds.EvalMode, on.by_phase("eval.mode", "eval_mode"), COMMON, PREDICT] = "center"
  """views whose logits are averaged (`tta`): center; flip: with its flipped copy; six: and both
  moved by a pixel to two corners; selective: six for the least confident quarter of the images
  (predict uses six for each); of streams also rect, rect_flip, five; per phase: phases.eval_mode"""
  batch_size: Annotated[int, Field(ge=1, le=2**20), PREDICT] = 1000
  """images per device and step of an evaluation"""
  image_size: Annotated[kinds.Pixels, STREAM, PREDICT] = 0
  """side of an evaluated image of a stream, in pixels; 0: the image size of the phase"""
  resize: Annotated[float, Field(ge=1, le=10), STREAM, PREDICT] = 1.14
  """short side of a stream's image before its crop, in multiples of the image size"""
  shapes: Annotated[int, Field(ge=1, le=1000), STREAM] = 16
  """largest number of shapes of the rectangles of rect and rect_flip"""
  every_epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
  """epochs from one evaluation to the next; the last epoch is always evaluated"""


class Allreduce(Group):
  """The all-reduce of the gradients, on several devices."""

  group_mb: Annotated[kinds.NotNegative, PLACE] = 8.0
  """megabytes of gradients after which a group of layers is sent; 0: all layers at once"""
  dtype: Literal["float32", "bfloat16", "float16"] = "float32"
  """dtype in which gradients are sent and summed"""


class Checkpoint(Group):
  """Checkpoints."""

  every_seconds: kinds.NotNegative = 60.0
  """seconds of training between two checkpoints (`save_every`); the end of a run is always saved"""
  keep: kinds.Count = 2
  """number of newest checkpoints that are kept"""
  keep_best: Literal["none", "top1", "top5", "macro_top1", "loss"] = "none"
  """metric of which the best evaluation's checkpoint is kept too (`save_best`), for --step=best;
  the result stays that of the last epoch: the best one is chosen on the evaluation images, which
  flatters it"""
  on_error: Literal["continue", "stop"] = "continue"
  """whether a run continues or stops when a checkpoint cannot be written"""


class Records(Group):
  """What follows a run, and facts for its DAWNBench entry."""

  loggers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
  """what follows the rows of metrics.jsonl besides TensorBoard: Weights & Biases, Trackio; both as
  in "('wandb', 'trackio')"; (): nothing, TensorBoard neither"""
  thumbnails: Annotated[int, Field(ge=0, le=32)] = 24
  """most images of a kind that a run leaves for its report, of at most 64 pixels a side: of the
  highest loss, correct ones, and of a training batch; 0: no thumbnails.npz"""
  note: kinds.Text = ""
  """a sentence that plan and train print: what a recipe chose and why, or what a run is for"""
  author: kinds.Text = "jaxspeed"
  """author in the DAWNBench entry"""
  author_email: kinds.Text = "jaxspeed@example.org"
  """e-mail address in the DAWNBench entry"""
  code_url: kinds.Text = ""
  """address of the code in the DAWNBench entry"""


class Given(Group):
  """Objects that `jaxspeed.fit` was given in place of fields, in words; no command sets them."""

  model: kinds.Text = ""
  optimizer: kinds.Text = ""
  schedule: kinds.Text = ""
  data: kinds.Text = ""


class Config(Group):
  """Every field of a config; a family adds its own to those of `config.model`."""

  name: kinds.Name = ""
  """name of the run and of its folder"""
  seed: Annotated[int, Field(ge=0, le=2**31 - 1), COMMON] = 0
  """seed of initialisation, shuffling and augmentation (`random_seed`)"""
  runs: Annotated[int, Field(ge=1, le=10_000)] = 1
  """number of runs, which share one compilation; their seeds are seed, seed + 1, ..."""
  epochs: Annotated[float, Field(gt=0, le=100_000), COMMON] = 1.0
  """number of epochs; may be fractional: steps = ceil(epochs * steps per epoch)"""
  batch_size: Annotated[kinds.Count, COMMON, on.by_phase("batch_size", "batch_size", 0)] = 512
  """images in a `batch` (`bs`), summed over all devices"""
  accumulate: kinds.Count = 1
  """micro-batches per device, one after the other, each with its own batch norm (`grad_accum`,
  `gradient_accumulation_steps`)"""
  precision: Annotated[kinds.Precision, COMMON, PREDICT] = "auto"
  """auto: the fastest for the device (`amp`, `fp16`, `dtype`); tf32: float32 with products that
  GPUs round to TF32; float64: for CPUs, to compare programs"""
  loss_scale: Annotated[float, Field(ge=0, le=1e38), on.only("precision", "auto", "float16")] = 0.0
  """factor on the loss in float16; 0: dynamic, as large as gradients allow"""
  loss: kinds.LossName = "cross_entropy"
  """loss of training; or one that --import registers. Evaluations report the cross entropy"""
  label_smoothing: Annotated[kinds.ShareBelowOne, on.only("loss", "cross_entropy")] = 0.0
  """share of the target that is spread evenly over all classes"""
  target: kinds.Share = 0.94
  """accuracy to reach, as a fraction; the time when it is first reached is reported; 0: none"""
  target_metric: Literal["top1", "top5"] = "top1"
  """accuracy that is compared with the target, and that patience watches"""
  stop_at_target: Annotated[bool, on.only("target")] = False
  """whether the run ends once the target is reached"""
  patience: Annotated[int, Field(ge=0, le=100_000)] = 0
  """evaluations without a better target_metric after which the run ends (`early_stopping`); 0: it
  never ends early. An early end leaves out the low learning rates at the end of a schedule, which
  help most"""
  tune_on: Annotated[Literal["test", "validation"], EVALUATE] = "test"
  """images to evaluate on; validation: training images that are held out (data.hold_out)"""
  warmup: Annotated[Literal["auto", "on", "off"], on.unless("data.feed", "stream")] = "auto"
  """training on random labels before the clock starts; auto: on accelerators only"""
  cost_per_hour: Annotated[kinds.NotNegative, PLACE] = 0.0
  """price of all the hardware in USD; 0: not stated"""
  continue_from: kinds.Text = ""
  """folder of a run whose weights, optimizer and averages a new run begins with (`resume_from`);
  epochs and learning rates are the new run's. For its weights only, see pretrained.path"""
  given: Given = Given()
  data: Annotated[Data, EVALUATE] = Data()
  phases: Annotated[Phases, on.only("phases.first_epoch"), EVALUATE] = Phases()
  pretrained: Annotated[Pretrained, NO_MODEL, on.only("pretrained.path")] = Pretrained()
  augment: Augment = Augment()
  optimizer: Annotated[Optimizer, on.not_given("optimizer")] = Optimizer()
  schedule: Annotated[Schedule, _SCHEDULE, on.unless("schedule.segments")] = Schedule()
  average: Annotated[Average, on.unless("average.kind", "none")] = Average()
  whitening: Annotated[Whitening, _WHITENS] = Whitening()
  proxy: Annotated[Proxy, on.only("proxy.keep")] = Proxy()
  eval: Annotated[Eval, EVALUATE] = Eval()
  allreduce: Allreduce = Allreduce()
  compile: Annotated[Literal["full", "quick"], PREDICT] = "full"
  """quick: to try things, programs that a CPU compiles in half of the time (docs/training.md)"""
  compiler_options: tuple[kinds.XlaOption, ...] = ()
  """XLA options for the training programs: ("NAME=VALUE", ...)"""
  conv_fusion: Literal["off", "on", "auto"] = "off"
  """whether a GPU adds, masks and offsets in cuDNN's graphs of convolutions (docs/training.md);
  auto: on GPUs for which results/ measures that it is faster, none so far"""
  deterministic: bool = False
  """whether a GPU uses deterministic kernels only, chosen without timing, so that a run and its
  resumption have the same bits: slower, how much depends on the GPU. CPUs need nothing for it"""
  checkpoint: Annotated[Checkpoint, PLACE] = Checkpoint()
  watchdog_seconds: Annotated[kinds.NotNegative, PLACE] = 600.0
  """seconds without progress after which a run is ended; 0: never"""
  heartbeat_seconds: Annotated[int, Field(ge=1, le=86_400), PLACE] = 30
  """seconds without a sign of life after which a process counts as lost"""
  records: Annotated[Records, PLACE] = Records()
  model: Annotated[Model, PREDICT, NO_MODEL]
