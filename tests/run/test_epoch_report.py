"""The row of an epoch, without a run."""

import types

import pytest
from made_plans import config_with

from jaxspeed.planning.make import make_plan
from jaxspeed.run.epoch_report import planned_row


@pytest.mark.parametrize(
  "name, own, momentum", [("sgd", "", 0.75), ("adamw", "", None), ("sgd", "scale_by_adam", None)]
)
def test_a_row_has_the_momentum_of_an_optimizer_that_has_one(name, own, momentum):
  config = config_with(optimizer__name=name, optimizer__momentum=0.75, given__optimizer=own)
  spec = types.SimpleNamespace(config=config, plan=make_plan(config, devices=1), devices=1)
  assert planned_row(spec, 1).get("momentum") == momentum
