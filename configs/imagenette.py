"""Imagenette, ten classes of ImageNet, with the techniques of imagenet18 on one GPU.

  python -m jaxspeed.train --config=configs/imagenette.py --config.data.path=PATH/imagenette2-320

Source of the data set: fastai/imagenette. ResNet-18 with image sizes 128, 160 and 192, evaluation
on rectangles in the last phase, label smoothing, and SGD with a one-cycle learning rate. The
batch size is that of all GPUs together. Images are resized with Pillow's bilinear filter
(data.antialias=True).
"""

from jaxspeed.config import fields

PUBLISHED = {"": dict(source="fastai/imagenette, for the images")}


def get_config():
  config = fields.imagenet()
  config.name = "imagenette"
  config.epochs = 20.0
  config.batch_size = 128
  config.label_smoothing = 0.1
  config.loss_scale = 0.0
  config.target = 0.93
  config.target_metric = "top1"
  config.data.update(
    name="imagenette",
    classes=10,
    image_size=192,
    train_images=9_469,
    eval_images=3_925,
    last_batch="drop",
  )
  config.phases.update(
    first_epoch=(0, 0.4, 0.8),  # shares of the run
    image_size=(128, 160, 192),
    min_scale=(0.25, 0.25, 0.35),
    eval_mode=("center", "center", "rect"),
  )
  config.model.update(depth=18, width=64)
  config.optimizer.update(nesterov=True, weight_decay=5e-4)
  config.schedule.update(peak=0.2, start=0.1, warmup=0.2, final=0.0)
  config.eval.update(batch_size=128)
  return config
