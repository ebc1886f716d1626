"""The images that a run left, as data URIs: mistakes, correct ones, augmented ones, filters."""

import base64
import io
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from jaxspeed.records.arrays import Predictions, Thumbnails, worst_rows
from jaxspeed.report.data import Group, RunData
from jaxspeed.report.words import percent

# JPEG takes a third of PNG's bytes, and its blocks of 8 pixels spoil smaller pictures.
_SMALL = 32


class Picture(NamedTuple):
  """An image with its address, its words and its pixels; below it, a caption.

  `truth`, `guess` and `small` are the caption: its class, the predicted one, and figures.
  """

  src: str
  words: str
  width: int
  height: int
  truth: str = ""
  guess: str = ""
  small: str = ""

  @property
  def is_small(self) -> bool:
    """Whether a browser shows its pixels as squares."""
    return max(self.width, self.height) <= _SMALL


def data_uri(pixels: UInt8[np.ndarray, "h w *channels"], *, kind: str = "png") -> str:
  """An image as an address that needs no network."""
  content = io.BytesIO()
  how: dict[str, Any] = {"quality": 85} if kind == "jpeg" else {"optimize": True}
  Image.fromarray(pixels).save(content, kind.upper(), **how)
  return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"


# Titles, notes and pictures.
Parts = list[tuple[str, str, list[Picture]]]


def images(group: Group) -> tuple[RunData, Parts] | None:
  """The first run of a group that left some images, with its images; None without any."""
  for run in group.runs:
    if run.thumbnails is not None and run.predictions is not None:
      wrong, right = _evaluated(run, run.thumbnails, run.predictions)
      filters = [_picture(each, "a filter of the first layer") for each in run.thumbnails.filters]
      seen = "as the model sees it in the last epoch"
      parts = [
        ("Highest loss", "label → prediction, its probability", wrong),
        ("Correct, drawn at random", "prediction, its probability", right),
        ("What augmentation makes of a batch", seen, _trained(run, run.thumbnails)),
        ("Filters of the first layer", "grey is zero", filters),
      ]
      return (run, parts) if any(pictures for *_, pictures in parts) else None
  return None


def _evaluated(
  run: RunData, thumbnails: Thumbnails, predictions: Predictions
) -> tuple[list[Picture], list[Picture]]:
  """The images of the highest loss, and correct ones; none of another evaluation."""
  wrong: list[Picture] = []
  right: list[Picture] = []
  rows = {number: row for row, number in enumerate(predictions.index.tolist())}
  if thumbnails.step != predictions.step:
    return wrong, right
  known = [
    (rows[number], image)
    for number, image in zip(thumbnails.eval_index.tolist(), thumbnails.eval_image, strict=True)
    if number in rows
  ]
  # Half of the images, or more if few are correct; with a high accuracy some of them are correct.
  worst = set(worst_rows(predictions, -(-len(known) // 2)).tolist())
  for row, image in known:
    correct = predictions.label[row] == predictions.predicted[row] and row not in worst
    (right if correct else wrong).append(_card(run, predictions, row, image))
  return wrong, right


def _card(
  run: RunData, predictions: Predictions, row: int, image: UInt8[np.ndarray, "h w 3"]
) -> Picture:
  label, predicted = int(predictions.label[row]), int(predictions.predicted[row])
  guess = run.class_names[predicted] if predicted >= 0 else "nothing: not finite"
  truth = run.class_names[label]
  name = predictions.names[row] if predictions.names else f"image {predictions.index[row]}"
  share = percent(float(predictions.probability[row]), 1)
  words = f"label {truth}, predicted {guess} with probability {share}; {name}"
  if label == predicted:
    return _picture(image, words, truth, "", share)
  own = percent(float(np.exp(-predictions.loss[row])), 1)
  return _picture(image, words, truth, guess, f"{share}; label {own}")


def _trained(run: RunData, thumbnails: Thumbnails) -> list[Picture]:
  pictures = []
  columns = (thumbnails.train_label, thumbnails.train_partner, thumbnails.train_share)
  for image, label, partner, share in zip(thumbnails.train_image, *columns, strict=True):
    words = run.class_names[label]
    if share > 0:
      mixed = f"{run.class_names[partner]} ({percent(float(share), 0)})"
      words = f"{words} ({percent(1 - float(share), 0)}) + {mixed}"
    pictures.append(_picture(image, f"training image, {words}", "", words))
  return pictures


def _picture(pixels: UInt8[np.ndarray, "h w 3"], words: str, *caption: str) -> Picture:
  height, width = pixels.shape[:2]
  kind = "png" if max(height, width) <= _SMALL else "jpeg"
  return Picture(data_uri(pixels, kind=kind), words, width, height, *caption)
