"""Scikit-learn's digits, which need no download."""

import importlib.util
import pathlib
from typing import Any

import numpy as np

from jaxspeed.data.memory.own import repeat_grey
from jaxspeed.errors import UserError

# Images held out for evaluation, of 1,797.
HELD_OUT = 297


def read_digits() -> dict[str, Any]:
  """Return scikit-learn's 1,797 digits of 8 x 8 pixels (the test part of UCI's optdigits).

  Returns:
    Fields of `arrays.Arrays`.
  """
  # Without scikit-learn's code, whose import takes about a second.
  found = importlib.util.find_spec("sklearn")
  if found is None or found.origin is None:
    raise UserError("config.data.name='digits' needs scikit-learn: pip install scikit-learn.")
  path = pathlib.Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
  table = np.loadtxt(path, delimiter=",")  # a row a digit: 64 pixels, and the label
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
