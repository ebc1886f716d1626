"""The rng of dropout: what it is a function of, and that models without dropout never see it."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import linen as nn
from toy import inputs_of, toy_config, toy_spec

from jaxspeed.errors import UserError
from jaxspeed.steps.forward import dropout_keys
from jaxspeed.steps.programs import batch_step, on_mesh

SMALL = dict(name="vit", patch_size=4, width=8, depth=1, heads=2, mlp=8)


def vit_config(dropout=0.5, **fields):
  config = toy_config(**{"average.kind": "ema", "average.decay": 0.5} | fields)
  with config.unlocked():
    config.model = SMALL | {"dropout": dropout}
  return config


def test_a_model_without_batch_stats_trains_with_an_average_and_dropout():
  spec = toy_spec(vit_config())
  carry, *rest = inputs_of(spec)
  step = jax.jit(batch_step(spec))
  assert carry.state.batch_stats == {} and set(carry.state.eval_variables()) == {"params"}
  first, loss = step(carry, *rest)
  again, same = step(carry, *rest)
  jax.tree.map(np.testing.assert_array_equal, (first, loss), (again, same))
  # The same weights and images, another step or another key.
  state = carry.state
  for other in (state.replace(step=state.step + 1), state.replace(key=state.key + 1)):
    assert float(step(carry.replace(state=other), *rest)[1]) != float(loss)


def test_each_device_and_micro_batch_has_a_key_of_its_own():
  spec = toy_spec(vit_config(accumulate=2), devices=2)
  carry, *_ = inputs_of(spec)

  def keys(state):
    return jax.lax.all_gather(dropout_keys(state, spec=spec), "data")

  found = jax.jit(on_mesh(lambda state, spec: keys(state), spec))(carry.state)
  assert len(np.unique(np.asarray(found).reshape(-1, 2), axis=0)) == 4


def test_models_without_dropout_get_no_key():
  assert toy_spec(vit_config()).draws_dropout
  for config in (vit_config(dropout=0.0), toy_config()):
    spec = toy_spec(config)
    assert not spec.draws_dropout
    assert dropout_keys(None, spec=spec) is None


class Wrong(nn.Module):
  """One logit too few."""

  @nn.compact
  def __call__(self, images, *, train):
    return images.reshape(len(images), -1)[:, :9]


def test_logits_of_another_shape_are_one_sentence():
  spec = toy_spec(vit_config())
  step = batch_step(dataclasses.replace(spec, model=Wrong()))
  with pytest.raises(
    UserError, match=r"returns an array of shape \(16, 9\) for 16 images and conf"
  ):
    jax.eval_shape(step, *inputs_of(spec))
