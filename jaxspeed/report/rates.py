"""The learning rates of a run's steps, within its epochs and with their warm-up."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the models that a config names
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Plan
from jaxspeed.run.folder import CONFIG

# Steps whose learning rate is drawn; of a run with more steps only the rows are.
_MOST, _MOST_STEPS = 240, 10_000_000


def rates_of(
  folder: pathlib.Path, rows: Sequence[Mapping[str, Any]]
) -> tuple[tuple[float, float], ...]:
  """Epochs and learning rates of some steps of a run's plan, if the plan has the rates of its rows.

  It has not with a schedule of the user's own, or by another version's rules.
  """
  try:
    ends = [
      (row["step"], row["learning_rate"]) for row in rows if row.get("learning_rate") is not None
    ]
    plan = make_plan(stored.load(folder / CONFIG))
    if not ends or plan.total_steps > _MOST_STEPS:
      return ()
    rates = plan.table["learning_rate"]
    if not all(math.isclose(rates[step - 1], rate, abs_tol=1e-12) for step, rate in ends):
      return ()
  except (UserError, IndexError, TypeError):
    return ()
  steps = np.unique(np.linspace(1, ends[-1][0], _MOST, dtype=int))
  return tuple((_epochs(plan, int(step)), float(rates[step - 1])) for step in steps)


def _epochs(plan: Plan, step: int) -> float:
  """The epochs done after a step."""
  epoch, place = plan.epoch_of(step - 1)
  return epoch + (place + 1) / plan.phase_of(step - 1).steps_per_epoch
