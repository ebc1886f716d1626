"""CIFAR-10 to 94, 95 and 96 % with Keller Jordan's airbench models.

  python -m jaxspeed.train --config=configs/cifar10_airbench.py:94_muon --config.data.path=PATH

Source: KellerJordan/cifar10-airbench: legacy/airbench94.py, airbench94_muon.py,
legacy/airbench95.py, legacy/airbench96.py, airbench96_faster.py. The published times are seconds of
whitening, training and evaluation with six views on one A100. jaxspeed: 94_muon 94.18 % (one run on
a CPU, results/cifar10_airbench_94_muon.json).

  variant   epochs  published seconds  published accuracy (runs)   TFLOP
  94           9.9         3.09-3.83           94.01 % (1000)        358
  94_muon        8              2.59            94.01 % (200)        290
  95            15              10.4            95.01 % (200)      1,390
  96            37              34.7            96.03 % (400)      4,910
  96_faster     45              27.3            96.00 % (200)      3,100

96_faster also trains a small proxy model, which selects the 512 of 1,024 images with the highest
loss; each of N devices selects 512 / N of its own. An epoch has 48 steps, and the images left over
from its permutation come first in the next epoch.
"""

from jaxspeed.config import fields


def _published(file, top1, runs, seconds, rates_for="1,024 images"):
  return dict(
    source=f"KellerJordan/cifar10-airbench, {file}",
    hardware="1 A100",
    top1=top1,
    runs=runs,
    seconds=seconds,
    clock="whitening, training, evaluation",
    rates_for=rates_for,
  )


PUBLISHED = {
  "94": _published("legacy/airbench94.py", 0.9401, 1000, 3.83),  # 3.09 s compiled
  "94_muon": _published("airbench94_muon.py", 0.9401, 200, 2.59, "summed loss"),
  "95": _published("legacy/airbench95.py", 0.9501, 200, 10.4),
  "96": _published("legacy/airbench96.py", 0.9603, 400, 34.7),
  "96_faster": _published("airbench96_faster.py", 0.9600, 200, 27.3),
}


def get_config(variant="94_muon"):
  config = base()
  config.name = f"cifar10_airbench/{variant}"
  if variant == "94":
    set_sgd(config, rate=11.5, decay=0.0153)
  if variant == "94_muon":
    config.epochs = 8.0
    config.batch_size = 2000
    config.model.update(head_scale=1 / 256, head_unit_std=True, whiten_bias="uniform")
    set_muon(config, rate=0.24, momentum=0.85, bias_rate=0.053, head_rate=0.67, decay=2e-6)
  if variant == "95":
    config.epochs = 15.0
    config.model.widths = (128, 384, 384)
    set_sgd(config, rate=10.0, decay=0.0153)
  if variant in ("96", "96_faster"):
    config.epochs = 37.0
    config.model.update(widths=(128, 384, 512), depth=3, norm_momentum=0.9)
    config.augment.update(crop_padding=4, cutout=12)
    set_sgd(config, rate=9.0, decay=0.012)
    config.schedule.update(warmup=0.1, final=0.0)
  if variant == "96_faster":
    config.epochs = 45.0
    config.data.last_batch = "carry_over"
    config.proxy.keep = 512
    # Half of a batch is selected; this keeps the contribution of each image to the step.
    config.schedule.peak /= 2
    config.optimizer.weight_decay *= 2
    # The original should freeze the bias after 3 epochs, but never does. The proxy's bias stays 0.
    config.whitening.bias_epochs = 45.0
  return config


def base():
  """Return what all variants share."""
  config = fields.base()
  config.epochs = 9.9
  config.batch_size = 1024
  config.label_smoothing = 0.2
  # (0.4914, 0.4822, 0.4465) and (0.2470, 0.2435, 0.2616) times 255.
  config.data.mean = (125.307, 122.961, 113.8575)
  config.data.std = (62.985, 62.0925, 66.708)
  config.augment.update(crop_padding=2, flip="alternating")
  config.model = dict(
    name="airbench",
    widths=(64, 256, 256),
    depth=2,
    activation="gelu",
    init_method="dirac",
    norm_momentum=0.6,
    whiten_bias="zero",
    head_scale=1 / 9,
    head_unit_std=False,
  )
  config.whitening.update(images=5000, epsilon=5e-4, bias_epochs=3.0)
  config.eval.update(mode="six", batch_size=2000)
  config.schedule.read = "start"
  return config


def set_sgd(config, *, rate, decay):
  """Set SGD and lookahead, with a learning rate and a weight decay for 1,024 examples.

  The learning rate refers to the mean loss here, and to the summed loss in the original. Dividing
  it by 1 + 1 / (1 - momentum) makes the step length independent of the momentum; the decay does not
  follow the learning rate. Biases have 64 times the learning rate, and the same decay.
  """
  momentum = 0.85
  peak = rate / (1 + 1 / (1 - momentum)) * config.batch_size / 1024
  config.optimizer.update(
    momentum=momentum,
    weight_decay=decay / rate,
    bias_rate_factor=64.0,
    bias_decay_factor=1 / 64,
  )
  config.schedule.update(peak=peak, start=0.2, warmup=0.23, final=0.07)
  config.average.update(kind="lookahead", decay=0.95, every=5)


def set_muon(config, *, rate, momentum, bias_rate, head_rate, decay):
  """Set Muon for the filters and SGD for the rest, with learning rates for the summed loss.

  `decay` is per example. All learning rates fall to 0 from the first step on; that of the whitening
  bias does so within `bias_epochs`.
  """
  batch = config.batch_size
  config.optimizer.update(
    name="muon",
    momentum=momentum,
    weight_decay=decay,
    bias_rate_factor=bias_rate * batch / rate,
    bias_decay_factor=1 / bias_rate,
    head_rate_factor=head_rate * batch / rate,
    head_decay_factor=1 / head_rate,
    muon_epsilon=1e-7 / batch,
  )
  config.whitening.update(
    bias_rate_factor=bias_rate * batch / rate, bias_decay_factor=1 / bias_rate, bias_falls=True
  )
  config.schedule.update(peak=rate, start=1.0, warmup=0.0, final=0.0)
