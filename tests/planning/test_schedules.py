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


def test_triangle_read_one_step_in_has_its_first_rate_one_step_above_the_start():
  # 10 steps an epoch, warm-up over 5 epochs: 50 steps from 0.1 to 0.5.
  rates = triangle((np.arange(200) + 1) / 10)
  assert rates[0] == pytest.approx(0.1 + (0.5 - 0.1) / 50, rel=1e-14)
  assert rates[49] == pytest.approx(0.5, rel=1e-14)
  assert rates[48] < 0.5 > rates[50]
  assert rates[158] > 0.05
  np.testing.assert_allclose(rates[159:], 0.05, rtol=1e-13)


def test_triangle_without_warmup_begins_at_the_peak():
  rates = triangle([0.0, 8.0, 16.0, 20.0], warmup=0.0)
  np.testing.assert_allclose(rates, [0.5, 0.5 * (1.0 + 0.1) / 2, 0.05, 0.05], rtol=1e-15)


def test_triangle_whose_flat_end_leaves_no_room_keeps_its_warmup():
  rates = triangle([0.0, 2.5, 4.999, 5.001, 20.0], flat=18.0)
  np.testing.assert_allclose(rates, [0.1, 0.3, 0.5, 0.05, 0.05], rtol=1e-3)


def test_a_fall_of_power_two_by_hand():
  # A quarter, half and three quarters of the way from 0.5 to 0.05, and its end.
  rates = triangle([2.5, 5.0, 7.75, 10.5, 13.25, 16.0, 20.0], power=2.0)
  fall = [0.05 + 0.45 * left**2 for left in (1, 0.75, 0.5, 0.25, 0, 0)]
  np.testing.assert_allclose(rates, [0.3, *fall], rtol=1e-14)


@pytest.mark.parametrize("warmup, flat", [(0.25, 4.0), (0.0, 0.0), (0.25, 18.0)])
def test_power_one_is_linear_and_power_two_begins_and_ends_with_it(warmup, flat):
  positions = np.linspace(0, 20, 1001)
  linear = triangle(positions, warmup=warmup, flat=flat)
  np.testing.assert_array_equal(triangle(positions, warmup=warmup, flat=flat, power=1.0), linear)
  squared = triangle(positions, warmup=warmup, flat=flat, power=2.0)
  top, end = 20 * warmup, max(20 - flat, 20 * warmup)
  outside = (positions <= top) | (positions >= end)
  np.testing.assert_allclose(squared[outside], linear[outside], rtol=1e-14)
  assert (squared[~outside] < linear[~outside]).all()
  nearly = triangle(positions, warmup=warmup, flat=flat, power=1 + 1e-12)
  np.testing.assert_allclose(nearly, linear, rtol=1e-9)


def test_the_fall_of_mlperfs_lars():
  # Batch 32,768: 39 steps an epoch, 16 epochs of warm-up, 2,267 steps of the fall from 21.2. Step s
  # has peak * s / warm-up up to it, then 1e-4 + (peak - 1e-4) (1 - (s - warm-up) / fall) ** 2.
  warmup, fall, peak, last = 16 * 39, 2267, 21.2, 1e-4
  step = np.arange(warmup + fall)
  expected = np.where(
    step <= warmup,
    peak * step / warmup,
    last + (peak - last) * (1 - (step - warmup) / fall) ** 2,
  )
  total = warmup + fall
  shape = dict(total=total, peak=peak, start=0.0, final=last / peak, warmup=warmup / total, flat=0)
  rates = triangle(step, power=2.0, **shape)
  np.testing.assert_allclose(rates, expected, rtol=1e-9, atol=1e-12)
  assert rates[0] == 0.0 and rates[warmup] == peak


def test_the_fall_of_fujitsus_lars():
  # 1,440 steps of 90 epochs, 36 of them warm-up; 1 - 0.0025 falls with the power 2.2.
  rates = triangle(
    [36.0, 62.0, 88.0, 90.0],
    total=90.0,
    peak=13.0,
    start=0.0,
    final=0.0025,
    warmup=0.4,
    flat=2.0,
    power=2.2,
  )
  half = 13.0 * (0.0025 + 0.9975 * 0.5**2.2)
  np.testing.assert_allclose(rates, [13.0, half, 13.0 * 0.0025, 13.0 * 0.0025], rtol=1e-12)


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


@pytest.mark.parametrize("epochs", [10, 13])
def test_triangle_gives_the_knots_of_myrtles_final_recipe(epochs):
  # bag_of_tricks.ipynb: [0, E/5, E-2] -> [0, 1, 0.1].
  positions = np.linspace(0, epochs, 1000)
  expected = np.interp(positions, [0, epochs / 5, epochs - 2], [0, 1, 0.1])
  rates = triangle(positions, total=epochs, peak=1.0, start=0.0, final=0.1, warmup=0.2, flat=2.0)
  np.testing.assert_allclose(rates, expected, rtol=1e-12)


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


