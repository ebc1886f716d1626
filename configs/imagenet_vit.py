"""ImageNet with ViT-S/16 in 90 to 300 epochs at 224 pixels: the plain baselines of big_vision.

  python -m jaxspeed.train --config=configs/imagenet_vit.py:90 --config.data.path=PATH

PATH holds train/CLASS/*.JPEG and val/CLASS/*.JPEG. Sources: Beyer, Zhai and Kolesnikov 2022,
"Better plain ViT baselines for ImageNet-1k" (arXiv 2205.01580); google-research/big_vision,
configs/vit_s16_i1k.py. The published time is for a TPU v3-8. jaxspeed: not yet measured.

  epochs    top-1   published
  90       76.5 %   6 to 7 h
  300      80   %   less than a day

AdamW with a batch of 1,024; the learning rate rises in 10,000 steps and falls as a cosine; the norm
of the whole gradient is clipped at 1. Images have RandAugment (2 operations of magnitude 10) and
mixup. The weight decay of 1e-4 is not multiplied by the peak learning rate of 1e-3 there, so it is
0.1 here. Biases, scales and embeddings do not decay.

At reduced size on Imagenette it learns, and resumes to the same bits: results/vit_augmented.json.

The original differs in three ways: it keeps Adam's first moment in bfloat16, trains on 99 % of the
training images, and does not decay the bias of the last layer.
"""

from jaxspeed.config import fields

PUBLISHED = {
  "90": dict(source="big_vision", hardware="TPU v3-8", top1=0.765),
  "300": dict(source="big_vision", hardware="TPU v3-8", top1=0.80),
}
_IMAGES, _BATCH, _WARMUP_STEPS = 1_281_167, 1024, 10_000


def get_config(epochs="90"):
  config = fields.imagenet()
  config.name = f"imagenet_vit/{epochs}"
  config.epochs = float(epochs)
  config.batch_size = _BATCH
  config.loss_scale = 0.0
  config.target = 0.76
  config.target_metric = "top1"
  # -1 ... 1
  config.data.update(last_batch="drop", mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5))
  # The original's last layer has a hidden one before it, as wide as a token.
  config.model = dict(name="vit", rep_size=384)
  config.augment.update(min_scale=0.05, mixup=0.2)
  config.augment.update(randaugment_layers=2, randaugment_magnitude=10)
  config.optimizer.update(
    name="adamw", clip_norm=1.0, weight_decay=0.1, bias_decay_factor=0.0, scale_decay_factor=0.0
  )
  steps = _IMAGES // _BATCH * config.epochs
  config.schedule.update(
    name="cosine", peak=1e-3, start=0.0, final=0.0, warmup=_WARMUP_STEPS / steps
  )
  # The middle 224 pixels of the short side resized to 256.
  config.eval.update(batch_size=256, resize=256 / 224)
  return config
