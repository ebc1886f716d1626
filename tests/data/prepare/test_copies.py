"""Smaller copies of one image."""

import io
import math

import numpy as np
import pytest
import tiny_sets
from made_images import decoded, encoded, smooth
from PIL import Image, ImageOps

from jaxspeed.data.prepare.resize import copy_shape, make_copies


def test_the_short_side_becomes_the_size_and_the_other_is_rounded_down():
  assert copy_shape(500, 375, 160) == (213, 160)  # 500 * 160 / 375 = 213.3
  assert copy_shape(375, 500, 352) == (352, 469)  # 500 * 352 / 375 = 469.3
  # Pillow's plain loop; no side falls below the size where 49 * (160 / 49) is 159.99999999999997.
  assert all(min(copy_shape(n, n + 7, 160)) == 160 for n in range(1, 1000))


def test_copies_are_those_of_pillows_plain_loop():
  original = encoded(smooth(500, 375), quality=95)
  copies = make_copies(original, (160, 352), quality=75)
  for size, copy in copies.items():
    with Image.open(io.BytesIO(original)) as image:
      shape = (math.floor(500 * size / 375), size)
      expected = encoded(image.resize(shape, Image.Resampling.BILINEAR), quality=75)
    assert copy == expected


@pytest.mark.parametrize("size", [40, 41, 500])
def test_an_image_that_is_as_small_is_copied_byte_for_byte(size):
  original = encoded(smooth(60, 40), "PNG")
  assert make_copies(original, (size,), quality=75) == {size: original}


def test_a_large_jpeg_is_decoded_at_a_smaller_scale_that_of_the_largest_copy():
  """1,000 x 800 pixels to 90: at 1/4 it has 250 x 200, no less than twice the copy's 112 x 90."""
  original = encoded(tiny_sets.random_images(0, 1, height=800, width=1000)[0], quality=95)
  alone, both = (
    make_copies(original, (90,), quality=95),
    make_copies(original, (90, 500), quality=95),
  )
  with Image.open(io.BytesIO(original)) as image:
    plain = image.resize((112, 90), Image.Resampling.BILINEAR)
  with Image.open(io.BytesIO(original)) as image:
    image.draft(None, (224, 180))
    assert image.size == (250, 200)
    assert alone[90] == encoded(image.resize((112, 90), Image.Resampling.BILINEAR), quality=95)
  assert both[90] == encoded(plain, quality=95)
  assert np.abs(decoded(alone[90])[2] - np.asarray(plain).astype(int)).mean() < 4


GREY, COLOURS = smooth(60, 40, 1)[..., 0], smooth(60, 40)
CONTENTS = {
  "png": (encoded(COLOURS, "PNG"), "RGB", COLOURS),
  "alpha": (encoded(np.dstack([COLOURS, GREY]), "PNG"), "RGB", COLOURS),
  "cmyk": (encoded(Image.fromarray(COLOURS).convert("CMYK")), "RGB", COLOURS),
  "palette": (encoded(Image.fromarray(GREY).convert("P"), "PNG"), "RGB", np.dstack([GREY] * 3)),
  "gif": (encoded(GREY, "GIF"), "RGB", np.dstack([GREY] * 3)),
  "bmp": (encoded(COLOURS, "BMP"), "RGB", COLOURS),
  "grey jpeg": (encoded(GREY), "L", GREY),
  "grey with alpha": (encoded(np.dstack([GREY, GREY]), "PNG"), "L", GREY),
  "16 bit": (encoded(GREY.astype(np.uint16) * 257, "PNG"), "L", GREY),
  "1 bit": (encoded(Image.fromarray(GREY > 100), "PNG"), "L", (GREY > 100) * 255),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_other_contents_become_jpegs(kind):
  content, expected_mode, expected = CONTENTS[kind]
  image_format, mode, pixels = decoded(make_copies(content, (20,), quality=95)[20])
  assert (image_format, mode) == ("JPEG", expected_mode)
  means = expected.reshape(20, 2, 30, 2, -1).mean((1, 3))  # 2 x 2 pixels become one
  tolerance = 30 if kind == "1 bit" else 8
  assert np.abs(pixels.reshape(20, 30, -1) - means).mean() < tolerance


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_rotation_is_applied_and_metadata_stay_behind(kind, orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  original = encoded(smooth(600, 400), kind, exif=exif, comment=b"by an unknown", dpi=(300, 300))
  copy = make_copies(original, (20,), quality=95)[20]
  with Image.open(io.BytesIO(original)) as image:
    shown = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)
  with Image.open(io.BytesIO(copy)) as image:
    assert not image.getexif() and "comment" not in image.info
    assert image.size == ((30, 20) if orientation < 5 else (20, 30))
    means = shown.reshape(image.height, 20, image.width, 20, 3).mean((1, 3))
    assert np.abs(np.asarray(image) - means).mean() < 4
