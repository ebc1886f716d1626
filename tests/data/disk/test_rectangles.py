"""Rectangles: exact against brute force, every image once, crops where torchvision puts them."""

import itertools

import numpy as np
import pytest

from jaxspeed.data.disk import rectangles as rect
from jaxspeed.errors import UserError

SHORT = 288


def some_sizes(seed, n, broken=0.0):
  """Widths and heights of n images with all kinds of ratios, many of them 4:3, 3:2 and square."""
  rng = np.random.default_rng(seed)
  width = rng.choice([500, 500, 375, 333, 64, 1], n) * rng.choice([1, 2], n)
  height = np.where(rng.random(n) < 0.5, rng.choice([375, 500, 333], n), rng.integers(30, 900, n))
  width[rng.random(n) < broken] = height[rng.random(n) < broken] = 0
  return width.astype(np.int32), height.astype(np.int32)


def area_between(shape, ideal):
  """Pixels of either rectangle that are not in the other, both centred."""
  (h, w), (i, j) = shape, ideal
  return h * w + i * j - 2 * min(h, i) * min(w, j)


def resized(width, height, side):
  short, long = min(width, height), max(width, height)
  return (side, side * long // short) if width >= height else (side * long // short, side)


def ideal_of(width, height, short_side, longest):
  return tuple(min(side, int(longest * short_side)) for side in resized(width, height, short_side))


def cost_of(width, height, shape, short_side, longest):
  """What one image costs in one shape: infinite where it would have to be padded with zeros."""
  h, w = resized(width, height, int(short_side * 1.14))
  if shape[0] > h or shape[1] > w:
    return np.inf
  return area_between(shape, ideal_of(width, height, short_side, longest))


def total_cost(sizes, chosen, short_side, longest=3.0):
  return sum(
    cost_of(w, h, chosen.shapes[number], short_side, longest)
    for w, h, number in zip(*(each.tolist() for each in sizes), chosen.shape_of, strict=True)
  )


def brute_force(sizes, short_side, limit, multiple, longest):
  """The least cost over all sets of shapes, every image in the best shape of the set."""
  longs = [x for x in range(1, int(longest * short_side) + 1) if x % multiple == 0]
  shapes = [(short_side, short_side)]
  shapes += [(short_side, x) for x in longs if x > short_side]
  shapes += [(x, short_side) for x in longs if x > short_side]
  pairs = zip(*(each.tolist() for each in sizes), strict=True)
  costs = np.array(
    [[cost_of(w, h, shape, short_side, longest) for shape in shapes] for w, h in pairs]
  )
  return min(
    costs[:, list(subset)].min(axis=1).sum()
    for k in range(1, limit + 1)
    for subset in itertools.combinations(range(len(shapes)), k)
  )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
  "short_side, multiple, longest", [(32, 8, 3.0), (64, 32, 3.0), (30, 8, 2.5), (64, 16, 1.7)]
)
def test_no_set_of_shapes_costs_less(seed, short_side, multiple, longest):
  sizes = some_sizes(seed, 1 + 3 * seed)
  for limit in (1, 2, 3, 4):
    chosen = rect.choose_shapes(
      *sizes, short_side=short_side, limit=limit, multiple=multiple, longest=longest
    )
    assert 1 <= len(chosen.shapes) <= limit
    least = brute_force(sizes, short_side, limit, multiple, longest)
    assert total_cost(sizes, chosen, short_side, longest) == least
    turned = sizes[::-1]  # portrait for landscape
    chosen = rect.choose_shapes(
      *turned, short_side=short_side, limit=limit, multiple=multiple, longest=longest
    )
    assert total_cost(turned, chosen, short_side, longest) == least


def padding_cost(chosen, batch):
  """The pixels of the examples that fill up the last batch of each shape."""
  return sum(
    int((~found.mask).sum()) * found.shape[0] * found.shape[1]
    for found in rect.batches(chosen, batch)
  )


