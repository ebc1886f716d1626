"""Schedules against arithmetic."""

import numpy as np
import pytest

from jaxspeed.planning import schedules
from jaxspeed.planning.own_schedule import evaluate


def triangle(positions, **changes):
  fields = dict(total=20.0, peak=0.5, start=0.2, final=0.1, warmup=0.25, flat=4.0) | changes
  fields = dict(name="linear", power=1.0, step_size=30.0, gamma=0.1) | fields
  return evaluate(schedules.learning_rate(**fields), np.asarray(positions, np.float64))


def test_a_schedule_is_evaluated_in_float64_also_where_it_is_constant():
  for name in ("linear", "constant", "cosine", "step", "exponential"):
    rates = triangle(np.linspace(0, 20, 7), name=name, warmup=0.0, peak=0.1)
    assert rates.dtype == np.float64 and rates.shape == (7,) and rates[0] == 0.1, name


def test_triangle_at_its_knots_and_half_way():
  # Knots at 0, 0.25 * 20 = 5 and 20 - 4 = 16.
  rates = triangle([0.0, 2.5, 5.0, 10.5, 16.0, 18.0, 20.0])
  expected = [0.5 * 0.2, 0.5 * (0.2 + 1.0) / 2, 0.5, 0.5 * (1.0 + 0.1) / 2, 0.05, 0.05, 0.05]
  np.testing.assert_allclose(rates, expected, rtol=1e-15)


def test_triangle_whose_flat_end_leaves_no_room_keeps_its_warmup():
  rates = triangle([0.0, 2.5, 4.999, 5.001, 20.0], flat=18.0)
  np.testing.assert_allclose(rates, [0.1, 0.3, 0.5, 0.05, 0.05], rtol=1e-3)


def positions_of(epochs, steps):
  """Epoch, number in it from 1 and steps of it, of each step."""
  return np.repeat(np.arange(epochs), steps), np.tile(np.arange(steps) + 1, epochs), steps


def test_segments_give_the_rates_of_a_published_log():
  # dawn/logs/single_machine of cybertronai/imagenet18_old: 157 steps in the first epoch.
  epoch, number, steps = positions_of(8, 157)
  rates = schedules.segments(((0, 6, 1.92, 3.84), (6, 8, 3.84, 1.0)))(epoch, number, steps)
  assert rates[0] == 1.9220382165605094
  assert rates[6 * 157 - 1] == 3.84 and rates[-1] == 1.0
  assert rates[6 * 157] == pytest.approx(3.84 - 2.84 / 314, rel=1e-14)


def test_segments_of_a_momentum_keep_their_end():
  # Of another number of steps in each epoch: 2, then 4.
  epoch, number = np.array([0, 0, 1, 1, 1, 1]), np.array([1, 2, 1, 2, 3, 4])
  steps = np.array([2, 2, 4, 4, 4, 4])
  momenta = schedules.segments(((0, 1, 0.96, 0.90), (1, 1.5, 0.90, 0.96)))(epoch, number, steps)
  np.testing.assert_allclose(momenta, [0.93, 0.90, 0.93, 0.96, 0.96, 0.96], rtol=1e-14)


def test_average_keep_updates_twenty_times_in_each_epoch_of_97_steps():
  keep = schedules.average_keep(np.arange(2 * 97 + 7) % 97, decay=0.99, every=5)
  assert keep.shape == (201,)
  updates = np.flatnonzero(keep != 1.0)
  # Counted anew from the first step of each epoch: 0, 5, ..., 95, then 97, not 100.
  expected = [*range(0, 97, 5), *range(97, 194, 5), 194, 199]
  assert len(range(0, 97, 5)) == 20
  np.testing.assert_array_equal(updates, expected)
  np.testing.assert_allclose(keep[updates], 0.99**5, rtol=1e-15)


