"""Seconds in words."""

import pytest

from jaxspeed.records.durations import duration, estimate


@pytest.mark.parametrize(
  "seconds, measured, published",
  [(1.98, "1.98 s", "1.98 s"), (8, "8.00 s", "8 s"), (26.04, "26.0 s", "26.04 s")]
  + [(6552, "109 min 12 s", "109 min 12 s"), (8532, "2.37 h", "2.37 h")],
)
def test_a_time_is_shown_as_measured_or_as_published(seconds, measured, published):
  assert duration(seconds) == measured
  assert duration(seconds, as_published=True) == published


@pytest.mark.parametrize(
  "seconds, text, short",
  [(0, "0 s", "0 s"), (0.01234, "0.0123 s", "0.012 s"), (99.6, "99.6 s", "100 s")]
  + [(1038, "17.3 min", "17 min"), (9000, "2.5 h", "2.5 h"), (2e8, "2,315 days", "2,315 days")],
)
def test_an_estimate_has_one_unit(seconds, text, short):
  assert estimate(seconds) == text and estimate(seconds, digits=2) == short
