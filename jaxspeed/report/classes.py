"""Accuracy by class: the confusion matrix, the most frequent confusions, a sorted table."""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from PIL import Image

from jaxspeed.errors import plural
from jaxspeed.records.class_figures import MOST_CLASSES, confusion_matrix
from jaxspeed.report.data import Group
from jaxspeed.report.images import data_uri
from jaxspeed.report.markup import Html, element, join, table
from jaxspeed.report.words import percent

# Classes of a matrix in numbers; rows at each end of a long table; confusions listed.
_MOST_IN_NUMBERS, _MOST_ROWS, _LISTED = 20, 40, 10
# Levels of grey of a large matrix; more would not be seen, and take more bytes.
_LEVELS = 24


def classes(group: Group) -> Html:
  """The figures by class of a group's runs, summed over the seeds; "" without predictions."""
  known = [run for run in group.runs if run.predictions is not None]
  names = known[0].class_names if known else ()
  if not known or len(names) > MOST_CLASSES:
    return Html("")
  parts = (confusion_matrix(run.predictions, len(names)) for run in known if run.predictions)
  matrix = sum(parts, np.zeros((len(names),) * 2, np.int64))
  seeds = f", summed over {plural(len(known), 'seed')}" if len(known) > 1 else ""
  draw = _in_numbers if len(names) <= _MOST_IN_NUMBERS else _as_picture
  return join(
    [
      element("h2", f"Accuracy by class{seeds}"),
      element("div", draw(matrix, names), _confusions(matrix, names), class_="pair"),
      _by_class(matrix, names),
    ]
  )


def _in_numbers(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> Html:
  """The confusion matrix as a table, each cell as dark as the root of its share of the row."""
  depth = np.sqrt(matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1))
  rows = []
  for place, name in enumerate(names):
    cells = [
      element(
        "td",
        f"{count:,}" if count else "",
        style=f"--v:{share:.2f}",
        class_="right" if column == place else "wrong",
      )
      for column, (count, share) in enumerate(zip(matrix[place], depth[place], strict=True))
    ]
    rows.append((name, *cells))
  caption = element("figcaption", element("b", "Confusion matrix"), ": label by prediction, images")
  heads = ("", *(element("span", name) for name in names))
  shown = element("div", table(heads, rows, class_="confusion"), class_="wide")
  return element("figure", caption, shown)


def _as_picture(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> Html:
  """The confusion matrix as a picture, a pixel for each pair of classes."""
  shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
  # The root makes a few images visible beside a full diagonal.
  level = np.rint(np.sqrt(shares) * (_LEVELS - 1)) / (_LEVELS - 1)
  content = io.BytesIO()
  Image.fromarray((255 - np.rint(255 * level)).astype(np.uint8)).save(content, "PNG", optimize=True)
  right = np.trace(matrix) / max(matrix.sum(), 1)
  words = (
    f"Confusion matrix of {len(names)} classes, labels from top to bottom, predictions from left "
    f"to right; {percent(right)} of the images lie on the diagonal."
  )
  image = element("img", src=data_uri(content.getvalue(), "png"), alt=words, class_="matrix")
  return element("figure", element("figcaption", element("b", "Confusion matrix")), image)


def _confusions(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> Html:
  """The most frequent pairs of a label and another class that is predicted."""
  wrong = matrix.copy()
  np.fill_diagonal(wrong, 0)
  places = np.argsort(-wrong, axis=None, kind="stable")[:_LISTED]
  pairs = [divmod(int(place), len(names)) for place in places if wrong.flat[place]]
  if not pairs:
    return element("p", "No image was taken for another class.")
  totals = matrix.sum(axis=1)
  rows = [(names[a], names[b], f"{matrix[a, b]:,}", f"{totals[a]:,}") for a, b in pairs]
  shown = table(("label", "prediction", "images", "of"), rows, class_="numbers confused")
  caption = element("figcaption", element("b", "Most frequent confusions"))
  return element("figure", caption, element("div", shown, class_="wide"))


def _by_class(matrix: Int[np.ndarray, "n n"], names: Sequence[str]) -> Html:
  """A table of the classes, the least accurate first; the middle of a long one is folded."""
  images, right = matrix.sum(axis=1), np.diag(matrix)
  predicted = matrix.sum(axis=0)
  accuracy = right / np.maximum(images, 1)
  rows = [
    (
      names[i],
      _with_bar(float(accuracy[i])) if images[i] else "–",
      percent(right[i] / predicted[i]) if predicted[i] else "–",
      f"{images[i]:,}",
    )
    for i in np.lexsort((np.arange(len(names)), accuracy)).tolist()
  ]
  heads = ("class", "accuracy (recall)", "precision", "images")
  caption = element("h3", "Classes, the least accurate first")
  if len(rows) <= 2 * _MOST_ROWS:
    return join([caption, element("div", table(heads, rows, class_="numbers"), class_="wide")])
  ends = (("The lowest", rows[:_MOST_ROWS]), ("The highest", rows[-_MOST_ROWS:]))
  shown = [
    element("figure", element("figcaption", title), table(heads, part, class_="numbers"))
    for title, part in ends
  ]
  between = rows[_MOST_ROWS:-_MOST_ROWS]
  summary = element("summary", f"The {len(between):,} classes between")
  folded = element("details", summary, table(heads, between, class_="numbers"))
  return join([caption, element("div", *shown, class_="pair"), folded])


def _with_bar(share: float) -> Html:
  return element("td", percent(share), style=f"--v:{share:.3f}", class_="share")
