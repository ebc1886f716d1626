"""Files that are odd, broken, gone or replaced: which are decoded, and what stands for the rest."""

import dataclasses
import io
import os
import types

import numpy as np
import pytest
from image_files import (
  assert_equal,
  encode,
  in_shards,
  joined,
  needs_tensorflow,
  ramp,
  steps_of,
  train,
  write,
  write_split,
)
from PIL import Image, ImageOps

from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.disk.streams import EvalStream, TrainStream, epoch_order
from jaxspeed.data.table import Names
from jaxspeed.errors import UserError

UNKNOWN = "it is not an image of a known format"


def odd_files():
  """{name: (content, why it is replaced; None if it is decoded)}; all are called .jpg."""
  picture = ramp()
  grey = Image.fromarray(picture).convert("L")
  turned = [Image.Exif() for _ in range(9)]
  for orientation, exif in enumerate(turned):
    exif[0x0112] = orientation
  rotated = turned[6]
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
  files = {
    f"{name} cut at {percent} %": (content[: len(content) * percent // 100], damaged)
    for name, content in formats.items()
    for percent in (8, 50, 90)
  }
  few = ", not 8 or 16"
  middle = len(formats["jpeg"]) // 2
  files |= {f"{name} whole": (content, None) for name, content in formats.items()}
  files |= {
    f"{name} and more": (formats[name] + b"more" * 50, None)
    for name in ("jpeg", "progressive", "png", "gif")
  }
  files |= {
    "jpeg zeros from the middle on": (formats["jpeg"][:middle] + bytes(middle), UNKNOWN),
    "jpeg without its last byte": (formats["jpeg"][:-1], damaged),
    "jpeg behind a newline": (b"\n" + formats["jpeg"], UNKNOWN),
    "bmp and more": (formats["bmp"] + b"more", None),
    "empty": (b"", "it is empty"),
    "zeros": (bytes(5000), UNKNOWN),
    "html": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", UNKNOWN),
    "webp of quality 90": (encode(picture, "WEBP", quality=90), None),
    "webp alpha": (encode(picture, "WEBP", "RGBA", lossless=True), None),
    "tiff deflated": (encode(picture, "TIFF", compression="tiff_adobe_deflate"), None),
    "tiff to be rotated": (encode(picture, "TIFF", exif=rotated), None),
    "tiff 16 bits": (encode(np.asarray(grey).astype(np.uint16) * 257, "TIFF", "I;16"), None),
    "tiff floats": (encode(grey, "TIFF", "F"), f"its pixels have 32 bits (mode F){few}"),
    "tiff integers": (encode(grey, "TIFF", "I"), f"its pixels have 32 bits (mode I){few}"),
    "jpeg start only": (b"\xff\xd8\xff\xe0", UNKNOWN),
    "jpeg cmyk": (encode(picture, mode="CMYK"), None),
    "jpeg grey": (encode(grey, mode="L"), None),
    "jpeg 4:4:4": (encode(picture, subsampling=0), None),
    "jpeg 4:2:2": (encode(picture, subsampling=1), None),
    "jpeg restarts": (encode(picture, restart_marker_blocks=1), None),
    "jpeg optimised": (encode(picture, optimize=True), None),
    **{
      f"{kind} turned {i}": (encode(picture, kind.upper(), exif=exif), None)
      for kind in ("jpeg", "png")
      for i, exif in enumerate(turned)
    },
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
CUT = ODD["jpeg cut at 90 %"]


def alone(number, *others):
  """A batch of an evaluation that others only fill."""
  return EvalBatch((48, 48), np.array([number, *others]), np.arange(1 + len(others)) < 1)


@pytest.fixture(scope="module")
def survived(tmp_path_factory):
  """What streams make of the odd files by number, of which every fourth is a whole file."""
  contents = {}
  for number, (name, (content, _)) in enumerate(ODD.items()):
    contents[f"{name}.jpg".replace(" ", "_")] = content
    if number % 3 == 0:
      contents[f"good_{number}.jpg"] = encode(ramp()[::-1])
  split = write_split(tmp_path_factory.mktemp("odd"), contents)
  batches, stream = train(split, image_size=48, batch_size=32, min_scale=1.0, flip="none")
  order = np.resize(epoch_order(7, 0, len(split)), (len(batches), 32)).tolist()
  evaluation = EvalStream(split, [alone(i, 1) for i in range(len(split))], resize=48)
  evaluated = [(batch.image[0], bool(batch.mask[0])) for batch in evaluation]
  trained = {}
  for asked, batch in zip(order, batches, strict=True):
    trained |= {i: (batch.image[row], int(batch.label[row])) for row, i in enumerate(asked)}
  names = [name[:-4].replace("_", " ") for name in contents]
  broken = stream.broken
  assert broken == evaluation.broken
  assert set(broken) == {names.index(name) for name, (_, reason) in ODD.items() if reason}
  return types.SimpleNamespace(
    split=split, names=names, order=order, train=trained, eval=evaluated, broken=broken
  )


def picture_of(name, content):
  if "16 bits" in name:
    return np.asarray(Image.fromarray(ramp()).convert("L").convert("RGB"))
  with Image.open(io.BytesIO(content)) as image:
    return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


@needs_tensorflow
@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_decoded_or_replaced(survived, name):
  number, (content, reason) = survived.names.index(name), ODD[name]
  (trained, label), (evaluated, mask) = survived.train[number], survived.eval[number]
  assert mask == (reason is None)
  if reason is None:
    assert label == 100 + number and number not in survived.broken
    expected = picture_of(name, content)
    if expected.shape == (48, 48, 3):
      tolerance = 1.5 if name.startswith(("jpeg", "progressive")) else 0
      for image in (trained, evaluated):
        assert np.abs(image.astype(float) - expected).mean() <= tolerance
    return
  # Of what is cut off so early that Pillow knows no format, the reason is `UNKNOWN`.
  assert survived.broken[number] in {reason, UNKNOWN if "8 %" in name else reason}
  # The next sound image of the batch, from this one on and then from the first.
  batch = [each for each in survived.order if number in each][-1]
  place = batch.index(number)
  following = [*batch[place:], *batch[:place]]
  replacement = next(other for other in following if other not in survived.broken)
  assert label == 100 + replacement
  if survived.split.width[number]:  # else the replacement has a crop of its own there
    np.testing.assert_array_equal(trained, survived.train[replacement][0])


@needs_tensorflow
def test_replacement_depends_on_the_part_alone(tmp_path):
  """The upper parts of a cut-off file are used, by a stream that knows of it and by others."""
  whole = encode(np.random.RandomState(0).randint(0, 256, (64, 64, 3)).astype(np.uint8))
  contents = {f"{number}.jpg": whole for number in range(6)}
  contents["1.jpg"] = contents["2.jpg"] = whole[: len(whole) * 8 // 10]
  split = write_split(tmp_path, contents)
  options = {"batch_size": 6, "min_scale": 0.05}
  batches, stream = train(split, steps=steps_of(6, 1), **options)
  shown = [1 in batch.index for batch in batches]
  assert any(shown) and not all(shown), "the test shows nothing"
  assert set(stream.broken) == {1, 2}
  for first in range(1, 6):
    resumed, _ = train(split, steps=steps_of(6, 1, first), **options)
    assert_equal(joined([resumed]), joined([batches[first:]]))


@needs_tensorflow
def test_broken_images_cost_one_restart(tmp_path, monkeypatch):
  contents = {f"{i:02d}.jpg": CUT[0] if i % 7 == 0 else encode(ramp()) for i in range(40)}
  split, starts = write_split(tmp_path, contents), []

  def start(self, real=TrainStream._start):
    starts.append(self)
    real(self)

  monkeypatch.setattr(TrainStream, "_start", start)
  batches, stream = train(split, min_scale=1.0, steps=steps_of(3, 5))
  assert len(starts) == 2 and set(stream.broken) == set(range(0, 40, 7))
  for batch in batches:
    assert (batch.index % 7).all()  # the numbers are those of the images in their place
    np.testing.assert_array_equal(batch.label, 100 + batch.index)


@needs_tensorflow
def test_what_only_fills_a_batch_is_not_counted_as_broken(tmp_path):
  split = write_split(tmp_path, {"0.jpg": CUT[0], "1.jpg": encode(ramp())})
  for asked, broken in ((alone(0, *[0] * 7), {0}), (alone(1, *[0] * 7), set())):
    stream = EvalStream(split, [asked], resize=48)
    (batch,) = stream
    assert set(stream.broken) == broken and batch.mask.sum() == 1 - len(broken)


@needs_tensorflow
def test_files_that_are_gone_are_replaced_and_a_set_without_a_whole_image_ends_the_run(tmp_path):
  split = write_split(tmp_path, {"0.jpg": CUT[0], "1.jpg": encode(ramp()), "2.jpg": CUT[0]})
  (tmp_path / "0.jpg").unlink()
  gone = "it cannot be read: No such file or directory"
  _, stream = train(split, batch_size=3, min_scale=1.0)
  assert stream.broken == {0: gone, 2: CUT[1]}
  (tmp_path / "1.jpg").unlink()
  with pytest.raises(UserError, match="none of 3 images in a row .* [0-2].jpg in .*: repair"):
    train(split, batch_size=3, min_scale=1.0)
  split = dataclasses.replace(split, names=Names.of("abc"))
  with pytest.raises(UserError, match=rf"none of 3 images in a row .*\({gone}"):
    train(split, batch_size=3)


@needs_tensorflow
@pytest.mark.parametrize("before, after", [(CUT[0], encode(ramp())), (encode(ramp()), b"")])
def test_an_image_that_changed_after_indexing_is_replaced_and_named(tmp_path, before, after):
  root = write(tmp_path / "set", {f"{split}/a/0.jpg": encode(ramp()) for split in ("train", "val")})
  write(root, {"train/a/1.jpg": before})
  split = open_images(name="", path=str(root), cache=str(tmp_path / "cache")).train
  write(root, {"train/a/1.jpg": after})
  (batch,), stream = train(split, batch_size=2, min_scale=1.0)
  assert batch.index.tolist() == [0, 0]
  assert stream.broken == {1: f"it has changed since it was indexed: remove {split.index}"}
  os.remove(split.index)
  again = open_images(name="", path=str(root), cache=str(tmp_path / "cache")).train
  broken = train(again, batch_size=2, min_scale=1.0)[1].broken
  assert broken == ({} if after else {1: "it is empty"})


@needs_tensorflow
def test_a_shard_that_is_cut_off_or_gone(noise, tmp_path):
  split = in_shards(noise, tmp_path / "shards")
  shard = tmp_path / "shards" / "1.bin"
  shard.write_bytes(shard.read_bytes()[:-10])
  _, stream = train(split)
  assert [*stream.broken] == [len(split) - 1] and "has changed" in str(stream.broken)
  shard.unlink()
  with pytest.raises(UserError, match=rf"^{shard} cannot be read \(No such file"):
    train(split)