@pytest.mark.parametrize("total", [45, 75, 150, 300])
def test_the_quickstarts_average_holds_nothing_of_its_beginning(total):
  keep = schedules.average_keep(np.arange(total) % 15, decay=0.99, every=1, reach=0.2)
  for epoch in range(15, total + 1, 15):
    # Of the first weights, and of the first half of the steps so far.
    assert np.prod(keep[:epoch]) == 0
    assert np.prod(keep[epoch // 2 : epoch]) < 0.05
  # Without, as it was: two thirds of the first weights after three epochs.
  assert np.prod(schedules.average_keep(np.arange(45) % 15, decay=0.99, every=5)) > 0.6


def test_average_keep_at_every_step():
  np.testing.assert_array_equal(
    schedules.average_keep(np.arange(4) % 2, decay=0.75, every=1), [0.75] * 4
  )


def test_lookahead_of_airbench94():
  # legacy/airbench94.py: 476 steps, after step 5, 10, ..., 475; the last step only pulls.
  keep, pull = schedules.lookahead(np.arange(476) // 48, decay=0.95, every=5, from_epoch=0)
  updates = np.arange(5, 476, 5)
  np.testing.assert_array_equal(np.flatnonzero(keep != 1.0), updates - 1)
  np.testing.assert_array_equal(np.flatnonzero(pull), [*(updates - 1), 475])
  np.testing.assert_allclose(keep[updates - 1], 0.95**5 * (updates / 476) ** 3, rtol=1e-14)
  assert keep[4] == pytest.approx(0.95**5 * (5 / 476) ** 3, rel=1e-14)
  assert keep[475] == 1.0 and keep.dtype == pull.dtype == np.float64


def test_lookahead_whose_last_step_is_due_keeps_the_whole_decay():
  keep, pull = schedules.lookahead(np.arange(10) // 10, decay=0.9, every=5, from_epoch=0)
  np.testing.assert_allclose(keep, [1, 1, 1, 1, 0.9**5 / 8, 1, 1, 1, 1, 0.9**5], rtol=1e-14)
  np.testing.assert_array_equal(pull, [0, 0, 0, 0, 1, 0, 0, 0, 0, 1])


def test_lookahead_of_hlb_begins_with_a_snapshot():
  # 581 steps, 48 an epoch: epoch 2 begins after step 96, its first update is after step 100.
  keep, pull = schedules.lookahead(np.arange(581) // 48, decay=0.95, every=5, from_epoch=2)
  np.testing.assert_array_equal(np.flatnonzero(keep != 1.0), np.arange(100, 581, 5) - 1)
  assert keep[99] == 0.0 and pull[99] == 0.0
  assert keep[104] == pytest.approx(0.95**5 * (105 / 581) ** 3, rel=1e-14) and pull[104] == 1.0
  assert keep[580] == 1.0 and pull[580] == 1.0


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


def test_a_whitening_bias_whose_rate_falls_over_its_own_steps():
  # airbench94_muon: 0.053 (1 - t / 75), t from 0, while the filters' 0.24 fall over 200 steps.
  main = 0.24 * (1 - np.arange(200) / 200)
  rates = schedules.whiten_bias_rate(main, factor=0.053 / 0.24, steps=75, falling=True)
  np.testing.assert_allclose(rates[:75], 0.053 * (1 - np.arange(75) / 75), rtol=1e-14)
  np.testing.assert_array_equal(rates[75:], np.zeros(125))
  assert rates[0] == pytest.approx(0.053, rel=1e-14)
  assert rates[74] == pytest.approx(0.053 / 75, rel=1e-12)


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("steps", [0, 9])
def test_a_whitening_bias_trained_never_or_for_longer_than_the_run(steps, falling):
  rates = schedules.whiten_bias_rate(np.full(4, 0.5), factor=2.0, steps=steps, falling=falling)
  falls = 1 - np.arange(4) / 9 if falling else np.ones(4)
  np.testing.assert_allclose(rates, falls if steps else np.zeros(4), rtol=1e-15)


def test_renormalising_at_every_step():
  np.testing.assert_array_equal(schedules.renormalize(3, growing=False), [1.0, 1.0, 1.0])


def test_renormalising_ever_more_rarely():
  # hiverge with T = 30: due when t - last >= 2 + t // 2. 3 - 0 = 2 + 1, after 2 - 0 < 2 + 1;
  # 9 - 3 = 2 + 4, after 8 - 3 < 2 + 4; 21 - 9 = 2 + 10, after 20 - 9 < 2 + 10; then not before 46.
  column = schedules.renormalize(30, growing=True)
  np.testing.assert_array_equal(np.flatnonzero(column) + 1, [3, 9, 21])
  assert set(column) == {0.0, 1.0} and column.dtype == np.float64
