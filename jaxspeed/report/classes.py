"""Accuracy by class: the confusion matrix, the most frequent confusions, a sorted table."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxspeed.errors import plural
from jaxspeed.records.class_figures import MOST_CLASSES, confusion_matrix
from jaxspeed.report.data import Group
from jaxspeed.report.images import data_uri
from jaxspeed.report.words import Cell, Table, percent

# Classes of a matrix in numbers; rows at each end of a long table; confusions listed.
_MOST_IN_NUMBERS, _MOST_ROWS, _LISTED = 20, 40, 10
# Levels of grey of a large matrix; more would not be seen, and take more bytes.
_LEVELS = 24


class Classes(NamedTuple):
  """The figures by class.

  Attributes:
    seeds: over how many seeds they are summed, in words; "" for one.
    matrix: the confusion matrix in numbers; None where it is a picture.
    picture: its address and its words.
    confusions: the most frequent ones; None if every image is right.
    tables: a title and a table of classes, the least accurate first; of a long table, the two ends.
    between: the middle of a long table.
  """

  seeds: str
  matrix: Table | None
  picture: tuple[str, str]
  confusions: Table | None
  tables: list[tuple[str, Table]]
  between: Table | None


def classes(group: Group) -> Classes | None:
  """The figures by class of a group's runs, summed over the seeds; None without predictions."""
  known = [run for run in group.runs if run.predictions is not None]
  names = known[0].class_names if known else ()
  if not known or len(names) > MOST_CLASSES:
    return None
  parts = (confusion_matrix(run.predictions, len(names)) for run in known if run.predictions)
  matrix = sum(parts, np.zeros((len(names),) * 2, np.int64))
  seeds = f", summed over {plural(len(known), 'seed')}" if len(known) > 1 else ""
  in_numbers = len(names) <= _MOST_IN_NUMBERS
  rows = _by_class(matrix, names)
  heads = ["class", "accuracy (recall)", "precision", "images"]
  tables, between = [("", Table(heads, rows))], None
  if len(rows) > 2 * _MOST_ROWS:
    ends = (("The lowest", rows[:_MOST_ROWS]), ("The highest", rows[-_MOST_ROWS:]))
    tables = [(title, Table(heads, part)) for title, part in ends]
    between = Table(heads, rows[_MOST_ROWS:-_MOST_ROWS])
  shown = _in_numbers(matrix, names) if in_numbers else None
  picture = ("", "") if in_numbers else _as_picture(matrix)
  return Classes(seeds, shown, picture, _confusions(matrix, names), tables, between)


def _shares(matrix: Int[np.ndarray, "n n"]) -> np.ndarray:
  """The root of each cell's share of its row: a few images are visible beside a full diagonal."""
  return np.sqrt(matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1))


def _in_numbers(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> Table:
  """The confusion matrix as a table, each cell as dark as its share."""
  depth, rows = _shares(matrix), []
  for place, name in enumerate(names):
    cells = [
      Cell(f"{count:,}" if count else "", "right" if column == place else "wrong", float(share))
      for column, (count, share) in enumerate(zip(matrix[place], depth[place], strict=True))
    ]
    rows.append([Cell(name), *cells])
  return Table(["", *names], rows)


def _as_picture(matrix: Int[np.ndarray, "n n"]) -> tuple[str, str]:
  """The confusion matrix as a picture, a pixel for each pair of classes, and its words."""
  level = np.rint(_shares(matrix) * (_LEVELS - 1)) / (_LEVELS - 1)
  right = np.trace(matrix) / max(matrix.sum(), 1)
  words = (
    f"Confusion matrix of {len(matrix)} classes, labels from top to bottom, predictions from left "
    f"to right; {percent(right)} of the images lie on the diagonal."
  )
  return data_uri((255 - np.rint(255 * level)).astype(np.uint8)), words


def _confusions(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> Table | None:
  """The most frequent pairs of a label and another class that is predicted."""
  wrong = matrix.copy()
  np.fill_diagonal(wrong, 0)
  places = np.argsort(-wrong, axis=None, kind="stable")[:_LISTED]
  pairs = [divmod(int(place), len(names)) for place in places if wrong.flat[place]]
  totals = matrix.sum(axis=1)
  rows = [[names[a], names[b], f"{matrix[a, b]:,}", f"{totals[a]:,}"] for a, b in pairs]
  heads = ["label", "prediction", "images", "of"]
  return Table(heads, [[*map(Cell, row)] for row in rows]) if rows else None


def _by_class(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> list[list[Cell]]:
  """A row for each class, the least accurate first."""
  images, predicted, right = matrix.sum(axis=1), matrix.sum(axis=0), np.diag(matrix)
  accuracy, rows = right / np.maximum(images, 1), []
  for i in np.lexsort((np.arange(len(names)), accuracy)).tolist():
    share = float(accuracy[i])
    shown = Cell(percent(share), "share", share) if images[i] else Cell("–")
    precision = percent(right[i] / predicted[i]) if predicted[i] else "–"
    rows.append([Cell(names[i]), shown, Cell(precision), Cell(f"{images[i]:,}")])
  return rows
