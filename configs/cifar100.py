"""CIFAR-100 with airbench96, the model and recipe that reach 96 % on CIFAR-10.

  python -m jaxspeed.train --config=configs/cifar100.py --config.data.path=PATH

PATH is cifar-100-binary.tar.gz, its unpacked folder, or a folder prepared by TFDS.
Source: KellerJordan/cifar10-airbench, legacy/airbench96.py, for CIFAR-10. No time for CIFAR-100 is
published. Nothing is tuned for it, and the target of 75 % is our choice.
"""

from jaxspeed.config import fields

PUBLISHED = {"": dict(source="KellerJordan/cifar10-airbench, legacy/airbench96.py")}


def get_config():
  config = fields.base()
  config.name = "cifar100"
  config.epochs = 37.0
  config.batch_size = 1024
  config.label_smoothing = 0.2
  config.target = 0.75
  # (0.5071, 0.4867, 0.4408) and (0.2675, 0.2565, 0.2761) times 255.
  config.data.update(
    name="cifar100",
    classes=100,
    mean=(129.3105, 124.1085, 112.404),
    std=(68.2125, 65.4075, 70.4055),
  )
  config.augment.update(crop_padding=4, flip="alternating", cutout=12)
  config.model = dict(
    name="airbench",
    widths=(128, 384, 512),
    depth=3,
    activation="gelu",
    init_method="dirac",
    norm_momentum=0.9,
    whiten_bias="zero",
    head_scale=1 / 9,
    head_unit_std=False,
  )
  # Learning rate and decay for 1,024 examples; the decay does not follow the learning rate.
  rate, decay, momentum = 9.0, 0.012, 0.85
  config.optimizer.update(
    momentum=momentum, weight_decay=decay / rate, bias_rate_factor=64.0, bias_decay_factor=1 / 64
  )
  # Nesterov momentum lengthens each step by this factor.
  peak = rate / (1 + 1 / (1 - momentum))
  config.schedule.update(read="start", peak=peak, start=0.2, warmup=0.1, final=0.0)
  config.average.update(kind="lookahead", decay=0.95, every=5)
  config.whitening.update(images=5000, epsilon=5e-4, bias_epochs=3.0)
  config.eval.update(mode="six", batch_size=2000)
  return config
