"""Labels of parameters: by a model's own method, checked, or by rank and place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from jaxspeed.config import fields
from jaxspeed.errors import UserError
from jaxspeed.optim.groups import LABELS, labels_of
from jaxspeed.optim.make import make_optimizer


class Plain(nn.Module):
  """Names say nothing, or the wrong thing: "head" is a norm, "bias" a kernel."""

  classes: int = 4
  dtype: type = jnp.float32

  @nn.compact
  def __call__(self, images, *, train):
    x = images.reshape(len(images), -1)
    # As many outputs as classes, but not the last such kernel; created last in the alphabet.
    x = nn.Dense(self.classes, name="z_first")(x)
    x = nn.LayerNorm(name="head")(x)
    x = x + self.param("bias", nn.initializers.ones_init(), (4, 4))[0]
    x = nn.Dense(self.classes, name="a_last")(x)
    return x + nn.Dense(5, name="m_side")(x)[:, :1]


def params_of(model):
  init = functools.partial(model.init, train=False)
  images = jnp.zeros((1, 6, 6, 3))
  return jax.jit(init)(jax.random.key(0), images)["params"]


def labels(model, params):
  return labels_of(model, classes=4, image_size=6)(params)


def test_labels_by_rank_and_place_know_no_names():
  assert labels(Plain(), params_of(Plain())) == {
    "z_first": {"kernel": "kernel", "bias": "bias"},
    "head": {"scale": "scale", "bias": "scale"},
    "bias": "kernel",
    "a_last": {"kernel": "head", "bias": "head_bias"},
    "m_side": {"kernel": "kernel", "bias": "bias"},
  }


def test_a_model_without_a_kernel_of_so_many_outputs_has_no_head():
  found = labels_of(Plain(), classes=7, image_size=6)(params_of(Plain()))
  assert set(jax.tree.leaves(found)) == {"kernel", "bias", "scale"}


class Own(Plain):
  """A model with labels of its own."""

  change: str = ""

  def param_groups(self, params):
    found = jax.tree.map(lambda _: "frozen", params)
    if self.change == "label":
      found["a_last"]["bias"] = "biass"
    if self.change == "fewer":
      del found["a_last"]["bias"]
    return found


def test_a_models_own_labels_decide_and_what_is_frozen_never_moves():
  params = params_of(Own())
  assert set(jax.tree.leaves(labels(Own(), params))) == {"frozen"}
  config = fields.base()
  config.precision = "float32"
  optimizer = make_optimizer(config, functools.partial(labels, Own()))
  ones = jax.tree.map(jnp.ones_like, params)
  updates, _ = optimizer.update(ones, optimizer.init(params), params, learning_rate=jnp.float32(1))
  assert not any(np.any(x) for x in jax.tree.leaves(updates))


@pytest.mark.parametrize(
  "change, sentence",
  [
    ("label", "Own.param_groups gives a_last.bias the label 'biass': use one of kernel, scale"),
    ("fewer", "Own.param_groups returns a tree of another structure than the parameters, which "),
  ],
)
def test_wrong_labels_are_one_sentence(change, sentence):
  params = params_of(Own())
  with pytest.raises(UserError) as raised:
    labels(Own(change=change), params)
  assert str(raised.value).startswith(sentence) and str(raised.value).count(". ") == 0
  assert "a_last.bias" in str(raised.value)


def test_labels_that_raise_are_one_sentence():
  class Raising(nn.Module):
    def param_groups(self, params):
      return 1 / 0

  with pytest.raises(UserError, match="Raising.param_groups fails .ZeroDivisionError"):
    labels(Raising(), {"kernel": jnp.ones(2)})


@pytest.mark.parametrize("name", ["sgd", "muon", "lars"])
def test_every_label_is_trained_by_every_optimizer(name):
  config = fields.base()
  config.precision = "float32"
  config.optimizer.name = name
  config.whitening.bias_epochs = 1.0
  params = {label: jnp.full((3, 4), 0.5) for label in LABELS}
  optimizer = make_optimizer(config, lambda tree: {label: label for label in tree})
  extra = dict.fromkeys(("learning_rate", "renormalize", "whiten_bias_rate"), jnp.float32(0.1))
  updates, _ = optimizer.update(params, optimizer.init(params), params, **extra)
  moved = {label for label in LABELS if np.any(updates[label])}
  assert moved == set(LABELS) - {"frozen"}


def test_muon_trains_a_linear_model():
  config = fields.base()
  config.precision = "float32"
  config.optimizer.name = "muon"
  params = {"w": jnp.ones((3, 4))}
  optimizer = make_optimizer(config, lambda tree: {"w": "head"})
  extra = dict.fromkeys(("learning_rate", "renormalize"), jnp.float32(0.1))
  updates, _ = optimizer.update(params, optimizer.init(params), params, **extra)
  assert np.all(optax.apply_updates(params, updates)["w"] < 1)


@pytest.mark.parametrize("shape, outputs", [((6, 2), 2), ((6, 1, 1, 2), 6)])
def test_muon_rescales_by_the_number_of_outputs(shape, outputs):
  config = fields.base()
  config.precision = "float32"
  config.optimizer.name = "muon"
  params = {"w": jnp.ones(shape)}
  optimizer = make_optimizer(config, lambda tree: {"w": "kernel"})
  extra = {"learning_rate": jnp.float32(0), "renormalize": jnp.float32(1)}
  updates, _ = optimizer.update(params, optimizer.init(params), params, **extra)
  norm = np.linalg.norm(params["w"] + updates["w"])
  np.testing.assert_allclose(norm, outputs**0.5, rtol=1e-6)
