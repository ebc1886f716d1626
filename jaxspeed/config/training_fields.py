"""The fields of training: optimizer, learning rate, average, whitening layer, proxy."""

from typing import Annotated, Literal

from pydantic import Field

from jaxspeed.config import kinds
from jaxspeed.config import schema as on
from jaxspeed.config.registry import FAMILIES
from jaxspeed.config.schema import Also, Group, Mark

_LARS = on.only("optimizer.name", "lars")
_NOT_LARS = on.unless("optimizer.name", "lars")
_MUON = on.only("optimizer.name", "muon")
_ADAMW = on.only("optimizer.name", "adamw")
_MOMENTUM = on.unless("optimizer.name", "adamw")
_DECAYS = on.only("optimizer.weight_decay")
_STEPWISE = on.only("schedule.name", "step", "exponential")
_FALLING = on.only("schedule.name", "linear", "cosine")
_BIAS_TRAINED = on.only("whitening.bias_epochs")


def whitens(c: on.Values) -> bool:
  """Whether a model begins with a whitening layer."""
  # One of the user's own does if it has the method.
  default = hasattr(FAMILIES.get(c["model.name"]), "init_from_images")
  return default if c["model.whiten"] is None else c["model.whiten"]


class Optimizer(Group):
  """The optimizer and the factors of its parameter groups."""

  name: Annotated[kinds.OptimizerName, Also("opt optim"), Mark.COMMON] = "sgd"
  """muon: Muon for the kernels, SGD for the rest; or one that --import registers"""
  clip_norm: Annotated[kinds.NotNegative, Also("clip_grad grad_clip_norm max_grad_norm")] = 0.0
  """largest L2 norm of the gradient of all trained parameters together, which is scaled down to it,
  as torch's clip_grad_norm_ does; 0: no clipping"""
  layer_decay: Annotated[kinds.PositiveShare, on.unless("pretrained.freeze", "backbone")] = 1.0
  """factor on the learning rate from a layer to the one before, as timm's --layer-decay: the last
  layer has the whole rate, and the blocks of a ResNet or ViT are layers; 1: none"""
  momentum: Annotated[kinds.ShareBelowOne, _MOMENTUM, on.unless("optimizer.momentum_segments")] = (
    0.9
  )
  """momentum of SGD and LARS"""
  momentum_segments: Annotated[kinds.Segments, _MOMENTUM] = ()
  """momentum over the epochs, written as schedule.segments; replaces momentum"""
  nesterov: Annotated[bool, _MOMENTUM] = True
  """whether momentum is Nesterov momentum"""
  rate_in_momentum: Annotated[bool, _MOMENTUM, _NOT_LARS] = False
  """v = m v + lr g (myrtle) instead of v = m v + g (PyTorch), with lr the learning rate"""
  weight_decay: Annotated[kinds.Factor, Also("wd"), Mark.COMMON] = 0.0
  """this times the weights is added to the gradient; adamw: to the step, before the learning rate
  (torch's and optax's AdamW)"""
  bias_rate_factor: Annotated[kinds.Factor, _NOT_LARS, Also("bias_rate")] = 1.0
  """factor on the learning rate of biases"""
  bias_decay_factor: Annotated[kinds.Factor, _DECAYS, _NOT_LARS, Also("bias_decay")] = 1.0
  """factor on the weight decay of biases, with adamw the last layer's too; adamw: 1 is torch's
  default, and 0 timm's"""
  scale_decay_factor: Annotated[
    kinds.Factor,
    Also("scale_decay"),
    _DECAYS,
    on.unless("optimizer.name", "lars", "muon"),
  ] = 1.0
  """factor on the weight decay of the scales of normalization layers, and of embeddings; adamw: 1
  is torch's default, and 0 timm's"""
  head_rate_factor: Annotated[kinds.Factor, _NOT_LARS, Also("head_rate")] = 1.0
  """factor on the learning rate of the last layer"""
  head_decay_factor: Annotated[kinds.Factor, _NOT_LARS, _DECAYS, Also("head_decay")] = 1.0
  """factor on the weight decay of the last layer; its bias: see bias_decay_factor"""
  b1: Annotated[kinds.ShareBelowOne, _ADAMW, Also("beta1")] = 0.9
  """adamw: share that the mean of the gradients keeps in a step"""
  b2: Annotated[kinds.ShareBelowOne, _ADAMW, Also("beta2")] = 0.999
  """adamw: share that the mean of their squares keeps in a step"""
  epsilon: Annotated[kinds.Positive, _ADAMW] = 1e-8
  """adamw: added to the root of that mean"""
  decay_follows_rate: Annotated[bool, _LARS, _DECAYS] = False
  """lars: the trust ratio uses schedule.peak * weight_decay (Fujitsu) in place of weight_decay"""
  lars_eta: Annotated[kinds.Positive, _LARS] = 0.001
  """trust coefficient of LARS"""
  lars_epsilon: Annotated[kinds.NotNegative, _LARS] = 0.0
  """added to the denominator of the trust ratio"""
  lars_clip: Annotated[kinds.TrustRatios, _LARS] = ()
  """smallest and largest trust ratio; (): unbounded"""
  muon_momentum: Annotated[kinds.Share, _MUON] = 0.6
  """momentum of Muon"""
  muon_decay: Annotated[kinds.Factor, _MUON] = 0.0
  """decoupled weight decay of Muon, multiplied by the learning rate"""
  muon_coefficients: Annotated[kinds.Coefficients, _MUON] = (3.4445, -4.7750, 2.0315)
  """coefficients of the Newton-Schulz polynomial"""
  muon_epsilon: Annotated[kinds.Positive, _MUON] = 1e-10
  """added to the norm by which Muon divides the mean loss's gradient"""
  muon_renormalize: Annotated[Literal["every_step", "growing"], _MUON] = "every_step"
  """when weights are scaled back to a fixed norm; growing: every 2 to 17 steps (hiverge)"""


