"""Rectangles: exact against brute force, every image once, none where images would be padded."""

import functools
import itertools

import numpy as np
import pytest

from jaxspeed.data.disk import rectangles as rect

SHORT = 288


def some_sizes(seed, n, broken=0.0):
  """Widths and heights of n images with all kinds of ratios, many of them 4:3, 3:2 and square."""
  rng = np.random.default_rng(seed)
  width = rng.choice([500, 500, 375, 333, 64, 1], n) * rng.choice([1, 2], n)
  height = np.where(rng.random(n) < 0.5, rng.choice([375, 500, 333], n), rng.integers(30, 900, n))
  width[rng.random(n) < broken] = height[rng.random(n) < broken] = 0
  return width.astype(np.int32), height.astype(np.int32)


def chosen_for(sizes, *, short_side=SHORT, limit=16, **options):
  options = {"resize": int(short_side * 1.14)} | options
  return rect.choose_shapes(*sizes, short_side=short_side, limit=limit, **options)


def distinct(shapes):
  """The shapes, largest first."""
  return list(dict.fromkeys(batch.shape for batch in rect.batches(shapes, 1)))


def area_between(shape, ideal):
  """Pixels of either rectangle that are not in the other, both centred."""
  (h, w), (i, j) = shape, ideal
  return h * w + i * j - 2 * min(h, i) * min(w, j)


def resized(width, height, side):
  short, long = min(width, height), max(width, height)
  return (side, side * long // short) if width >= height else (side * long // short, side)


@functools.cache
def cost_of(width, height, shape, short_side, longest):
  """What one image costs in one shape: infinite where it would have to be padded with zeros."""
  h, w = resized(width, height, int(short_side * 1.14))
  if shape[0] > h or shape[1] > w:
    return np.inf
  most = int(longest * short_side)
  ideal = tuple(min(side, most) for side in resized(width, height, short_side))
  return area_between(shape, ideal)


def pairs_of(sizes):
  return list(zip(*(each.tolist() for each in sizes), strict=True))


def total_cost(sizes, shapes, short_side, longest=3.0):
  pairs = zip(pairs_of(sizes), map(tuple, shapes.tolist()), strict=True)
  return sum(cost_of(*size, shape, short_side, longest) for size, shape in pairs if all(size))


def padding_cost(shapes, batch):
  """The pixels of the examples that fill up the last batch of each shape."""
  found = rect.batches(shapes, batch)
  return sum(int((~each.mask).sum()) * each.shape[0] * each.shape[1] for each in found)


def brute_force(sizes, short_side, limit, multiple, longest):
  """The least cost over all sets of shapes, every image in the best shape of the set."""
  longs = range(short_side + multiple - short_side % multiple, int(longest * short_side) + 1)
  longs = [long for long in longs if long % multiple == 0]
  shapes = [(short_side, short_side), *((short_side, x) for x in longs)]
  shapes += [(x, short_side) for x in longs]
  costs = [[cost_of(*size, s, short_side, longest) for s in shapes] for size in pairs_of(sizes)]
  subsets = (
    subset for k in range(1, limit + 1) for subset in itertools.combinations(range(len(shapes)), k)
  )
  return min(np.array(costs)[:, list(subset)].min(axis=1).sum() for subset in subsets)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
  "short_side, multiple, longest", [(32, 8, 3.0), (64, 32, 3.0), (30, 8, 2.5), (64, 16, 1.7)]
)
def test_no_set_of_shapes_costs_less(seed, short_side, multiple, longest):
  sizes = some_sizes(seed, 1 + 3 * seed)
  fields = dict(short_side=short_side, multiple=multiple, longest=longest)
  for limit in (1, 2, 3, 4):
    least = brute_force(sizes, short_side, limit, multiple, longest)
    for each in (sizes, sizes[::-1]):  # portrait for landscape
      shapes = chosen_for(each, limit=limit, **fields)
      found = distinct(shapes)
      assert 1 <= len(found) <= limit and {min(shape) for shape in found} == {short_side}
      assert all(max(shape) % multiple == 0 for shape in found if len({*shape}) == 2)
      assert total_cost(each, shapes, short_side, longest) == least


def brute_force_with_batches(sizes, limit, batch):
  """The least cost over all ways to give each image one of at most `limit` shapes of 16 px."""
  shapes = [(16, 16), (24, 16), (32, 16), (16, 24), (16, 32)]
  costs = np.array(
    [[cost_of(*size, shape, 16, 2.0) for shape in shapes] for size in pairs_of(sizes)]
  )
  area = np.array([h * w for h, w in shapes])
  least = np.inf
  for given in itertools.product(range(len(shapes)), repeat=len(costs)):
    counts = np.bincount(given, minlength=len(shapes))
    if np.count_nonzero(counts) <= limit:
      cost = costs[np.arange(len(costs)), given].sum() + (-counts % batch * area).sum()
      least = min(least, cost)
  return least


