"""jaxspeed.prepare: copies, indices and shards; kills, full disks and mistakes."""

import errno
import io
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time

import commands
import numpy as np
import pytest
import tiny_sets
from absl import flags
from PIL import Image, ImageOps

from jaxspeed import files
from jaxspeed import prepare as prepare_lib
from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.formats.tfrecord import find_tfds, open_tfds, parse_example, read_records
from jaxspeed.data.prepare.copies import copy_shape, make_copies
from jaxspeed.data.prepare.index import write_index
from jaxspeed.data.prepare.resize import resize
from jaxspeed.data.prepare.shards import make_frames, write_shards
from jaxspeed.data.prepare.writing import locked
from jaxspeed.data.workers import in_processes
from jaxspeed.errors import UserError


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


def prepare(*arguments, **options):
  process = commands.start("prepare", *map(str, arguments), **options)
  out, err = process.communicate(timeout=120)
  return process.returncode, out, err


def sentence(done):
  """The one sentence on standard error of a command that was refused."""
  code, _, err = done
  assert code == 2 and err.count("\n") == 1, err
  assert err.startswith("jaxspeed: ")
  return err


# Copies


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


def test_quality_is_that_of_the_jpeg():
  original = encoded(smooth(500, 375), quality=95)
  lower, higher = (make_copies(original, (160,), quality=q)[160] for q in (50, 95))
  assert len(lower) < len(higher)
  with Image.open(io.BytesIO(lower)) as image:
    luminance = image.quantization[0]
  assert luminance[0] == 16  # quality 50 is the standard's own table, K.1


@pytest.mark.parametrize("size", [40, 41, 500])
def test_an_image_that_is_as_small_is_copied_byte_for_byte(size):
  original = encoded(smooth(60, 40), "PNG")
  assert make_copies(original, (size,), quality=75) == {size: original}


def test_a_large_jpeg_is_decoded_at_a_smaller_scale():
  """1,000 x 800 pixels to 90: at 1/4 it has 250 x 200, no less than twice the copy's 112 x 90."""
  original = encoded(tiny_sets.random_images(0, 1, height=800, width=1000)[0], quality=95)
  copy = make_copies(original, (90,), quality=95)[90]
  with Image.open(io.BytesIO(original)) as image:
    image.draft(None, (224, 180))
    assert image.size == (250, 200)
    assert copy == encoded(image.resize((112, 90), Image.Resampling.BILINEAR), quality=95)
  with Image.open(io.BytesIO(original)) as image:
    plain = image.resize((112, 90), Image.Resampling.BILINEAR)
  assert np.abs(decoded(copy)[2] - np.asarray(plain).astype(int)).mean() < 4


def test_the_scale_is_that_of_the_largest_copy():
  original = encoded(tiny_sets.random_images(0, 1, height=800, width=1000)[0], quality=95)
  both = make_copies(original, (90, 500), quality=95)
  with Image.open(io.BytesIO(original)) as image:
    assert both[90] == encoded(image.resize((112, 90), Image.Resampling.BILINEAR), quality=95)


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


# A folder


