"""Small runs of `jaxspeed.fit` on digits: a net, its recipe and data, and what is compared."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspeed
from jaxspeed.data.memory.sources import open_arrays


class Net(nn.Module):
  """A small net of a user's own."""

  width: int = 8
  activation: object = nn.relu
  dtype: object = jnp.float32

  @nn.compact
  def __call__(self, images, *, train):
    x = nn.Conv(self.width, (3, 3), strides=2, use_bias=False, dtype=self.dtype)(images)
    x = self.activation(nn.BatchNorm(use_running_average=not train, dtype=self.dtype)(x))
    return nn.Dense(10, dtype=self.dtype, name="head")(x.reshape(len(images), -1))


@pytest.fixture(scope="module")
def digits():
  found = open_arrays(recipe().data)
  parts = (found.train_images, found.train_labels, found.eval_images, found.eval_labels)
  return jaxspeed.Arrays(*parts)


def recipe(**changes):
  return jaxspeed.recipe("quickstart", **{"epochs": 2, "batch_size": 160} | changes)


def bits(run):
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.variables)]


def said(call):
  """The sentence of the UserError that a call raises."""
  with pytest.raises(jaxspeed.UserError) as raised:
    call()
  assert "--" not in str(raised.value)
  return str(raised.value)
