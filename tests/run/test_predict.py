"""Images as predict prepares them, names of classes, and every file that is none of these."""

import io
import os
import signal

import numpy as np
import pytest
from image_files import write_split
from PIL import Image

from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.formats import class_names
from jaxspeed.errors import UserError, printable
from jaxspeed.run.predict import read_image


def picture(width=60, height=40):
  """Smooth, with no two rows or columns alike."""
  x, y = np.linspace(0, 255, width), np.linspace(0, 255, height)[:, None]
  return Image.fromarray(np.stack(np.broadcast_arrays(x, y, (x + y) / 2), -1).astype(np.uint8))


def rotated(orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  return exif


GREY16 = Image.fromarray(np.asarray(picture().convert("L")).astype(np.uint16) * 257)
# Kind, mode and options of each file; all show the same picture, in grey or in colours.
FILES = {
  "grey of 16 bits.png": ("PNG", None, {}),
  "grey of 16 bits.tif": ("TIFF", None, {}),
  "colours.png": ("PNG", "RGB", {}),
  "grey.png": ("PNG", "L", {}),
  "palette.png": ("PNG", "P", {"transparency": 3}),
  "alpha.png": ("PNG", "RGBA", {}),
  "grey alpha.png": ("PNG", "LA", {}),
  "1 bit.png": ("PNG", "1", {}),
  "palette.bmp": ("BMP", "P", {}),
  "palette.gif": ("GIF", "P", {}),
  "colours.webp": ("WEBP", "RGB", {"lossless": True}),
  "colours.jpg": ("JPEG", "RGB", {"quality": 95}),
  "ink.jpg": ("JPEG", "CMYK", {"quality": 95}),
  "grey.jpg": ("JPEG", "L", {}),
  **{f"turned {n}.jpg": ("JPEG", "RGB", {"exif": rotated(n)}) for n in range(2, 9)},
  **{f"turned {n}.png": ("PNG", "RGB", {"exif": rotated(n)}) for n in (3, 6)},
  **{f"turned {n}.tif": ("TIFF", "RGB", {"exif": rotated(n)}) for n in (3, 6)},
  **{f"turned {n}.webp": ("WEBP", "RGB", {"exif": rotated(n), "lossless": True}) for n in (3, 6)},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("files")
  for name, (kind, mode, options) in FILES.items():
    image = GREY16 if mode is None else picture().convert(mode)
    image.save(folder / name, kind, **options)
  return folder


def test_predict_prepares_images_as_evaluation_does(files):
  """Every kind, at sizes that cut, shrink and enlarge: within two grey levels of TensorFlow's."""
  pytest.importorskip("tensorflow")
  from jaxspeed.data.disk.streams import EvalStream

  split = write_split(files, {name: (files / name).read_bytes() for name in FILES})
  everything = np.arange(len(split))
  for size, resize in ((16, 20), (32, 36), (40, 40), (64, 72)):
    asked = [EvalBatch((size, size), everything, np.ones(len(split), bool))]
    (batch,) = EvalStream(split, asked, resize=resize)
    for number, name in enumerate(FILES):
      assert batch.mask[number], name
      found = read_image(str(files / name), size, resize)
      difference = np.abs(found.astype(int) - batch.image[number])
      assert difference.max() <= 2, (name, size, difference.max())
  # Sixteen bits are scaled, not clipped.
  for kind in ("png", "tif"):
    found = read_image(str(files / f"grey of 16 bits.{kind}"), 40, 40)
    np.testing.assert_array_equal(
      found, picture().convert("L").convert("RGB").crop((10, 0, 50, 40))
    )


def test_an_image_that_is_a_line_needs_no_memory(tmp_path):
  Image.new("RGB", (60_000, 1), (10, 20, 30)).save(tmp_path / "line.png")
  found = read_image(str(tmp_path / "line.png"), 224, 256)  # 11 GB, if it were resized whole
  assert found.shape == (224, 224, 3) and (found == (10, 20, 30)).all()


def content_of(image, kind):
  buffer = io.BytesIO()
  image.save(buffer, kind)
  return buffer.getvalue()


TEXT = "it is not an image of a known format"
BAD = {
  "floats.tif": (content_of(picture().convert("F"), "TIFF"), "its pixels have 32 bits (mode F)"),
  "integers.tif": (content_of(picture().convert("I"), "TIFF"), "its pixels have 32 bits (mode I)"),
  "icon.png": (content_of(picture(), "ICO"), TEXT),
  "text.jpg": (b"no image", TEXT),
  "empty.jpg": (b"", TEXT),
  "cut.png": (content_of(picture(), "PNG")[:200], "cut.png cannot be read as an image: "),
  "script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", TEXT),
  "pipe.png": (None, "it is no regular file"),
  "/dev/zero": (None, "it is no regular file"),
  ".": (None, "is a folder: name its files, as in "),
  "gone\x1b[2J.png": (None, "gone\\x1b[2J.png: there is no such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_is_a_sentence_at_once(tmp_path, name):
  content, words = BAD[name]
  if content is not None:
    (tmp_path / name).write_bytes(content)
  os.mkfifo(tmp_path / "pipe.png")
  before = signal.signal(signal.SIGALRM, signal.default_int_handler)
  signal.alarm(30)  # nothing waits for a pipe
  try:
    with pytest.raises(UserError) as error:
      read_image(str(tmp_path / name), 8, 8)
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
  assert words in str(error.value) and str(error.value).isprintable()


def test_names_come_back_in_their_place_show_as_letters_and_are_refused_when_damaged(tmp_path):
  hard = ("a\nb", "c\u2028d", "\x1b[2J", "\udcff", "", " e ", "\\n", "f")
  class_names.store_class_names(tmp_path, hard)
  assert class_names.stored_class_names(tmp_path, len(hard)) == hard
  assert [printable(name) for name in hard[:4]] == ["a\\nb", "c\\u2028d", "\\x1b[2J", "\\xff"]
  for name in ("Größe", "猫 犬", "خروس\u200cها", "\U0001f469\u200d\U0001f680", "a\u3000b"):
    assert printable(name) == name
  # What turns the direction of the line, or marks the end of one, is no letter.
  for name in ("a\u202eb", "\x85", "\x7f", "\u2066", "\ufeff", "\r"):
    assert printable(name) != name and printable(name).isascii()
  for content in (None, b'["a", "b"', b"[" * 100_000, b'["a", 1]', b'["a"]', b'["a", "b", "c"]'):
    (tmp_path / "classes.json").unlink()
    if content is not None:
      (tmp_path / "classes.json").write_bytes(content)
    with pytest.raises(UserError, match="no list in JSON of the names of the run's 2 classes"):
      class_names.stored_class_names(tmp_path, 2)
    (tmp_path / "classes.json").touch()


@pytest.mark.parametrize("run", ["", "run_001"])
def test_a_run_does_not_go_on_with_other_classes(tmp_path, run):
  class_names.check_class_names(tmp_path, ["cat", "dog"])
  (tmp_path / run).mkdir(exist_ok=True)
  class_names.store_class_names(tmp_path / run, ["cat", "dog"])
  class_names.check_class_names(tmp_path, ["cat", "dog"])
  class_names.check_class_names(tmp_path, ["0", "1"], renamed=True)
  others = (["dog", "eel"], False), (["dog", "eel"], True), (["carp", "zander"], True)
  for names, renamed in others:
    words = f"class cat, and the data set has the class {names[0]} in its place"
    with pytest.raises(UserError, match=words):
      class_names.check_class_names(tmp_path, names, renamed=renamed)
