"""Images that cannot be read: how many may be, and what is said of them."""

import itertools
from collections.abc import Collection, Mapping

import numpy as np
from ml_collections import ConfigDict

from jaxspeed.data.disk.repair import why_broken
from jaxspeed.data.disk.sets import NAMED, ImageSets
from jaxspeed.errors import UserError
from jaxspeed.feeds.protocol import Broken

FILE = "broken_images.tsv"
WORDS = {"train": "training", "eval": "evaluation"}


def allowed(images: int, max_broken: float) -> int:
  """How many of a split's images may be broken: of few images one may, unless none is to be.

  Args:
    images: of the split.
    max_broken: `config.data.max_broken`.
  """
  return max(1, int(images * max_broken)) if max_broken else 0


def check_headers(
  sets: ImageSets, config: ConfigDict, splits: Collection[str] = ("train", "eval")
) -> None:
  """Makes sure that few enough headers of a set's images could not be read.

  Args:
    sets: opened.
    config: its `data` counts; with on_error="raise" the stream refuses the first image.
    splits: of "train" and "eval".

  Raises:
    UserError: there are more than `allowed`.
  """
  if config.data.on_error == "raise":
    return
  for images in {id(each): each for each in sets.sets.values()}.values():
    for kind in splits:
      split = images.train if kind == "train" else images.eval
      broken = np.flatnonzero(split.width == 0).tolist()
      if len(broken) > allowed(len(split), config.data.max_broken):
        named = [f"{split.name(i)} ({why_broken(split, i)})" for i in broken[:NAMED]]
        raise too_many(
          kind,
          named,
          len(broken),
          len(split),
          config.data.max_broken,
          where=f"in {split.root} ",
          after=f"{FILE} in the workdir of such a run lists all",
        )


def check_evaluated(broken: Mapping[str, str], images: int, config: ConfigDict) -> list[str]:
  """A line on images that an evaluation went without; none where there are none.

  Args:
    broken: reasons by name.
    images: of the split.
    config: its `data` counts.

  Raises:
    UserError: there are more than `allowed`.
  """
  if len(broken) > allowed(images, config.data.max_broken):
    raise too_many("eval", named_in(broken), len(broken), images, config.data.max_broken)
  return describe({("eval", name): reason for name, reason in broken.items()})


def named_in(broken: Mapping[str, str]) -> list[str]:
  return [f"{name} ({reason})" for name, reason in itertools.islice(broken.items(), NAMED)]


def too_many(
  kind: str,
  named: list[str],
  broken: int,
  images: int,
  max_broken: float,
  *,
  where: str = "",
  after: str = "",
) -> UserError:
  more = f" and {broken - NAMED:,} more" if broken > NAMED else ""
  # Rounded up, so that this share lets them pass.
  enough = min(1.0, -(-10_000 * broken // images) / 10_000)
  return UserError(
    f"{broken:,} of {images:,} {WORDS[kind]} images {where}could not be read, and "
    f"config.data.max_broken={max_broken:g} lets {allowed(images, max_broken):,} pass: "
    f"{', '.join(named[:NAMED])}{more}; mend them, or go on without them with "
    f"--config.data.max_broken={enough:g}{f' ({after})' if after else ''}."
  )


def describe(new: Broken, file: str = "") -> list[str]:
  """A line a split on images that are newly known to be broken, and the file that lists all."""
  lines = []
  for kind, effect in (
    ("train", "the next one takes the place of each"),
    ("eval", "they do not count"),
  ):
    broken = {name: reason for (split, name), reason in new.items() if split == kind}
    if broken:
      more = f" and {len(broken) - NAMED:,} more" if len(broken) > NAMED else ""
      lines.append(
        f"{len(broken):,} {WORDS[kind]} image{'s' * (len(broken) > 1)} could not be read, "
        f"{effect}: {', '.join(named_in(broken))}{more}{f' ({file})' if file else ''}"
      )
  return lines
