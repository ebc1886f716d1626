"""The limit on images that cannot be read, and the messages on them."""

from collections.abc import Collection, Mapping

import numpy as np

from jaxspeed.data.disk.decoding import why_broken
from jaxspeed.data.disk.sets import ImageSets
from jaxspeed.errors import UserError, some
from jaxspeed.feeds.protocol import Broken

_NAMED = 5  # the most names of images in a message
FILE = "broken_images.tsv"
WORDS = {"train": "training", "eval": "evaluation"}
_EFFECTS = {"train": "each replaced by the next one", "eval": "left out of the accuracies"}


def require_few(broken: Broken, images: Mapping[str, int], max_broken: float) -> None:
  """Makes sure that of each split few images are broken: one, or `max_broken` of them.

  Args:
    broken: the broken images.
    images: the numbers of images by split, "train" or "eval".
    max_broken: `config.data.max_broken`; with 0 not even one may be broken.

  Raises:
    UserError: there are more.
  """
  for kind, count in images.items():
    found = _of_split(broken, kind)
    allowed = max(1, int(count * max_broken)) if max_broken else 0
    if len(found) > allowed:
      # Rounded up, so that this share allows them.
      enough = min(1.0, -(-10_000 * len(found) // count) / 10_000)
      raise UserError(
        f"{len(found):,} of {count:,} {WORDS[kind]} images could not be read, and "
        f"config.data.max_broken={max_broken:g} allows {allowed:,}: {some(found, _NAMED)}; repair "
        f"them, or continue without them with --config.data.max_broken={enough:g}: then {FILE} "
        "lists all."
      )


def check_headers(sets: ImageSets, max_broken: float, splits: Collection[str]) -> None:
  """Makes sure that of each split ("train", "eval") few images lack a readable header.

  Raises:
    UserError: as in `require_few`.
  """
  for images in sets.sets.values():
    for kind in splits:
      split = images.train if kind == "train" else images.eval
      numbers = np.flatnonzero(split.width == 0).tolist()
      # Only those that the sentence names are read.
      broken = {(kind, split.name(i)): why_broken(split, i) for i in numbers[:_NAMED]}
      broken |= {(kind, str(i)): "" for i in numbers[_NAMED:]}
      require_few(broken, {kind: len(split)}, max_broken)


def describe(new: Broken, file: str = "") -> list[str]:
  """A line for each split on newly found broken images, with the file that lists all."""
  lines = []
  for kind, effect in _EFFECTS.items():
    if found := _of_split(new, kind):
      lines.append(
        f"{len(found):,} {WORDS[kind]} image{'s' * (len(found) > 1)} could not be read, "
        f"{effect}: {some(found, _NAMED)}{f' ({file})' if file else ''}"
      )
  return lines


def _of_split(broken: Broken, kind: str) -> list[str]:
  return [f"{name} ({reason})" for (split, name), reason in broken.items() if split == kind]
