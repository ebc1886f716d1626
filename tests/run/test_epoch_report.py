"""The row of an epoch, without a run."""

import types

import pytest
from made_plans import config_with

from jaxspeed.planning.make import make_plan
from jaxspeed.run.epoch_report import lag_lines, planned_row


@pytest.mark.parametrize(
  "name, own, momentum", [("sgd", "", 0.75), ("adamw", "", None), ("sgd", "scale_by_adam", None)]
)
def test_a_row_has_the_momentum_of_an_optimizer_that_has_one(name, own, momentum):
  config = config_with(optimizer__name=name, optimizer__momentum=0.75, given__optimizer=own)
  spec = types.SimpleNamespace(config=config, plan=make_plan(config, devices=1), devices=1)
  assert planned_row(spec, 1).get("momentum") == momentum


@pytest.mark.parametrize(
  "average, lags",
  [
    ({"kind": "none"}, False),
    ({"kind": "ema", "decay": 0.5, "reach": 0.0}, False),  # it has forgotten the first weights
    ({"kind": "ema", "decay": 0.5, "reach": 0.9}, False),
    ({"kind": "ema", "decay": 0.999, "reach": 0.0}, True),
    ({"kind": "ema", "decay": 0.99, "reach": 0.1}, True),
    ({"kind": "ema", "decay": 0.99, "reach": 0.0, "every": 5}, True),
  ],
)
def test_the_first_evaluation_of_an_average_that_lags_says_so(average, lags):
  config = config_with(**{f"average__{name}": value for name, value in average.items()})
  plan = make_plan(config, devices=1)
  rows = [{"step": plan.end_of_epoch(0)}, {"step": plan.end_of_epoch(0), "eval_loss": 1.0}]
  assert bool(lag_lines(config, plan, rows)) == lags
  assert not lag_lines(config, plan, rows[:1])
  assert not lag_lines(config, plan, [*rows, rows[1]])
