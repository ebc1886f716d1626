"""Streams of images from disk: their order, crops, pixels, and what odd files do."""

import dataclasses
import importlib.util
import io
import math
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy.stats import ks_2samp
from toy_images import write_split

from jaxspeed.data import batch as batch_lib
from jaxspeed.data.disk import decoding
from jaxspeed.data.disk.batches import HostBatch
from jaxspeed.data.disk.crops import (
  CROP_NUMBERS,
  central_windows,
  crop_boxes,
  epoch_flips,
  epoch_order,
)
from jaxspeed.data.disk.imageset import Split, open_images
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.disk.streams import EvalStream, TrainStream
from jaxspeed.data.prepare.index import write_index
from jaxspeed.errors import UserError
from jaxspeed.run.image_file import read_image

needs_tensorflow = pytest.mark.skipif(
  importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)


@needs_tensorflow
def test_tensorflow_says_nothing_when_imported_and_of_broken_images(tmp_path):
  # Two to five lines on a machine without CUDA, which no level of its log keeps back, and two on
  # each broken image: the level that JAX sets for itself lets them through.
  (tmp_path / "cut.jpg").write_bytes(encode(ramp())[:-100])
  code = (
    "import sys, jax\n"
    "from jaxspeed.data.disk.images import import_tensorflow\n"
    "tf = import_tensorflow()\n"
    "try:\n"
    "  tf.io.decode_jpeg(tf.io.read_file(sys.argv[1]))\n"
    "except tf.errors.InvalidArgumentError:\n"
    "  print('broken')\n"
  )
  command = [sys.executable, "-c", code, str(tmp_path / "cut.jpg")]
  environment = {name: value for name, value in os.environ.items() if name[:7] != "TF_CPP_"}
  done = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert (done.returncode, done.stdout, done.stderr) == (0, "broken\n", "")


def ramp(width=48, height=48):
  """A smooth picture, of which JPEG keeps nearly all; no two rows or columns are alike."""
  x, y = np.linspace(0, 255, width), np.linspace(0, 255, height)[:, None]
  return np.stack(np.broadcast_arrays(x, y, (x + y) / 2), -1).astype(np.uint8)


def encode(picture, kind="JPEG", mode="RGB", **options):
  buffer = io.BytesIO()
  image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
  image.convert(mode).save(buffer, kind, **options)
  return buffer.getvalue()


def in_shards(split, folder, shards=2):
  """The same images, one behind the other in a few files."""
  folder.mkdir()
  files, file, offset = [], [], []
  for shard, numbers in enumerate(np.array_split(np.arange(len(split)), shards)):
    path = folder / f"{shard}.bin"
    contents = [split.read(number) for number in numbers]
    path.write_bytes(b"".join(contents))
    files.append(str(path))
    file += [shard] * len(numbers)
    offset += np.cumsum([0, *map(len, contents[:-1])]).tolist()
  return dataclasses.replace(
    split,
    files=tuple(files),
    file=np.array(file, np.int32),
    offset=np.array(offset, np.int64),
    whole_files=False,
  )


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
  """22 noisy JPEGs of many shapes."""
  rng = np.random.RandomState(0)
  contents = {}
  for number in range(22):
    height, width = rng.randint(20, 60, 2)
    contents[f"{number}.jpg"] = encode(rng.randint(0, 256, (height, width, 3)).astype(np.uint8))
  return write_split(tmp_path_factory.mktemp("noise"), contents)


def steps_of(epochs, steps, first=0):
  return [(epoch, step) for epoch in range(epochs) for step in range(steps)][first:]


