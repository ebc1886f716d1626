"""ImageNet to 93 % top-5 with ResNet-50 in 21 epochs: Alibaba's single server, DAWNBench 2020.

  python -m jaxspeed.train --config=configs/imagenet_21epochs.py --config.data.path=PATH

PATH holds train/CLASS/*.JPEG and val/CLASS/*.JPEG. Source: the json and tsv of Alibaba Cloud's
entry in stanford-futuredata/dawn-bench-entries (gn6e, 1 machine). Published: 21.6 min to 93.05 %
(top-1 75.58 %), with validation, on eight V100s (32 GiB) for $20.60 an hour.
jaxspeed: not yet measured.

  epochs          1-12   13-18   19-20     21
  pixels            96     128     224    288, rectangles
  images per GPU   256     256     256    128

The batch size is the images per GPU times 8. On fewer or more GPUs it stays the same, and must be
divisible by their number. If it does not fit in memory, --config.accumulate=N computes it in N
micro-batches. The entry does not specify these choices: a linear warm-up from 0; momentum that
falls from 0.96 to 0.90 during it and rises again while the learning rate falls; no label smoothing;
original images, no copies; resizing with Pillow's bilinear filter (data.antialias=True).
"""

from jaxspeed.config import fields

PUBLISHED = {
  "": dict(
    source="stanford-futuredata/dawn-bench-entries, Alibaba Cloud",
    hardware="8 V100",
    top1=0.7558,
    top5=0.9305,
    seconds=0.36046 * 3600,
    clock="training, validation",
  )
}


def get_config():
  config = fields.imagenet()
  config.name = "imagenet_21epochs"
  config.epochs = 21.0
  config.batch_size = 2048
  config.phases.update(
    first_epoch=(0, 12, 18, 20),
    image_size=(96, 128, 224, 288),
    batch_size=(2048, 2048, 2048, 1024),
    min_scale=(0.08, 0.08, 0.08, 0.5),
    eval_mode=("center", "center", "center", "rect"),
  )
  config.optimizer.update(
    momentum_segments=((0, 5, 0.96, 0.90), (5, 21, 0.90, 0.96)), nesterov=True
  )
  config.schedule.segments = ((0, 5, 0.0, 1.2), (5, 21, 1.2, 1e-4))
  config.cost_per_hour = 20.6
  return config