@pytest.mark.parametrize("seed", range(6))
def test_no_division_costs_less_when_padded_batches_count(seed):
  sizes = some_sizes(100 + seed, 5)
  for batch, limit in ((1, 3), (2, 2), (2, 4), (3, 3), (4, 3)):
    shapes = chosen_for(sizes, short_side=16, limit=limit, longest=2.0, batch=batch)
    assert len(distinct(shapes)) <= limit
    cost = total_cost(sizes, shapes, 16, 2.0) + padding_cost(shapes, batch)
    assert cost == brute_force_with_batches(sizes, limit, batch)


@pytest.mark.parametrize("batch", [3, 8, 100, 128, 1000, 1024, 5000, 8192])
def test_with_batches_the_shapes_end_where_batches_end(batch):
  sizes = some_sizes(5, 9000, broken=0.01)
  shapes, without = chosen_for(sizes, batch=batch), chosen_for(sizes)
  whole = np.count_nonzero(shapes.all(1))
  assert len(rect.batches(shapes, batch)) <= -(-whole // batch) + 2
  costs = [total_cost(sizes, each, SHORT) + padding_cost(each, batch) for each in (shapes, without)]
  assert costs[0] <= costs[1] < np.inf


def test_the_batch_that_is_not_whole_may_be_the_first():
  # 601 = 4 * 128 + 89. 128 + 89 squares, among them 17 images of 3:2, leave 3 whole batches.
  sizes = np.array([300] * 401 + [200] * 200), np.full(601, 200)
  shapes = chosen_for(sizes, limit=2, batch=128)
  counts = [int((shapes == shape).all(1).sum()) for shape in ((288, 432), (288, 288))]
  assert counts == [3 * 128, 128 + 89]


def test_an_extreme_image_gets_three_to_one():
  sizes = np.array([20_000, 10, 400, 30_000]), np.array([10, 20_000, 400, 1])
  assert chosen_for(sizes).tolist() == [[288, 864], [864, 288], [288, 288], [288, 864]]
  assert chosen_for(sizes, multiple=32, longest=2.0).max() == 576


def test_a_shape_is_never_longer_than_the_resized_image():
  # Nearest to 4:3 is 3:2 (384 and 432 of 288), but 4:3 is resized to 328 x 437 and 5:4 to 410.
  width, height = np.array([600] * 98 + [500, 400]), np.array([400] * 99 + [300])
  assert distinct(chosen_for((width, height))) == [(288, 432), (288, 384), (288, 360)]
  # 5:4 is 288 x 360; 3:2 is 288 x 432, and all take the one shape that 5:4 still fills.
  sizes = width[:99], height[:99]
  for resize, long_side in ((288, 360), (300, 368), (328, 408), (400, 432)):
    assert distinct(chosen_for(sizes, limit=1, resize=resize)) == [(288, long_side)]


@pytest.mark.parametrize("n", [0, 1, 10, 100, 999, 3000])
@pytest.mark.parametrize("batch_size", [1, 2, 7, 64, 100, 1000, 4096])
def test_every_image_is_in_one_batch_once_and_broken_ones_in_none(n, batch_size):
  sizes = some_sizes(n, n, broken=0.1)
  whole = (sizes[0] > 0) & (sizes[1] > 0)
  assert n < 100 or not whole.all()
  for shapes in (chosen_for(sizes, short_side=128, limit=5), rect.square(*sizes, 128)):
    assert np.array_equal(shapes.all(1), whole)
    found = rect.batches(shapes, batch_size)
    numbers = [number for batch in found for number in batch.index[batch.mask]]
    assert sorted(numbers) == np.flatnonzero(whole).tolist()
    for batch in found:
      assert batch.index.shape == batch.mask.shape == (batch_size,)
      assert batch.index.dtype == np.int64 and batch.mask.dtype == bool and batch.mask[0]
      assert (shapes[batch.index] == batch.shape).all()  # the padding, too, has this shape
    areas = [batch.shape[0] * batch.shape[1] for batch in found]
    assert areas == sorted(areas, reverse=True)
    counts = np.unique(shapes[whole], axis=0, return_counts=True)[1]
    assert len(found) == sum(-(-count // batch_size) for count in counts.tolist())


def test_broken_images_change_nothing_for_the_others():
  width, height = some_sizes(4, 200)
  shapes = chosen_for((width, height), limit=4)
  broken = np.insert(width, [0, 50, 200], 0), np.insert(height, [0, 50, 200], 0)
  expected = np.insert(shapes, [0, 50, 200], 0, axis=0)
  np.testing.assert_array_equal(chosen_for(broken, limit=4), expected)
