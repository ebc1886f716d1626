"""Figures by class of an evaluation: accuracies, the confusion matrix, calibration."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from jaxspeed.errors import printable
from jaxspeed.records.arrays import Predictions

# With more classes, there are only macro_top1 and ece: a matrix of 1,000 classes has 4 MB.
MOST_CLASSES = 1000
# With more classes, result.json has no confusion matrix; predictions.npz has each image.
MOST_IN_JSON = 100
# `worst_classes` has all classes up to the first number, and the second number of more classes.
_ALL_CLASSES, _WORST_CLASSES = 20, 10
# As in Guo et al.
_BINS = 15


def _counts(predictions: Predictions, classes: int) -> tuple[Int[np.ndarray, "classes"], ...]:
  """The number of right images of each class, and of all."""
  right = np.bincount(predictions.label[predictions.right], minlength=classes)
  return right, np.bincount(predictions.label, minlength=classes)


def expected_calibration_error(
  probability: Float[np.ndarray, "n"], right: Bool[np.ndarray, "n"], bins: int = _BINS
) -> float:
  """How far confidence is from accuracy: the ECE of Guo et al. 2017 (arXiv 1706.04599).

  ECE = sum over bins m of |B_m| / n * |acc(B_m) - conf(B_m)|, where B_m holds the images whose
  confidence is in ((m - 1) / M, m / M], acc is the share of them that is right, and conf is their
  mean confidence.

  Args:
    probability: the probability of each predicted class, its confidence.
    right: whether the predicted class is the label.
    bins: M, the number of bins of equal width.

  Returns:
    A fraction; NaN if a probability is NaN.
  """
  confidence = probability.astype(np.float64)
  if not np.isfinite(confidence).all():
    return math.nan
  place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
  # |B_m| cancels: each bin adds |sum of right - sum of confidence| / n.
  gaps = np.bincount(place, weights=right - confidence, minlength=bins)
  return float(np.abs(gaps).sum() / len(confidence))


def summary(predictions: Predictions, classes: int) -> dict[str, float]:
  """The figures that an epoch's row has: {"macro_top1", "ece"}.

  macro_top1 is scikit-learn's `balanced_accuracy_score`: the mean accuracy of the classes that have
  images, which all count the same.
  """
  right, images = _counts(predictions, classes)
  return {
    "macro_top1": float(np.mean(right[images > 0] / images[images > 0])),
    "ece": expected_calibration_error(predictions.probability, predictions.right),
  }


def confusion_matrix(
  predictions: Predictions, classes: int
) -> Int32[np.ndarray, "classes classes"]:
  """The number of images by label, the row, and predicted class, the column."""
  matrix, known = np.zeros((classes, classes), np.int32), predictions.predicted >= 0
  np.add.at(matrix, (predictions.label[known], predictions.predicted[known]), 1)
  return matrix


def figures_of(
  predictions: Predictions, names: Sequence[str], *, most_confused: int = MOST_CLASSES
) -> dict[str, Any]:
  """Every figure of an evaluation, in JSON's types.

  Args:
    predictions: of at least one image.
    names: the names of the classes.
    most_confused: the most classes for which the result has the confusion matrix.

  Returns:
    {"macro_top1", "ece"}; up to `MOST_CLASSES` classes also "per_class", a dict by class name of
    {"top1", "images"}, where top1 is None for a class without images, and "confusion", the rows
    of `confusion_matrix`.
  """
  classes = len(names)
  figures: dict[str, Any] = summary(predictions, classes)
  if classes <= MOST_CLASSES:
    figures["per_class"] = {each.pop("label"): each for each in _by_class(predictions, names)}
  if classes <= min(MOST_CLASSES, most_confused):
    figures["confusion"] = confusion_matrix(predictions, classes).tolist()
  return figures


def _by_class(predictions: Predictions, names: Sequence[str]) -> list[dict[str, Any]]:
  """{"label", "top1", "images"} of each class; top1 is None for one without images."""
  counts = (each.tolist() for each in _counts(predictions, len(names)))
  return [
    {"label": name, "top1": right / images if images else None, "images": images}
    for name, right, images in zip(keys_of(names), *counts, strict=True)
  ]


def keys_of(names: Sequence[str]) -> list[str]:
  """Class names as JSON can hold them, or numbers where two would become the same."""
  shown = [printable(name) for name in names]
  return shown if len(set(shown)) == len(shown) else list(map(str, range(len(names))))


def worst_classes(predictions: Predictions, names: Sequence[str]) -> list[dict[str, Any]]:
  """The classes with the lowest top-1 accuracies, the worst first; those without images are not.

  Returns:
    {"label", "top1", "images"} of every class up to 20 classes, and of ten of more classes.
  """
  most = len(names) if len(names) <= _ALL_CLASSES else _WORST_CLASSES
  known = [each for each in _by_class(predictions, names) if each["images"]]
  return sorted(known, key=lambda each: each["top1"])[:most]


def worst_confusions(
  predictions: Predictions, names: Sequence[str], most: int = 10
) -> list[dict[str, Any]]:
  """The most frequent pairs of a label and another class that is predicted, the first ones first.

  Returns:
    At most `most` of {"label", "predicted", "images", "of"}: class names, the number of images of
    that label with that prediction, and the number of images of the label.
  """
  wrong = (predictions.predicted >= 0) & ~predictions.right
  pairs = np.stack([predictions.label[wrong], predictions.predicted[wrong]], axis=1)
  found, images = np.unique(pairs, axis=0, return_counts=True)
  total, keys = np.bincount(predictions.label), keys_of(names)
  worst = np.argsort(-images, kind="stable")[:most]
  return [
    {"label": keys[a], "predicted": keys[b], "images": int(count), "of": int(total[a])}
    for (a, b), count in zip(found[worst].tolist(), images[worst], strict=True)
  ]


def class_lines(figures: Mapping[str, Any]) -> Iterator[str]:
  """The lines on {"macro_top1", "worst_classes", "confusions"} of an evaluation, to be read."""
  yield f"accuracy by class, the worst first; the mean of all is {figures['macro_top1']:.2%}"
  for c in figures["worst_classes"]:
    yield f"{c['top1']:8.2%}  {c['images']:>7,}  {c['label']}"
  if confusions := figures["confusions"]:
    yield from ("", "the most frequent confusions, label -> prediction: images")
  for c in confusions:
    yield f"{c['label']} -> {c['predicted']}: {c['images']:,} of {c['of']:,}"
