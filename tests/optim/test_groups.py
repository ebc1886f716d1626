"""Labels and layers of parameters; clipping and rates by layer, around any optimizer."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_net as net
from exported import shapes_of
from flax import linen as nn
from tolerances import assert_equal

from jaxspeed.config import checks
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the models
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.vit import ViT
from jaxspeed.optim.groups import labels_of
from jaxspeed.optim.layers import layers_of, scale_by_layer
from jaxspeed.optim.make import make_optimizer
from jaxspeed.optim.own import own_optimizer
from jaxspeed.optim.whole import with_clipping_and_layer_decay


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
  return shapes_of(model, 6)["params"]


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


# Clipping by the global norm, and learning rates by layer


def config_of(name, **changes):
  fields = dict(name="sgd" if name == "own" else name, weight_decay=0.05) | changes
  return net.make_config(bias_epochs=0.0, **fields)


@pytest.mark.equivalence
def test_clipping_is_torchs_over_all_trained_parameters():
  # The norm of a step's gradients is between 17.4 and 20.2: some are clipped, some are not.
  torch, most, norms = pytest.importorskip("torch"), 19.4, []

  def clip(weights):
    norm = torch.nn.utils.clip_grad_norm_(weights.values(), most)
    norms.append(float(norm))
    # torch divides by the norm + 1e-6, optax by the norm.
    for weight in weights.values():
      weight.grad *= max(min(1.0, most / norm) / min(1.0, most / (norm + 1e-6)), 1.0)

  config = config_of("sgd", clip_norm=most)
  groups = dict.fromkeys(net.LABELS.values(), (1, 0.05)) | {"frozen": None, "whiten_bias": None}
  expected = net.torch_trained(config, groups, change=clip)
  assert min(norms) < most < max(norms)
  labels = net.LABELS | {"whiten_bias": "frozen"}
  optimizer = with_clipping_and_layer_decay(net.made(config), config, labels, None)
  net.assert_same(net.trained(optimizer)[0], expected)
  # What is frozen would count otherwise, and the steps would be others.
  every = with_clipping_and_layer_decay(
    net.made(config), config, dict.fromkeys(net.LABELS, "kernel"), None
  )
  assert not np.allclose(net.trained(every)[0]["head_bias"], expected["head_bias"], rtol=1e-3)


class Layers:
  """Says the layers of the small net alone: the head is the last, two after all others."""

  def param_layers(self, params):
    return {name: 3 if "head" in name else 1 for name in params}


@pytest.mark.equivalence
@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "own"])
def test_a_layers_rate_is_a_rate_for_every_optimizer(name):
  """Each part as if it were trained alone at the decay to the number of layers after it."""
  config = config_of(name, layer_decay=0.5, rate_in_momentum=name == "sgd")
  optimizer = net.made(config)
  if name == "own":
    optimizer = own_optimizer(optax.scale_by_lion(), config, net.LABELS)
  found, _ = net.trained(with_clipping_and_layer_decay(optimizer, config, net.LABELS, Layers()))
  slow, _ = net.trained(optimizer, learning_rate=0.25 * net.RATES)
  fast, _ = net.trained(optimizer)
  assert_equal(found, {n: (fast if "head" in n else slow)[n] for n in found})


# Of timm 1.0.31, param_groups_layer_decay(create_model(NAME), layer_decay=0.75): the power of 0.75
# by which it multiplies the rate, by the first and last of each kind of our models' parts.
TIMM_VIT = {"class_token": 13, "positions": 13, "patch": 13, "block1": 12, "block12": 1, "norm": 1}
TIMM_RESNET18 = {"stem": 9, "stage1.block1": 8, "stage2.block1": 6, "stage4.block2": 1}
TIMM_RESNET50 = {
  **{"stem": 17, "stage1.block1": 16, "stage1.block3": 14, "stage2.block4": 10},
  **{"stage3.block6": 4, "stage4.block1": 3, "stage4.block3": 1},
}


@pytest.mark.parametrize(
  "model, powers",
  [
    (ViT(width=12, heads=2, mlp=4, pool="token", posemb="learned"), TIMM_VIT),
    (ResNet(18, width=4), TIMM_RESNET18),
    (ResNet(50, width=4), TIMM_RESNET50),
  ],
)
def test_the_layers_of_our_models_are_timms(model, powers):
  layers = layers_of(model, shapes_of(model, 32)["params"])
  last = max(jax.tree.leaves(layers))
  for name, power in (powers | {"head": 0}).items():
    part = functools.reduce(operator.getitem, name.split("."), layers)
    assert {last - layer for layer in jax.tree.leaves(part)} == {power}, name


def test_a_model_without_layers_gets_one_sentence():
  with pytest.raises(UserError, match=r"layer_decay: object has no method param_layers\(params\)"):
    scale_by_layer(object(), 0.5)


def test_only_these_two_fields_go_with_an_optimizer_from_python():
  config = config_of("adamw")
  config.given.optimizer = "a gradient transformation"
  checks.check_effects(config, ["optimizer.clip_norm", "optimizer.layer_decay"], command="train")
  with pytest.raises(UserError, match="config.optimizer.b1=.* has no effect: optimizer= of"):
    checks.check_effects(config, ["optimizer.clip_norm", "optimizer.b1"], command="train")


@pytest.mark.usefixtures("float64")
def test_one_transformation_of_ones_own_sees_all_gradients():
  config = config_of("mine")
  own = {"mine": lambda fields: optax.clip_by_global_norm(0.5)}
  optimizer, params = make_optimizer(config, net.LABELS, own=own), net.drawn()
  gradient = jax.tree.map(jnp.ones_like, params)
  update, _ = optimizer.update(gradient, optimizer.init(params), params, learning_rate=1.0)
  assert float(optax.tree.norm(update)) == pytest.approx(0.5)
