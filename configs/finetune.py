"""Your own images with the weights of a ResNet-50 that was trained on ImageNet.

  python -m jaxspeed.train --config=configs/finetune.py --config.data.path=PATH \\
      --config.pretrained.path=hf://timm/resnet50.a1_in1k

PATH holds images in any form of docs/data.md, 100 to 100,000 of them: train/CLASS/*.jpg and
val/CLASS/*.jpg, or CLASS/*.jpg. The weights come from the Hugging Face hub (the extra `hub`), from
a .safetensors file with torchvision's or timm's names, or from a run's folder. They decide depth
and width. Their last layer is replaced by one for your classes, whose learning rate is ten times
that of the other layers, unless it names the same classes.

Thirty epochs of batches of 32 are 90 steps for 100 images and 90,000 for 100,000: with more than
10,000 images, ten epochs (--config.epochs=10) are enough. What is changed most often:
--config.schedule.peak (docs/training.md has values for AdamW), --config.pretrained.freeze,
--config.data.balance for uneven classes, --config.checkpoint.keep_best=top1. For a smaller net,
--config.pretrained.path=hf://timm/resnet18.a1_in1k.
Source: our own choice. On a small scale, compared with training from scratch:
results/finetune.json.
"""

from jaxspeed.config import fields

PUBLISHED = {"": dict(source="our own choice")}


def get_config():
  config = fields.imagenet()
  config.name = "finetune"
  config.epochs = 30.0
  config.batch_size = 32
  config.label_smoothing = 0.1
  config.loss_scale = 0.0
  config.target, config.target_metric = 0.0, "top1"
  config.data.update(
    name="own_images", train_images=1_000, eval_images=100, classes=10, last_batch="drop"
  )
  config.pretrained.update(path="resnet50.safetensors", head="new")
  config.augment.min_scale = 0.25
  config.optimizer.update(nesterov=True, weight_decay=1e-4, head_rate_factor=10.0)
  config.schedule.update(name="cosine", peak=0.01, start=0.0, warmup=0.1, final=0.0)
  config.eval.update(batch_size=32)
  return config
