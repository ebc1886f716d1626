"""scikit-learn's digits, 1,797 real 8 x 8 images: no download, a minute on a CPU.

  python -m jaxspeed.train --config=configs/quickstart.py --workdir=runs/quickstart

A ResNet-9 of a quarter of the usual width, with techniques of the CIFAR-10 recipes: label
smoothing, CELU, whitening, and a moving average of the weights.
"""

from jaxspeed.config import fields

PUBLISHED = {"": dict(source="scikit-learn's digits, for the images")}


def get_config():
  config = fields.base()
  config.name = "quickstart"
  config.epochs = 20.0
  config.batch_size = 100
  config.label_smoothing = 0.1
  config.target = 0.98
  config.data.update(
    name="digits", image_size=8, train_images=1500, eval_images=297, mean=(), std=()
  )
  config.augment.update(crop_padding=1)
  config.model = dict(
    name="resnet9",
    width=16,
    pool_position="before_norm",
    activation="celu",
    celu_alpha=0.3,
    train_norm_scale=False,
    whiten=True,
    head_scale=1 / 16,
  )
  config.optimizer.update(weight_decay=5e-4, rate_in_momentum=True)
  config.schedule.update(peak=0.3)
  config.average.update(kind="ema", decay=0.99, reach=0.2)
  return config