def brute_force_with_batches(sizes, short_side, limit, batch):
  """The least cost over all ways to give each image one of at most `limit` shapes."""
  shapes = [(16, 16), (24, 16), (32, 16), (16, 24), (16, 32)]
  assert short_side == 16  # and the longest 2.0
  pairs = list(zip(*(each.tolist() for each in sizes), strict=True))
  costs = np.array([[cost_of(w, h, shape, 16, 2.0) for shape in shapes] for w, h in pairs])
  area = np.array([h * w for h, w in shapes])
  least = np.inf
  for given in itertools.product(range(len(shapes)), repeat=len(pairs)):
    counts = np.bincount(given, minlength=len(shapes))
    if np.count_nonzero(counts) <= limit:
      cost = costs[np.arange(len(pairs)), given].sum() + (-counts % batch * area).sum()
      least = min(least, cost)
  return least


@pytest.mark.parametrize("seed", range(6))
def test_no_division_costs_less_when_padded_batches_count(seed):
  sizes = some_sizes(100 + seed, 5)
  for batch, limit in ((1, 3), (2, 2), (2, 4), (3, 3), (4, 3)):
    chosen = rect.choose_shapes(*sizes, short_side=16, limit=limit, longest=2.0, batch=batch)
    assert len(chosen.shapes) <= limit
    cost = total_cost(sizes, chosen, 16, 2.0) + padding_cost(chosen, batch)
    assert cost == brute_force_with_batches(sizes, 16, limit, batch)


