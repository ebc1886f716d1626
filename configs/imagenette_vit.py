"""A small vision transformer on Imagenette, from scratch in minutes on a CPU.

  python -m jaxspeed.train --config=configs/imagenette_vit.py --config.data.path=PATH

PATH is the unpacked imagenette2-320 of fastai/imagenette, 9,469 training images of ten classes. The
plain ViT of Beyer et al. 2022 (models/vit.py) of a quarter of ViT-S's width and half its depth, in
16 patches of 16 x 16 pixels, with dropout. Muon trains the kernels, SGD the rest.
"""

from jaxspeed.config import fields


def get_config():
  config = fields.imagenet()
  config.name = "imagenette_vit"
  config.epochs = 4.0
  config.batch_size = 64
  config.label_smoothing = 0.1
  config.loss_scale = 0.0
  config.target = 0.4
  config.target_metric = "top1"
  config.data.update(
    name="imagenette",
    classes=10,
    image_size=64,
    train_images=9_469,
    eval_images=3_925,
    mean=(127.5, 127.5, 127.5),
    std=(127.5, 127.5, 127.5),
    last_batch="drop",
  )
  config.augment.update(min_scale=0.35)
  config.model = dict(name="vit", patch_size=16, width=96, depth=6, heads=3, mlp=384, dropout=0.1)
  config.optimizer.update(name="muon", nesterov=True, weight_decay=0.0, muon_momentum=0.9)
  config.schedule.update(peak=0.05, warmup=0.1, final=0.0)
  config.eval.update(batch_size=64)
  return config
