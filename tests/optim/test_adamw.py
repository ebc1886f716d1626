"""AdamW, clipping by the global norm and rates by layer against torch, optax and timm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tolerances import assert_equal

from jaxspeed.config import checks, effects
from jaxspeed.config import fields as fields_lib
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the models
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.vit import ViT
from jaxspeed.optim.layers import layers_of
from jaxspeed.optim.make import make_optimizer
from jaxspeed.optim.own import own_optimizer
from jaxspeed.optim.whole import around

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

RATES = list(np.interp(np.arange(7), [0, 2, 6], [0.002, 0.03, 0.004]))
SHAPES = {
  "body": {"bias": (6,), "kernel": (6, 3, 3, 4), "scale": (6,)},
  "head": {"bias": (5,), "kernel": (4, 5)},
  "whiten": {"bias": (6,), "kernel": (6, 3, 3, 2)},
}
# Not trained by these configs.
FROZEN = ["['whiten']['bias']", "['whiten']['kernel']"]


def drawn(seed):
  leaves, structure = jax.tree.flatten(SHAPES, is_leaf=lambda x: isinstance(x, tuple))
  random = np.random.default_rng(seed)
  return jax.tree.unflatten(structure, [random.standard_normal(shape) for shape in leaves])


def make_config(**changes):
  config = fields_lib.base()
  config.precision = "float64"
  config.optimizer.update({"name": "adamw", "weight_decay": 0.05} | changes)
  return config


def named(tree):
  return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


class Layers:
  """Says only the layers of `SHAPES`."""

  def param_layers(self, params):
    numbers = {"whiten": 0, "body": 1, "head": 3}
    return {part: dict.fromkeys(tree, numbers[part]) for part, tree in params.items()}


def trained(optimizer):
  """The parameters after a step at each of the rates, by name."""
  params = jax.tree.map(jnp.asarray, drawn(0))
  state = optimizer.init(params)

  @jax.jit
  def step(params, state, gradients, rate):
    updates, state = optimizer.update(gradients, state, params, learning_rate=rate)
    return optax.apply_updates(params, updates), state

  for number, rate in enumerate(RATES):
    params, state = step(params, state, drawn(1 + number), jnp.float64(rate))
  return named(params)


def torch_trained(optimizer, groups, *, rates=RATES, change=lambda weights: None):
  """`trained` with an optimizer of torch: one parameter group for each factor and decay.

  `groups` maps a parameter's name to the factor on its rate and its weight decay; `change` may
  change the gradients of the named weights.
  """
  torch = pytest.importorskip("torch")
  weights = {
    name: torch.tensor(x, requires_grad=True)
    for name, x in named(drawn(0)).items()
    if name not in FROZEN
  }
  of_torch = optimizer(
    [
      {"params": [w for n, w in weights.items() if groups(n) == group], "weight_decay": group[1]}
      for group in {groups(name) for name in weights}
    ],
  )
  for number, rate in enumerate(rates):
    gradients = named(drawn(1 + number))
    for name, weight in weights.items():
      weight.grad = torch.tensor(gradients[name])
    change(weights)
    for group in of_torch.param_groups:
      (name, *_) = (n for n, w in weights.items() if w is group["params"][0])
      group["lr"] = rate * groups(name)[0]
    of_torch.step()
  return {name: w.detach().numpy() for name, w in weights.items()}


def assert_same(found, expected):
  assert_equal({name: found[name] for name in expected}, expected)


def adam_of_torch(config):
  torch = pytest.importorskip("torch")
  fields = config.optimizer
  return functools.partial(
    torch.optim.AdamW, lr=1.0, betas=(fields.b1, fields.b2), eps=fields.epsilon
  )


@pytest.mark.parametrize("factor", [0.0, 1.0], ids=["timms", "torchs"])
def test_adamw_is_torchs_with_and_without_decay_of_vectors(factor):
  config = make_config(bias_decay=factor, scale_decay=factor, b2=0.98, epsilon=1e-4)

  def groups(name):
    return 1.0, 0.05 * (1.0 if name.endswith("['kernel']") else factor)

  found = trained(make_optimizer(config, groups_by_name))
  assert_same(found, torch_trained(adam_of_torch(config), groups))


def test_head_and_biases_have_their_factors_with_adamw():
  config = make_config(head_rate=10.0, head_decay=0.5, bias_rate=3.0, bias_decay=0.25)

  def groups(name):
    if "head" in name:
      return 10.0, 0.0125 if "bias" in name else 0.025
    return (3.0, 0.0125) if "bias" in name else (1.0, 0.05)

  found = trained(make_optimizer(config, groups_by_name))
  assert_same(found, torch_trained(adam_of_torch(config), groups))


def test_adamw_is_optaxs_with_a_mask():
  config = make_config(bias_decay=0.0, scale_decay=0.0)
  found = trained(make_optimizer(config, groups_by_name))
  mask = jax.tree.map(lambda label: label in ("kernel", "head"), groups_by_name(SHAPES_OF))

  def update(updates, state, params, *, learning_rate):
    with jax.numpy_dtype_promotion("standard"):
      theirs = optax.adamw(learning_rate, weight_decay=0.05, mask=mask)
      return theirs.update(updates, state, params)

  init = optax.adamw(0.1, weight_decay=0.05, mask=mask).init
  expected = trained(optax.GradientTransformationExtraArgs(init, update))
  assert_same(found, {name: x for name, x in expected.items() if name not in FROZEN})
  initial = named(drawn(0))
  for name in FROZEN:
    np.testing.assert_array_equal(found[name], initial[name])


SHAPES_OF = drawn(0)


def torch_clipped(most):
  """The change of gradients that torch's clipping makes, without the 1e-6 that it adds."""
  torch = pytest.importorskip("torch")

  def change(weights):
    norm = torch.nn.utils.clip_grad_norm_(weights.values(), most)
    # torch divides by the norm + 1e-6, optax by the norm.
    for weight in weights.values():
      weight.grad *= max(min(1.0, most / norm) / min(1.0, most / (norm + 1e-6)), 1.0)

  return change


