"""Smaller copies of one image, and of a folder."""

import io
import math
import os
import subprocess
import sys

import commands
import numpy as np
import pytest
import tiny_sets
from image_files import (
  broken_files,
  decoded,
  edit,
  encode,
  images_in,
  notes_of_training,
  ramp,
  small_set,
  tree,
  write,
)
from in_process import command
from PIL import Image, ImageOps

from jaxspeed.data.prepare.resize import copy_shape, make_copies, resize
from jaxspeed.data.workers import in_processes
from jaxspeed.errors import UserError


def test_the_short_side_becomes_the_size_and_the_other_is_rounded_down():
  assert copy_shape(500, 375, 160) == (213, 160)  # 500 * 160 / 375 = 213.3
  assert copy_shape(375, 500, 352) == (352, 469)  # 500 * 352 / 375 = 469.3
  # Pillow's plain loop; no side falls below the size where 49 * (160 / 49) is 159.99999999999997.
  assert all(min(copy_shape(n, n + 7, 160)) == 160 for n in range(1, 1000))


def test_copies_are_those_of_pillows_plain_loop():
  original = encode(ramp(500, 375), quality=95)
  copies = make_copies(original, (160, 352), quality=75)
  for size, copy in copies.items():
    with Image.open(io.BytesIO(original)) as image:
      shape = (math.floor(500 * size / 375), size)
      expected = encode(image.resize(shape, Image.Resampling.BILINEAR), quality=75)
    assert copy == expected


@pytest.mark.parametrize("size", [40, 41, 500])
def test_an_image_that_is_as_small_is_copied_byte_for_byte(size):
  original = encode(ramp(60, 40), "PNG")
  assert make_copies(original, (size,), quality=75) == {size: original}


def test_a_large_jpeg_is_decoded_at_a_smaller_scale_that_of_the_largest_copy():
  """1,000 x 800 pixels to 90: at 1/4 it has 250 x 200, no less than twice the copy's 112 x 90."""
  original = encode(tiny_sets.random_images(0, 1, height=800, width=1000)[0], quality=95)
  alone, both = (
    make_copies(original, (90,), quality=95),
    make_copies(original, (90, 500), quality=95),
  )
  with Image.open(io.BytesIO(original)) as image:
    plain = image.resize((112, 90), Image.Resampling.BILINEAR)
  with Image.open(io.BytesIO(original)) as image:
    image.draft(None, (224, 180))
    assert image.size == (250, 200)
    assert alone[90] == encode(image.resize((112, 90), Image.Resampling.BILINEAR), quality=95)
  assert both[90] == encode(plain, quality=95)
  assert np.abs(decoded(alone[90])[2] - np.asarray(plain).astype(int)).mean() < 4


COLOURS = ramp(60, 40)
GREY = COLOURS[..., 0]
CONTENTS = {
  "png": (encode(COLOURS, "PNG"), "RGB", COLOURS),
  "alpha": (encode(np.dstack([COLOURS, GREY]), "PNG"), "RGB", COLOURS),
  "cmyk": (encode(Image.fromarray(COLOURS).convert("CMYK")), "RGB", COLOURS),
  "palette": (encode(Image.fromarray(GREY).convert("P"), "PNG"), "RGB", np.dstack([GREY] * 3)),
  "gif": (encode(GREY, "GIF"), "RGB", np.dstack([GREY] * 3)),
  "bmp": (encode(COLOURS, "BMP"), "RGB", COLOURS),
  "grey jpeg": (encode(GREY), "L", GREY),
  "grey with alpha": (encode(np.dstack([GREY, GREY]), "PNG"), "L", GREY),
  "16 bit": (encode(GREY.astype(np.uint16) * 257, "PNG"), "L", GREY),
  "1 bit": (encode(Image.fromarray(GREY > 100), "PNG"), "L", (GREY > 100) * 255),
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
  original = encode(ramp(600, 400), kind, exif=exif, comment=b"by an unknown", dpi=(300, 300))
  copy = make_copies(original, (20,), quality=95)[20]
  with Image.open(io.BytesIO(original)) as image:
    shown = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)
  with Image.open(io.BytesIO(copy)) as image:
    assert not image.getexif() and "comment" not in image.info
    assert image.size == ((30, 20) if orientation < 5 else (20, 30))
    means = shown.reshape(image.height, 20, image.width, 20, 3).mean((1, 3))
    assert np.abs(np.asarray(image) - means).mean() < 4


