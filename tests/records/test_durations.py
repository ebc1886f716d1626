"""Seconds in words."""

import pytest

from jaxspeed.records.durations import duration


@pytest.mark.parametrize(
  "seconds, measured, published",
  [(1.98, "1.98 s", "1.98 s"), (8, "8.00 s", "8 s"), (26.04, "26.0 s", "26.04 s")]
  + [(6552, "109 min 12 s", "109 min 12 s"), (8532, "2.37 h", "2.37 h")]
  + [(172_799, "48.00 h", "48.00 h"), (2e8, "2,314.8 days", "2,314.8 days")],
)
def test_a_time_is_shown_as_measured_or_as_published(seconds, measured, published):
  assert duration(seconds) == measured
  assert duration(seconds, as_published=True) == published
