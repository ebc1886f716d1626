"""ImageNet to 93 % top-5 with ResNet-50 on one server: Lambda's reproductions of imagenet18.

  python -m jaxspeed.train --config=configs/imagenet18_lambda.py:8 --config.data.path=PATH

PATH holds train/CLASS/*.JPEG and val/CLASS/*.JPEG, PATH-sz/160 and PATH-sz/320 their resized copies
(`python -m jaxspeed.prepare resize PATH PATH-sz --sizes=160,320`); without copies the originals are
read. Source: lambdal/imagenet18, README. The times are from Lambda's blog and its DAWNBench entry
and include validation. jaxspeed: not yet measured.

  GPUs  model        epochs  images per GPU published  top-1    top-5
  8     TITAN RTX        28  512, 224, 128     2.37 h  75.92 %  93.02 % after 27 epochs
  4     GTX 1080 Ti      29  256, 112, 64     12.66 h  76.05 %  93.05 % for $19

The batch size of a phase is its images per GPU times the GPUs. On fewer or more GPUs it stays the
same, and must be divisible by their number. If it does not fit in memory, --config.accumulate=N
computes it in N micro-batches. Accuracy drops while the learning rate is high, and in the first
epoch of 224 px. Lambda's top-1 with 8 GPUs: 32.3 % after epoch 5, 27.3 % after 6; 58.6 % after 13,
57.4 % after 14. Images are resized with Pillow's bilinear filter, as in the original
(data.antialias=True).
"""

from jaxspeed.config import fields

PUBLISHED = {
  "8": dict(
    source="lambdal/imagenet18, README",
    hardware="8 TITAN RTX",
    top1=0.75918,
    top5=0.93018,
    seconds=2.3657 * 3600,
    epochs=(27, 27),
    clock="training, validation",
  ),
  "4": dict(
    source="lambdal/imagenet18, README",
    hardware="4 GTX 1080 Ti",
    top1=0.76048,
    top5=0.9305,
    seconds=12.66 * 3600,
    clock="training, validation",
  ),
}


def get_config(gpus="8"):
  config = fields.imagenet()
  config.name = f"imagenet18_lambda/{gpus}"
  if gpus == "8":
    set_phases(config, first_epoch=(0, 13, 25), batch_size=(512 * 8, 224 * 8, 128 * 8))
    config.schedule.segments = (
      (0, 7, 1.0, 2.0),
      (7, 13, 2.0, 0.25),
      (13, 22, 0.4375, 0.043750000000000004),  # digits as published
      (22, 25, 0.043750000000000004, 0.004375),
      (25, 28, 0.0025, 0.00025),
    )
  else:
    set_phases(config, first_epoch=(0, 15, 28), batch_size=(256 * 4, 112 * 4, 64 * 4))
    config.schedule.segments = (
      (0, 8, 0.5, 1.0),
      (8, 15, 1.0, 0.125),
      (15, 25, 0.22, 0.022),
      (25, 28, 0.022, 0.0022),
      (28, 29, 0.00125, 0.000125),
    )
    config.cost_per_hour = 1.5
  config.epochs = float(config.schedule.segments[-1][1])
  return config


def set_phases(config, *, first_epoch, batch_size):
  """Set three phases of 128, 224 and 288 pixels."""
  config.phases.update(
    first_epoch=first_epoch,
    image_size=(128, 224, 288),
    batch_size=batch_size,
    min_scale=(0.08, 0.087, 0.5),
    copies=(160, 320, 0),
    eval_mode=("center", "center", "rect"),
  )
  config.batch_size = batch_size[0]