def test_a_folder_of_copies(tmp_path):
  source = small_set(tmp_path / "source", width=50, height=40)
  small = encoded(smooth(12, 10))
  unusual = {"train/a/tiny.JPEG": small, "train/a/.hidden.jpg": small, "train/a/note.txt": b""}
  write(source, unusual)
  seen = []
  done = resize(
    source, tmp_path / "out", sizes=(16, 32), show=lambda *progress: seen.append(progress)
  )
  assert (done.images, done.read, done.broken) == (13, 13, ())
  assert seen[-1] == (13, 13)
  originals = images_in(source)
  for size in (16, 32):
    copies = images_in(tmp_path / "out" / str(size))
    assert sorted(copies) == sorted(set(originals) - {"train/a/.hidden.jpg", "train/a/note.txt"})
    assert copies.pop("train/a/tiny.JPEG") == small
    for copy in copies.values():
      assert decoded(copy)[2].shape == (size, 50 * size // 40, 3)


def test_processes_write_what_one_writes(tmp_path):
  source = small_set(tmp_path / "source", train=80)
  for workers in (1, 2):
    resize(source, tmp_path / str(workers), sizes=(16, 32), workers=workers)
  assert tree(tmp_path / "1") == tree(tmp_path / "2")


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


def test_broken_images_are_left_out_and_listed(tmp_path):
  broken = broken_files()
  source = write(small_set(tmp_path / "source"), broken)
  (source / "train" / "a" / "gone.jpg").symlink_to("nowhere")
  done = resize(source, tmp_path / "out", sizes=(16, 32))
  names = sorted([*broken, "train/a/gone.jpg"])
  assert [each.name for each in done.broken] == names
  assert (done.images, done.read) == (12 + 7, 12 + 7)
  for size in (16, 32):
    folder = tmp_path / "out" / str(size)
    lines = (folder / "broken.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == names
    assert "val/b/text.jpg\tit is not an image of a known format" in lines
    assert "train/a/gone.jpg\tNo such file or directory" in lines
    assert len(images_in(folder)) == 12 + 1  # the copies and the list
  before = tree(tmp_path / "out")
  again = resize(source, tmp_path / "out", sizes=(16, 32))
  assert (again.read, again.broken) == (7, done.broken) and tree(tmp_path / "out") == before


def test_mended_images_leave_the_list(tmp_path):
  source = write(small_set(tmp_path / "source"), {"val/a/x.jpg": b""})
  resize(source, tmp_path / "out", sizes=(16,))
  write(source, {"val/a/x.jpg": encoded(smooth(60, 40))})
  assert resize(source, tmp_path / "out", sizes=(16,)).read == 1
  assert not (tmp_path / "out" / "16" / "broken.txt").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_broken_image_can_end_the_run(tmp_path, workers):
  source = write(small_set(tmp_path / "source"), {"val/a/x.jpg": b""})
  with pytest.raises(UserError, match="val/a/x.jpg is broken .*known format.*--on_error=raise"):
    resize(source, tmp_path / "out", sizes=(16,), workers=workers, raise_broken=True)


def test_finished_copies_are_not_made_again(tmp_path):
  source, out = small_set(tmp_path / "source"), tmp_path / "out"
  resize(source, out, sizes=(16, 32))
  whole = tree(out)
  kept = out / "32" / "train" / "a" / "000.jpg"
  kept.write_bytes(b"kept")
  (out / "16" / "train" / "b" / "001.jpg").unlink()
  for folder in ("train/b", ".jaxspeed", "."):
    (out / "16" / folder / ".jaxspeed-4711").write_bytes(b"half")
  done = resize(source, out, sizes=(16, 32))
  assert done.read == 1 and kept.read_bytes() == b"kept"
  kept.write_bytes(whole["32/train/a/000.jpg"])
  assert tree(out) == whole


def test_copies_of_one_folder_have_one_quality(tmp_path):
  source = small_set(tmp_path / "source")
  resize(source, tmp_path / "out", sizes=(16,), quality=80)
  with pytest.raises(UserError, match="16 holds copies of quality 80, not 75: write --quality=80"):
    resize(source, tmp_path / "out", sizes=(16,))


def test_two_commands_do_not_write_to_one_folder(tmp_path):
  source = small_set(tmp_path / "source")
  with locked(tmp_path / "out"), pytest.raises(UserError, match="being written by another"):
    resize(source, tmp_path / "out", sizes=(16,))
  assert resize(source, tmp_path / "out", sizes=(16,)).read == 12


def test_a_process_that_is_killed_is_told():
  with pytest.raises(UserError, match="one of 2 worker processes was killed.*fewer --workers"):
    list(in_processes(os._exit, [9, 9, 9], workers=2))


def test_workers_import_neither_jax_nor_tensorflow():
  code = (
    "import jaxspeed.prepare, sys; print({'jax', 'tensorflow', 'torch'} & set(sys.modules) or '')"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=commands.ROOT, capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == ""


def test_the_index_lies_beside_the_copies(tmp_path):
  source = small_set(tmp_path / "source")
  resize(source, tmp_path / "out", sizes=(16,))
  written = write_index(tmp_path / "out" / "16")
  # A file that changed under its name is read again.
  write(tmp_path / "out" / "16", {"val/a/008.jpg": encoded(smooth(24, 18))})
  assert write_index(tmp_path / "out" / "16").eval.width.max() == 24
  assert set(written.train.width.tolist()) == {20} and set(written.train.height.tolist()) == {16}

  cache, headers = tmp_path / "cache", []
  found = open_images(
    name="",
    path=str(tmp_path / "out" / "16"),
    cache=str(cache),
    show=lambda *progress: headers.append(progress),
  )
  assert not headers
  assert found.train.paths() == written.train.paths() and not cache.exists()


# Kills


@pytest.fixture(scope="module")
def many(tmp_path_factory):
  """140 images, of which two processes make copies for about a second."""
  root = tmp_path_factory.mktemp("many")
  return small_set(root, train=100, held_out=40, width=700, height=500, quality=50)


def start_resize(source, out):
  return commands.start(
    "prepare",
    "resize",
    str(source),
    str(out),
    "--sizes=100,200",
    "--workers=2",
    start_new_session=True,
    # A shell's background job ignores it, and so does what it starts.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
  )


def wait_for(condition, seconds=60):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, "it did not come about"
    time.sleep(0.002)


def count(out):
  return sum(1 for path in out.rglob("*.jpg"))


def test_a_run_that_is_killed_ends_in_the_same_bytes(tmp_path, many):
  undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
  resize(many, undisturbed, sizes=(100, 200))
  for size in (100, 200):
    write_index(undisturbed / str(size))
  for copies in (1, 80, 160):  # of 280
    process = start_resize(many, killed)
    wait_for(lambda copies=copies: count(killed) >= copies)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert copies <= count(killed) < 280
    for name, content in images_in(killed).items():
      assert content == (undisturbed / name).read_bytes()
  process = start_resize(many, killed)
  assert process.wait(timeout=60) == 0, process.communicate()
  found, expected = tree(killed), tree(undisturbed)
  assert found == expected


def test_workers_end_when_their_parent_is_killed(tmp_path, many):
  process = start_resize(many, tmp_path / "out")
  wait_for(lambda: count(tmp_path / "out") > 0)
  process.kill()
  process.communicate()

  def ended():
    try:
      os.killpg(process.pid, 0)
    except ProcessLookupError:
      return True
    return False

  wait_for(ended, seconds=60)


def test_ctrl_c_is_one_sentence(tmp_path, many):
  process = start_resize(many, tmp_path / "out")
  wait_for(lambda: count(tmp_path / "out") > 0)
  os.killpg(process.pid, signal.SIGINT)
  _, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (
    2,
    "jaxspeed: stopped: the same command resumes from here.\n",
  )


# Full disks


def full_after(monkeypatch, writes):
  """The disk is full from the write after `writes` on."""
  left = [writes]

  class File(io.FileIO):
    def write(self, data):
      left[0] -= 1
      if left[0] < 0:
        super().write(data[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      return super().write(data)

  real = open

  def fake(path, mode="r", **options):
    return File(path, mode, **options) if mode == "wb" else real(path, mode, **options)

  monkeypatch.setattr(files, "open", fake, raising=False)


def test_a_full_disk_is_named_and_nothing_is_half_written(tmp_path, monkeypatch):
  source = small_set(tmp_path / "source")
  resize(source, tmp_path / "whole", sizes=(16,))
  with monkeypatch.context() as patch:
    full_after(patch, 7)
    with pytest.raises(UserError, match="16/train/[ab] cannot be written .No space left.*resumes"):
      resize(source, tmp_path / "out", sizes=(16,))
  expected, found = tree(tmp_path / "whole"), tree(tmp_path / "out")
  copied = {name for name in found if name.endswith(".jpg")}
  assert copied and {name: found[name] for name in copied}.items() <= expected.items()
  assert resize(source, tmp_path / "out", sizes=(16,)).read == 12 - len(copied)
  assert tree(tmp_path / "out") == expected


def test_a_full_disk_for_real(tmp_path):
  disk = tmp_path / "disk"
  disk.mkdir()
  mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
  try:
    subprocess.run(mount, check=True, capture_output=True)
  except (OSError, subprocess.CalledProcessError) as error:
    pytest.skip(f"no file system can be mounted here: {error}")
  try:
    # 24 copies of noise, of 100 KB and more each.
    source = small_set(tmp_path / "source", train=18, held_out=6, width=700, height=500)
    out = disk / "out"
    arguments = ("resize", source, out, "--sizes=400", "--workers=2", "--quality=90")
    err = sentence(prepare(*arguments))
    assert "/400/" in err and "No space left on device" in err
    assert 0 < count(out) < 24 and not list(out.rglob(".jaxspeed-*"))
    remount = ["mount", "-o", "remount,size=16m", str(disk)]
    subprocess.run(remount, check=True, capture_output=True)
    code, _, err = prepare(*arguments)
    assert code == 0, err
    resize(source, tmp_path / "whole", sizes=(400,), quality=90)
    assert images_in(out) == images_in(tmp_path / "whole")
  finally:
    subprocess.run(["umount", str(disk)], check=True)


def limit_files():
  resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))


def test_a_file_that_may_not_grow(tmp_path):
  """Shards of 6 and of 2 images of 11 KB, where files end at 50,000 bytes."""
  source = small_set(tmp_path / "source", train=12, held_out=4, width=100, height=80, quality=95)
  arguments = ("shards", source, tmp_path / "sets", "--shards=2", "--workers=2")
  err = sentence(prepare(*arguments, preexec_fn=limit_files))
  assert "images/1.0.0 cannot be written (File too large)" in err
  folder = tmp_path / "sets" / "images" / "1.0.0"
  assert not list(folder.glob("*train*")) and not list(folder.rglob(".jaxspeed-*"))
  assert prepare(*arguments)[0] == 0
  assert len(open_images(name="", path=str(folder), cache=str(tmp_path / "cache")).train) == 12


# Shards


@pytest.fixture
def images(tmp_path):
  source = small_set(tmp_path / "source", train=60, held_out=5)
  write(source, {"train/b/broken.jpg": b"", "val/a/as png.jpg": encoded(smooth(9, 8), "PNG")})
  return open_images(name="", path=str(source), cache=str(tmp_path / "cache"))


def records_of(shard):
  return read_records(np.fromfile(shard.path, np.uint8), shard.path)


@pytest.mark.parametrize("length", [0, 1, 4097])
def test_frames_are_those_of_tfrecord(length):
  data = np.random.default_rng(length).integers(256, size=length, dtype=np.uint8).tobytes()
  assert make_frames([b"abc", data]) == tiny_sets.frame(b"abc") + tiny_sets.frame(data)


def test_shards_hold_the_files_as_they_are(tmp_path, images):
  done = write_shards(images, tmp_path / "sets", name="tiny", shards=4, workers=2)
  assert done.shards == {"train": 4, "validation": 4} and done.images == done.written == 66
  assert [each.name for each in done.broken] == ["train/b/broken.jpg"]
  assert find_tfds(tmp_path / "sets", "tiny") == done.folder
  info = open_tfds(done.folder)
  assert info.class_names == ("a", "b") and info.eval_split == "validation"
  assert [shard.records for shard in info.train] == [15] * 4
  for shards, split in ((info.train, "train"), (info.eval, "val")):
    found = {}
    for shard in shards:
      for record in records_of(shard):
        encoded_image, label, name = parse_example(record, "image", "label")
        found[os.fsdecode(bytes(name))] = (bytes(encoded_image), label)
    root = tmp_path / "source" / split
    expected = {
      name: (content, "ab".index(name[0])) for name, content in images_in(root).items() if content
    }
    assert found == expected


def test_each_shard_holds_a_mix_of_the_classes(tmp_path, images):
  folder = write_shards(images, tmp_path / "sets", name="tiny", shards=3).folder
  opened = open_images(name="", path=str(folder), cache=str(tmp_path / "cache2"))
  for shard in range(3):
    share = opened.train.label[opened.train.file == shard].mean()
    assert 0.2 < share < 0.8  # 30 of 60 in all
  assert len(opened.train) == 60 and opened.class_names == ("a", "b")


def test_shards_that_are_there_stay(tmp_path, images):
  folder = write_shards(images, tmp_path / "sets", name="tiny", shards=4).folder
  whole = tree(folder)
  for name in ("tiny-train.tfrecord-00002-of-00004", "dataset_info.json", "features.json"):
    (folder / name).unlink()
  for each in (folder, folder / ".jaxspeed"):
    (each / ".jaxspeed-4711").write_bytes(b"half")
  kept = folder / "tiny-train.tfrecord-00000-of-00004"
  touched = kept.stat().st_mtime_ns
  again = write_shards(images, tmp_path / "sets", name="tiny", shards=4)
  assert again.written == 15 and kept.stat().st_mtime_ns == touched
  assert tree(folder) == whole


def test_shards_of_another_number_do_not_mix(tmp_path, images):
  write_shards(images, tmp_path / "sets", name="tiny", shards=4)
  with pytest.raises(UserError, match="1.0.0 holds shards of another number .--shards=4.: remove"):
    write_shards(images, tmp_path / "sets", name="tiny", shards=3)


def test_the_number_of_shards_follows_the_number_of_images(tmp_path, images):
  assert write_shards(images, tmp_path, name="one").shards == {"train": 1, "validation": 1}
  many = write_shards(images, tmp_path, name="many", shards=20)
  assert many.shards == {"train": 20, "validation": 6}
  assert len(open_tfds(many.folder).eval) == 6


@pytest.mark.parametrize("name", ["my-set", "Set", "1", "", "a/b", 101 * "a"])
def test_names_that_tfds_does_not_take(tmp_path, images, name):
  with pytest.raises(UserError, match=f"--name={name}: TFDS's names are lower-case"):
    write_shards(images, tmp_path, name=name)


def test_settings_of_shards_that_are_damaged(tmp_path, images):
  path = write_shards(images, tmp_path, name="one").folder / ".jaxspeed" / "shards.json"
  path.write_bytes(b"\xff")
  with pytest.raises(UserError, match="shards.json is damaged .it is no"):
    write_shards(images, tmp_path, name="one")
  path.unlink()
  os.mkfifo(path)
  with pytest.raises(
    UserError, match=r"shards.json is damaged.* \(it is no regular file\): remove"
  ):
    write_shards(images, tmp_path, name="one")


@pytest.mark.parametrize("name", ["b ", "b\n", "b\udcff"])
def test_classes_that_are_no_line_of_text(tmp_path, name):
  data = encoded(smooth(9, 8))
  source = write(tmp_path / "source", {f"{split}/{name}/x.jpg": data for split in ("train", "val")})
  opened = open_images(name="", path=str(source), cache=str(tmp_path / "cache"))
  with pytest.raises(UserError, match="cannot be a line of label.labels.txt"):
    write_shards(opened, tmp_path, name="tiny")


def test_an_image_that_goes_meanwhile_is_named(tmp_path, images):
  (tmp_path / "source" / "train" / "a" / "002.jpg").unlink()
  with pytest.raises(UserError, match="train/a/002.jpg cannot be read .No such file"):
    write_shards(images, tmp_path / "sets", name="tiny")
  assert not list((tmp_path / "sets").rglob("*.tfrecord*"))


def test_shards_are_not_packed_again(tmp_path, images):
  folder = write_shards(images, tmp_path / "sets", name="tiny").folder
  opened = open_images(name="", path=str(folder), cache=str(tmp_path / "cache2"))
  with pytest.raises(UserError, match="holds shards already"):
    write_shards(opened, tmp_path / "again", name="tiny")


def test_tfds_reads_the_shards(tmp_path, images):
  tfds = pytest.importorskip("tensorflow_datasets")
  pytest.importorskip("tensorflow")
  folder = write_shards(images, tmp_path / "sets", name="tiny", shards=4).folder
  builder = tfds.builder_from_directory(str(folder))
  assert builder.info.features["label"].names == ["a", "b"]
  assert builder.info.splits["train"].num_examples == 60
  records = [bytes(each) for shard in open_tfds(folder).train for each in records_of(shard)]
  assert builder.info.splits["train"].num_bytes == sum(map(len, records))
  found = {
    each["file_name"].decode(): each
    for each in tfds.as_numpy(builder.as_dataset(split="validation", shuffle_files=True))
  }
  assert len(found) == 6
  for name, each in found.items():
    pixels = decoded((tmp_path / "source" / "val" / name).read_bytes())[2]
    assert "ab"[each["label"]] == name[0]
    # TensorFlow decodes chroma without smoothing and in a faster DCT: noise differs a little.
    assert each["image"].shape == pixels.shape
    assert np.abs(each["image"] - pixels).mean() < 3


# The commands


def test_the_three_commands(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))  # the cache's default
  source = write(small_set(tmp_path / "source", train=30), broken_files())
  extra = {f"train/a/more_{i}.jpg": b"" for i in range(10)}
  wide = {"train/b/wide.jpg": encoded(smooth(200, 20)), "val/a/tall.jpg": encoded(smooth(20, 90))}
  write(source, extra | wide)
  out = tmp_path / "out"
  code, text, err = prepare("resize", source, out, "--sizes", "16,32", "--workers=1")
  assert (code, err) == (0, "")
  assert "\x1b" not in text and "\r" not in text
  lines = text.splitlines()
  assert lines[0].startswith("resized 36 images in ") and lines[0].endswith(", --workers=1")
  assert lines[1] == f"broken: 16 images are left out and listed in {out / '16' / 'broken.txt'}"
  assert lines[12] == "  and 6 more" and len(lines) == 15
  assert lines[13] == f"{out / '16'}: 31 images for training, 5 for evaluation, 2 classes"

  code, text, err = prepare("index", out / "32", "--size=32")
  assert (code, err) == (0, "")
  lines = text.splitlines()
  assert lines[0] == f"{out / '32'}: 31 images for training, 5 for evaluation, 2 classes"
  assert lines[1:4] == [
    "train, smallest: train/b/wide.jpg, 200 x 20",
    "train, widest: train/b/wide.jpg, 200 x 20",
    "train, tallest: train/a/000.jpg, 40 x 32",  # floor(50 * 32 / 40)
  ]
  assert lines[4] == "train: 1 images have a side shorter than 32 pixels"
  assert lines[7] == "eval, tallest: val/a/tall.jpg, 20 x 90"
  titles = [line.split(":")[0] for line in lines[9:]]
  assert titles == ["squares", "rectangles of imagenet18", "rectangles"]
  assert "1 shapes of short side 32" in lines[9] and "batches of 5" in lines[11]
  assert len(lines) == 12

  arguments = ("shards", out / "32", tmp_path / "sets", "--name=tiny", "--shards=2")
  code, text, err = prepare(*arguments)
  assert (code, err) == (0, "")
  folder = tmp_path / "sets" / "tiny" / "1.0.0"
  assert f"--config.data.path={folder}" in text
  assert json.loads((folder / "dataset_info.json").read_text())["name"] == "tiny"
  assert (folder / ".jaxspeed" / "images.npz").is_file()


def mistakes(tmp):
  source = small_set(tmp / "source", train=4, held_out=2)
  (tmp / "empty").mkdir()
  (tmp / "file").write_text("in the way")
  for bad, name in (("no_val", "train/a/x.jpg"), ("no_train", "val/a/x.jpg")):
    write(tmp / bad, {name: b""})
  for bad, name in (("stranger", "val/c/x.jpg"), ("hollow", "val/b/note.txt")):
    small_set(tmp / bad, train=4, held_out=1)
    write(tmp / bad, {name: b""})
  out, pixels = tmp / "out", "--sizes=16"
  return {
    "nothing": ([], "'' is not a command: write resize SRC DST"),
    "command": (["shrink", source, out], "'shrink' is not a command"),
    "one folder": (["resize", source, pixels], "resize needs SRC and DST"),
    "no source": (["resize", tmp / "nowhere", out, pixels], "nowhere is not a folder"),
    "empty source": (["resize", "", out, pixels], "SRC is empty: name a folder"),
    "empty destination": (["resize", source, "", pixels], "DST is empty: name a folder"),
    "no train": (["resize", tmp / "no_train", out, pixels], "no_train has no train/"),
    "no val": (["resize", tmp / "no_val", out, pixels], "none of val/, validation/ and test/"),
    "inside": (["resize", source, source / "out", pixels], "lies inside"),
    "itself": (["resize", source, tmp, "--sizes=1", "--workers=0"], "--workers=0: at least one"),
    "no sizes": (["resize", source, out], "--sizes=: name different short sides"),
    "words": (["resize", source, out, "--sizes=small"], "--sizes=small: name short sides"),
    "zero": (["resize", source, out, "--sizes=16,0"], "--sizes=16,0: name different short"),
    "quality": (["resize", source, out, pixels, "--quality=0"], "--quality=0: the quality"),
    "workers": (["resize", source, out, pixels, "--workers=many"], "workers"),
    "blocked": (["resize", source, tmp / "file", pixels], "file cannot be written (File exists)"),
    "index": (["index", tmp / "empty"], "empty has no train/"),
    "of another": (["index", source, "--quality=3"], "--quality=3 has no effect with index."),
    "stranger": (["shards", tmp / "stranger", out], "has images of classes that train/ lacks (c: "),
    "hollow": (["shards", tmp / "hollow", out], "val/b holds no image"),
    "shards inside": (["shards", source, source / "sets"], "lies inside"),
    "shards": (["shards", source, out, "--shards=-1"], "--shards=-1: name the number"),
  }


def refused(arguments, monkeypatch, capsys):
  """The sentence of a command that is refused, in this process: a start takes half a second."""
  monkeypatch.setattr(sys, "argv", ["prepare", *map(str, arguments)])
  others = set(flags.FLAGS)
  try:
    with pytest.raises(SystemExit) as stopped:
      prepare_lib.main()
  finally:
    for name in set(flags.FLAGS) - others:
      delattr(flags.FLAGS, name)
  return sentence((stopped.value.code, *capsys.readouterr()))


def test_mistakes_are_one_sentence_each(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  for case, (arguments, words) in mistakes(tmp_path).items():
    assert words in refused(arguments, monkeypatch, capsys), case
  assert not (tmp_path / "out").exists()


def test_copies_are_not_written_over_their_originals(tmp_path):
  source = small_set(tmp_path / "160")
  with pytest.raises(UserError, match="written into .*160, where the images of"):
    resize(source, tmp_path, sizes=(160,))


def test_real_images(tmp_path, shared_data):
  """Copies of ImageNet's originals are close to Pillow's plain loop, and small ones the same."""
  originals = sorted((shared_data / "imagenet_sample").glob("*.JPEG"))[:30]
  for i, original in enumerate(originals):
    folder = tmp_path / "source" / ("val" if i % 10 == 0 else "train") / "a"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / original.name).symlink_to(original)
  assert resize(tmp_path / "source", tmp_path / "out", sizes=(160, 352)).broken == ()
  for size in (160, 352):
    copies = {p.name: p for p in (tmp_path / "out" / str(size)).rglob("*.JPEG")}
    assert len(copies) == 30
    for original in originals:
      with Image.open(original) as image, Image.open(copies[original.name]) as copy:
        if min(image.size) <= size:
          assert copies[original.name].read_bytes() == original.read_bytes()
          continue
        assert copy.size == copy_shape(*image.size, size)
        plain = image.convert("RGB").resize(copy.size, Image.Resampling.BILINEAR)
        error = np.asarray(plain).astype(float) - np.asarray(copy.convert("RGB"))
        assert 10 * math.log10(255**2 / np.square(error).mean()) > 24  # decibels, of quality 75
