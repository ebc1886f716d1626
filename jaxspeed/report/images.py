"""The images that a run left, as data URIs: mistakes, correct ones, augmented ones, filters."""

import base64
import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from jaxspeed.records.predictions import Predictions
from jaxspeed.records.thumbnails import Thumbnails, worst_rows
from jaxspeed.report.data import Group, RunData
from jaxspeed.report.markup import Html, element, join
from jaxspeed.report.words import percent

# JPEG takes a third of PNG's bytes, and its blocks of 8 pixels spoil smaller pictures.
_SMALL = 32


def data_uri(content: bytes, kind: str) -> Html:
  """Bytes of an image as an address that needs no network."""
  return Html(f"data:image/{kind};base64,{base64.b64encode(content).decode()}")


def encoded(pixels: UInt8[np.ndarray, "h w 3"]) -> Html:
  """An image as a data URI."""
  content, kind = io.BytesIO(), "png" if max(pixels.shape[:2]) <= _SMALL else "jpeg"
  Image.fromarray(pixels).save(content, kind.upper(), **({} if kind == "png" else {"quality": 85}))
  return data_uri(content.getvalue(), kind)


def images(group: Group) -> Html:
  """The images of the first run of a group that left some; "" without any."""
  for run in group.runs:
    if run.thumbnails is not None and run.predictions is not None:
      return _of_run(run, run.thumbnails, run.predictions, several=len(group.runs) > 1)
  return Html("")


def _of_run(
  run: RunData, thumbnails: Thumbnails, predictions: Predictions, *, several: bool
) -> Html:
  wrong, right = _evaluated(run, thumbnails, predictions)
  trained = _trained(run, thumbnails)
  filters = [_picture(each, "a filter of the first layer") for each in thumbnails.filters]
  seed = f" (seed {run.seed})" if several else ""
  parts = [
    ("Highest loss", wrong, "label → prediction, its probability"),
    ("Correct, drawn at random", right, "prediction, its probability"),
    ("What augmentation makes of a batch", trained, "as the model sees it in the last epoch"),
    ("Filters of the first layer", filters, "grey is zero"),
  ]
  shown = [
    join(
      [
        element("h3", title, " ", element("small", note)),
        element("div", *cards, class_="filters" if cards is filters else "cards"),
      ]
    )
    for title, cards, note in parts
    if cards
  ]
  return join([element("h2", f"Images{seed}"), *shown]) if shown else Html("")


def _evaluated(
  run: RunData, thumbnails: Thumbnails, predictions: Predictions
) -> tuple[list[Html], list[Html]]:
  """Cards of the images of the highest loss, and of correct ones; none of another evaluation."""
  wrong: list[Html] = []
  right: list[Html] = []
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
) -> Html:
  label, predicted = int(predictions.label[row]), int(predictions.predicted[row])
  guess = run.class_names[predicted] if predicted >= 0 else "nothing: not finite"
  truth = run.class_names[label]
  name = predictions.names[row] if predictions.names else f"image {predictions.index[row]}"
  share = percent(float(predictions.probability[row]), 1)
  words = f"label {truth}, predicted {guess} with probability {share}; {name}"
  own = float(np.exp(-predictions.loss[row]))
  head = (
    element("b", truth)
    if label == predicted
    else join([element("b", truth), " → ", element("span", guess)])
  )
  small = f"{share}; label {percent(own, 1)}" if label != predicted else share
  caption = element("figcaption", head, element("small", small))
  kind = "card" if label == predicted else "card wrong"
  return element("figure", _picture(image, words), caption, class_=kind)


def _trained(run: RunData, thumbnails: Thumbnails) -> list[Html]:
  cards = []
  columns = (thumbnails.train_label, thumbnails.train_partner, thumbnails.train_share)
  for image, label, partner, share in zip(thumbnails.train_image, *columns, strict=True):
    words = run.class_names[label]
    if share > 0:
      mixed = f"{run.class_names[partner]} ({percent(float(share), 0)})"
      words = f"{words} ({percent(1 - float(share), 0)}) + {mixed}"
    caption = element("figcaption", words)
    picture = _picture(image, f"training image, {words}")
    cards.append(element("figure", picture, caption, class_="card"))
  return cards


def _picture(pixels: UInt8[np.ndarray, "h w 3"], words: str) -> Html:
  height, width = pixels.shape[:2]
  kind = "pixels" if max(height, width) <= _SMALL else None
  return element(
    "img", src=encoded(pixels), alt=words, title=words, width=width, height=height, class_=kind
  )
