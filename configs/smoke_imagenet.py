"""Imagenette on a CPU in less than an hour, with every part of the ImageNet recipes.

  python -m jaxspeed.train --config=configs/smoke_imagenet.py --config.data.path=PATH

PATH is the unpacked imagenette2-320 of fastai/imagenette, ten classes of ImageNet, 9,469 training
images. ResNet-18 of three eighths of the width; image sizes 64, 96 and 128, evaluation on
rectangles in the last phase, label smoothing, SGD with one cycle, and an averaged model. The target
of 80 % is our choice. jaxspeed: 84.5 % top-1 (one run, 30 minutes of training and 37 in all on two
cores of a server, with the same images as squares of 224 px: results/smoke_imagenet.json). Images
are resized with Pillow's bilinear filter (data.antialias=True); in that run the training crops were
not antialiased yet.
"""

from jaxspeed.config import fields

PUBLISHED = {"": dict(source="fastai/imagenette, for the images")}


def get_config():
  config = fields.imagenet()
  config.name = "smoke_imagenet"
  config.epochs = 24.0
  config.batch_size = 64
  config.label_smoothing = 0.1
  config.loss_scale = 0.0
  config.target = 0.8
  config.target_metric = "top1"
  config.data.update(
    name="imagenette",
    classes=10,
    image_size=128,
    train_images=9_469,
    eval_images=3_925,
    last_batch="drop",
  )
  config.phases.update(
    first_epoch=(0, 10 / 24, 18 / 24),  # shares of the run
    image_size=(64, 96, 128),
    min_scale=(0.35, 0.35, 0.35),
    eval_mode=("center", "center", "rect"),
  )
  config.model.update(depth=18, width=24)
  config.optimizer.update(nesterov=True, weight_decay=5e-4)
  config.schedule.update(peak=0.1, start=0.1, warmup=0.2, final=0.0)
  # The last 34 steps, a quarter of an epoch, make up half of the average, so that it follows a
  # change of image size.
  config.average.update(kind="ema", decay=0.98, reach=0.2)
  config.eval.update(batch_size=64, shapes=6)
  return config
