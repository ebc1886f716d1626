"""Figures by class against scikit-learn's and their definitions."""

import math

import numpy as np
import pytest
from sklearn import metrics

from jaxspeed.files import dump_json
from jaxspeed.records import class_figures
from jaxspeed.records.arrays import Predictions


def predictions_of(logits, labels):
  """Predictions of logits, by NumPy."""
  logits = np.asarray(logits, np.float64)
  p = np.exp(logits - logits.max(axis=1, keepdims=True))
  p /= p.sum(axis=1, keepdims=True)
  rows = np.arange(len(labels))
  return Predictions(
    step=3,
    index=rows.astype(np.int32),
    label=np.asarray(labels, np.int32),
    predicted=logits.argmax(axis=1).astype(np.int32),
    probability=p.max(axis=1),
    loss=-np.log(p[rows, labels]),
  )


def made_up(n=500, classes=7, seed=0, missing=()):
  """Uneven classes, those in `missing` without an image but predicted now and then."""
  rng = np.random.default_rng(seed)
  present = [c for c in range(classes) if c not in missing]
  weights = np.arange(1, len(present) + 1)
  labels = rng.choice(present, size=n, p=weights / weights.sum())
  logits = rng.standard_normal((n, classes))
  logits[np.arange(n), labels] += 1
  return predictions_of(logits, labels)


def names_of(classes):
  return [f"class {i}" for i in range(classes)]


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("missing", [(), (0, 3)])
def test_accuracies_and_the_matrix_are_scikit_learns(missing):
  found = made_up(missing=missing)
  figures = class_figures.figures_of(found, names_of(7))
  matrix = metrics.confusion_matrix(found.label, found.predicted, labels=range(7))
  assert figures["confusion"] == matrix.tolist()
  assert figures["per_class"] == {
    name: {"top1": row[c] / row.sum() if row.any() else None, "images": row.sum()}
    for c, (name, row) in enumerate(zip(names_of(7), matrix, strict=True))
  }
  mean = metrics.balanced_accuracy_score(found.label, found.predicted)
  assert figures["macro_top1"] == pytest.approx(mean, rel=1e-14)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_calibration_error_is_the_formula_of_guo_et_al(bins):
  found = made_up()
  gaps = 0.0
  for m in range(1, bins + 1):
    inside = ((m - 1) / bins < found.probability) & (found.probability <= m / bins)
    if inside.any():
      gap = found.right[inside].mean() - found.probability[inside].mean()
      gaps += inside.mean() * abs(gap)
  error = class_figures.expected_calibration_error(found.probability, found.right, bins)
  assert error == pytest.approx(gaps, rel=1e-12)
  if bins == 15:
    assert class_figures.figures_of(found, names_of(7))["ece"] == error


def test_the_calibration_error_of_some_known_cases():
  def error(probability, right, bins=15):
    found = np.array(probability), np.array(right)
    return class_figures.expected_calibration_error(*found, bins)

  assert error([1.0] * 4, [True, False] * 2) == 0.5
  # An edge belongs to the bin below it: in one bin with 0.26, the two gaps of 1/4 would cancel.
  assert error([0.25, 0.75], [False, True], bins=4) == pytest.approx(0.25)
  assert math.isnan(error([np.nan, 1.0], [False, True]))


def test_the_worst_confusions_are_the_largest_entries_beside_the_diagonal():
  found = made_up()
  matrix = class_figures.confusion_matrix(found, 7)
  pairs = [(-matrix[a, b], a, b) for a in range(7) for b in range(7) if a != b and matrix[a, b]]
  assert len(pairs) > 10
  assert class_figures.worst_confusions(found, names_of(7)) == [
    {"label": f"class {a}", "predicted": f"class {b}", "images": -n, "of": matrix[a].sum()}
    for n, a, b in sorted(pairs)[:10]
  ]
  right = predictions_of(np.eye(3), [0, 1, 2])
  assert class_figures.worst_confusions(right, names_of(3)) == []


def test_classes_and_confusions_are_told_by_name_the_worst_first():
  found, names = predictions_of(np.eye(4)[[1, 0, 0, 1, 1, 2]], [0, 0, 0, 1, 1, 3]), ["cat", "dog"]
  names += ["none", "a\nhorse"]
  figures = {
    "macro_top1": 5 / 9,
    "worst_classes": class_figures.worst_classes(found, names),
    "confusions": class_figures.worst_confusions(found, names),
  }
  lines = [
    "accuracy by class, the worst first; the mean of all is 55.56%",
    "   0.00%        1  a\\nhorse",
    "  66.67%        3  cat",
    " 100.00%        2  dog",
  ]
  confused = ["", "the most frequent confusions, label -> prediction: images"]
  confused += ["cat -> dog: 1 of 3", "a\\nhorse -> none: 1 of 1"]
  assert [*class_figures.class_lines(figures)] == lines + confused
  assert [*class_figures.class_lines(figures | {"confusions": []})] == lines


def test_only_the_worst_of_many_classes_are_told():
  for classes, shown in ((20, 20), (21, 10)):
    found = made_up(n=3000, classes=classes)
    worst = class_figures.worst_classes(found, names_of(classes))
    per_class = class_figures.figures_of(found, names_of(classes))["per_class"].values()
    assert [c["top1"] for c in worst] == sorted(c["top1"] for c in per_class)[:shown]


def test_large_matrices_and_very_many_classes_are_left_out():
  found = made_up(n=3000, classes=101)
  figures = class_figures.figures_of(found, names_of(101), most_confused=100)
  assert "confusion" not in figures and len(figures["per_class"]) == 101
  found = made_up(n=3000, classes=1001)
  assert set(class_figures.figures_of(found, names_of(1001))) == {"macro_top1", "ece"}
  assert len(class_figures.worst_confusions(found, names_of(1001))) == 10


def test_names_are_keys_that_json_can_hold():
  # A folder's name need not be UTF-8; pydantic refuses the lone surrogate that stands for a byte.
  keys = class_figures.keys_of(["cat", "b\udcff", "dog\n"])
  assert keys == ["cat", "b\\xff", "dog\\n"]
  assert dump_json(keys).isascii()
  assert class_figures.keys_of(["a\n", "a\\n"]) == ["0", "1"]


def test_an_image_without_a_prediction_is_wrong_and_in_no_column():
  found = predictions_of(np.eye(2)[[0, 1, 1]], [0, 1, 0])
  found.predicted[1] = -1
  figures = class_figures.figures_of(found, names_of(2))
  assert figures["confusion"] == [[1, 1], [0, 0]]
  assert figures["macro_top1"] == 0.25
  assert [c["images"] for c in class_figures.worst_confusions(found, names_of(2))] == [1]
