"""Values of recipes that Python gives, and no command line can."""

import pytest

import jaxspeed
from jaxspeed.config.overrides import with_overrides


@pytest.mark.parametrize("name", ["epochs", "schedule.peak", "optimizer.clip_norm"])
@pytest.mark.parametrize("value", [10**400, True])
def test_a_huge_integer_and_a_bool_are_no_numbers(name, value):
  with pytest.raises(jaxspeed.UserError, match=f"config.{name}=.*: it must be a number"):
    jaxspeed.recipe("quickstart", **{name: value})
  with pytest.raises(jaxspeed.UserError, match=f"config.{name}=.*: it must be a number"):
    with_overrides(jaxspeed.recipe("quickstart"), {name: value})
