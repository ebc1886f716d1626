"""The share of each class of a data set that is held out, for evaluation or for tuning."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64

from jaxspeed.errors import UserError, printable, some

# The default of `config.data.hold_out`.
TENTH = 0.1
# What is held out, and what for, by `evaluated_on`.
_USES = {"held-out": ("images", "evaluation"), "validation": ("training images", "tuning")}
# The most classes in a note.
_NAMED = 5


def held_out_count(images: int, share: float) -> int:
  """Return how many of `images` (two or more) are held out: at least one, and never all."""
  return min(max(int(share * images + 0.5), 1), images - 1)


def require_training_images(share: float) -> None:
  """Refuse a share of 1, which holds all images out, where a run trains.

  Raises:
    UserError: the share is 1.
  """
  if share == 1:
    raise UserError(
      "config.data.hold_out=1 leaves no images to train on: it is for evaluate; lower it."
    )


def split_by_digest(
  digests: Iterable[bytes], labels: Sequence[int] | np.ndarray, share: float, where: str
) -> tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]:
  """Return the numbers of images to keep and to hold out, both ascending.

  Of each class the images with the smallest digests are held out, so a new image moves at most two
  others. A class of one image is kept.

  Args:
    digests: eight random-looking bytes for each image.
    labels: class number of each image.
    share: share of each class, above 0; 1: all images are both kept and held out, to evaluate all.
    where: the data set's path or name, for messages.

  Raises:
    UserError: no class has two images.
  """
  label = np.asarray(labels)
  if share == 1:
    return np.arange(len(label)), np.arange(len(label))
  order = np.argsort(label, kind="stable").astype(np.int32)  # of 14 million, 50 MB less
  classes = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
  digest = np.fromiter(digests, "S8", len(label)).view("<u8")
  held_out = np.zeros(len(label), bool)
  for rows in classes:
    if len(rows) > 1:
      count = held_out_count(len(rows), share)
      held_out[rows[np.argsort(digest[rows], kind="stable")[:count]]] = True
  if not held_out.any():
    raise UserError(
      f"{where} has no two images of a class, so none can be held out for evaluation: add images, "
      "or check that its labels are classes."
    )
  return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def hold_out_line(held_out: int, images: int, share: float, evaluated_on: str) -> str:
  """Return how many of `images` are held out, which is the `share` of each class, and what for."""
  kind, use = _USES[evaluated_on]
  if share == 1:
    return f"all {images:,} {kind} are evaluated (data.hold_out=1)"
  return (
    f"{held_out:,} of {images:,} {kind}, {100 * share:g} % of each class, are held out for {use}"
  )


def single_image_note(labels: np.ndarray, class_names: Sequence[str]) -> tuple[str, ...]:
  """Return a note about classes of a single image, which are only trained on, if there are any."""
  found, images = np.unique(labels, return_counts=True)
  single = found[images == 1]
  if not len(single):
    return ()
  known = dict(enumerate(class_names))
  names = [printable(known.get(i, str(i))) for i in single.tolist()]
  return (f"classes with one image are trained on but not evaluated: {some(names, _NAMED)}",)


def require_trained(
  trained: np.ndarray, evaluated: np.ndarray, class_names: Sequence[str], where: str
) -> None:
  """Make sure that each class that is evaluated has training images.

  Args:
    trained: labels of the training images.
    evaluated: labels of the evaluation images.
    class_names: names of the classes, by label.
    where: the data set's path or name, for messages.

  Raises:
    UserError: a class has none.
  """
  labels, images = np.unique(evaluated, return_counts=True)
  lacking = ~np.isin(labels, np.unique(trained))
  if lacking.any():
    counts = list(zip(labels[lacking].tolist(), images[lacking].tolist(), strict=True))
    names = [f"{printable(class_names[i])} ({count:,})" for i, count in counts]
    raise UserError(
      f"{where}: no training image has the class of these evaluation images: "
      f"{some(names, _NAMED)}: add training images of it, or remove those."
    )
