"""Imagenette, ten classes of ImageNet, 9,469 and 3,925 images, from random weights.

  python -m jaxspeed.train --config=configs/imagenette.py:5 --config.data.path=PATH/imagenette2-320

Source of the data set and of its leaderboard: fastai/imagenette, whose best entry at 128 px after
five epochs has 87.43 % (mean of five; xse_resnext50 with MaxBlurPool). Variant 5 trains a ResNet-18
on 96 px, then 128 px: BlurPool, filters that whiten patches of 3x3 pixels before the stem, Muon, a
least crop that grows with the image size, and flips in every other epoch. jaxspeed: 88.00 % (mean
of five, 95 % interval 87.63 to 88.38; 15 minutes of training on two cores of an EPYC). An image and
step take 2.65 GFLOP, with Muon 3.13, where xse_resnext50 takes 10.1 without its optimizer
(results/imagenette_5.json). No GPU has run it yet. Variants 5/sgd to 5/crops are the ladder to it;
the gain of each rung has not been measured yet.

  rung        change
  5/sgd       one size of 128 px; SGD with one cycle, crops of at least 0.35
  5/sizes     96 px in the first half of the run
  5/blurpool  low-pass filters before each subsampling
  5/smoothing label smoothing 0.1
  5/whitening filters before the stem that whiten patches
  5/muon      Muon for convolutions, a shorter warm-up, twice the rate of the last layer
  5/flips     flips in every other epoch in place of random ones
  5/crops     crops of at least 0.7 in the second half: the same as 5

Without a variant the techniques are those of imagenet18 on one GPU, for 20 epochs: 128, 160 and
192 px, evaluation on rectangles in the last phase, and SGD with a one-cycle learning rate.

The batch size is that of all GPUs together. Images are resized with Pillow's bilinear filter
(data.antialias=True).
"""

from jaxspeed.config import fields

# Of the ladder to variant 5, one change each; the last one is the whole.
RUNGS = ("sgd", "sizes", "blurpool", "smoothing", "whitening", "muon", "flips", "crops")
PUBLISHED = {
  "": dict(source="fastai/imagenette, for the images"),
  **{f"5/{rung}": dict(source="ours, a rung of the ladder to 5") for rung in RUNGS},
  "5": dict(source="fastai/imagenette, its leaderboard at 128 px", top1=0.8743, runs=5),
}


def get_config(variant=""):
  config = fields.imagenet()
  config.name = f"imagenette/{variant}".rstrip("/")
  config.label_smoothing = 0.1
  config.loss_scale = 0.0
  config.target_metric = "top1"
  config.data.update(
    name="imagenette", classes=10, train_images=9_469, eval_images=3_925, last_batch="drop"
  )
  config.model.update(depth=18, width=64)
  config.optimizer.update(nesterov=True, weight_decay=5e-4)
  config.eval.update(batch_size=128)
  if variant:
    epochs, _, rung = variant.partition("/")
    set_record(config, epochs=float(epochs), height=RUNGS.index(rung or RUNGS[-1]))
  else:
    set_sgd(config)
  return config


def set_record(config, *, epochs, height):
  """Sets what was chosen on a tenth of the training images, held out, with runs of five epochs."""
  config.epochs = epochs
  config.batch_size = 64
  config.target = 0.8743
  config.label_smoothing = 0.0
  config.data.image_size = 128
  config.augment.flip = "random"
  config.model.zero_init = True
  config.schedule.update(peak=0.1, start=0.2, warmup=0.2, final=0.0)

  if height == RUNGS.index("sgd"):
    config.augment.min_scale = 0.35
  else:
    config.phases.update(
      first_epoch=(0, 0.5),  # shares of the run
      image_size=(96, 128),
      min_scale=(0.35, 0.35),
      eval_mode=("center", "center"),
    )
  if height >= RUNGS.index("blurpool"):
    config.model.blurpool = True
  if height >= RUNGS.index("smoothing"):
    config.label_smoothing = 0.1
  if height >= RUNGS.index("whitening"):
    config.model.whiten = True
    config.whitening.update(images=256, epsilon=2e-3)
  if height >= RUNGS.index("muon"):
    config.optimizer.update(
      name="muon", muon_momentum=0.6, bias_rate_factor=1.0, head_rate_factor=2.0
    )
    config.schedule.warmup = 0.1
  if height >= RUNGS.index("flips"):
    config.augment.flip = "alternating"
  if height >= RUNGS.index("crops"):
    config.phases.min_scale = (0.35, 0.7)


def set_sgd(config):
  """Sets the sizes, the crops and the rate of imagenet18's kind."""
  config.epochs = 20.0
  config.batch_size = 128
  config.target = 0.93
  config.data.image_size = 192
  config.phases.update(
    first_epoch=(0, 0.4, 0.8),  # shares of the run
    image_size=(128, 160, 192),
    min_scale=(0.25, 0.25, 0.35),
    eval_mode=("center", "center", "rect"),
  )
  config.schedule.update(peak=0.2, start=0.1, warmup=0.2, final=0.0)
