"""The rng of dropout: what it is a function of, and that models without dropout never see it."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import linen as nn
from toy import toy_arrays, toy_config, toy_spec

from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.steps.forward import dropout_keys
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.state import Carry

SMALL = dict(name="vit", patch_size=4, width=8, depth=1, heads=2, mlp=8)


def vit_config(dropout=0.5, **fields):
  config = toy_config(**{"average.kind": "ema", "average.decay": 0.5} | fields)
  with config.unlocked():
    config.model = SMALL | {"dropout": dropout}
  return config


def first_carry(spec, config):
  images = toy_arrays(config).train_images
  start = jax.jit(on_mesh(init_state, spec))
  state = start(*mesh_lib.replicate((seed_key(0), images), spec.mesh))
  # A head of zeros passes no gradient on in the first step.
  waves = jax.tree.map(lambda x: np.sin(np.arange(x.size, dtype=np.float32)), state.params)
  params = jax.tree.map(lambda x, wave: x + 0.1 * wave.reshape(x.shape), state.params, waves)
  return Carry(state.replace(params=params), mesh_lib.replicate(MetricSums.zero(), spec.mesh))


def stepper(spec, config):
  arrays = toy_arrays(config)
  table = mesh_lib.replicate(spec.plan.table_in(np.float32), spec.mesh)
  program = jax.jit(batch_step(spec))

  def step(carry):
    part = slice(0, config.batch_size)
    images, labels = arrays.train_images[part], arrays.train_labels[part]
    mask = np.ones(len(labels), bool)
    batch = Batch(image=images, label=labels, mask=mask, flip=np.zeros(len(labels), bool))
    return program(carry, mesh_lib.split(batch, spec.mesh), table)

  return step


def test_a_model_without_batch_stats_trains_with_an_average_and_dropout():
  config = vit_config()
  spec = toy_spec(config)
  step, carry = stepper(spec, config), first_carry(spec, config)
  assert carry.state.batch_stats == {} and set(carry.state.evaluated()) == {"params"}
  first, loss = step(carry)
  again, same = step(carry)
  jax.tree.map(np.testing.assert_array_equal, first, again)
  assert float(loss) == float(same)
  later, another = step(carry.replace(state=carry.state.replace(step=carry.state.step + 1)))
  assert float(another) != float(loss)  # the same weights and images, another step
  other_key, third = step(carry.replace(state=carry.state.replace(key=carry.state.key + 1)))
  assert float(third) != float(loss)


def test_each_device_and_micro_batch_has_a_key_of_its_own():
  config = vit_config(accumulate=2)
  spec = toy_spec(config, devices=2)
  carry = first_carry(spec, config)

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
  config = vit_config()
  spec = dataclasses.replace(toy_spec(config), model=Wrong())
  with pytest.raises(
    UserError, match=r"returns an array of shape \(16, 9\) for 16 images and conf"
  ):
    jax.eval_shape(stepper(spec, config), first_carry(toy_spec(config), config))
