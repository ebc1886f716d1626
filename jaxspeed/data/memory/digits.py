"""Scikit-learn's digits, which need no download."""

import gzip
import importlib
import importlib.util
import pathlib
from typing import Any

import numpy as np

from jaxspeed.data.memory.own import repeat_grey

# Images held out for evaluation, of 1,797.
HELD_OUT = 297


def read_digits() -> dict[str, Any]:
  """Return scikit-learn's 1,797 digits of 8 x 8 pixels (the test part of UCI's optdigits).

  Returns:
    Fields of `arrays.Arrays`.
  """
  table = _read_table()
  grey = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # from 0 ... 16
  images, labels = repeat_grey(grey), table[:, -1].astype(np.int32)
  # RandomState's streams are frozen (NEP 19); newer generators may change with NumPy's version.
  order = np.random.RandomState(0).permutation(len(labels))
  out, kept = np.split(order, [HELD_OUT])
  return {
    "train_images": images[kept],
    "train_labels": labels[kept],
    "eval_images": images[out],
    "eval_labels": labels[out],
    "class_names": tuple(map(str, range(10))),
    "source": f"scikit-learn's digits; {len(out)} of {len(labels):,} held out for evaluation",
    "name": "digits",
    "evaluated_on": "held-out",
  }


def _read_table() -> np.ndarray:
  """Return a row for each digit: its 64 pixels, and its label.

  The file is read without scikit-learn, whose import takes about a second; a version that keeps it
  elsewhere is asked.
  """
  found = importlib.util.find_spec("sklearn")
  if found is not None and found.origin is not None:
    path = pathlib.Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
      with gzip.open(path, "rt") as lines:
        return np.loadtxt(lines, delimiter=",")
  digits = importlib.import_module("sklearn.datasets").load_digits()
  return np.column_stack([digits.data, digits.target])
