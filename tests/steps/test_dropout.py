"""The rng of dropout: what it is a function of."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from toy import inputs_of, toy_config, toy_spec

from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.train_step import dropout_key
from jaxspeed.steps.wrappers import in_micro_batches

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

  def keys(state, spec):
    def gradient_of(params, batch, part):
      key = jax.random.key_data(dropout_key(state, part))
      return jnp.zeros((4, 2), key.dtype).at[part].set(key), (0, {}, None)

    summed = in_micro_batches(gradient_of, 2)(None, jnp.zeros(4), lax.axis_index("data"))
    return lax.psum(summed[0], "data")

  found = np.asarray(jax.jit(on_mesh(keys, spec))(carry.state))
  assert len(np.unique(found, axis=0)) == 4 and found.any(axis=1).all()
