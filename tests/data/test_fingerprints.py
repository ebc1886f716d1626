"""Checksums by which a run knows its images again."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
from image_files import encode, ramp, write
from toy import toy_arrays, toy_config
from toy_images import write_folder

from jaxspeed.data import table as table_lib
from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.table import Names, fingerprint, noise_table


@pytest.fixture
def of_folder(tmp_path):
  """A function that returns the fingerprint of a data set on disk."""

  def call(path):
    images = open_images(name="", path=str(path), cache=str(tmp_path / "cache"))
    return fingerprint(images.train, images.eval)

  return call


def test_a_moved_folder_is_the_same_and_a_renamed_file_is_not(tmp_path, of_folder):
  folder = write_folder(tmp_path / "a", train=8, held_out=4, classes=2)
  before = of_folder(folder)
  assert before.startswith("files ") and len(before) == len("files ") + 8
  assert of_folder(shutil.copytree(folder, tmp_path / "b")) == before
  file = folder / "train" / "class_0" / "000.jpg"
  file.rename(file.with_suffix(".jpeg"))  # resized copies may have another ending
  assert of_folder(folder) == before
  file.with_suffix(".jpeg").rename(file.with_name("0000.jpg"))
  assert of_folder(folder) != before


def test_swapped_labels_and_splits_of_a_csv_are_others(tmp_path, of_folder):
  write(tmp_path, dict.fromkeys("abcd", encode(ramp(4, 4))))

  def written(*rows):
    (tmp_path / "list.csv").write_text("\n".join(["file,label,split", *rows]))
    return of_folder(tmp_path / "list.csv")

  before = written("a,x,train", "b,y,train", "c,y,val", "d,x,val")
  assert before.startswith("csv ")
  assert written("d,x,val", "a,x,train", "c,y,val", "b,y,train") == before
  assert written("a,y,train", "b,x,train", "c,x,val", "d,y,val") != before
  assert written("a,x,train", "c,y,train", "b,y,val", "d,x,val") != before


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_names_are_one_string(count, monkeypatch):
  monkeypatch.setattr(table_lib, "_PART", 50)
  plain = [os.fsdecode(b"\xff%d" % i) * (1 + i % 7) for i in range(count)]
  names = Names.of(plain)
  assert len(names) == count and names.decoded() == plain == sum(names.lists(7), [])
  for i in [*range(count), *range(count)[::-1]]:
    assert names[i] == os.fsencode(plain[i])
    assert bytes(names.first(i)) == b"".join(os.fsencode(name) + b"\0" for name in plain[:i])


def test_noise_is_noise():
  assert fingerprint(noise_table(8, 2), noise_table(4, 2)) == "noise 0"


def test_arrays_are_known_by_labels_and_rows():
  arrays = toy_arrays(toy_config())
  before = arrays.fingerprint
  assert before.startswith("arrays ")
  assert dataclasses.replace(arrays, source="elsewhere").fingerprint == before
  for name in ("train_labels", "eval_labels", "train_images", "eval_images"):
    other = np.roll(getattr(arrays, name), 1, axis=0)
    assert dataclasses.replace(arrays, **{name: other}).fingerprint != before
  wide = dataclasses.replace(arrays, train_labels=arrays.train_labels.astype(np.int64))
  assert wide.fingerprint == before
