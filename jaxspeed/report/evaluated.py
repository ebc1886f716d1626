"""The images that groups of runs were evaluated on: accuracies on others cannot be compared."""

import os
import zlib
from collections.abc import Sequence
from typing import Any

from jaxspeed.errors import some
from jaxspeed.records.results import images_of
from jaxspeed.report.data import Group, RunData

_MOST_SETS, _MOST_NAMES = 4, 3


def image_sets(groups: Sequence[Group]) -> list[int]:
  """The number of each group's evaluation set, from 0; the same one where no known fact differs."""
  sets: list[dict[str, Any]] = []
  numbers = []
  for group in groups:
    own = _facts(group.counted[0])
    fits = (
      n for n, one in enumerate(sets) if all(one.get(key, own[key]) == own[key] for key in own)
    )
    number = next(fits, len(sets))
    if number == len(sets):
      sets.append({})
    sets[number] |= own
    numbers.append(number)
  return numbers


def named_sets(groups: Sequence[Group], numbers: Sequence[int]) -> str:
  """The sets in words, if there are several of them; "" otherwise."""
  if len({*numbers}) < 2:
    return ""
  parts = []
  for number in range(min(max(numbers) + 1, _MOST_SETS)):
    members = [group for group, own in zip(groups, numbers, strict=True) if own == number]
    names = some([group.name for group in members], _MOST_NAMES)
    parts.append(f"{names}: {_in_words(members[0].counted[0])}")
  parts += ["..."] * (max(numbers) >= _MOST_SETS)
  return "; ".join(parts)


def evaluated_images(run: RunData) -> int:
  """The number of images in a run's accuracies; 0 if unknown."""
  if run.predictions is not None:
    return len(run.predictions.label)
  rows = [row["eval_images"] for row in run.rows if row.get("eval_images")]
  return rows[-1] if rows else 0


def _facts(run: RunData) -> dict[str, Any]:
  """What is known of the images that a run was evaluated on."""
  facts: dict[str, Any] = {"class names": run.class_names}
  if images := evaluated_images(run):
    facts["images"] = images
  if run.result is not None:
    facts["split"] = run.result["evaluated_on"]
  if run.predictions is not None:
    facts["labels"] = zlib.crc32(run.predictions.label.tobytes())
    names = run.predictions.names
    # Resized copies have other endings, and their shards other places.
    if names and ", byte " not in names[0]:
      stems = "\0".join(os.path.splitext(name)[0] for name in names)
      facts["names"] = zlib.crc32(os.fsencode(stems))
  return facts


def _in_words(run: RunData) -> str:
  images, data = evaluated_images(run), run.config["data"]
  kind = images_of(run.result["evaluated_on"]) if run.result else "evaluation images"
  count = f"{images:,} " if images else ""
  where = data.get("path") or data.get("name")
  of = f" of {where}" if where else ""
  return f"{count}{kind}{of}, {len(run.class_names):,} classes"
