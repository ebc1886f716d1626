"""Schedules against arithmetic."""

import numpy as np
import pytest

from jaxspeed.planning import schedules
from jaxspeed.planning.own_schedule import evaluate


@pytest.mark.parametrize("name", ["linear", "constant", "cosine", "step", "exponential"])
def test_a_schedule_is_evaluated_in_float64_also_where_it_is_constant(name):
  fields = dict(total=20.0, peak=0.1, start=0.2, final=0.1, warmup=0.0, flat=4.0)
  schedule = schedules.learning_rate(name=name, power=1.0, step_size=30.0, gamma=0.1, **fields)
  rates = evaluate(schedule, np.linspace(0, 20, 7))
  assert rates.dtype == np.float64 and rates.shape == (7,) and rates[0] == 0.1


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


@pytest.mark.parametrize(
  "epochs, from_epoch, keep, pulled",
  [
    # The last step is due and keeps the whole decay.
    (np.arange(10) // 10, 0, {5: 0.9**5 / 8, 10: 0.9**5}, [5, 10]),
    # It does not begin with the last step of the epoch before.
    (np.arange(20) // 10, 1, {15: 0.0, 20: 0.9**5}, [20]),
    # A run too short for it ends as the model.
    (np.arange(4) // 2, 0, {4: 0.0}, [4]),
    (np.arange(4) // 2, 2, {4: 0.0}, [4]),
  ],
)
def test_lookahead_at_its_ends(epochs, from_epoch, keep, pulled):
  kept, pull = schedules.lookahead(epochs, decay=0.9, every=5, from_epoch=from_epoch)
  expected = [keep.get(step, 1.0) for step in range(1, len(epochs) + 1)]
  np.testing.assert_allclose(kept, expected, rtol=1e-14)
  np.testing.assert_array_equal(np.flatnonzero(pull) + 1, pulled)


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("steps", [0, 3, 9])
def test_a_whitening_bias_trained_never_for_a_while_or_for_longer_than_the_run(steps, falling):
  rates = schedules.whiten_bias_rate(
    np.array([0.5, 1.0, 0.5, 0.5]), factor=2.0, steps=steps, falling=falling
  )
  trained = np.arange(4) < steps
  falls = 2 - 2 * np.arange(4) / max(steps, 1) if falling else np.array([1, 2, 1, 1])
  np.testing.assert_allclose(rates, np.where(trained, falls, 0), rtol=1e-15)


def test_renormalising_ever_more_rarely():
  # hiverge with T = 30: due when t - last >= 2 + t // 2. 3 - 0 = 2 + 1, after 2 - 0 < 2 + 1;
  # 9 - 3 = 2 + 4, after 8 - 3 < 2 + 4; 21 - 9 = 2 + 10, after 20 - 9 < 2 + 10; then not before 46.
  column = schedules.renormalize(30, growing=True)
  np.testing.assert_array_equal(np.flatnonzero(column) + 1, [3, 9, 21])
  assert set(column) == {0.0, 1.0} and column.dtype == np.float64
