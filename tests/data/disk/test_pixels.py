"""What crops and windows look like, beside Pillow's."""

import numpy as np
import pytest
from image_files import (
  assert_equal,
  encode,
  in_shards,
  joined,
  needs_tensorflow,
  ramp,
  train,
  write_split,
)
from PIL import Image

from jaxspeed.data import batch as batch_lib
from jaxspeed.data.disk import decoding
from jaxspeed.data.disk.images import _decode_with_pillow
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.disk.streams import EvalStream, crop_boxes
from jaxspeed.run.predict import read_image


def bilinear(picture, size, *, antialias):
  """Resizes by the values at the centres of the new pixels, between the centres of the old.

  With antialiasing the triangle grows with what is shrunk, as in Pillow.
  """

  def weights(old):
    centre = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
    width = max(old / size, 1) if antialias else 1
    triangle = np.maximum(0, 1 - np.abs(centre[:, None] - np.arange(old)) / width)
    return triangle / triangle.sum(1, keepdims=True)

  height, width = picture.shape[:2]
  rows = np.einsum("ih,hwc->iwc", weights(height), picture)
  return np.einsum("iwc,jw->ijc", rows, weights(width))


def boxes_of(split, batch, *, seed, batch_size, min_scale):
  uniform = np.random.RandomState([seed, 0, 0, batch_lib.AUGMENT]).random_sample((batch_size, 22))
  return crop_boxes(
    uniform, split.width[batch.index], split.height[batch.index], min_scale=min_scale
  )


def test_an_image_that_became_smaller_is_broken_and_not_padded():
  with pytest.raises(ValueError, match="smaller than when it was indexed"):
    _decode_with_pillow(encode(ramp(8, 9)), np.array([2, 0, 7, 9]))


@needs_tensorflow
@pytest.mark.parametrize("antialias", [True, False])
# The decoder's rounding, that between the passes (half a grey level) and that of the result.
@pytest.mark.parametrize(("kind", "tolerance"), [("jpg", 1.01), ("png", 0.51)])
def test_a_crop_is_resized_bilinearly(tmp_path, kind, tolerance, antialias):
  shapes = [(60, 40), (50, 90), (100, 70), (64, 64)]
  kinds = {"jpg": ("JPEG", {"subsampling": 0, "quality": 95}), "png": ("PNG", {})}
  contents = {
    f"{number}.{kind}": encode(ramp(*shape), kinds[kind][0], **kinds[kind][1])
    for number, shape in enumerate(shapes)
  }
  split = write_split(tmp_path, contents)
  (batch,), _ = train(split, image_size=40, batch_size=4, antialias=antialias)
  boxes = boxes_of(split, batch, seed=7, batch_size=4, min_scale=0.2)
  for image, number, (y, x, h, w) in zip(batch.image, batch.index, boxes, strict=True):
    whole = np.asarray(Image.open(split.full_path(number)).convert("RGB"))
    expected = bilinear(whole[y : y + h, x : x + w], 40, antialias=antialias)
    assert np.abs(image - expected).max() <= tolerance + 0.5 * antialias


@needs_tensorflow
@pytest.mark.parametrize("size", [224, 128])
def test_crops_of_photographs_are_pillows(shared_data, tmp_path, size):
  """By the error over all pixels, of which each of two roundings in both adds 1/12 at most.

  Those four are 1/3 of a squared grey level, 52.9 dB; another decoder may add as much: 49.9 dB.
  """
  files = sorted((shared_data / "imagenet_sample").glob("*.JPEG"))[::3]
  split = write_split(tmp_path, {file.name: file.read_bytes() for file in files})
  (batch,), _ = train(split, batch_size=len(files), min_scale=0.08, image_size=size)
  boxes = boxes_of(split, batch, seed=7, batch_size=len(files), min_scale=0.08)
  errors = []
  for image, number, (y, x, h, w) in zip(batch.image, batch.index, boxes, strict=True):
    with Image.open(split.full_path(number)) as file:
      part = file.convert("RGB").crop((x, y, x + w, y + h))
    expected = np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))
    errors.append(np.mean((image.astype(float) - expected) ** 2))
  assert 10 * np.log10(255**2 / np.mean(errors)) >= 49.9