def train(split, **options):
  options = {
    "seed": 7,
    "image_size": 16,
    "batch_size": 8,
    "min_scale": 0.2,
    "flip": "random",
    "steps": steps_of(1, -(-len(split) // options.get("batch_size", 8))),
  } | options
  stream = TrainStream(split, **options)
  batches = list(stream)
  return batches, stream


def joined(parts):
  """Fields of batches, the parts of the processes put together."""
  return [
    {
      field.name: np.concatenate([getattr(part, field.name) for part in step])
      for field in dataclasses.fields(HostBatch)
    }
    for step in zip(*parts, strict=True)
  ]


def assert_equal(found, expected):
  assert len(found) == len(expected)
  for one, other in zip(found, expected, strict=True):
    for name, value in one.items():
      np.testing.assert_array_equal(value, other[name], err_msg=name)


# Order


def test_the_order_is_frozen():
  np.testing.assert_array_equal(
    epoch_order(1, 2, 6), np.random.RandomState([1, 2, batch_lib.ORDER]).permutation(6)
  )
  assert epoch_order(0, 0, 5).tolist() == [0, 2, 4, 1, 3]
  assert epoch_order(0, 0, 5).dtype == np.int64
  assert sorted(epoch_order(3, 1, 1000)) == list(range(1000))
  assert (epoch_order(3, 1, 1000) != epoch_order(3, 2, 1000)).any()
  assert (epoch_order(3, 1, 1000) != epoch_order(4, 1, 1000)).any()
  epoch_order(-1, 0, 5)


def test_mirrored_images():
  def bits(epoch, flip):
    return epoch_flips(5, epoch, 1000, flip=flip)

  assert not bits(0, "none").any()
  np.testing.assert_array_equal(bits(0, "alternating"), ~bits(1, "alternating"))
  np.testing.assert_array_equal(bits(0, "alternating"), bits(2, "alternating"))
  for flip in ("random", "alternating"):
    assert abs(bits(0, flip).sum() - 500) < 4 * np.sqrt(1000 / 4)
  agreeing = (bits(0, "random") == bits(1, "random")).sum()
  assert abs(agreeing - 500) < 4 * np.sqrt(1000 / 4)


@needs_tensorflow
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_one_order(noise, processes):
  steps = steps_of(3, 3)
  whole, _ = train(noise, steps=steps)
  parts = [
    train(noise, steps=steps, process=process, processes=processes)[0]
    for process in range(processes)
  ]
  assert_equal(joined(parts), joined([whole]))
  for epoch in range(3):
    batches = whole[3 * epoch : 3 * epoch + 3]
    counted = np.concatenate([batch.index[batch.mask] for batch in batches])
    np.testing.assert_array_equal(counted, epoch_order(7, epoch, 22))
    assert [batch.mask.sum() for batch in batches] == [8, 8, 6]
    np.testing.assert_array_equal(batches[2].index[6:], epoch_order(7, epoch, 22)[:2])
  for batch in whole:
    np.testing.assert_array_equal(batch.label, 100 + batch.index)


@needs_tensorflow
@pytest.mark.parametrize("first", [1, 2, 3, 5, 8])
def test_a_stream_starts_at_any_step(noise, first):
  whole, _ = train(noise, steps=steps_of(3, 3))
  resumed, _ = train(noise, steps=iter(steps_of(3, 3, first)))
  assert_equal(joined([resumed]), joined([whole[first:]]))


@needs_tensorflow
def test_seed_and_flip_reach_the_batches(noise):
  (batch, *_), _ = train(noise, flip="alternating")
  flip = epoch_flips(7, 0, 22, flip="alternating")
  np.testing.assert_array_equal(batch.flip, flip[batch.index])
  (other, *_), _ = train(noise, seed=8)
  assert (other.index != batch.index).any()


@needs_tensorflow
def test_no_steps_no_batches(noise):
  assert train(noise, steps=[])[0] == []
  assert list(EvalStream(noise, [], resize=16)) == []


# Crops


def draw_box(rng, width, height, min_scale):
  """RandomResizedCrop as its documentation describes it, one attempt after the other."""
  for _ in range(10):
    area = width * height * rng.uniform(min_scale, 1)
    ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if 0 < w <= width and 0 < h <= height:
      return rng.randint(0, height - h), rng.randint(0, width - w), h, w
  w = min(width, round(height * 4 / 3))
  h = min(height, round(width * 4 / 3))
  return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (400, 90), (7, 5)])
@pytest.mark.parametrize("min_scale", [0.08, 0.5])
def test_boxes_have_the_distribution_of_torchvisions(width, height, min_scale):
  rng = random.Random(0)
  reference = [draw_box(rng, width, height, min_scale) for _ in range(1500)]
  n = 20_000
  uniform = np.random.RandomState(1).random_sample((n, CROP_NUMBERS))
  boxes = crop_boxes(uniform, np.full(n, width), np.full(n, height), min_scale=min_scale)
  for found, expected in zip(_features(boxes), _features(np.array(reference)), strict=True):
    assert ks_2samp(found, expected).pvalue > 1e-4


def _features(boxes):
  y, x, h, w = boxes.T
  return y, x, h, w, h * w, w / h, y + h, x + w


def test_boxes_lie_within_their_images():
  rng = np.random.RandomState(0)
  width, height = rng.randint(1, 40, (2, 5000))
  uniform = rng.random_sample((5000, CROP_NUMBERS))
  uniform[:100] = np.nextafter(1, 0)
  y, x, h, w = crop_boxes(uniform, width, height, min_scale=0.01).T
  assert (np.minimum(y, x) >= 0).all() and (np.minimum(h, w) >= 1).all()
  assert (y + h <= height).all() and (x + w <= width).all()
  assert ((y + h == height) & (x + w == width)).any() and (y == 0).any()