def test_a_folder_of_copies(tmp_path):
  source = small_set(tmp_path / "source", width=50, height=40)
  small = encode(ramp(12, 10))
  unusual = {"train/a/tiny.JPEG": small, "train/a/.hidden.jpg": small, "train/a/note.txt": b""}
  write(source, unusual)
  seen = []
  done = resize(
    source, tmp_path / "out", sizes=(16, 32), show=lambda *progress: seen.append(progress)
  )
  assert (done.images, done.made, done.broken) == (13, 13, [])
  assert seen[-1] == (13, 13)
  originals = images_in(source)
  for size in (16, 32):
    copies = images_in(tmp_path / "out" / str(size))
    assert sorted(copies) == sorted(set(originals) - {"train/a/.hidden.jpg", "train/a/note.txt"})
    assert copies.pop("train/a/tiny.JPEG") == small
    for copy in copies.values():
      assert decoded(copy)[2].shape == (size, 50 * size // 40, 3)


def test_broken_images_are_left_out_and_listed(tmp_path):
  broken = broken_files()
  source = write(small_set(tmp_path / "source"), broken)
  (source / "train" / "a" / "gone.jpg").symlink_to("nowhere")
  done = resize(source, tmp_path / "out", sizes=(16, 32))
  names = sorted([*broken, "train/a/gone.jpg"])
  assert [name for name, _ in done.broken] == names
  assert (done.images, done.made) == (12, 12)
  for size in (16, 32):
    folder = tmp_path / "out" / str(size)
    lines = (folder / "broken.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == names
    assert "val/b/text.jpg\tit is not an image of a known format" in lines
    assert "train/a/gone.jpg\tNo such file or directory" in lines
    assert len(images_in(folder)) == 12 + 1  # the copies and the list
  before = tree(tmp_path / "out")
  again = resize(source, tmp_path / "out", sizes=(16, 32))
  assert (again.made, again.broken) == (0, done.broken) and tree(tmp_path / "out") == before


def die(code):
  """What a process does that is killed at its work."""
  os._exit(code)


def test_a_process_that_is_killed_is_told():
  with pytest.raises(UserError, match="one of 2 worker processes was killed.*fewer --workers"):
    list(in_processes(die, [9, 9, 9], workers=2))


def test_workers_import_neither_jax_nor_tensorflow():
  code = (
    "import jaxspeed.prepare, sys; print({'jax', 'tensorflow', 'torch'} & set(sys.modules) or '')"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=commands.ROOT, capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == ""


@pytest.fixture
def out(tmp_path, source):
  """Copies of 8 pixels."""
  resize(source, tmp_path / "set-sz", sizes=(8,))
  return tmp_path / "set-sz"


@pytest.mark.parametrize("target", ["set/train/b", "set/train/c", "moved"])
def test_nothing_behind_a_link_is_written(tmp_path, source, out, target):
  edit(source / "train/b/0.jpg")
  (source / "train/b/1.jpg").unlink()
  (out / "8/train/b").rename(tmp_path / "moved")
  before = tree(tmp_path / "moved"), tree(source)
  (out / "8/train/b").symlink_to(tmp_path / target)
  with pytest.raises(UserError, match="8/train/b is or lies behind a link: replace it by a folder"):
    resize(source, out, sizes=(8,))
  assert (tree(tmp_path / "moved"), tree(source)) == before


def test_copies_do_not_lie_among_originals(tmp_path, source):
  before = tree(source)
  (tmp_path / "linked").mkdir()
  (tmp_path / "linked/8").symlink_to(source / "val")
  with pytest.raises(UserError, match="linked/8 lies inside .*set, whose images are read"):
    resize(source, tmp_path / "linked", sizes=(8,))
  source.rename(tmp_path / "8")
  with pytest.raises(UserError, match="/8 lies inside .*/8, whose images are read, or holds it"):
    resize(tmp_path / "8", tmp_path, sizes=(8,))
  assert tree(tmp_path / "8") == before


def test_what_stands_in_the_place_of_a_copy_is_replaced_or_named(source, out):
  before = tree(out)
  copy = out / "8/train/a/0.jpg"
  copy.unlink()
  copy.symlink_to(source / "train/b/0.jpg")
  assert resize(source, out, sizes=(8,)).made == 1
  assert tree(out) == before
  copy.unlink()
  copy.mkdir()
  with pytest.raises(UserError, match=rf"{copy} cannot be read or written \(Is a dir"):
    resize(source, out, sizes=(8,))
  copy.rmdir()
  assert resize(source, out, sizes=(8,)).made == 1 and tree(out) == before


def test_copies_that_were_taken_away_or_added_are_noticed(source, out):
  (out / "8/train/a/0.jpg").unlink()
  with pytest.raises(UserError, match=r"8 holds 11 images of a split in which 12 were .*--sizes=8"):
    notes_of_training(source)
  assert resize(source, out, sizes=(8,)).made == 1
  write(out / "8", {"val/a/other.jpg": encode(ramp(9, 9))})
  with pytest.raises(UserError, match=r"8 holds 4 images of a split in which 3 were written"):
    notes_of_training(source)


def test_a_class_of_broken_images_is_named_and_the_rest_is_made(tmp_path, source, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  write(source, {f"train/b/{i}.jpg": b"broken" for i in range(4)})
  out = tmp_path / "set-sz"
  done = command("prepare", "resize", str(source), str(out), "--sizes=8", "--workers=1")
  assert done.returncode == 2 and "8/train/b holds no image" in done.stderr
  assert len(list((out / "8").rglob("*.jpg"))) == 11
  with pytest.raises(UserError, match="8 holds resized copies that are not complete"):
    notes_of_training(source)
