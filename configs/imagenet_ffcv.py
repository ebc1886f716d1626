"""ImageNet with ResNet-50 in 16 to 88 epochs at 160 and 192 pixels: FFCV's recipes.

  python -m jaxspeed.train --config=configs/imagenet_ffcv.py:32 --config.data.path=PATH

PATH holds train/CLASS/*.JPEG and val/CLASS/*.JPEG. Source: libffcv/ffcv-imagenet, rn50_configs and
train_imagenet.py; top-5 from assets/agg.csv. The published times are for eight A100s and include
validation. jaxspeed: not yet measured.

  epochs  192 px from epoch   top-1     top-5   published
  16                     13  73.8 %   91.84 %    14.9 min
  24                     20  75.6 %   92.70 %    21.7 min
  32                     26  76.6 %   93.47 %    28.7 min
  40                     33  77.2 %   93.71 %    35.6 min
  56                     46  78.0 %   94.08 %    49.4 min
  88                     72  78.4 %   94.26 %    77.2 min

The batch size of 4,096 is 512 on each of 8 GPUs. On fewer or more GPUs it stays the same, and must
be divisible by their number. If it does not fit in memory, --config.accumulate=N computes it in N
micro-batches. The original differs in three ways: its four downsample norms have weight decay,
because their names lack "bn"; its training images are resized to at most 500 pixels, half of them
compressed again; and it resizes with OpenCV's INTER_AREA, a box filter, where Pillow's triangle is
twice as wide (data.antialias=True).
"""

import numpy as np

from jaxspeed.config import fields

# Epochs -> (start, end) of the epochs in which the side grows from 160 to 192 pixels.
RAMPS = {
  "16": (11, 13),
  "24": (17, 20),
  "32": (23, 27),
  "40": (29, 34),
  "56": (41, 48),
  "88": (65, 76),
}


def _published(top1, top5, minutes):
  return dict(
    source="libffcv/ffcv-imagenet, rn50_configs",
    hardware="8 A100",
    top1=top1,
    top5=top5,
    seconds=minutes * 60,
    clock="training, validation",
  )


PUBLISHED = {
  "16": _published(0.738, 0.9184, 14.9),
  "24": _published(0.756, 0.9270, 21.7),
  "32": _published(0.766, 0.9347, 28.7),
  "40": _published(0.772, 0.9371, 35.6),
  "56": _published(0.780, 0.9408, 49.4),
  "88": _published(0.784, 0.9426, 77.2),
}


def get_config(epochs="32"):
  config = fields.imagenet()
  config.name = f"imagenet_ffcv/{epochs}"
  config.epochs = float(epochs)
  config.batch_size = 4096
  config.label_smoothing = 0.1
  config.loss_scale = 0.0
  config.data.update(image_size=192, last_batch="drop")
  config.phases.update(first_epoch=(0, first_epoch_of_192(*RAMPS[epochs])), image_size=(160, 192))
  config.model.update(zero_init=False, blurpool=True, head_init="uniform")
  config.schedule.update(read="start", peak=1.7, start=1e-4, warmup=2 / config.epochs, final=0.0)
  # The middle square of 224 / 256 of the short side, resized to 256 pixels.
  config.eval.update(mode="flip", batch_size=512, image_size=256, resize=256 / 224)
  return config


def first_epoch_of_192(start, end):
  """Return the first epoch, from 0, at which the ramp rounded to multiples of 32 is 192."""
  side = np.interp(np.arange(end + 1), [start, end], [160, 192])
  return int(np.argmax(np.round(side / 32) * 32 == 192))
