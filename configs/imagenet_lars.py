"""ImageNet with ResNet-50 and LARS at batch sizes of 1,632 to 81,920.

  python -m jaxspeed.train --config=configs/imagenet_lars.py:32768 --config.data.path=PATH

PATH holds train/CLASS/*.JPEG and val/CLASS/*.JPEG. Sources: MLPerf's reference convergence points
(mlcommons/logging, rcps_resnet.json of training 4.0.0), which end at 75.9 % top-1, and the LARS of
mlcommons/training; for 81,920 Fujitsu's 74.7 s to 75.08 % on 2,048 V100s (1903.12650), with the
hyperparameters of its MLPerf 0.6 entry. jaxspeed: not yet measured.

   batch      lr  warm-up  momentum       wd     lr decay steps  epochs, published
    1632     7.4        2       0.9     5e-5             27,476              33-37
    3264    10.5        2       0.9     5e-5             14,523              34-37
    4096    10          5       0.9     2e-4             13,137              39-42
    8192    17          5       0.9     2e-4              6,095              41-44
   13056    12.8        9       0.9   2.5e-5              4,710              44-46
   32768    21.2       16      0.94   2.5e-5              2,267              55-57
   49152    19.405     24  0.951807     1e-4              1,846              67-69
   58880    23.246     29  0.951807     1e-4              1,785              78-81
   65536    24.699     31  0.951807     1e-4              1,133              83-86
   67840    24.699     31  0.951807     1e-4              1,133              85-87
   81920    13         36      0.96     5e-5                832                 90

Tencent also used a batch size of 65536 (1807.11205: half precision, 2,048 P40s, 75.8 % in 6.6 min)
but did not publish its learning rates. MLPerf's runs stop at the target: set
--config.stop_at_target=True. The batch size is that of all GPUs: 65,536 is 32 on each of 2,048. On
fewer GPUs it stays the same, and must be divisible by their number. If it does not fit in memory,
--config.accumulate=N computes it in N micro-batches.

Differences from the originals: our norms see one micro-batch of one GPU, theirs up to 424 images.
Fujitsu's crops cover 5 to 90 % of an image, with sides of 2:3 to 3:2, and end after 85 epochs. The
reference's crops draw a height in up to 100 attempts and contain at least a tenth of an annotated
box or of the image. Ours have only the smallest area in common with them: they are torchvision's,
which draw an area in up to 10 attempts. In 4:3 photographs without boxes, the reference's cover
39 % of the area on average, ours 42 %. MLPerf's reference resizes without antialiasing
(tf.compat.v1.image.resize), and so do its points here (data.antialias=False). 81920 resizes with
Pillow's filter; Fujitsu's is unknown.
"""

import math

from jaxspeed.config import fields

# Batch size -> peak lr, epochs of warm-up, momentum, weight decay, steps of the lr decay.
POINTS = {
  "1632": (7.4, 2, 0.9, 5e-5, 27_476),
  "3264": (10.5, 2, 0.9, 5e-5, 14_523),
  "4096": (10.0, 5, 0.9, 2e-4, 13_137),
  "8192": (17.0, 5, 0.9, 2e-4, 6_095),
  "13056": (12.8, 9, 0.9, 2.5e-5, 4_710),
  "32768": (21.2, 16, 0.94, 2.5e-5, 2_267),
  "49152": (19.405, 24, 0.951807, 1e-4, 1_846),
  "58880": (23.246, 29, 0.951807, 1e-4, 1_785),
  "65536": (24.699, 31, 0.951807, 1e-4, 1_133),
  "67840": (24.699, 31, 0.951807, 1e-4, 1_133),
}

# Epochs until 75.9 % top-1; MLPerf's reference convergence points have no time.
_EPOCHS = {
  "1632": (33, 37),
  "3264": (34, 37),
  "4096": (39, 42),
  "8192": (41, 44),
  "13056": (44, 46),
  "32768": (55, 57),
  "49152": (67, 69),
  "58880": (78, 81),
  "65536": (83, 86),
  "67840": (85, 87),
}
PUBLISHED = {
  batch: dict(source="mlcommons/logging, rcps_resnet.json of 4.0.0", top1=0.759, epochs=epochs)
  for batch, epochs in _EPOCHS.items()
}
PUBLISHED["81920"] = dict(
  source="Fujitsu, arXiv 1903.12650",
  hardware="2,048 V100",
  top1=0.7508,
  seconds=74.7,
  epochs=(90, 90),
)


def get_config(batch="32768"):
  config = base()
  config.name = f"imagenet_lars/{batch}"
  config.batch_size = int(batch)
  if batch in POINTS:
    set_point(config, *POINTS[batch])
  else:
    set_fujitsu(config)
  return config


def base():
  """Return what all batch sizes share."""
  config = fields.imagenet()
  config.loss_scale = 0.0
  config.target_metric = "top1"
  config.label_smoothing = 0.1
  config.model.zero_init = False
  config.augment.min_scale = 0.05
  config.optimizer.name = "lars"
  # Evaluates as often as the originals, on 224-pixel crops of images with a short side of 256.
  config.eval.update(every_epochs=4, resize=256 / 224)
  return config


def set_point(config, rate, warmup, momentum, decay, fall):
  """Set a row of the table: the learning rate rises for `warmup` epochs, then falls to 1e-4."""
  config.target = 0.759
  config.data.update(last_batch="drop", antialias=False)
  # Rounded down, because a plan rounds the number of steps up.
  steps_per_epoch = config.data.train_images // config.batch_size
  config.epochs = math.floor((warmup + fall / steps_per_epoch) * 1e6) / 1e6
  config.optimizer.update(momentum=momentum, weight_decay=decay, lars_eta=0.001, lars_epsilon=0.0)
  config.schedule.update(
    read="start",
    peak=rate,
    start=0.0,
    warmup=warmup / config.epochs,
    final=1e-4 / rate,
    power=2.0,
  )


def set_fujitsu(config):
  """Set 90 epochs of 16 steps; decay follows the learning rate, which is constant in the last 2."""
  config.epochs = 90.0
  config.target = 0.7508
  config.optimizer.update(
    momentum=0.96,
    weight_decay=5e-5,
    decay_follows_rate=True,
    lars_eta=0.0025,
    lars_epsilon=1e-9,
  )
  config.schedule.update(
    peak=13.0, start=0.0, warmup=36 / config.epochs, final=0.0025, power=2.2, flat_epochs=2.0
  )
