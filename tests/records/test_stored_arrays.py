"""predictions.npz and thumbnails.npz: written, read, and damage told in one sentence."""

import dataclasses
import io

import numpy as np
import pytest

from jaxspeed.errors import UserError
from jaxspeed.records.arrays import Predictions, Thumbnails


def some(n=5, names=()):
  rng = np.random.default_rng(0)
  return Predictions(
    step=7,
    index=np.arange(1, n + 1, dtype=np.int32),
    label=rng.integers(1000, size=n).astype(np.int32),
    predicted=rng.integers(-1, 1000, size=n).astype(np.int32),
    probability=rng.random(n).astype(np.float32),
    loss=rng.exponential(size=n).astype(np.float32),
    names=tuple(names),
  )


@pytest.mark.parametrize("names", [(), ["a.jpg", "b/ä ö.jpg", "c\udcff.jpg", "d, byte 17", "e\n"]])
def test_what_is_written_is_read(tmp_path, names):
  written = some(names=names)
  written.write(tmp_path)
  found = Predictions.read(tmp_path, 1000)
  for field in dataclasses.fields(Predictions):
    expected, value = getattr(written, field.name), getattr(found, field.name)
    np.testing.assert_array_equal(value, expected)
    if field.name not in ("step", "names"):
      assert value.dtype == expected.dtype
  assert type(found.step) is int and type(found.names) is tuple and found.names == written.names


def test_names_are_those_of_the_images_that_were_read():
  # Of a split of seven images, the first and the last could not be read.
  assert some().named([*"0123456"]).names == tuple("12345") and some().named([]).names == ()


def bytes_of(**changes):
  """A file of predictions with other arrays; None leaves one out."""
  columns = dataclasses.asdict(some()) | {"names": np.zeros(0, np.uint8)} | changes
  content = io.BytesIO()
  columns = {name: value for name, value in columns.items() if value is not None}
  np.savez_compressed(content, **columns)
  return content.getvalue()


GOOD = bytes_of()
PICKLED = np.array([{}], dtype=object)
DAMAGED = {
  "empty": (b"", ""),
  "cut off": (GOOD[: len(GOOD) // 2], "not a zip file"),
  "no loss": (bytes_of(loss=None), "loss"),
  "pickled": (bytes_of(label=PICKLED), "Object arrays cannot be loaded"),
  "a shorter column": (bytes_of(label=np.zeros(4, np.int32)), r"label is int32 of shape \(4,\)"),
  "another class": (bytes_of(label=np.full(5, 1000, np.int32)), "label has others than the 1000"),
  "two names": (bytes_of(names=np.frombuffer(b"a\0b", np.uint8)), "it names 2 of 5 images"),
  "a step of text": (bytes_of(step=np.array("x")), "step is <U1"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_one_sentence(tmp_path, kind):
  content, reason = DAMAGED[kind]
  path = tmp_path / "predictions.npz"
  path.write_bytes(content)
  told = rf"cannot be used \(.*{reason}.*\): restore the file"
  with pytest.raises(UserError, match=told) as error:
    Predictions.read(tmp_path, 1000)
  sentence = str(error.value)
  assert sentence.startswith(str(path)) and "\n" not in sentence and sentence.endswith("without.")


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr("jaxspeed.records.arrays._MOST_BYTES", 1 << 20)
  path = tmp_path / "predictions.npz"
  path.write_bytes(bytes_of(index=np.zeros(1 << 19, np.int32)))
  assert path.stat().st_size < 10_000
  with pytest.raises(UserError, match="its arrays are too large"):
    Predictions.read(tmp_path, 1000)
  assert Predictions.read(tmp_path / "none", 1000) is None


def test_thumbnails_of_other_images_than_their_numbers_are_refused(tmp_path):
  image, label = np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4, np.int32)
  found = Thumbnails(40, label, image, image, label, label, np.zeros(4, np.float32), image[:0])
  dataclasses.replace(found, eval_image=image[:3]).write(tmp_path)
  with pytest.raises(UserError, match=r"eval_image is uint8 of shape \(3, 8, 8, 3\)"):
    Thumbnails.read(tmp_path, 8)