def test_boxes_by_arithmetic():
  uniform = np.zeros((3, CROP_NUMBERS))
  uniform[:, 10:20] = 0.5  # a ratio of 1
  uniform[1, 0] = 0.5  # the area's middle: (0.25 + 1) / 2
  uniform[1, 20:] = 0.999
  uniform[2, :9] = 0.999  # attempts that do not fit: 100 x 100 in 200 x 50
  width, height = np.array([40, 40, 200]), np.array([40, 40, 50])
  boxes = crop_boxes(uniform, width, height, min_scale=0.25)
  side = round((0.625 * 1600) ** 0.5)
  assert boxes.tolist() == [[0, 0, 20, 20], [40 - side, 40 - side, side, side], [0, 0, 50, 50]]


@pytest.mark.parametrize(
  ("width", "height", "box"),
  [
    (1000, 10, (0, (1000 - 13) // 2, 10, 13)),
    (10, 1000, ((1000 - 13) // 2, 0, 13, 10)),
    (1, 1, (0, 0, 1, 1)),
  ],
)
def test_the_central_part_where_no_attempt_fits(width, height, box):
  uniform = np.random.RandomState(0).random_sample((1, CROP_NUMBERS))
  boxes = crop_boxes(uniform, np.array([width]), np.array([height]), min_scale=0.9)
  assert tuple(boxes[0]) == box


# Pixels


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
  (batch,), _ = train(split, image_size=40, batch_size=4, min_scale=0.2, antialias=antialias)
  boxes = boxes_of(split, batch, seed=7, batch_size=4, min_scale=0.2)
  for image, number, (y, x, h, w) in zip(batch.image, batch.index, boxes, strict=True):
    whole = np.asarray(Image.open(split.files[number]).convert("RGB"))
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
  how = dict(batch_size=len(files), min_scale=0.08, image_size=size)

  def psnr(antialias):
    (batch,), _ = train(split, antialias=antialias, **how)
    boxes = boxes_of(split, batch, seed=7, batch_size=len(files), min_scale=0.08)
    errors = []
    for image, number, (y, x, h, w) in zip(batch.image, batch.index, boxes, strict=True):
      with Image.open(split.files[number]) as file:
        part = file.convert("RGB").crop((x, y, x + w, y + h))
      expected = np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))
      errors.append(np.mean((image.astype(float) - expected) ** 2))
    return 10 * np.log10(255**2 / np.mean(errors))

  assert psnr(antialias=True) >= 49.9
  assert psnr(antialias=False) < 45


@needs_tensorflow
def test_large_crops_are_decoded_to_half_their_size(tmp_path):
  checks = np.indices((400, 400)).sum(0) % 2 * 255  # grey at half the size
  pictures = [np.repeat(checks[..., None], 3, 2).astype(np.uint8), ramp(400, 400)]
  contents = {
    f"{number}.jpg": encode(picture, quality=95) for number, picture in enumerate(pictures)
  }
  split = write_split(tmp_path, contents)
  how = dict(batch_size=2, min_scale=0.9, antialias=False)
  (batch,), _ = train(split, image_size=90, **how)
  boxes = boxes_of(split, batch, seed=7, batch_size=2, min_scale=0.9)
  rows = dict(zip(batch.index.tolist(), range(2), strict=True))
  y, x, h, w = boxes[rows[1]]
  expected = bilinear(pictures[1][y : y + h, x : x + w], 90, antialias=False)
  assert np.abs(batch.image[rows[1]] - expected).mean() < 2
  assert np.abs(batch.image[rows[0]].astype(float) - 127.5).max() < 10
  # Where few images are that large nothing is halved, and every second pixel is skipped.
  (batch,), _ = train(split, image_size=201, **how)
  rows = dict(zip(batch.index.tolist(), range(2), strict=True))
  assert batch.image[rows[0]].std() > 30


@needs_tensorflow
def test_shards_hold_the_same_images(noise, tmp_path):
  sharded = in_shards(noise, tmp_path / "shards")
  whole, _ = train(noise, batch_size=22)
  found, _ = train(sharded, batch_size=22)
  assert_equal(joined([found]), joined([whole]))
  batches = [EvalBatch((24, 16), np.arange(22), np.ones(22, bool))]
  for one, other in zip(
    EvalStream(sharded, batches, resize=20), EvalStream(noise, batches, resize=20), strict=True
  ):
    np.testing.assert_array_equal(one.image, other.image)


@needs_tensorflow
def test_batches_larger_than_what_is_read_at_once(tmp_path, monkeypatch, noise):
  monkeypatch.setattr(decoding, "_CHUNK", 3)
  found, _ = train(in_shards(noise, tmp_path / "shards"))
  assert_equal(joined([found]), joined([train(noise)[0]]))


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
      expected = centre_of(split.files[number], asked.shape, int(resize))
      difference = np.abs(image.astype(float) - expected)
      # Pillow rounds between its two passes.
      assert difference.mean() < 0.3
      assert difference.max() <= 2


@needs_tensorflow
def test_photographs_are_evaluated_as_torchvision_does(shared_data, tmp_path):
  files = sorted((shared_data / "imagenet_sample").glob("*.JPEG"))[::12]
  split = write_split(tmp_path, {file.name: file.read_bytes() for file in files})
  numbers = np.arange(len(files))
  assert_centres(
    split,
    [
      EvalBatch((128, 128), numbers, numbers < 8),
      EvalBatch((128, 168), numbers, numbers < 4),
    ],
    resize=145.9,
  )
  assert_centres(split, [EvalBatch((288, 392), numbers, numbers < 4)], resize=328)


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
    for image, file in zip(batch.image, split.files, strict=True):
      seen = read_image(file, size, resize, antialias=antialias)
      difference = np.abs(image.astype(float) - seen)
      # Of two roundings in both; where the filters differ it is 1.6 and more.
      assert difference.mean() < 0.3
      assert difference.max() <= 2


def test_windows_of_evaluation_by_arithmetic():
  box, scale, translation = central_windows(
    np.array([500, 100]), np.array([250, 100]), shape=(100, 100), resize=125
  )
  # 250 x 125 of 500 x 250: 75 pixels are cut from the left and 12 (12.5, to even) from above; in
  # the image twice that, less a margin of 2 for the filter and 1 more.
  assert box[0].tolist() == [24 - 3, 150 - 3, 200 + 6, 200 + 6]
  np.testing.assert_allclose(scale, [[0.5, 0.5], [1.25, 1.25]])
  np.testing.assert_allclose(translation[0], [21 * 0.5 - 12, 147 * 0.5 - 75])


@needs_tensorflow
def test_processes_share_the_shapes_of_evaluation(noise):
  batches = [
    EvalBatch((16, 24), np.arange(8), np.ones(8, bool)),
    EvalBatch((24, 16), np.arange(8, 16), np.arange(8) < 5),
  ]
  whole = list(EvalStream(noise, batches, resize=20))
  parts = [list(EvalStream(noise, batches, resize=20, process=p, processes=2)) for p in range(2)]
  assert_equal(joined(parts), joined([whole]))
  assert [batch.image.shape for batch in parts[1]] == [(4, 16, 24, 3), (4, 24, 16, 3)]


# Orientation


def oriented(picture, orientation):
  """EXIF's number, and the stored picture that it leads to the given one."""
  exif = Image.Exif()
  exif[0x0112] = orientation
  # What undoes each turn, in the numbers of Image.Transpose.
  back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
  image = Image.fromarray(picture)
  return (image.transpose(back[orientation]) if orientation > 1 else image), exif


@needs_tensorflow
def test_images_are_turned_as_their_exif_asks(tmp_path):
  """PNGs and JPEGs of all orientations, in training and in shapes of evaluation."""
  picture, turned, plain = ramp(64, 40), {}, {}
  for orientation in range(1, 9):
    stored, exif = oriented(picture, orientation)
    for kind in ("PNG", "JPEG"):
      options = {} if kind == "PNG" else {"quality": 100, "subsampling": 0}
      turned[f"{orientation}.{kind}"] = encode(stored, kind, exif=exif, **options)
      plain[f"{orientation}.{kind}"] = encode(picture, kind, **options)
  split, upright = write_split(tmp_path / "turned", turned), write_split(tmp_path / "plain", plain)
  assert set(split.width) == {64} and set(split.height) == {40}
  assert split.orientation.tolist() == [number for number in range(1, 9) for _ in range(2)]

  def assert_alike(found, expected):
    np.testing.assert_array_equal(found.index, expected.index)
    difference = np.abs(found.image.astype(int) - expected.image)
    is_png = found.index % 2 == 0
    assert difference[is_png].max() <= 1  # a half that is rounded the other way
    assert difference[~is_png].mean() < 2  # of a crop that is halved, whole blocks are left out

  options = {"batch_size": 16, "min_scale": 0.2, "flip": "none", "seed": 3}
  (batch,), stream = train(split, **options)
  assert not stream.broken
  assert_alike(batch, train(upright, **options)[0][0])
  for shape in ((24, 24), (24, 40), (36, 30), (50, 80)):
    asked = [EvalBatch(shape, np.arange(16), np.ones(16, bool))]
    found, expected = (list(EvalStream(each, asked, resize=36))[0] for each in (split, upright))
    assert found.image.shape == (16, *shape, 3)
    assert_alike(found, expected)


# Odd files


def odd_files():
  """{name: (content, why it is replaced; None if it is decoded)}; all are called .jpg."""
  picture = ramp()
  grey = Image.fromarray(picture).convert("L")
  rotated = Image.Exif()
  rotated[0x0112] = 6
  frames = [Image.fromarray(picture[::-1]), Image.fromarray(picture[:, ::-1])]
  formats = {
    "jpeg": encode(picture),
    "progressive": encode(picture, progressive=True),
    "png": encode(picture, "PNG"),
    "gif": encode(picture, "GIF"),
    "bmp": encode(picture, "BMP"),
    "webp": encode(picture, "WEBP", lossless=True),
    "tiff": encode(picture, "TIFF"),
  }
  damaged = "its data are damaged or cut off"
  unknown = "it is not a JPEG, PNG, GIF, BMP, WebP or TIFF"
  files = {
    f"{name} cut at {percent} %": (content[: len(content) * percent // 100], damaged)
    for name, content in formats.items()
    for percent in (8, 25, 50, 75, 90)
  }
  few = ", not 8 or 16"
  middle = len(formats["jpeg"]) // 2
  files |= {f"{name} whole": (content, None) for name, content in formats.items()}
  files |= {
    f"{name} and more": (formats[name] + b"more" * 50, None)
    for name in ("jpeg", "progressive", "png", "gif")
  }
  files |= {
    "jpeg zeros from the middle on": (formats["jpeg"][:middle] + bytes(middle), damaged),
    "jpeg without its last byte": (formats["jpeg"][:-1], damaged),
    "jpeg behind a newline": (b"\n" + formats["jpeg"], unknown),
    "bmp and more": (formats["bmp"] + b"more", None),
    "empty": (b"", "it is empty"),
    "zeros": (bytes(5000), unknown),
    "html": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", unknown),
    "webp of quality 90": (encode(picture, "WEBP", quality=90), None),
    "webp alpha": (encode(picture, "WEBP", "RGBA", lossless=True), None),
    "tiff deflated": (encode(picture, "TIFF", compression="tiff_adobe_deflate"), None),
    "tiff to be rotated": (encode(picture, "TIFF", exif=rotated), None),
    "tiff 16 bits": (encode(np.asarray(grey).astype(np.uint16) * 257, "TIFF", "I;16"), None),
    "tiff floats": (encode(grey, "TIFF", "F"), f"its pixels have 32 bits (mode F){few}"),
    "tiff integers": (encode(grey, "TIFF", "I"), f"its pixels have 32 bits (mode I){few}"),
    "jpeg start only": (b"\xff\xd8\xff\xe0", damaged),
    "jpeg cmyk": (encode(picture, mode="CMYK"), None),
    "jpeg grey": (encode(grey, mode="L"), None),
    "jpeg 4:4:4": (encode(picture, subsampling=0), None),
    "jpeg 4:2:2": (encode(picture, subsampling=1), None),
    "jpeg restarts": (encode(picture, restart_marker_blocks=1), None),
    "jpeg optimised": (encode(picture, optimize=True), None),
    "jpeg to be rotated": (encode(picture, exif=rotated), None),
    "png to be rotated": (encode(picture, "PNG", exif=rotated), None),
    "webp to be rotated": (encode(picture, "WEBP", lossless=True, exif=rotated), None),
    "jpeg with damaged exif": (encode(picture, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff"), None),
    "jpeg of quality 5": (encode(picture, quality=5), None),
    "jpeg with a comment": (encode(picture, comment=b"c" * 60_000), None),
    "jpeg 1 x 1": (encode(picture[:1, :1]), None),
    "jpeg 20000 x 10": (encode(ramp(20_000, 10)), None),
    "jpeg 10 x 20000": (encode(ramp(10, 20_000)), None),
    "png palette": (encode(picture, "PNG", "P"), None),
    "png rgba": (encode(picture, "PNG", "RGBA"), None),
    "png grey": (encode(picture, "PNG", "L"), None),
    "png grey alpha": (encode(picture, "PNG", "LA"), None),
    "png 1 bit": (encode(picture, "PNG", "1"), None),
    "png 16 bits": (encode(np.asarray(grey).astype(np.uint16) * 257, "PNG", "I;16"), None),
    "gif animated": (encode(picture, "GIF", save_all=True, append_images=frames), None),
    "bmp grey": (encode(grey, "BMP", "L"), None),
    "bmp palette": (encode(picture, "BMP", "P"), None),
    "bmp 1 bit": (encode(picture, "BMP", "1"), None),
    "gif transparent": (encode(picture, "GIF", "P", transparency=3), None),
    "png palette transparent": (encode(picture, "PNG", "P", transparency=3), None),
  }
  return files


ODD = odd_files()
DECODED = [name for name, (_, reason) in ODD.items() if reason is None]
REPLACED = [name for name in ODD if name not in DECODED]


@dataclasses.dataclass
class Survived:
  """What streams made of the odd files, by name; a whole file follows every third of them."""

  split: Split
  number: dict
  train: dict  # row of a batch: (image, label)
  train_broken: dict
  eval: dict  # (image, mask)
  eval_broken: dict


@pytest.fixture(scope="module")
def survived(tmp_path_factory):
  contents = {}
  for number, (name, (content, _)) in enumerate(ODD.items()):
    contents[f"{name}.jpg".replace(" ", "_")] = content
    if number % 3 == 0:
      contents[f"good_{number}.jpg"] = encode(ramp()[::-1])
  split = write_split(tmp_path_factory.mktemp("odd"), contents)
  files = list(contents)
  number = {name: files.index(f"{name}.jpg".replace(" ", "_")) for name in ODD}
  batches, stream = train(split, image_size=48, batch_size=32, min_scale=1.0, flip="none")
  trained = {
    int(i): (image, int(label))
    for batch in batches
    for i, image, label in zip(batch.index, batch.image, batch.label, strict=True)
  }
  index = np.resize(np.arange(len(split)), -(-len(split) // 32) * 32).reshape(-1, 32)
  mask = np.arange(index.size).reshape(index.shape) < len(split)
  asked = [EvalBatch((48, 48), i, m) for i, m in zip(index, mask, strict=True)]
  evaluation = EvalStream(split, asked, resize=48)
  evaluated = {
    int(i): (image, bool(counted))
    for batch, request in zip(evaluation, asked, strict=True)
    for i, image, counted, real in zip(
      batch.index, batch.image, batch.mask, request.mask, strict=True
    )
    if real
  }
  return Survived(split, number, trained, stream.broken, evaluated, evaluation.broken)


def picture_of(name, content):
  if "16 bits" in name:
    return np.asarray(Image.fromarray(ramp()).convert("L").convert("RGB"))
  with Image.open(io.BytesIO(content)) as image:
    return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def test_there_are_enough_odd_files():
  assert len(ODD) >= 60


@needs_tensorflow
@pytest.mark.parametrize("name", DECODED)
def test_odd_files_that_are_decoded(survived, name):
  number, expected = survived.number[name], picture_of(name, ODD[name][0])
  image, label = survived.train[number]
  assert label == 100 + number
  assert number not in survived.train_broken | survived.eval_broken
  evaluated, mask = survived.eval[number]
  assert mask
  if expected.shape == (48, 48, 3):
    tolerance = 1.5 if name.startswith(("jpeg", "progressive")) else 0
    assert np.abs(image.astype(float) - expected).mean() <= tolerance
    assert np.abs(evaluated.astype(float) - expected).mean() <= tolerance


@needs_tensorflow
@pytest.mark.parametrize("name", REPLACED)
def test_odd_files_that_are_replaced(survived, name):
  number = survived.number[name]
  assert survived.train_broken[number] == survived.eval_broken[number] == ODD[name][1]
  broken = set(survived.train_broken)
  following = [*range(number, len(survived.split)), *range(number)]
  replacement = next(other for other in following if other not in broken)
  image, label = survived.train[number]
  assert label == 100 + replacement
  if survived.split.width[replacement] == 48:
    np.testing.assert_array_equal(image, survived.train[replacement][0])
  assert not survived.eval[number][1]


@needs_tensorflow
def test_nothing_else_is_replaced(survived):
  expected = {survived.number[name] for name in REPLACED}
  assert set(survived.train_broken) == set(survived.eval_broken) == expected


@needs_tensorflow
@pytest.mark.parametrize(
  "name", ["jpeg cut at 90 %", "html", "empty", "tiff floats", "png cut at 50 %"]
)
@pytest.mark.parametrize("evaluate", [False, True])
def test_a_broken_image_is_refused_by_name(tmp_path, name, evaluate):
  split = write_split(
    tmp_path, {"good.jpg": encode(ramp()), "a cat.jpg": ODD[name][0], "fine.jpg": encode(ramp())}
  )
  with pytest.raises(UserError) as error:
    if evaluate:
      batch = EvalBatch((48, 48), np.arange(3), np.ones(3, bool))
      list(EvalStream(split, [batch], resize=48, on_error="raise"))
    else:
      train(split, batch_size=3, min_scale=1.0, on_error="raise")
  assert str(error.value) == (
    f"a cat.jpg in {tmp_path} cannot be decoded ({ODD[name][1]}): replace or remove it, or "
    "set config.data.on_error=skip."
  )


@needs_tensorflow
def test_the_caller_may_clear_the_names(tmp_path):
  split = write_split(tmp_path, {"bad.jpg": ODD["jpeg cut at 90 %"][0], "good.jpg": encode(ramp())})
  stream = TrainStream(
    split,
    seed=0,
    image_size=16,
    batch_size=2,
    min_scale=1.0,
    flip="none",
    steps=steps_of(3, 1),
  )
  for _ in stream:
    assert stream.broken == {0: ODD["jpeg cut at 90 %"][1]}
    stream.broken.clear()


@needs_tensorflow
def test_replacement_depends_on_the_part_alone(tmp_path):
  """The upper parts of a cut-off file are used, by a stream that knows of it and by others."""
  whole = encode(np.random.RandomState(0).randint(0, 256, (64, 64, 3)).astype(np.uint8))
  contents = {f"{number}.jpg": whole for number in range(6)}
  contents["1.jpg"] = contents["2.jpg"] = whole[: len(whole) * 8 // 10]
  split = write_split(tmp_path, contents)
  options = {"batch_size": 6, "min_scale": 0.05}
  batches, stream = train(split, steps=steps_of(6, 1), **options)
  labels = np.stack([batch.label[np.argsort(batch.index)] for batch in batches])
  assert set(labels[:, 1]) > {101}, "no part, or every part, was decoded: the test shows nothing"
  assert set(labels[:, 1]) <= {101, 102, 103}
  assert set(stream.broken) == {1, 2}
  for first in range(1, 6):
    resumed, _ = train(split, steps=steps_of(6, 1, first), **options)
    assert_equal(joined([resumed]), joined([batches[first:]]))


@needs_tensorflow
def test_a_set_without_a_whole_image_is_refused(tmp_path):
  cut = ODD["jpeg cut at 90 %"][0]
  split = write_split(tmp_path, {f"{number}.jpg": cut for number in range(3)})
  with pytest.raises(
    UserError, match="none of the 3 images of .* can be decoded; [0-2].jpg: its.*; repair"
  ):
    train(split, batch_size=3, min_scale=1.0)


@needs_tensorflow
def test_a_disk_that_is_gone_ends_the_run(noise, tmp_path):
  split = dataclasses.replace(noise, files=tuple(str(tmp_path / str(i)) for i in range(22)))
  with pytest.raises(UserError, match=r"none of 8 images in a row .*\(it cannot be read: No such"):
    train(split)


@needs_tensorflow
def test_a_file_that_is_gone_is_replaced(tmp_path):
  split = write_split(tmp_path, {f"{number}.jpg": encode(ramp()) for number in range(3)})
  (tmp_path / "1.jpg").unlink()
  _, stream = train(split, batch_size=3)
  assert stream.broken == {1: "it cannot be read: No such file or directory"}


@needs_tensorflow
@pytest.mark.parametrize("content", [encode(ramp(90, 90)), b"", encode(ramp())[:-9], b"<html>"])
def test_a_file_that_was_replaced_after_indexing_is_refused(tmp_path, content):
  split = write_split(tmp_path, {f"{number}.jpg": encode(ramp()) for number in range(3)})
  (tmp_path / "1.jpg").write_bytes(content)
  sizes = rf"{split.length[1]:,} bytes then, {len(content):,} now"
  with pytest.raises(UserError, match=rf"1.jpg in .* has changed .*{sizes}.*same command makes"):
    train(split, batch_size=3, min_scale=1.0)


@needs_tensorflow
@pytest.mark.parametrize("own", [False, True])
def test_the_index_of_an_edited_image_is_dropped_or_named(tmp_path, own):
  root, cache = tmp_path / "set", str(tmp_path / "cache")
  for name in ("train/a/0.jpg", "train/a/1.jpg", "val/a/0.jpg"):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(encode(ramp()))
  if own:
    write_index(root)
  split = open_images(name="", path=str(root), cache=cache).train
  for name in ("train/a/1.jpg", "val/a/0.jpg"):
    (root / name).write_bytes(encode(ramp(90, 90)))
  with pytest.raises(UserError, match="train/a/1.jpg in .* has changed") as refused:
    train(split, batch_size=2, min_scale=1.0)
  sentence = str(refused.value)
  if own:
    command = f"python -m jaxspeed.prepare index {root}"
    assert sentence.endswith(f"write the index {root}/.jaxspeed/train again with {command}.")
    write_index(root)
  else:
    assert sentence.endswith("removed from the cache, and the same command makes it again.")
  again = open_images(name="", path=str(root), cache=cache)
  assert len(train(again.train, batch_size=2, min_scale=1.0)[0]) == 1
  assert len(train(again.eval, batch_size=1, min_scale=1.0)[0]) == 1


@needs_tensorflow
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_of_another_size_than_indexed_is_refused(tmp_path, kind):
  split = write_split(tmp_path, {"0.jpg": encode(ramp(50, 30), kind), "1.jpg": encode(ramp())})
  split.width[0], split.height[0] = 30, 50
  with pytest.raises(UserError, match=r"0.jpg in .* \(30 x 50 pixels then, 50 x 30 now\)"):
    train(split, batch_size=2, min_scale=1.0)


@needs_tensorflow
def test_a_shard_that_is_cut_off_or_gone_is_refused(noise, tmp_path):
  split = in_shards(noise, tmp_path / "shards")
  shard = pathlib.Path(split.files[1])
  shard.write_bytes(shard.read_bytes()[:-10])
  with pytest.raises(UserError, match=r"1.bin, byte \d+ in .* has changed since"):
    train(dataclasses.replace(split, root=str(shard.parent)))
  shard.unlink()
  with pytest.raises(UserError, match=r"1.bin, byte \d+ in .* cannot be read \(No such file"):
    train(dataclasses.replace(split, root=str(shard.parent)))


# Threads, and TensorFlow's manners


@needs_tensorflow
@pytest.mark.parametrize("shards", [False, True])
def test_more_images_are_read_at_a_time_than_there_are_cores(noise, tmp_path, monkeypatch, shards):
  threads = len(os.sched_getaffinity(0)) + 6
  split = in_shards(noise, tmp_path / "shards") if shards else noise
  expected, _ = train(noise, steps=steps_of(9, 3))
  seen, enough = threading.Semaphore(0), threading.Event()

  def read(self, number, read=Split.read):
    seen.release()
    # All threads are to stand here at once.
    assert enough.wait(60), "the reads wait for each other"
    return read(self, number)

  def let_them_pass():
    for _ in range(threads):
      seen.acquire(timeout=50)
    enough.set()

  passing = threading.Thread(target=let_them_pass)
  passing.start()
  monkeypatch.setattr(Split, "read", read)
  batches, _ = train(split, steps=steps_of(9, 3), read_threads=threads)
  passing.join()
  assert seen.acquire(timeout=0), "fewer images were read than threads"
  assert_equal(joined([batches]), joined([expected]))


@needs_tensorflow
def test_decoding_begins_at_once_and_close_ends_it(noise):
  def threads():
    return len(os.listdir("/proc/self/task"))

  options = {"seed": 0, "image_size": 16, "batch_size": 2, "min_scale": 0.5, "flip": "none"}
  options["read_threads"] = 1
  TrainStream(noise, steps=steps_of(1, 1), **options).close()  # makes the threads that all share
  before = threads()
  stream = TrainStream(noise, steps=steps_of(1000, 11), **options)
  deadline = time.monotonic() + 120
  while not stream._pending and time.monotonic() < deadline:
    time.sleep(0.01)
  assert stream._pending, "no batch was asked for before the first next()"
  next(stream)
  asked = len(stream._pending)
  assert asked < 12, "batches are decoded without bound"
  stream.close()
  while threads() > before and time.monotonic() < deadline:
    time.sleep(0.01)
  assert threads() <= before
  with pytest.raises(StopIteration):
    next(stream)


def test_tensorflow_is_imported_by_streams_only(noise, monkeypatch):
  code = "import sys, jaxspeed.data.disk.images; sys.exit('tensorflow' in sys.modules)"
  root = pathlib.Path(__file__).parents[3]
  subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
  monkeypatch.setitem(sys.modules, "tensorflow", None)
  with pytest.raises(UserError, match=r"pip install 'jaxspeed\[imagenet\]'"):
    train(noise)
