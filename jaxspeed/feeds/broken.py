"""The limit on images that cannot be read, and the messages on them."""

import itertools
from collections.abc import Collection, Mapping

import numpy as np
from ml_collections import ConfigDict

from jaxspeed.data.disk.broken import why_broken
from jaxspeed.data.disk.sets import NAMED, ImageSets
from jaxspeed.errors import UserError, some
from jaxspeed.feeds.protocol import Broken

FILE = "broken_images.tsv"
WORDS = {"train": "training", "eval": "evaluation"}


def allowed(images: int, max_broken: float) -> int:
  """The number of images of a split that may be broken: at least one, unless `max_broken` is 0.

  Args:
    images: the number of images in the split.
    max_broken: `config.data.max_broken`.
  """
  return max(1, int(images * max_broken)) if max_broken else 0


def require_few(
  kind: str, broken: Mapping[str, str], images: int, max_broken: float, where: str = ""
) -> None:
  """Makes sure that no more images of a split are broken than `allowed`.

  Args:
    kind: "train" or "eval".
    broken: the reason for each broken image, by name.
    images, max_broken: as in `allowed`.
    where: words on the place of the images.

  Raises:
    UserError: there are more.
  """
  if len(broken) > allowed(images, max_broken):
    # Rounded up, so that this share allows them.
    enough = min(1.0, -(-10_000 * len(broken) // images) / 10_000)
    raise UserError(
      f"{len(broken):,} of {images:,} {WORDS[kind]} images {where}could not be read, and "
      f"config.data.max_broken={max_broken:g} allows {allowed(images, max_broken):,}: "
      f"{_named(broken)}; repair them, or continue without them with "
      f"--config.data.max_broken={enough:g}: then {FILE} lists all."
    )


def check_headers(
  sets: ImageSets, config: ConfigDict, splits: Collection[str] = ("train", "eval")
) -> None:
  """Makes sure that no split has more unreadable image headers than `allowed`.

  Args:
    sets: the open image sets.
    config: the config; uses data.max_broken.
    splits: "train", "eval" or both.

  Raises:
    UserError: a split has more.
  """
  for images in sets.sets.values():
    for kind in splits:
      split = images.train if kind == "train" else images.eval
      numbers = np.flatnonzero(split.width == 0).tolist()
      # Only those that the sentence names are read.
      broken = {split.name(i): why_broken(split, i) for i in numbers[:NAMED]}
      broken |= {str(i): "" for i in numbers[NAMED:]}
      require_few(kind, broken, len(split), config.data.max_broken, f"in {split.root} ")


def check_evaluated(broken: Mapping[str, str], images: int, config: ConfigDict) -> list[str]:
  """A line on the images that an evaluation could not read; none if it read all.

  Args:
    broken: the reason for each such image, by name.
    images: the number of images in the split.
    config: the config; uses data.max_broken.

  Raises:
    UserError: there are more than `allowed`.
  """
  require_few("eval", broken, images, config.data.max_broken)
  return describe({("eval", name): reason for name, reason in broken.items()})


def _named(broken: Mapping[str, str]) -> str:
  first = itertools.islice(broken.items(), NAMED)
  return some([f"{name} ({reason})" for name, reason in first], NAMED, len(broken))


def describe(new: Broken, file: str = "") -> list[str]:
  """A line for each split on newly found broken images, with the file that lists all."""
  lines = []
  for kind, effect in (
    ("train", "each replaced by the next one"),
    ("eval", "left out of the accuracies"),
  ):
    broken = {name: reason for (split, name), reason in new.items() if split == kind}
    if broken:
      lines.append(
        f"{len(broken):,} {WORDS[kind]} image{'s' * (len(broken) > 1)} could not be read, "
        f"{effect}: {_named(broken)}{f' ({file})' if file else ''}"
      )
  return lines