@pytest.mark.parametrize("name", ["sgd", "adamw", "own"])
def test_clipping_is_torchs_over_all_trained_parameters(name):
  # Gradients of 256 normal numbers have a norm of about 16: some steps are clipped, some are not.
  most = 16.0
  config = make_config(name="sgd" if name == "own" else name, clip_norm=most)
  if name == "own":
    made = own_optimizer(optax.trace(0.9, nesterov=True), config, groups_by_name)
    config.optimizer.weight_decay = 0.0
  else:
    made = make_optimizer(config, groups_by_name)
  torch = pytest.importorskip("torch")
  sgd = functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9, nesterov=True)
  expected = torch_trained(
    adam_of_torch(config) if name == "adamw" else sgd,
    lambda name: (1.0, config.optimizer.weight_decay),
    change=torch_clipped(most),
  )
  norms = [
    np.sqrt(sum((x**2).sum() for n, x in named(drawn(1 + i)).items() if n not in FROZEN))
    for i in range(len(RATES))
  ]
  assert min(norms) < most < max(norms)

  def untrained(params):
    return groups_by_name(params) | {"whiten": {"bias": "frozen", "kernel": "frozen"}}

  assert_same(trained(around(made, config, untrained, None)), expected)
  # What is frozen would count otherwise, and the steps would be others.
  counted = trained(around(made, config, lambda p: jax.tree.map(lambda _: "kernel", p), None))
  assert not np.allclose(counted["['head']['bias']"], expected["['head']['bias']"], rtol=1e-3)


@pytest.mark.parametrize("name", ["muon", "lars"])
def test_a_clipped_gradient_is_what_other_optimizers_get(name):
  config = make_config(name=name, clip_norm=2.0)
  made = make_optimizer(config, groups_by_name)
  params, gradients = drawn(0), drawn(1)
  gradients["whiten"] = jax.tree.map(np.zeros_like, gradients["whiten"])
  norm = np.sqrt(sum((x**2).sum() for x in jax.tree.leaves(gradients)))
  scaled = jax.tree.map(lambda g: g * 2.0 / norm, gradients)
  extra = dict(learning_rate=jnp.float64(0.1), renormalize=jnp.float64(0.0))
  clipped = around(made, config, groups_by_name, None)
  found, _ = clipped.update(gradients, clipped.init(params), params, **extra)
  assert_equal(found, made.update(scaled, made.init(params), params, **extra)[0])


def test_without_either_field_the_optimizer_is_itself():
  config = make_config()
  made = make_optimizer(config, groups_by_name)
  assert around(made, config, groups_by_name, None) is made


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_layers_rate_is_the_decay_to_the_number_of_layers_after_it(name):
  config = make_config(name=name, layer_decay=0.5, head_rate=4.0)
  torch = pytest.importorskip("torch")
  sgd = functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9, nesterov=True)

  def groups(name):
    return 4.0 if "head" in name else 0.5**2, 0.05

  made = around(make_optimizer(config, groups_by_name), config, groups_by_name, Layers())
  expected = torch_trained(adam_of_torch(config) if name == "adamw" else sgd, groups)
  assert_same(trained(made), expected)


@pytest.mark.parametrize("name", ["sgd", "lars", "own"])
def test_a_layers_rate_is_a_rate_for_every_optimizer(name):
  """Each part as if it were trained alone at its rate."""
  config = make_config(name="sgd" if name == "own" else name, layer_decay=0.5)
  if name == "own":
    made = own_optimizer(optax.scale_by_lion(), config, groups_by_name)
  else:
    config.optimizer.rate_in_momentum = name == "sgd"
    made = make_optimizer(config, groups_by_name)
  found = trained(around(made, config, groups_by_name, Layers()))

  def slowed(factor):
    def update(updates, state, params, *, learning_rate):
      return made.update(updates, state, params, learning_rate=factor * learning_rate)

    return trained(optax.GradientTransformationExtraArgs(made.init, update))

  for part, factor in (("body", 0.25), ("head", 1.0)):
    expected = slowed(factor)
    assert_same(found, {n: x for n, x in expected.items() if n.startswith(f"['{part}']")})


