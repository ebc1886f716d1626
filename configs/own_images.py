"""Your own images from random weights: sizes, batch, rate and epochs from what their folder holds.

  python -m jaxspeed.plan own_images:PATH                   # states what was chosen, and why
  python -m jaxspeed.train own_images:PATH --workdir=runs/mine

PATH is what --config.data.path names in other recipes: a folder of images, a CSV file or shards
(docs/data.md). Without PATH, the values are those for 1,000 photos.

What does not depend on the images is that of imagenette.py:5: ResNet-18, whitening, BlurPool, Muon,
smaller images in the first half, crops that grow with them, flips in every other epoch
(--config.augment.flip=none where left and right differ, as in digits). 1,000 photos get 32 epochs:
two thirds of the images of imagenette.py:5's five epochs, which take 15 minutes on two cores of an
EPYC. A GPU has time for more (--config.epochs=N) and for larger images
(--config.phases.image_size=(168,224)). Source: our own choice, compared with imagenette.py and
torchvision's recipe in results/own_images.json.
"""

import contextlib
import math
from typing import NamedTuple

import numpy as np

import jaxspeed
from jaxspeed.data.disk.sources import open_images
from jaxspeed.errors import UserError


class Found(NamedTuple):
  """The training images: their number, the median of their short sides in pixels, and classes."""

  images: int = 1_000
  side: int = 375
  classes: int = 10


def get_config(path=""):
  found = look(path)
  batch, epochs, sizes = choose(found)
  peak = 0.1 * math.sqrt(batch / 64)
  start = "" if found != Found() else "no images were named, as in own_images:PATH, so "
  note = (
    f"{start}own_images chose for {found.images:,} training images of {found.classes:,} classes, "
    f"half of them at least {found.side} px wide and high: {sizes[0]} px, then {sizes[1]} px; "
    f"batches of {batch} (images / 128, from 8 to 64); {epochs} epochs (1,000 / the root of "
    f"images, from 10 to 100); a peak of {peak:.3g} (0.1 for batches of 64, with the root of the "
    "batch)"
  )
  data = dict(name="own_images", path=path, classes=found.classes, image_size=sizes[-1])
  data |= dict(train_images=found.images, eval_images=-(-found.images // 9))
  config = jaxspeed.recipe("imagenette:5", name="own_images", target=0.0, data=data)
  config.update(batch_size=batch, epochs=float(epochs))
  config.phases.image_size = sizes
  config.schedule.peak = peak
  config.records.note = note
  return config


def look(path: str) -> Found:
  """The images at a path; a default without one, or where a run will say what is wrong there."""
  for tune in (False, True) if path else ():  # True: there may be train/ alone, to tune on
    with contextlib.suppress(UserError):
      train = open_images(name="own_images", path=path, cache="", tune=tune).train
      sides = np.minimum(train.width, train.height)
      return Found(len(train), int(np.median(sides[sides > 0])), max(len(train.class_names), 2))
  return Found()


def choose(found: Found) -> tuple[int, int, tuple[int, int]]:
  """The batch size, the number of epochs, and the sizes of both halves of the run."""
  batch = 2 ** round(math.log2(min(max(found.images / 128, 8), 64)))
  batch = min(batch, 2 ** int(math.log2(found.images)))  # no more than there are images
  epochs = round(min(max(1_000 / math.sqrt(found.images), 10), 100))
  last = 32 * min(max(found.side // 32, 2), 4)  # the network shrinks images 32 times
  return batch, epochs, (last * 3 // 4, last)