@needs_tensorflow
def test_shards_hold_the_same_images(noise, tmp_path, monkeypatch):
  monkeypatch.setattr(decoding, "_CHUNK", 3)  # a batch is read in several parts
  sharded = in_shards(noise, tmp_path / "shards")
  whole, _ = train(noise, batch_size=22)
  found, _ = train(sharded, batch_size=22)
  assert_equal(joined([found]), joined([whole]))
  batches = [EvalBatch((24, 16), np.arange(22), np.ones(22, bool))]
  for one, other in zip(
    EvalStream(sharded, batches, resize=20), EvalStream(noise, batches, resize=20), strict=True
  ):
    np.testing.assert_array_equal(one.image, other.image)


def centre_of(path, shape, resize):
  """torchvision's Resize and CenterCrop by Pillow: cut at the rounded middle, zeros around."""
  with Image.open(path) as image:
    short = min(image.size)
    size = [resize * side // short for side in image.size]
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
  missing = [max(0, wanted - have) for wanted, have in zip(shape, pixels.shape, strict=False)]
  pixels = np.pad(pixels, [(n // 2, n - n // 2) for n in missing] + [(0, 0)])
  top, left = (
    round((have - wanted) / 2) for wanted, have in zip(shape, pixels.shape, strict=False)
  )
  return pixels[top : top + shape[0], left : left + shape[1]]


def assert_centres(split, batches, resize):
  for batch, asked in zip(EvalStream(split, batches, resize=resize), batches, strict=True):
    assert batch.image.shape[1:3] == asked.shape
    np.testing.assert_array_equal(batch.mask, asked.mask)
    np.testing.assert_array_equal(batch.label, split.label[asked.index])
    assert not batch.flip.any()
    for image, number in zip(batch.image[asked.mask], asked.index[asked.mask], strict=True):
      expected = centre_of(split.full_path(number), asked.shape, int(resize))
      difference = np.abs(image.astype(float) - expected)
      # Pillow rounds between its two passes.
      assert difference.mean() < 0.3
      assert difference.max() <= 2


@needs_tensorflow
def test_photographs_are_evaluated_as_torchvision_does(shared_data, tmp_path):
  files = sorted((shared_data / "imagenet_sample").glob("*.JPEG"))[::12]
  split = write_split(tmp_path, {file.name: file.read_bytes() for file in files})
  numbers = np.arange(len(files))
  for resize, shapes in ((145.9, [(128, 128), (128, 168)]), (328, [(288, 392)])):
    assert_centres(split, [EvalBatch(shape, numbers, numbers < 4) for shape in shapes], resize)


@needs_tensorflow
@pytest.mark.parametrize("shape", [(40, 41), (33, 70), (71, 20), (80, 90)])
def test_shapes_larger_than_the_image_are_padded(tmp_path, shape):
  contents = {f"{w}x{h}.png": encode(ramp(w, h), "PNG") for w, h in [(60, 45), (45, 61), (33, 33)]}
  split = write_split(tmp_path, contents)
  assert_centres(split, [EvalBatch(shape, np.arange(3), np.ones(3, bool))], resize=40)


@needs_tensorflow
@pytest.mark.parametrize("antialias", [True, False])
def test_a_prediction_sees_what_evaluation_sees(shared_data, tmp_path, antialias):
  files = sorted((shared_data / "imagenet_sample").glob("*.JPEG"))[::12]
  contents = {file.name: file.read_bytes() for file in files}
  contents |= {"odd.png": encode(ramp(61, 45), "PNG"), "high.png": encode(ramp(47, 300), "PNG")}
  split = write_split(tmp_path, contents)
  numbers = np.arange(len(contents))
  # The last is larger than what is cut from.
  for size, resize in [(128, 145), (64, 73), (101, 90)]:
    asked = [EvalBatch((size, size), numbers, numbers >= 0)]
    (batch,) = EvalStream(split, asked, resize=resize, antialias=antialias)
    for number, image in enumerate(batch.image):
      seen = read_image(split.full_path(number), size, resize, antialias=antialias)
      difference = np.abs(image.astype(float) - seen)
      # Of two roundings in both; where the filters differ it is 1.6 and more.
      assert difference.mean() < 0.3
      assert difference.max() <= 2
