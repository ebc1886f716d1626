"""Notes about grey and about dark images, and that every kind of file gives three channels."""

import io

import numpy as np
import pytest
from PIL import Image
from toy_images import write_split

from jaxspeed.data.disk.colours import dark_note
from jaxspeed.data.formats import pixels

RAMP = np.add.outer(np.arange(20), np.arange(30)).astype(np.uint8) * 5
ALPHA = np.full_like(RAMP, 255)
GREY = {
  "L.jpg": Image.fromarray(RAMP),
  "L.png": Image.fromarray(RAMP),
  "LA.png": Image.fromarray(np.stack([RAMP, ALPHA], -1), "LA"),
  "1.png": Image.fromarray(RAMP).convert("1"),
  "I16.png": Image.fromarray(RAMP.astype(np.uint16) * 257),
  "I16.tif": Image.fromarray(RAMP.astype(np.uint16) * 257),
}
COLOUR = {
  "RGB.png": Image.fromarray(np.stack([RAMP, RAMP.T.reshape(20, 30), RAMP[::-1]], -1)),
  "RGBA.png": Image.fromarray(np.stack([RAMP, RAMP[::-1], RAMP, ALPHA], -1)),
  "P.png": Image.fromarray(np.stack([RAMP, RAMP[::-1], RAMP], -1)).quantize(32),
  "CMYK.jpg": Image.fromarray(np.stack([RAMP, RAMP[::-1], RAMP], -1)).convert("CMYK"),
}


def encoded(images):
  found = {}
  for name, image in images.items():
    buffer = io.BytesIO()
    image.save(buffer, Image.registered_extensions()[f".{name.partition('.')[2]}"])
    found[name] = buffer.getvalue()
  return found


@pytest.mark.parametrize("name", GREY)
def test_grey_files_become_three_equal_channels(name):
  found = pixels.decode(encoded({name: GREY[name]})[name])
  assert found.shape == (20, 30, 3) and (found == found[..., :1]).all()
  if name not in ("L.jpg", "1.png"):  # one is lossy, the other dithered
    np.testing.assert_array_equal(found[..., 0], RAMP)


def test_dark_16_bit_images_are_told(tmp_path):
  twelve = Image.fromarray(RAMP.astype(np.uint16) * 16)  # up to 4,080 of 65,535
  (note,) = dark_note(write_split(tmp_path / "dark", encoded({"a.png": twelve})))
  assert "the brightest of 1 looked at is 15 of 255" in note
  for number, images in enumerate((GREY, COLOUR)):
    split = write_split(tmp_path / str(number), encoded(images))
    (tmp_path / str(number) / split.name(0)).write_bytes(b"no image")  # since it was indexed
    assert dark_note(split) == []
