"""Accuracy by class: the confusion matrix, the most frequent confusions, a sorted table."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from jaxspeed.records.class_figures import MOST_CLASSES, confusion_matrix
from jaxspeed.report.data import Group
from jaxspeed.report.images import data_uri
from jaxspeed.report.words import Cell, Table, percent

# Classes of a matrix in numbers; rows at each end of a long table; confusions listed.
MOST_IN_NUMBERS, _MOST_ROWS, _LISTED = 20, 40, 10
# Levels of grey of a large matrix; more would not be seen, and take more bytes.
_LEVELS = 24


def matrix_of(group: Group) -> Int[np.ndarray, "n n"] | None:
  """The confusion matrix of a group's runs, summed over the seeds that left predictions.

  None without any, and with more classes than a page can show.
  """
  known = [run for run in group.runs if run.predictions is not None]
  classes = len(known[0].class_names) if known else 0
  if not known or classes > MOST_CLASSES:
    return None
  parts = (confusion_matrix(run.predictions, classes) for run in known if run.predictions)
  return sum(parts, np.zeros((classes, classes), np.int64))


def _shares(matrix: Int[np.ndarray, "n n"]) -> np.ndarray:
  """The root of each cell's share of its row: a few images are visible beside a full diagonal."""
  return np.sqrt(matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1))


def in_numbers(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> Table:
  """The confusion matrix as a table, each cell as dark as its share."""
  depth, rows = _shares(matrix), []
  for place, name in enumerate(names):
    cells = [
      Cell(f"{count:,}" if count else "", "right" if column == place else "wrong", float(share))
      for column, (count, share) in enumerate(zip(matrix[place], depth[place], strict=True))
    ]
    rows.append([Cell(name), *cells])
  return Table(["", *names], rows)


def as_picture(matrix: Int[np.ndarray, "n n"]) -> tuple[str, str]:
  """The confusion matrix as a picture, a pixel for each pair of classes, and its words."""
  level = np.rint(_shares(matrix) * (_LEVELS - 1)) / (_LEVELS - 1)
  right = np.trace(matrix) / max(matrix.sum(), 1)
  words = (
    f"Confusion matrix of {len(matrix)} classes, labels from top to bottom, predictions from left "
    f"to right; {percent(right)} of the images lie on the diagonal."
  )
  return data_uri((255 - np.rint(255 * level)).astype(np.uint8)), words


def confusions(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> Table | None:
  """The most frequent pairs of a label and another class that is predicted."""
  wrong = matrix.copy()
  np.fill_diagonal(wrong, 0)
  places = np.argsort(-wrong, axis=None, kind="stable")[:_LISTED]
  pairs = [divmod(int(place), len(names)) for place in places if wrong.flat[place]]
  totals = matrix.sum(axis=1)
  rows = [[names[a], names[b], f"{matrix[a, b]:,}", f"{totals[a]:,}"] for a, b in pairs]
  heads = ["label", "prediction", "images", "of"]
  return Table(heads, [[*map(Cell, row)] for row in rows]) if rows else None


def by_class(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> list[tuple[str, Table]]:
  """A row for each class, the least accurate first; of a long table the ends, then the middle."""
  images, predicted, right = matrix.sum(axis=1), matrix.sum(axis=0), np.diag(matrix)
  accuracy, rows = right / np.maximum(images, 1), []
  for i in np.lexsort((np.arange(len(names)), accuracy)).tolist():
    share = float(accuracy[i])
    shown = Cell(percent(share), "share", share) if images[i] else Cell("–")
    precision = percent(right[i] / predicted[i]) if predicted[i] else "–"
    rows.append([Cell(names[i]), shown, Cell(precision), Cell(f"{images[i]:,}")])
  parts = {"": rows}
  if len(rows) > 2 * _MOST_ROWS:
    parts = {"The lowest": rows[:_MOST_ROWS], "The highest": rows[-_MOST_ROWS:]}
    parts[f"The {len(rows) - 2 * _MOST_ROWS:,} classes between"] = rows[_MOST_ROWS:-_MOST_ROWS]
  heads = ["class", "accuracy (recall)", "precision", "images"]
  return [(title, Table(heads, part)) for title, part in parts.items()]
