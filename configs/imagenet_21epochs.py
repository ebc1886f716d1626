"""ImageNet to 93 % top-5 with ResNet-50 in 21 epochs: Alibaba's single server, DAWNBench 2020.

  python -m jaxspeed.train --config=configs/imagenet_21epochs.py --config.data.path=PATH

PATH holds train/CLASS/*.JPEG and val/CLASS/*.JPEG. Source: the json and tsv of Alibaba Cloud's
entry in stanford-futuredata/dawn-bench-entries (gn6e, 1 machine). Hardware of the published time:
eight V100s (32 GiB) for $20.60 an hour; 21.6 min to 93.05 % (top-1 75.58 %), with validation.
Ours: not yet measured.

  epochs          1-12   13-18   19-20     21
  pixels            96     128     224    288, rectangles
  images a GPU     256     256     256    128

The batch is that of a GPU times 8. On other GPUs, fewer or more, it stays the same as long as it
divides by them: where memory does not hold it, --config.accumulate=N computes it in N parts.
The entry leaves open, and here it is: a warm-up that is linear from 0; momentum that falls from
0.96 to 0.90 with it and goes back while the rate falls; no label smoothing; originals, no copies;
images resized with Pillow's bilinear filter (data.antialias=True).
"""

from jaxspeed.config import fields


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
