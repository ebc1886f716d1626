"""ImageNet to 93 % top-5 with ResNet-50 in 18 minutes: fast.ai and DIUx, 1 to 16 machines.

  python -m jaxspeed.train --config=configs/imagenet18.py:8 --config.data.path=PATH

PATH holds train/CLASS/*.JPEG and val/CLASS/*.JPEG, PATH-sz/160 and PATH-sz/352 their resized copies
(`python -m jaxspeed.prepare resize PATH PATH-sz --sizes=160,352`); without copies the originals are
read. Source: cybertronai/imagenet18_old, train.py; for 2 machines cybertronai/imagenet18. Published
on machines of eight V100s (p3.16xlarge); the times include validation. jaxspeed: not yet measured.

  machines  epochs  images per GPU           published      top-5
  1             28  512, 224, 128             109 min     93.00 %
  2             30  256, 512, 224, 128         54 min     93.36 %
  4             30  256, 512, 224, 128      29 min 44     93.05 %
  8             36  128, 256, 128, 224, 128 19 min 04     93.01 %
  16            50  64, 128, 64, 192, 128   18 min 05     93.11 %

The batch size of a phase is its images per GPU times the GPUs, 8 per machine; the learning rate is
for that batch size. On fewer or more GPUs the batch size stays the same, and must be divisible by
their number. If it does not fit in memory, --config.accumulate=N computes it in N micro-batches.
Batch norm sees one micro-batch of one GPU. Images are resized with Pillow's bilinear filter, as in
the original (data.antialias=True).
"""

from jaxspeed.config import fields


def _published(gpus, top5, seconds, source="cybertronai/imagenet18_old, train.py"):
  return dict(
    source=source,
    hardware=f"{gpus} V100",
    top5=top5,
    seconds=seconds,
    clock="training, validation",
  )


PUBLISHED = {
  "1": _published(8, 0.9300, 109 * 60 + 12),
  "2": _published(16, 0.93364, 54 * 60, "cybertronai/imagenet18"),
  "4": _published(32, 0.9305, 29 * 60 + 44),
  "8": _published(64, 0.93012, 19 * 60 + 4),
  "16": _published(128, 0.9311, 18 * 60 + 5),
}


def get_config(machines="1"):
  config = fields.imagenet()
  config.name = f"imagenet18/{machines}"
  phases, segments = {"1": one, "2": two, "4": four, "8": eight, "16": sixteen}[machines]()
  set_phases(config, phases, gpus=8 * int(machines))
  config.schedule.segments = segments
  config.epochs = float(segments[-1][1])
  return config


def set_phases(config, phases, *, gpus):
  """Set phases from rows of first epoch, image size, images per GPU, copies, smallest crop scale.

  Phases of 288 pixels or more evaluate rectangles.
  """
  first_epoch, image_size, batch_size, copies, min_scale = zip(*phases, strict=True)
  config.phases.update(
    first_epoch=first_epoch,
    image_size=image_size,
    batch_size=tuple(gpus * size for size in batch_size),
    min_scale=min_scale,
    copies=copies,
    eval_mode=tuple("rect" if size >= 288 else "center" for size in image_size),
  )
  config.batch_size = config.phases.batch_size[0]


def one():
  rate, at_224, at_288 = 1.0, 224 / 512, 128 / 512
  phases = (
    (0, 128, 512, 160, 0.08),
    (13, 224, 224, 352, 0.087),
    (25, 288, 128, 0, 0.5),
  )
  segments = (
    (0, 7, rate, rate * 2),
    (7, 13, rate * 2, rate / 4),
    (13, 22, rate * at_224, rate / 10 * at_224),
    (22, 25, rate / 10 * at_224, rate / 100 * at_224),
    (25, 28, rate / 100 * at_288, rate / 1000 * at_288),
  )
  return phases, segments


def two():
  return two_or_four(rate=0.75 * 2, tenth_at=23)


def four():
  return two_or_four(rate=0.50 * 4, tenth_at=24)


def two_or_four(*, rate, tenth_at):
  at_224, at_288 = 224 / 256, 128 / 256
  phases = (
    (0, 128, 256, 160, 0.08),
    (6, 128, 512, 160, 0.08),
    (13, 224, 224, 352, 0.087),
    (28, 288, 128, 0, 0.5),
  )
  segments = (
    (0, 6, rate, rate * 2),
    (6, 11, rate * 2, rate * 2),
    (11, 13, rate * 2, rate),
    (13, 16, rate * at_224, rate * at_224),
    (16, tenth_at, rate * at_224, rate / 10 * at_224),
    (tenth_at, 28, rate / 10 * at_224, rate / 100 * at_224),
    (28, 30, rate / 100 * at_288, rate / 1000 * at_288),
  )
  return phases, segments


def eight():
  rate, at_224 = 0.24 * 8, 224 / 128
  phases = (
    (0, 128, 128, 160, 0.08),
    (6, 128, 256, 160, 0.08),
    (14, 224, 128, 352, 0.087),
    (17, 224, 224, 352, 0.087),
    (29, 288, 128, 0, 0.5),
  )
  segments = (
    (0, 6, rate, rate * 2),
    (6, 11, rate * 2, rate * 2),
    (11, 14, rate * 2, rate),
    (14, 17, rate, rate),
    (17, 23, rate, rate / 10 * at_224),
    (23, 29, rate / 10 * at_224, rate / 100 * at_224),
    (29, 36, rate / 100, rate / 1000),
  )
  return phases, segments


def sixteen():
  rate = 0.235 * 8
  phases = (
    (0, 128, 64, 160, 0.08),
    (6, 128, 128, 160, 0.08),
    (16, 224, 64, 0, 0.08),
    (19, 224, 192, 0, 0.08),
    (37, 288, 128, 0, 0.5),
  )
  segments = (
    (0, 6, rate, rate * 2),
    (6, 16, rate * 2, rate * 2),
    (16, 19, rate, rate),
    (19, 31, 2 * rate / (10 / 1.5), 2 * rate / (10 / 1.5)),
    (31, 37, 2 * rate / (100 / 1.5), 2 * rate / (100 / 1.5)),
    (37, 38, 2 * rate / 100, 2 * rate / 100),
    (38, 50, 2 * rate / 1000, 2 * rate / 1000),
  )
  return phases, segments