# The factors of timm 1.0.31, param_groups_layer_decay(create_model(NAME), layer_decay=0.75), by the
# parts of our models.
TIMM_VIT = {
  "class_token": 0.023757264018058777,
  "positions": 0.023757264018058777,
  "patch": 0.023757264018058777,
  "block1": 0.03167635202407837,
  "block2": 0.04223513603210449,
  "block3": 0.056313514709472656,
  "block4": 0.07508468627929688,
  "block5": 0.1001129150390625,
  "block6": 0.13348388671875,
  "block7": 0.177978515625,
  "block8": 0.2373046875,
  "block9": 0.31640625,
  "block10": 0.421875,
  "block11": 0.5625,
  "block12": 0.75,
  "norm": 0.75,
  "head": 1.0,
}
TIMM_RESNET18 = {
  "stem": 0.07508468627929688,
  "stage1.block1": 0.1001129150390625,
  "stage1.block2": 0.13348388671875,
  "stage2.block1": 0.177978515625,
  "stage2.block2": 0.2373046875,
  "stage3.block1": 0.31640625,
  "stage3.block2": 0.421875,
  "stage4.block1": 0.5625,
  "stage4.block2": 0.75,
  "head": 1.0,
}
# The ends of ResNet-50's stages.
TIMM_RESNET50 = {
  "stem": 0.00751694681821391,
  "stage1.block1": 0.010022595757618546,
  "stage1.block3": 0.017817948013544083,
  "stage2.block4": 0.056313514709472656,
  "stage3.block6": 0.31640625,
  "stage4.block1": 0.421875,
  "stage4.block3": 0.75,
  "head": 1.0,
}


@pytest.mark.parametrize(
  "model, factors, every",
  [
    (ViT(width=12, heads=2, mlp=4, pool="token", posemb="learned"), TIMM_VIT, True),
    (ResNet(18, width=4), TIMM_RESNET18, True),
    (ResNet(50, width=4), TIMM_RESNET50, False),
  ],
)
def test_the_layers_of_our_models_are_timms(model, factors, every):
  images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
  init = functools.partial(model.init, train=False)
  params = jax.eval_shape(init, jax.random.key(0), images)["params"]
  layers = layers_of(model, params)
  last = max(jax.tree.leaves(layers))
  found: dict = {}
  for path, layer in jax.tree_util.tree_leaves_with_path(layers):
    keys = [part.key for part in path]
    name = ".".join(keys[:2]) if keys[0].startswith("stage") else keys[0]
    found.setdefault(name, set()).add(0.75 ** (last - layer))
  if every:
    assert found.keys() == factors.keys()
  for name, factor in factors.items():
    assert found[name] == {factor}, name


def test_a_model_without_layers_gets_one_sentence():
  config = make_config(layer_decay=0.5)
  config.name = "x"
  config.model = dict(name="resnet9", width=4)
  with pytest.raises(
    UserError,
    match="layer_decay=0.5 with config.model.name='resnet9': the model does not say which",
  ):
    checks.check(config)
  config.model = dict(name="vit")
  checks.check(config)
  config.optimizer.name = "muon"
  with pytest.raises(
    UserError, match="^config.optimizer.layer_decay=0.5 with .*: Muon scales all kernels"
  ):
    checks.check(config)
  with pytest.raises(UserError, match=r"layer_decay: object has no method param_layers\(params\)"):
    layers_of(object(), SHAPES_OF)


@pytest.mark.parametrize(
  "layers, sentence",
  [
    (lambda params: {"body": 0}, "Own.param_layers returns a tree of another structure than the"),
    (
      lambda params: jax.tree.map(lambda _: -1, params),
      "Own.param_layers gives body.bias the layer -1: use integers",
    ),
    (
      lambda params: jax.tree.map(lambda _: 0.5, params),
      "Own.param_layers gives body.bias the layer 0.5: use integers",
    ),
    (lambda params: params["nothing"], "Own.param_layers fails .KeyError: 'nothing'.: it must"),
  ],
)
def test_layers_that_are_none_are_one_sentence(layers, sentence):
  own = type("Own", (), {"param_layers": lambda self, params: layers(params)})()
  with pytest.raises(UserError, match=f"^{sentence}"):
    layers_of(own, SHAPES_OF)


def test_only_these_two_fields_go_with_an_optimizer_from_python():
  config = make_config()
  config.given.optimizer = "a gradient transformation"
  effects.check(config, ["optimizer.clip_norm", "optimizer.layer_decay"], command="train")
  with pytest.raises(UserError, match="config.optimizer.b1=.* has no effect beside optimizer="):
    effects.check(config, ["optimizer.clip_norm", "optimizer.b1"], command="train")
