"""Rectangular validation: every image in a shape near its own, with few shapes to compile.

    shapes = choose_shapes(width, height, short_side=288, resize=328, limit=16, batch=1024)
    for batch in batches(shapes, 1024):  # each of one shape, every image once
      ...

An image is resized so that its short side is 1.14 times that of its shape, and then cropped to its
centre. A square crop loses a third of a 3:2 photograph; a shape with the image's own ratio keeps
it. fast.ai's code (cybertronai/imagenet18) takes the mean ratio of each batch of sorted images,
which makes 20 to 60 shapes, each a program to compile; `choose_shapes` makes at most `limit`.

Sizes are in pixels, and pairs are (height, width). An image of width or height 0 is broken: its
shape is (0, 0), and it is in no batch.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int, Int32, Int64


@dataclasses.dataclass(frozen=True, eq=False)
class EvalBatch:
  """Numbers of images that share a shape; images with a false mask only fill the batch."""

  shape: tuple[int, int]
  index: Int64[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]


def choose_shapes(
  width: Int[np.ndarray, "n"],
  height: Int[np.ndarray, "n"],
  *,
  short_side: int,
  resize: int,
  limit: int,
  multiple: int = 8,
  longest: float = 3.0,
  batch: int = 1,
) -> Int32[np.ndarray, "n 2"]:
  """Return a shape for each image, at most `limit` different ones, with the least total cost.

  An image's ideal rectangle has that image's ratio and `short_side`; its long side is rounded down
  as in resizing. A shape costs the pixels of the ideal that it cuts off plus its own pixels beyond
  the ideal, which are wasted work: the area between the two, when centred. The pixels beyond still
  show the image, which was resized to more than the ideal. No image gets a shape longer than its
  resized size, because the model was not trained on images padded with zeros. The square fits every
  image, so any limit works. Each image missing from a shape's last batch costs the pixels of that
  shape, so large batches favour few shapes whose images fill whole batches.

  Measured by width minus height, ideals and shapes lie on one line (portrait below 0, the square
  at 0, landscape above), and the area between two is `short_side` times their distance. So the
  best shapes divide the images, sorted by ratio, into runs, and dynamic programming over (number
  of runs, end of the last one) finds them. With batch = 1 the minimum is exact: a run can only end
  midway between two shapes, or where images begin or cease to fit one. With larger batches runs
  may also end every few images (for up to 255 images, at each one), counted from both ends so that
  each run can have whole batches; the minimum is over these ends only.

  Args:
    width, height: sizes of the stored images.
    short_side: short side of all shapes.
    resize: short side of the resized images, at least `short_side`.
    limit: largest number of shapes; there are fewer where more would save nothing.
    multiple: divisor of all long sides except the square's.
    longest: largest ratio of long to short side; ideals of longer images are cut to it.
    batch: global batch size, as for `batches`.
  """
  found = np.zeros((len(width), 2), np.int32)
  whole = np.flatnonzero((width > 0) & (height > 0))
  if not whole.size:
    return found
  order = whole[np.argsort(width[whole] / height[whole], kind="stable")]
  images = _on_line(width[order], height[order], short_side, resize, longest)
  # The places of all useful shapes: at most one a side is beyond all ideals.
  nearest = short_side + multiple - short_side % multiple
  beyond = np.arange(nearest, int(longest * short_side) + 1, multiple) - short_side
  places = np.concatenate([-beyond[::-1], [0], beyond])
  below = np.searchsorted(places, images.ideal[0], "right") - 1
  above = np.searchsorted(places, images.ideal[-1], "left")
  places = places[max(below, 0) : above + 1]
  edges = _edges(images, places, batch)
  cost, place_of = _run_costs(images, places, edges, short_side=short_side, batch=batch)
  for first, last in _best_runs(cost, limit):
    place = int(places[place_of[first, last]])
    run = order[edges[first] : edges[last + 1]]
    found[run] = short_side + max(-place, 0), short_side + max(place, 0)
  return found


def square(
  width: Int[np.ndarray, "n"], height: Int[np.ndarray, "n"], size: int
) -> Int32[np.ndarray, "n 2"]:
  """Give every image the same square, as ordinary validation with centre crops does."""
  return np.where((width > 0) & (height > 0), size, 0).astype(np.int32)[:, None].repeat(2, 1)


def batches(shapes: Int32[np.ndarray, "n 2"], batch_size: int) -> list[EvalBatch]:
  """Return whole global batches of one shape each, the largest first, every sound image once.

  Images keep their order inside a shape. The last batch of a shape is filled with its last image,
  masked.
  """
  found = []
  distinct = {(h, w) for h, w in np.unique(shapes, axis=0).tolist() if h}
  for shape in sorted(distinct, key=lambda shape: (-shape[0] * shape[1], -shape[0])):
    index = np.flatnonzero((shapes == shape).all(1))
    for first in range(0, len(index), batch_size):
      part = index[first : first + batch_size]
      filled = np.pad(part, (0, batch_size - len(part)), mode="edge")
      found.append(EvalBatch(shape, filled, np.arange(batch_size) < len(part)))
  return found


class _OnLine(NamedTuple):
  """Images on the line of width minus height, in pixels; all three fields rise with the ratio."""

  ideal: Int64[np.ndarray, "n"]
  lowest: Int64[np.ndarray, "n"]  # shapes from here ...
  highest: Int64[np.ndarray, "n"]  # ... to here are no longer than the resized image


def _on_line(
  width: Int[np.ndarray, "n"],
  height: Int[np.ndarray, "n"],
  short_side: int,
  resize: int,
  longest: float,
) -> _OnLine:
  width, height = width.astype(np.int64), height.astype(np.int64)

  def resized(side: int, of: np.ndarray, other: np.ndarray) -> Int64[np.ndarray, "n"]:
    """Return a side after resizing to a short side, which is exact; a long one is rounded down."""
    return np.maximum(side * of // other, side)

  ideal = resized(short_side, width, height) - resized(short_side, height, width)
  farthest = int(longest * short_side) - short_side
  return _OnLine(
    ideal=np.clip(ideal, -farthest, farthest),
    lowest=short_side - resized(resize, height, width),
    highest=resized(resize, width, height) - short_side,
  )


def _edges(images: _OnLine, places: Int64[np.ndarray, "c"], batch: int) -> Int64[np.ndarray, "e"]:
  """Return where a run may begin or end: numbers of sorted images, ascending, from 0 to n."""
  n = len(images.ideal)
  middles = np.unique(places[:, None] + places)
  found = [
    np.array([0, n]),
    np.searchsorted(2 * images.ideal, middles),
    np.searchsorted(images.highest, places),
    np.searchsorted(images.lowest, places, "right"),
  ]
  if batch > 1:
    # About 128 from each end: choosing shapes for 50,000 images takes a few tenths of a second.
    spacing = max(1, n // 128)
    # Whole batches, or equal parts of one.
    batches, parts = max(1, spacing // batch), max(1, batch // spacing)
    counted = np.arange(n * parts // (batches * batch) + 1) * batches * batch // parts
    found += [counted, n - counted]
  return np.unique(np.concatenate(found))


def _run_costs(
  images: _OnLine,
  places: Int64[np.ndarray, "c"],
  edges: Int64[np.ndarray, "e"],
  *,
  short_side: int,
  batch: int,
) -> tuple[Float64[np.ndarray, "r r"], Int32[np.ndarray, "r r"]]:
  """Return the least cost of each run, from edge i to edge j + 1, and the index of its place.

  Costs are divided by short_side. They are infinite where there is no such run or shape, and else
  whole numbers below 2^53, so floats are exact.
  """
  begin, end = edges[:-1], edges[1:]
  runs = len(begin)
  cost, place_of = np.full((runs, runs), np.inf), np.zeros((runs, runs), np.int32)
  missing = -(end - begin[:, None]) % batch
  highest, lowest = images.highest[begin], images.lowest[end - 1]
  for number, place in enumerate(places):
    fit = slice(np.searchsorted(highest, place), np.searchsorted(lowest, place, "right"))
    up_to = np.concatenate([[0], np.cumsum(np.abs(images.ideal - place))])
    total = up_to[end[fit]] - up_to[begin[fit], None]
    total += missing[fit, fit] * (short_side + abs(place))
    better = total < cost[fit, fit]
    np.copyto(cost[fit, fit], total, where=better)
    np.copyto(place_of[fit, fit], number, where=better)
  cost[np.tril_indices(runs, -1)] = np.inf
  return cost, place_of


def _best_runs(cost: Float64[np.ndarray, "r r"], limit: int) -> list[tuple[int, int]]:
  """Return the first and last column of the fewest runs, at most `limit`, with the least cost."""
  ends = cost[0]  # the least cost of all images up to the end of a run
  before: list[np.ndarray] = []  # for each end, the end of the previous run
  least, cuts = ends[-1], 0
  for cut in range(1, min(limit, len(cost))):
    longer = ends[:-1, None] + cost[1:]
    before.append(longer.argmin(axis=0))
    ends = longer.min(axis=0)
    if ends[-1] < least:
      least, cuts = ends[-1], cut
  last = len(cost) - 1
  runs = []
  for previous in reversed(before[:cuts]):
    first = int(previous[last]) + 1
    runs.append((first, last))
    last = first - 1
  return [(0, last), *reversed(runs)]