class Schedule(Group):
  """The learning rate: linear from start to peak, then down by its name; or in segments."""

  name: Annotated[
    Literal["linear", "cosine", "constant", "step", "exponential"],
    Also("lr_scheduler sched scheduler"),
    Mark.COMMON,
  ] = "linear"
  """the decay after the warm-up, by Optax; step: times gamma after every step_size epochs, as
  torch's StepLR; exponential: the same, but continuously"""
  segments: kinds.Segments = ()
  """((first epoch, end, learning rate there, and at the end), ...); replaces the other fields"""
  read: Literal["start", "end"] = "end"
  """point of a step at which the schedule is read: its end (myrtle) or its start (airbench)"""
  peak: Annotated[kinds.Positive, Also("base_lr learning_rate lr max_lr"), Mark.COMMON] = 0.1
  """highest learning rate; an override of it scales the segments of a recipe"""
  start: Annotated[
    kinds.NotNegative,
    on.When(lambda c: c["schedule.warmup"] or c["schedule.start"] == 1, "set a warm-up too"),
  ] = 0.0
  """initial learning rate, as a factor of the peak"""
  final: Annotated[kinds.NotNegative, _FALLING, Also("min_lr")] = 0.0
  """final learning rate of linear and cosine, as a factor of the peak"""
  warmup: Annotated[kinds.Share, Also("warmup_epochs")] = 0.2
  """share of the run after which the peak is reached"""
  flat_epochs: Annotated[kinds.Epochs, _FALLING] = 0.0
  """number of epochs at the end with the final learning rate"""
  power: Annotated[float, Field(gt=0, le=100), on.only("schedule.name", "linear")] = 1.0
  """exponent of the linear decay from the peak: 2 is the polynomial decay of LARS"""
  step_size: Annotated[float, Field(ge=0.001, le=100_000), _STEPWISE, Also("decay_epochs")] = 30.0
  """epochs after which step and exponential have multiplied the learning rate by gamma"""
  gamma: Annotated[kinds.PositiveShare, _STEPWISE, Also("decay_rate")] = 0.1
  """factor on the learning rate in step_size epochs"""


class Average(Group):
  """The average of parameters and running statistics over the steps."""

  kind: Annotated[Literal["none", "ema", "lookahead"], Also("ema")] = "none"
  """ema: exponential moving average; lookahead: the model is also set back to its average"""
  decay: Annotated[kinds.ShareBelowOne, Also("ema_decay")] = 0.99
  """share of the average kept at each step; lookahead raises it from 0 to this"""
  reach: Annotated[kinds.Share, on.only("average.kind", "ema")] = 0.0
  """ema: longest window of the average, as a share of the steps so far, so that early steps keep
  less of it, as with timm's EMA warm-up; 0: unbounded"""
  every: kinds.Every = 1
  """steps from one update of the average to the next; each uses decay ** every"""
  from_epoch: Annotated[int, Field(ge=0, le=100_000), on.only("average.kind", "lookahead")] = 0
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
  bias_rate_factor: Annotated[kinds.Factor, _BIAS_TRAINED, Also("bias_rate")] = 1.0
  """factor on the learning rate of that bias"""
  bias_decay_factor: Annotated[kinds.Factor, _BIAS_TRAINED, _DECAYS, Also("bias_decay")] = 1.0
  """factor on the weight decay of that bias"""
  bias_falls: Annotated[bool, _BIAS_TRAINED] = False
  """whether that bias's learning rate decays to 0 over bias_epochs"""


class Proxy(Group):
  """A small model trained alongside, which selects the hard images of a batch (airbench)."""

  keep: Annotated[int, Field(ge=0, le=2**24)] = 0
  """images of a batch to train on, those with the highest loss, as many on each device; 0: no
  proxy"""
  every: kinds.Every = 4
  """steps from one update of the proxy to the next"""
  widths: tuple[kinds.Width, kinds.Width, kinds.Width] = (32, 64, 64)
  """channels of the proxy's three groups of layers"""