def test_an_average_reaches_back_over_a_share_of_the_steps_so_far():
  keep = schedules.average_keep(np.arange(1000) % 100, decay=0.99, every=1, reach=0.2)
  step = np.arange(1, 1001)
  # Up to step 5 a fifth of the steps is no more than one; from 500 on 0.99 is less than 1 - 5 / t.
  np.testing.assert_array_equal(keep[:5], np.zeros(5))
  np.testing.assert_allclose(keep[5:500], 1 - 5 / step[5:500], rtol=1e-14)
  np.testing.assert_array_equal(keep[500:], np.full(500, 0.99))
  # Its weights are as s ** 4 at step s of t: their mean age is a sixth of the run, however long.
  for total in (45, 300):
    left = np.append(np.cumprod(keep[:total][::-1])[::-1][1:], 1.0)
    weight = (1 - keep[:total]) * left
    assert weight.sum() == pytest.approx(1, abs=1e-12)
    assert (weight * (total - step[:total])).sum() == pytest.approx((total - 5) / 6)


def test_an_average_with_a_reach_is_updated_as_seldom_as_it_is_told():
  keep = schedules.average_keep(np.arange(30) % 10, decay=0.9, every=4, reach=0.5)
  np.testing.assert_array_equal(np.flatnonzero(keep != 1.0), [0, 4, 8, 10, 14, 18, 20, 24, 28])
  assert keep[10] == pytest.approx((1 - 2 / 11) ** 4, rel=1e-14)
  assert keep[28] == pytest.approx(0.9**4, rel=1e-14)


def test_lookahead_whose_last_step_is_due_keeps_the_whole_decay():
  keep, pull = schedules.lookahead(np.arange(10) // 10, decay=0.9, every=5, from_epoch=0)
  np.testing.assert_allclose(keep, [1, 1, 1, 1, 0.9**5 / 8, 1, 1, 1, 1, 0.9**5], rtol=1e-14)
  np.testing.assert_array_equal(pull, [0, 0, 0, 0, 1, 0, 0, 0, 0, 1])


def test_lookahead_does_not_begin_with_the_last_step_of_the_epoch_before():
  keep, _ = schedules.lookahead(np.arange(30) // 10, decay=0.95, every=5, from_epoch=1)
  np.testing.assert_array_equal(np.flatnonzero(keep != 1.0) + 1, [15, 20, 25, 30])


@pytest.mark.parametrize("from_epoch", [0, 2])
def test_lookahead_in_a_run_too_short_for_it_ends_as_the_model(from_epoch):
  keep, pull = schedules.lookahead(np.arange(4) // 2, decay=0.95, every=5, from_epoch=from_epoch)
  np.testing.assert_array_equal(keep, [1, 1, 1, 0])
  np.testing.assert_array_equal(pull, [0, 0, 0, 1])


def test_a_whitening_bias_has_its_share_of_the_schedule_and_is_frozen():
  main = np.array([0.2, 1.0, 0.5, 0.25])
  rates = schedules.whiten_bias_rate(main, factor=0.5, steps=3, falling=False)
  np.testing.assert_array_equal(rates, [0.1, 0.5, 0.25, 0.0])


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("steps", [0, 9])
def test_a_whitening_bias_trained_never_or_for_longer_than_the_run(steps, falling):
  rates = schedules.whiten_bias_rate(np.full(4, 0.5), factor=2.0, steps=steps, falling=falling)
  falls = 1 - np.arange(4) / 9 if falling else np.ones(4)
  np.testing.assert_allclose(rates, falls if steps else np.zeros(4), rtol=1e-15)


def test_renormalising_ever_more_rarely():
  # hiverge with T = 30: due when t - last >= 2 + t // 2. 3 - 0 = 2 + 1, after 2 - 0 < 2 + 1;
  # 9 - 3 = 2 + 4, after 8 - 3 < 2 + 4; 21 - 9 = 2 + 10, after 20 - 9 < 2 + 10; then not before 46.
  column = schedules.renormalize(30, growing=True)
  np.testing.assert_array_equal(np.flatnonzero(column) + 1, [3, 9, 21])
  assert set(column) == {0.0, 1.0} and column.dtype == np.float64
