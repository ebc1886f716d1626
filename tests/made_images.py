"""Folders of images that are made, and what they hold."""

import io
import os
import time

import numpy as np
import tiny_sets
from PIL import Image


def smooth(width, height, channels=3):
  """A picture without edges: JPEG keeps it to within a few grey levels."""
  y, x = np.mgrid[:height, :width]
  planes = [x * 200 / width, y * 200 / height, (x + y) * 200 / (width + height)]
  return np.stack(planes[:channels], -1).astype(np.uint8)


def encoded(image, image_format="JPEG", **options):
  buffer = io.BytesIO()
  if not isinstance(image, Image.Image):
    image = Image.fromarray(image)
  image.save(buffer, image_format, **options)
  return buffer.getvalue()


def decoded(data):
  with Image.open(io.BytesIO(data)) as image:
    return image.format, image.mode, np.asarray(image).astype(int)


def write(root, files):
  for name, content in files.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  return root


def small_set(root, train=8, held_out=4, width=50, height=40, **options):
  """Noise in two classes."""
  images = tiny_sets.random_images(0, train + held_out, height=height, width=width)
  return write(
    root,
    {
      f"{'train' if i < train else 'val'}/{'ab'[i % 2]}/{i:03d}.jpg": encoded(image, **options)
      for i, image in enumerate(images)
    },
  )


def tree(root):
  """Every file below `root` and its bytes."""
  return {
    str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
  }


def images_in(root):
  return {name: content for name, content in tree(root).items() if ".jaxspeed" not in name}


def broken_files():
  whole = encoded(smooth(60, 40), quality=95)
  png = encoded(tiny_sets.random_images(0, 1)[0], "PNG")
  return {
    "train/a/cut.jpg": whole[: len(whole) // 2],
    "train/a/cut_header.jpg": whole[:30],
    "train/a/cut_small.jpg": encoded(smooth(10, 10))[:-40],
    "train/b/cut.png": png[: len(png) // 2],
    "train/b/empty.jpg": b"",
    "val/b/text.jpg": b"no image at all",
  }


def die(code):
  """What a process does that is killed at its work."""
  time.sleep(0.5)
  os._exit(code)
