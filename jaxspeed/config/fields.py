"""The fields that every recipe shares.

A recipe is a Python file whose `get_config(variant)` starts from `base()` and sets what differs:

  from jaxspeed.config import fields

  def get_config(variant=""):
    config = fields.base()
    config.epochs = 24.0
    return config

Configs hold primitives only. Everything derived (steps, rates, shapes) is worked out by `planning/`
after the overrides, so that `--config.epochs=10` moves the whole schedule along.
"""

import os

from absl import flags
from ml_collections import ConfigDict, config_flags

from jaxspeed.errors import UserError


def base() -> ConfigDict:
  """Every shared field with its default; a recipe adds `model`, the net's own fields."""
  return ConfigDict(
    {
      "name": "",  # names the run's folder and its rows
      "seed": 0,
      "runs": 1,  # runs N seeds (seed, seed + 1, ...) with one compilation
      "epochs": 1.0,  # may be fractional: steps = ceil(epochs * steps an epoch)
      "batch_size": 512,  # global: of all devices together
      "accumulate": 1,  # parts of a device's batch, one after the other, each with its own norms
      "precision": "auto",  # float32 | bfloat16 | float16; auto: the fastest that the device has
      "loss_scale": 0.0,  # in float16: the factor on the loss; 0: as large as it will go
      "label_smoothing": 0.0,
      "target": 0.94,  # accuracy as a fraction; the time at which it was first reached is reported
      "target_metric": "top1",  # top1 | top5: which accuracy the target is of
      "stop_at_target": False,
      "tune_on": "test",  # test | validation: a tenth of the training images, held out
      "warmup": "auto",  # a run on random labels before the clock: on | off; auto: on accelerators
      "cost_per_hour": 0.0,  # USD of all the hardware; 0: not stated
      "compile_cache": "",  # folder of compiled programs, not stored; '': JAXSPEED_COMPILE_CACHE or
      # ~/.cache/jaxspeed/programs
      "data": {
        "feed": "resident",  # resident: the whole set on every device | stream: images from disk
        "name": "cifar10",  # cifar10 | cifar100 | digits; of a stream, the name of a TFDS set
        "path": "",  # folder or archive: TFDS, official binary files, images.npy and labels.npy;
        # of a stream: a folder of train/CLASS/*.jpg and val/CLASS/*.jpg, or TFDS
        "copies": "",  # folder of a stream's resized copies; '': the path with -sz behind it
        "cache": "",  # folder of uint8 copies and of sizes; '': ~/.cache/jaxspeed/data
        "classes": 10,
        "image_size": 32,
        "train_images": 50_000,  # what a plan without the data counts with
        "eval_images": 10_000,
        "mean": (125.31, 122.95, 113.87),  # of the pixels 0 ... 255; (): the training set's own
        "std": (62.99, 62.09, 66.70),
        "last_batch": "drop",  # what no batch of an epoch takes: drop | keep, a short batch, of
        # a stream | carry_over to the next epoch, of a set in memory
        "antialias": True,  # of a stream, in training and evaluation: resize by Pillow's bilinear
        # filter, as wide as what is shrunk; False: between the nearest pixels, TensorFlow's default
        "on_error": "skip",  # skip: an image that cannot be read is replaced and named | raise
        "synthetic": False,  # noise in place of a stream: what the machine does without its disk
      },
      "phases": {  # of a stream, columns with a value a phase; (): the field in [] in all of them
        "first_epoch": (),  # from 0; or shares of the run, below 1; (): there is one phase
        "image_size": (),  # [data.image_size]
        "batch_size": (),  # [batch_size]
        "min_scale": (),  # [augment.min_scale]
        "copies": (),  # short side of the resized copies that are read; 0: the originals [0]
        "eval_mode": (),  # [eval.mode]
      },
      "pretrained": {  # weights to begin with in place of random ones, of ResNets
        "path": "",  # a .safetensors file under torchvision's or timm's names
        "head": "keep",  # keep: the file's last layer | new: a random one, for other classes
      },
      "augment": {
        "crop_padding": 0,  # reflected pixels on each side, from which a random crop is taken
        "min_scale": 0.08,  # of a stream: least share of an image's area in its random crop
        "flip": "none",  # none | random: with probability 1/2 | alternating: every other epoch
        "cutout": 0,  # side of the square that is set to the mean, in pixels
        "brightness": 0.0,  # most that is added to a normalised image
        "contrast": 0.0,  # most by which its scale differs from 1
        "cutmix": 0,  # side of the square that comes from another image of the batch, in pixels
        "cutmix_epochs": 0.0,  # at the end of the run, with cutmix
      },
      "optimizer": {
        "name": "sgd",  # sgd | muon: Muon for the convolutions, SGD for the rest | lars
        "momentum": 0.9,
        "momentum_pieces": (),  # as schedule.pieces, of the momentum, in place of the one number
        "nesterov": True,
        "rate_in_momentum": False,  # v = m v + rate g (myrtle) instead of v = m v + g (PyTorch)
        "weight_decay": 0.0,
        "bias_rate": 1.0,  # times the rate, for biases
        "bias_decay": 1.0,  # times the weight decay, for biases
        "scale_decay": 1.0,  # times the weight decay, for the scales of norms
        "head_rate": 1.0,  # times the rate, for the last layer
        "head_decay": 1.0,  # times the weight decay, for the last layer
        "decay_follows_rate": False,  # lars: peak * weight decay stands in the ratio (Fujitsu)
        "lars_eta": 0.001,  # trust coefficient
        "lars_epsilon": 0.0,  # added to the denominator of the trust ratio
        "lars_clip": (),  # least and most trust ratio; (): unbounded
        "muon_momentum": 0.6,
        "muon_decay": 0.0,  # times the rate, taken from the weights
        "muon_coefficients": (3.4445, -4.7750, 2.0315),  # of the Newton-Schulz polynomial
        "muon_epsilon": 1e-10,  # added to the norm of the mean loss's gradient
        "muon_renormalize": "every_step",  # every_step | growing: every 2 to 17 steps (hiverge)
      },
      "schedule": {  # linear from start to peak to final, then flat; or in pieces
        "pieces": (),  # ((first epoch, end, rate there, rate at the end), ...) in place of the rest
        "read": "end",  # at which end of a step: end (myrtle) | start (airbench)
        "peak": 0.1,
        "start": 0.0,  # times the peak
        "final": 0.0,  # times the peak
        "warmup": 0.2,  # fraction of the run at which the peak is reached
        "flat_epochs": 0.0,  # at the end, at the final rate
        "power": 1.0,  # of the fall from the peak: 1 is linear, 2 LARS's polynomial
      },
      "average": {  # of parameters and running statistics over the steps
        "kind": "none",  # none | ema | lookahead: the model goes back to its average
        "decay": 0.99,  # a step; of lookahead at the end, from 0 with the cube of the progress
        "reach": 0.0,  # of ema: most of the steps so far that it reaches back over; 0: unbounded
        "every": 1,  # steps between two updates, each with decay ** every
        "from_epoch": 0,  # lookahead begins with the first update of this epoch
      },
      "whitening": {  # of nets that begin with a whitening convolution
        "images": 10_000,  # first of the training set, whose patches are decorrelated
        "epsilon": 1e-2,  # added to the eigenvalues
        "centered": False,  # whether the covariance is about the mean
        "bias_epochs": 0.0,  # in which a whitening layer's bias is trained, from the first on
        "bias_rate": 1.0,  # times the rate
        "bias_decay": 1.0,  # times the weight decay
        "bias_falls": False,  # its rate falls to 0 over its own epochs
      },
      "proxy": {  # a small net that trains along and leaves the easy images out (airbench)
        "keep": 0,  # of a batch, those with the highest loss, of each device as many; 0: no proxy
        "every": 4,  # steps between two in which it learns
        "widths": (32, 64, 64),
      },
      "eval": {
        "mode": "center",  # center | flip | six | selective | five | rect | rect_flip: `eval_step`
        "batch_size": 1000,  # a device
        "image_size": 0,  # of a stream; 0: that of the phase
        "resize": 1.14,  # of a stream: times the image size, the short side before the crop
        "shapes": 16,  # most shapes of rectangles
        "multiple": 8,  # of which the sides of rectangles are, in pixels
        "every_epochs": 1,
      },
      "allreduce": {  # of the gradients, where there are several devices
        "group_mb": 8.0,  # at which a group of layers is closed and sent; 0: all in one
        "dtype": "float32",  # float32 | bfloat16 | float16, in which gradients travel
      },
      "compiler_options": (),  # of XLA, for the training programs: ("NAME=VALUE", ...)
      "checkpoint": {
        "every_seconds": 60.0,  # of training, between two checkpoints; one more at the end
        "keep": 2,
        "on_error": "continue",  # where one cannot be written: continue | stop
      },
      "watchdog_seconds": 600.0,  # after which a run that stands still is ended; 0: never
      "heartbeat_seconds": 30,  # after which a process that is not heard of counts as lost
      "records": {
        "author": "jaxspeed",  # of the DAWNBench entry
        "author_email": "jaxspeed@example.org",
        "code_url": "",
      },
    }
  )


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


def choose(variant: str | None, variants: tuple[str, ...], file: str) -> str:
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
