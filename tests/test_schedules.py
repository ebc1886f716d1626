"""Schedules against arithmetic."""

import numpy as np
import pytest

from jaxspeed import schedules


def triangle(positions, **changes):
  fields = dict(total=20.0, peak=0.5, start=0.2, final=0.1, warmup=0.25, flat=4.0) | changes
  return schedules.triangle(np.asarray(positions), **fields)


def test_piecewise_linear_is_linear_between_knots_and_flat_outside():
  positions = np.array([[-1.0, 0.0, 0.5], [1.0, 2.0, 9.0]])
  rates = schedules.piecewise_linear([0.0, 1.0, 3.0], [0.0, 2.0, 1.0], positions)
  np.testing.assert_array_equal(rates, [[0.0, 0.0, 1.0], [2.0, 1.5, 1.0]])
  assert rates.dtype == np.float64


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


@pytest.mark.parametrize("epochs", [10, 13])
def test_triangle_gives_the_knots_of_myrtles_final_recipe(epochs):
  # bag_of_tricks.ipynb: [0, E/5, E-2] -> [0, 1, 0.1].
  positions = np.linspace(0, epochs, 1000)
  expected = np.interp(positions, [0, epochs / 5, epochs - 2], [0, 1, 0.1])
  rates = triangle(positions, total=epochs, peak=1.0, start=0.0, final=0.1, warmup=0.2, flat=2.0)
  np.testing.assert_allclose(rates, expected, rtol=1e-12)


def test_average_keep_updates_twenty_times_in_each_epoch_of_97_steps():
  keep = schedules.average_keep(2 * 97 + 7, 97, decay=0.99, every=5)
  assert keep.shape == (201,)
  updates = np.flatnonzero(keep != 1.0)
  # Counted anew from the first step of each epoch: 0, 5, ..., 95, then 97, not 100.
  expected = [*range(0, 97, 5), *range(97, 194, 5), 194, 199]
  assert len(range(0, 97, 5)) == 20
  np.testing.assert_array_equal(updates, expected)
  np.testing.assert_allclose(keep[updates], 0.99**5, rtol=1e-15)


def test_average_keep_at_every_step():
  np.testing.assert_array_equal(schedules.average_keep(4, 2, decay=0.75, every=1), [0.75] * 4)
