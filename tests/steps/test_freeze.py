"""Frozen parts of a pretrained model: their bits, their norms, and what a step leaves out."""

import functools

import jax
import numpy as np
import pytest
from small_steps import RESNET, make_spec, stepped
from tolerances import assert_equal
from toy import inputs_of

from jaxspeed.devices import allreduce
from jaxspeed.errors import UserError
from jaxspeed.steps.programs import batch_step

TRAINED = {"stage4", "head"}
VIT = dict(
  name="vit",
  patch_size=4,
  width=8,
  depth=2,
  heads=2,
  mlp=8,
  rep_size=4,
  pool="token",
  posemb="learned",
)


def bits(tree):
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_frozen_parts_keep_their_bits_and_the_others_train():
  # Sums over three devices and two micro-batches would round, decay and momentum would move.
  first, last, (lowered, compiled) = stepped(make_spec("stage3", devices=3, accumulate=2))
  trees = {
    "params": (first.params, last.params),
    "batch_stats": (first.batch_stats, last.batch_stats),
    **{f"average {k}": (first.ema[k], last.ema[k]) for k in first.ema},
  }
  for name, (before, after) in trees.items():
    for part in before:
      same = [a == b for a, b in zip(bits(before[part]), bits(after[part]), strict=True)]
      assert all(same) if part not in TRAINED else not any(same), (name, part)
  # No gradient of theirs is sent either, and they have no momentum.
  sizes = {part: sum(x.size for x in jax.tree.leaves(tree)) for part, tree in first.params.items()}
  sent = sum(sizes[part] for part in TRAINED)
  rest = sum(x.size for x in jax.tree.leaves(first.batch_stats))
  assert 4 * (sent + rest) <= sum(allreduce.count(compiled)) <= 4 * (sent + rest + 8)
  assert sum(x.size for x in jax.tree.leaves(first.opt_state)) == sent
  # 20 convolutions in each of two micro-batches, and at most two more for each of the five that are
  # trained; the backward pass of the whole model would have 39 more.
  assert 40 < lowered.count("stablehlo.convolution") <= 60


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
def test_clipped_adamw_with_rates_by_layer_and_frozen_patches_on_eight_devices_is_that_on_one():
  fields = {
    "precision": "float64",
    "optimizer.name": "adamw",
    "optimizer.clip_norm": 0.5,
    "optimizer.epsilon": 1e-3,  # a gradient of 1e-9 and its rounding would move as far as others
    "optimizer.layer_decay": 0.7,
  }
  runs = [stepped(make_spec("patch", devices, VIT, **fields)) for devices in (1, 8)]
  (first, last, _), (_, other, _) = runs
  assert_equal((other.params, other.ema), (last.params, last.ema))
  same = {part: bits(first.params[part]) == bits(last.params[part]) for part in first.params}
  assert {part for part in same if same[part]} == {"patch", "positions", "class_token"}


def test_frozen_norms_are_those_of_an_evaluation_and_the_step_has_no_other_backward_pass():
  spec = make_spec("backbone")
  inputs = inputs_of(spec)
  variables, images = inputs[0].state.variables(), inputs[1].image.astype(np.float32)

  def logits(variables, images, **how):
    return spec.model.apply(variables, images, **how, mutable=["batch_stats"])

  how = ({"train": True, "frozen": spec.frozen}, {"train": False})
  traced = [jax.make_jaxpr(functools.partial(logits, **each))(variables, images) for each in how]
  assert str(traced[0]) == str(traced[1])
  # The 20 convolutions of the forward pass.
  lowered = jax.jit(batch_step(spec)).lower(*inputs)
  assert lowered.as_text().count("stablehlo.convolution") == 20


@pytest.mark.parametrize(
  "model, freeze, frozen",
  [
    (RESNET, "", ""),
    (RESNET, "stem", "stem"),
    (RESNET, "stage1", "stage1 stem"),
    (RESNET, "backbone", "stage1 stage2 stage3 stage4 stem"),
    (VIT, "patch", "class_token patch positions"),
    (VIT, "block2", "block1 block2 class_token norm patch positions"),
    (VIT, "backbone", "block1 block2 class_token norm patch positions pre_logits"),
  ],
)
def test_parts_of_a_model_up_to_the_named_one(model, freeze, frozen):
  assert make_spec(freeze, model=model).frozen == tuple(frozen.split())


@pytest.mark.parametrize("name", ["stage5", "head"])
def test_a_part_that_there_is_not_is_one_sentence(name):
  known = "choose backbone or the last part to freeze, one of stem, stage1, stage2, stage3, stage4"
  with pytest.raises(UserError, match=f"^config.pretrained.freeze='{name}': {known}.$"):
    make_spec(name)
