"""Labels of parameters: by a model's own method, checked, or by rank and place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from small_net import make_config

from jaxspeed.errors import UserError
from jaxspeed.optim.groups import LABELS, labels_of
from jaxspeed.optim.layers import layers_of
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


labels = functools.partial(labels_of, classes=4, image_size=6)


def params_of(model):
  init = functools.partial(model.init, train=False)
  return jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, 6, 6, 3)))["params"]


def test_labels_by_rank_and_place_know_no_names():
  assert labels(Plain(), params_of(Plain())) == {
    "z_first": {"kernel": "kernel", "bias": "bias"},
    "head": {"scale": "scale", "bias": "scale"},
    "bias": "kernel",
    "a_last": {"kernel": "head", "bias": "head_bias"},
    "m_side": {"kernel": "kernel", "bias": "bias"},
  }
  # Without a kernel of so many outputs there is no head.
  found = labels(Plain(), params_of(Plain()), classes=7)
  assert set(jax.tree.leaves(found)) == {"kernel", "bias", "scale"}


def own(method, returned):
  """A model with a method of its own."""
  return type("Own", (), {method: lambda self, params: returned(params)})()


def everywhere(value):
  return lambda params: jax.tree.map(lambda _: value, params)


def test_a_models_own_labels_decide():
  model, params = own("param_groups", everywhere("frozen")), params_of(Plain())
  assert set(jax.tree.leaves(labels(model, params))) == {"frozen"}


OTHER = "returns a tree of another structure than the parameters, which differs at "


@pytest.mark.parametrize(
  "ask, method, returned, sentence",
  [
    (
      labels,
      "param_groups",
      everywhere("biass"),
      "gives a_last.bias the label 'biass': use one of",
    ),
    (labels, "param_groups", lambda p: p | {"a_last": {"kernel": "head"}}, f"{OTHER}a_last.bias"),
    (labels, "param_groups", lambda p: 1 / 0, "fails .ZeroDivisionError"),
    (layers_of, "param_layers", everywhere(-1), "gives a_last.bias the layer -1: use integers"),
    (layers_of, "param_layers", everywhere(0.5), "gives a_last.bias the layer 0.5: use integers"),
    (layers_of, "param_layers", lambda p: {"head": 0}, OTHER),
  ],
)
def test_a_models_own_method_that_is_wrong_is_one_sentence(ask, method, returned, sentence):
  with pytest.raises(UserError, match=f"^Own.{method} {sentence}"):
    ask(own(method, returned), params_of(Plain()))


@pytest.mark.parametrize("trains", [set(LABELS), {"head"}])  # a linear model has a head alone
@pytest.mark.parametrize("name", ["sgd", "muon", "lars", "adamw"])
def test_every_label_but_frozen_is_trained_by_every_optimizer(name, trains):
  config = make_config(name=name, precision="float32")
  params = {label: jnp.full((3, 4), 0.5) for label in trains}
  optimizer = make_optimizer(config, {label: label for label in params})
  extra = dict.fromkeys(("learning_rate", "renormalize", "whiten_bias_rate"), jnp.float32(0.1))
  updates, _ = optimizer.update(params, optimizer.init(params), params, **extra)
  assert {label for label in trains if np.any(updates[label])} == trains - {"frozen"}