@pytest.mark.parametrize("batch", [3, 8, 100, 128, 1000, 1024, 5000, 8192])
def test_with_batches_the_shapes_end_where_batches_end(batch):
  sizes = some_sizes(5, 9000, broken=0.01)
  whole = (sizes[0] > 0) & (sizes[1] > 0)
  chosen = rect.choose_shapes(*sizes, short_side=SHORT, batch=batch)
  assert_each_once(chosen, batch, whole)
  assert len(rect.batches(chosen, batch)) <= -(-np.count_nonzero(whole) // batch) + 2
  without = rect.choose_shapes(*sizes, short_side=SHORT)
  costs = [
    total_cost(sizes_of(sizes, whole), rectangles_of(each, whole), SHORT)
    + padding_cost(each, batch)
    for each in (chosen, without)
  ]
  assert costs[0] <= costs[1] < np.inf


def test_the_batch_that_is_not_whole_may_be_the_first():
  # 601 = 4 * 128 + 89. 128 + 89 squares, among them 17 images of 3:2, leave 3 whole batches.
  width, height = np.array([300] * 401 + [200] * 200), np.full(601, 200)
  chosen = rect.choose_shapes(width, height, short_side=SHORT, limit=2, batch=128)
  assert chosen.shapes == ((288, 432), (288, 288))
  assert np.bincount(chosen.shape_of).tolist() == [3 * 128, 128 + 89]


def sizes_of(sizes, whole):
  return sizes[0][whole], sizes[1][whole]


def rectangles_of(chosen, whole):
  return rect.Rectangles(chosen.shapes, chosen.shape_of[whole])


def test_shapes_keep_to_their_limits_and_none_is_unused():
  sizes = some_sizes(0, 5000)
  for limit, multiple in itertools.product((1, 2, 5, 16, 1000), (8, 32)):
    chosen = rect.choose_shapes(*sizes, short_side=SHORT, limit=limit, multiple=multiple)
    assert len(chosen.shapes) <= limit and len(set(chosen.shapes)) == len(chosen.shapes)
    assert set(chosen.shape_of) == set(range(len(chosen.shapes)))
    assert all(min(shape) == SHORT and max(shape) % multiple == 0 for shape in chosen.shapes)
    assert np.isfinite(total_cost(sizes, chosen, SHORT))  # nothing is padded


def test_an_extreme_image_gets_three_to_one():
  width, height = np.array([20_000, 10, 400, 30_000]), np.array([10, 20_000, 400, 1])
  chosen = rect.choose_shapes(width, height, short_side=SHORT)
  assert [chosen.shapes[i] for i in chosen.shape_of] == [
    (288, 864),
    (864, 288),
    (288, 288),
    (288, 864),
  ]
  longest = rect.choose_shapes(width, height, short_side=SHORT, multiple=32, longest=2.0)
  assert max(max(shape) for shape in longest.shapes) == 576


def test_a_shape_is_never_longer_than_the_resized_image():
  # Nearest to 4:3 is 3:2 (384 and 432 of 288), but 4:3 is resized to 328 x 437 and 5:4 to 410.
  width, height = np.array([600] * 99 + [500]), np.array([400] * 99 + [400])
  with_room = rect.choose_shapes(
    np.append(width, 400)[1:], np.append(height, 300)[1:], short_side=SHORT
  )
  assert with_room.shapes == ((288, 432), (288, 384), (288, 360))
  one = rect.choose_shapes(width, height, short_side=SHORT, limit=1)
  assert one.shapes == ((288, 408),)  # the largest multiple of 8 within 328 * 5 // 4 = 410


def test_the_limit_must_leave_a_shape():
  with pytest.raises(UserError, match="limit of validation shapes is 0.*at least 1"):
    rect.choose_shapes(*some_sizes(0, 3), short_side=SHORT, limit=0)


def test_what_images_are_resized_to_bounds_the_shapes():
  width, height = np.array([600] * 99 + [500]), np.full(100, 400)
  # 5:4 is 288 x 360; 3:2 is 288 x 432, and all take the one shape that 5:4 still fills.
  for resize, long_side in ((288, 360), (300, 368), (328, 408), (400, 432)):
    chosen = rect.choose_shapes(width, height, short_side=SHORT, limit=1, resize=resize)
    assert chosen.shapes == ((288, long_side),)
    assert (resize * width // height >= long_side).all()  # no padding
  with pytest.raises(UserError, match="short side of 287 pixels do not fill shapes of 288"):
    rect.choose_shapes(width, height, short_side=SHORT, resize=287)


def assert_each_once(chosen, batch_size, whole):
  found = rect.batches(chosen, batch_size)
  numbers = [number for batch in found for number in batch.index[batch.mask]]
  assert sorted(numbers) == np.flatnonzero(whole).tolist()
  assert sum(int(batch.mask.sum()) for batch in found) == np.count_nonzero(whole)
  for batch in found:
    assert batch.index.shape == batch.mask.shape == (batch_size,)
    assert batch.index.dtype == np.int64 and batch.mask.dtype == bool and batch.mask[0]
    number = chosen.shapes.index(batch.shape)
    assert (chosen.shape_of[batch.index] == number).all()  # the padding, too, has this shape
  shapes = [chosen.shapes.index(batch.shape) for batch in found]
  assert shapes == sorted(shapes)
  assert len(found) == sum(-(-n // batch_size) for n in np.bincount(chosen.shape_of[whole]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch_size", [1, 2, 7, 64, 100, 1000, 4096])
def test_every_image_is_in_one_batch_once_and_broken_ones_in_none(seed, batch_size):
  n = (1, 10, 100, 999, 3000)[seed]
  sizes = some_sizes(seed, n, broken=0.1)
  whole = (sizes[0] > 0) & (sizes[1] > 0)
  assert n < 100 or not whole.all()
  for chosen in (
    rect.choose_shapes(*sizes, short_side=128, limit=5),
    rect.square(*sizes, 128),
  ):
    assert np.array_equal(chosen.shape_of == -1, ~whole)
    assert_each_once(chosen, batch_size, whole)


def test_broken_images_change_nothing_for_the_others():
  width, height = some_sizes(4, 200)
  chosen = rect.choose_shapes(width, height, short_side=SHORT, limit=4)
  broken = np.insert(width, [0, 50, 200], 0), np.insert(height, [0, 50, 200], 0)
  other = rect.choose_shapes(*broken, short_side=SHORT, limit=4)
  assert other.shapes == chosen.shapes
  assert np.array_equal(other.shape_of, np.insert(chosen.shape_of, [0, 50, 200], -1))


@pytest.mark.parametrize("n", [0, 3])
def test_a_set_without_whole_images_has_no_batches(n):
  sizes = np.zeros(n, np.int32), np.zeros(n, np.int32)
  chosen = rect.choose_shapes(*sizes, short_side=SHORT)
  assert chosen.shapes == () and chosen.shape_of.tolist() == [-1] * n
  assert rect.batches(chosen, 8) == [] == rect.batches(rect.square(*sizes, SHORT), 8)
