"""The forms of ResNet's blocks for `config.conv_fusion`: the same steps by other programs."""

import dataclasses

import pytest
from small_steps import RESNET, make_spec, stepped
from tolerances import assert_equal

from jaxspeed.models import resnet


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
  "fields, freeze",
  [
    ({"depth": 50}, "stage1"),
    ({"depth": 50, "ghost_splits": 2, "blurpool": True, "width": 16}, ""),
    ({"depth": 18}, ""),
  ],
)
def test_steps_are_those_of_the_usual_forms(monkeypatch, fields, freeze):
  for depth in (18, 50):  # their other blocks repeat these
    monkeypatch.setitem(resnet.STAGES, depth, (2, 2, 1, 1))
  # Maps of 5, 5, 3, 2 and 1 pixels: a stride meets odd and even sides.
  sizes = {"data.image_size": 20, "precision": "float64"}
  spec = make_spec(freeze, model=RESNET | fields, **sizes)
  fused = dataclasses.replace(spec, model=spec.model.clone(conv_fusion=True))
  usual, other = (stepped(each, steps=2) for each in (spec, fused))
  assert usual[2][0] != other[2][0]  # the programs
  for name in ("params", "batch_stats", "opt_state"):
    assert_equal(getattr(other[1], name), getattr(usual[1], name))
