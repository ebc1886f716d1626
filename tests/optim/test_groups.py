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
  return jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, 6, 6, 3)))["params"]


def labels(model, params, classes=4):
  return labels_of(model, params, classes=classes, image_size=6)


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


class Own(Plain):
  """A model with labels of its own."""

  change: str = ""

  def param_groups(self, params):
    found = jax.tree.map(lambda _: "frozen", params)
    if self.change == "label":
      found["a_last"]["bias"] = "biass"
    if self.change == "fewer":
      del found["a_last"]["bias"]
    return found if self.change != "raises" else 1 / 0


@pytest.mark.parametrize(
  "change, sentence",
  [
    ("label", "Own.param_groups gives a_last.bias the label 'biass': use one of kernel, scale"),
    (
      "fewer",
      "Own.param_groups returns a tree of another structure than the parameters, which differs at "
      "a_last.bias",
    ),
    ("raises", "Own.param_groups fails .ZeroDivisionError"),
  ],
)
def test_a_models_own_labels_decide_and_wrong_ones_are_one_sentence(change, sentence):
  params = params_of(Own())
  assert set(jax.tree.leaves(labels(Own(), params))) == {"frozen"}
  with pytest.raises(UserError, match=f"^{sentence}"):
    labels(Own(change=change), params)


@pytest.mark.parametrize("trains", [set(LABELS), {"head"}])  # a linear model has a head alone
@pytest.mark.parametrize("name", ["sgd", "muon", "lars", "adamw"])
def test_every_label_but_frozen_is_trained_by_every_optimizer(name, trains):
  config = make_config(name=name, precision="float32")
  params = {label: jnp.full((3, 4), 0.5) for label in trains}
  optimizer = make_optimizer(config, {label: label for label in params})
  extra = dict.fromkeys(("learning_rate", "renormalize", "whiten_bias_rate"), jnp.float32(0.1))
  updates, _ = optimizer.update(params, optimizer.init(params), params, **extra)
  assert {label for label in trains if np.any(updates[label])} == trains - {"frozen"}
