"""AdamW, clipping by the global norm and rates by layer against torch, optax and timm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_net import (
  RATES,
  assert_same,
  gradients_of_step,
  make_config,
  named,
  small_net,
  torch_sgd,
  torch_trained,
  trained,
)
from tolerances import assert_equal

from jaxspeed.config import checks
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the models
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.vit import ViT
from jaxspeed.optim.layers import layers_of
from jaxspeed.optim.make import make_optimizer
from jaxspeed.optim.own import own_optimizer
from jaxspeed.optim.whole import with_clipping_and_layer_decay

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]
LABELS = groups_by_name(small_net())


def config_of(name="adamw", **changes):
  return make_config(
    bias_epochs=0.0, name=name, weight_decay=0.05, momentum=0.9, nesterov=True, **changes
  )


def made(config, own=None):
  """The optimizer of a config, or one of a user's own."""
  if own:
    return own_optimizer(own, config, LABELS)
  return make_optimizer(config, LABELS)


def of_torch(config):
  torch = pytest.importorskip("torch")
  fields = config.optimizer
  if fields.name == "sgd":
    return torch_sgd(config)
  parts = dict(lr=1.0, betas=(fields.b1, fields.b2), eps=fields.epsilon)
  return functools.partial(torch.optim.AdamW, **parts)


@pytest.mark.parametrize(
  "changes, factors",
  [  # of the rate and the decay
    (
      dict(bias_decay_factor=0.0, scale_decay_factor=0.0, b2=0.98, epsilon=1e-4),
      {"scale": (1, 0), "bias": (1, 0), "head_bias": (1, 0)},
    ),
    (
      dict(
        head_rate_factor=10.0, head_decay_factor=0.5, bias_rate_factor=3.0, bias_decay_factor=0.25
      ),
      {"head_bias": (10, 0.25), "head": (10, 0.5), "bias": (3, 0.25)},
    ),
  ],
  ids=["timms", "factors"],
)
def test_adamw_is_torchs(changes, factors):
  config = config_of(**changes)
  label = named(LABELS)

  def group(name, step, rate):
    of_rate, of_decay = factors.get(label[name], (1, 1))
    return None if "whiten" in name else (of_rate * rate, of_decay * 0.05)

  assert_same(trained(made(config))[0], torch_trained(of_torch(config), group))


def test_clipping_is_torchs_over_all_trained_parameters():
  # The norm of these gradients is between 22 and 26: some steps are clipped, some are not.
  most = 24.0
  torch = pytest.importorskip("torch")
  config = config_of("sgd", clip_norm=most)
  norms = []

  def clip(weights):
    norm = torch.nn.utils.clip_grad_norm_(weights.values(), most)
    norms.append(float(norm))
    # torch divides by the norm + 1e-6, optax by the norm.
    for weight in weights.values():
      weight.grad *= max(min(1.0, most / norm) / min(1.0, most / (norm + 1e-6)), 1.0)

  def group(name, step, rate):
    return None if "whiten" in name else (rate, 0.05)

  expected = torch_trained(of_torch(config), group, change=clip)
  assert min(norms) < most < max(norms)

  untrained = LABELS | {"whiten": {"bias": "frozen", "kernel": "frozen"}}
  optimizer = made(config)
  assert_same(
    trained(with_clipping_and_layer_decay(optimizer, config, untrained, None))[0], expected
  )
  # What is frozen would count otherwise, and the steps would be others.
  kernels = jax.tree.map(lambda _: "kernel", LABELS)
  every = with_clipping_and_layer_decay(optimizer, config, kernels, None)
  bias = "['head']['bias']"
  assert not np.allclose(trained(every)[0][bias], expected[bias], rtol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "muon", "lars", "own"])
def test_a_clipped_gradient_is_what_other_optimizers_get(name):
  config = config_of("sgd" if name == "own" else name, clip_norm=2.0)
  optimizer = made(config, optax.trace(0.9) if name == "own" else None)
  params, gradients = small_net(), gradients_of_step(0)
  gradients["whiten"] = jax.tree.map(np.zeros_like, gradients["whiten"])
  norm = np.sqrt(sum((x**2).sum() for x in jax.tree.leaves(gradients)))
  scaled = jax.tree.map(lambda g: g * 2.0 / norm, gradients)
  extra = dict(learning_rate=jnp.float64(0.1), renormalize=jnp.float64(0.0))
  clipped = with_clipping_and_layer_decay(optimizer, config, LABELS, None)
  found, _ = clipped.update(gradients, clipped.init(params), params, **extra)
  assert_equal(found, optimizer.update(scaled, optimizer.init(params), params, **extra)[0])


class Layers:
  """Says the layers of the small net alone."""

  def param_layers(self, params):
    numbers = {"whiten": 0, "prep": 1, "layer1": 1, "layer2": 1, "layer3": 1, "head": 3}
    return {part: jax.tree.map(lambda _, n=numbers[part]: n, tree) for part, tree in params.items()}


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "own"])
def test_a_layers_rate_is_a_rate_for_every_optimizer(name):
  """Each part as if it were trained alone at the decay to the number of layers after it."""
  config = config_of("sgd" if name == "own" else name, layer_decay=0.5)
  config.optimizer.rate_in_momentum = name == "sgd"
  optimizer = made(config, optax.scale_by_lion() if name == "own" else None)
  found, _ = trained(with_clipping_and_layer_decay(optimizer, config, LABELS, Layers()))
  slow, _ = trained(optimizer, [0.25 * rate for rate in RATES])
  fast, _ = trained(optimizer)
  assert_equal(found, {n: (fast if "head" in n else slow)[n] for n in found})


# Of timm 1.0.31, param_groups_layer_decay(create_model(NAME), layer_decay=0.75): the power of 0.75
# by which it multiplies the rate, by the parts of our models.
TIMM_VIT = {
  **dict.fromkeys(("class_token", "positions", "patch"), 13),
  **{f"block{number}": 13 - number for number in range(1, 13)},
  **{"norm": 1, "head": 0},
}
TIMM_RESNET18 = {
  "stem": 9,
  **{f"stage{i // 2 + 1}.block{i % 2 + 1}": 8 - i for i in range(8)},
  "head": 0,
}
# The ends of ResNet-50's stages.
TIMM_RESNET50 = {
  **{"stem": 17, "stage1.block1": 16, "stage1.block3": 14, "stage2.block4": 10},
  **{"stage3.block6": 4, "stage4.block1": 3, "stage4.block3": 1, "head": 0},
}


@pytest.mark.parametrize(
  "model, powers, every",
  [
    (ViT(width=12, heads=2, mlp=4, pool="token", posemb="learned"), TIMM_VIT, True),
    (ResNet(18, width=4), TIMM_RESNET18, True),
    (ResNet(50, width=4), TIMM_RESNET50, False),
  ],
)
def test_the_layers_of_our_models_are_timms(model, powers, every):
  images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
  init = functools.partial(model.init, train=False)
  params = jax.eval_shape(init, jax.random.key(0), images)["params"]
  layers = layers_of(model, params)
  last = max(jax.tree.leaves(layers))
  found: dict = {}
  for path, layer in jax.tree_util.tree_leaves_with_path(layers):
    keys = [part.key for part in path]
    name = ".".join(keys[:2]) if keys[0].startswith("stage") else keys[0]
    found.setdefault(name, set()).add(last - layer)
  if every:
    assert found.keys() == powers.keys()
  for name, power in powers.items():
    assert found[name] == {power}, name


def test_a_model_without_layers_gets_one_sentence():
  config = config_of(layer_decay=0.5)
  config.name = "x"
  for model, optimizer, sentence in (
    ("resnet9", "adamw", "with config.model.name='resnet9': the model has no method param_layers"),
    ("vit", "muon", "with .*: Muon scales all kernels"),
  ):
    config.model, config.optimizer.name = dict(name=model), optimizer
    with pytest.raises(UserError, match=f"^config.optimizer.layer_decay=0.5 {sentence}"):
      checks.checked(config)
  with pytest.raises(UserError, match=r"layer_decay: object has no method param_layers\(params\)"):
    layers_of(object(), small_net())


def test_only_these_two_fields_go_with_an_optimizer_from_python():
  config = config_of()
  config.given.optimizer = "a gradient transformation"
  checks.check_effects(config, ["optimizer.clip_norm", "optimizer.layer_decay"], command="train")
  with pytest.raises(UserError, match="config.optimizer.b1=.* has no effect: optimizer= of"):
    checks.check_effects(config, ["optimizer.clip_norm", "optimizer.b1"], command="train")


def test_one_transformation_of_ones_own_sees_all_gradients():
  config = config_of("sgd")
  config.optimizer.name = "mine"
  own = {"mine": lambda fields: optax.clip_by_global_norm(0.5)}
  optimizer, params = make_optimizer(config, LABELS, own=own), small_net()
  gradient = jax.tree.map(jnp.ones_like, params)
  update, _ = optimizer.update(gradient, optimizer.init(params), params, learning_rate=1.0)
  assert float(optax.tree.norm(update)) == pytest.approx(0.5)
