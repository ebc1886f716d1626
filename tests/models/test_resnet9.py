"""ResNet-9 against a PyTorch transcription of cifar10-fast's network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_equal

from jaxspeed.models.resnet9 import ResNet9

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

# CELU with an alpha that PyTorch, whose gradient rounds it to float32, has exactly.
Net = functools.partial(ResNet9, dtype=jnp.float64, celu_alpha=0.25)


def assert_close(actual, expected, tolerance):
  """Close relative to the largest expected value."""
  actual, expected = np.asarray(actual), np.asarray(expected)
  assert actual.shape == expected.shape
  np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


class TheirBlock(torch.nn.Module):
  def __init__(self, inputs, features, size, pool, act):
    super().__init__()
    self.conv = torch.nn.Conv2d(inputs, features, size, padding=size // 2, bias=False)
    self.norm = torch.nn.BatchNorm2d(features)
    self.pool, self.act = pool, act

  def forward(self, x):
    def pool(x):
      return functional.max_pool2d(x, 2)

    stages = {
      None: [self.conv, self.norm, self.act],
      "after_activation": [self.conv, self.norm, self.act, pool],
      "before_activation": [self.conv, self.norm, pool, self.act],
      "before_norm": [self.conv, pool, self.norm, self.act],
    }[self.pool]
    for stage in stages:
      x = stage(x)
    return x


class TheirResNet9(torch.nn.Module):
  def __init__(self, model):
    super().__init__()
    w, pool = model.width, model.pool_position
    relu = model.activation == "relu"
    act = functional.relu if relu else lambda x: functional.celu(x, model.celu_alpha)
    self.head_scale = model.head_scale
    self.whiten = torch.nn.Conv2d(3, 27, 3, padding=1, bias=False) if model.whiten else None
    first = (27, w, 1) if model.whiten else (3, w, 3)
    self.prep = TheirBlock(*first, None, act)
    self.layer1 = TheirBlock(w, 2 * w, 3, pool, act)
    self.layer1_residual1 = TheirBlock(2 * w, 2 * w, 3, None, act)
    self.layer1_residual2 = TheirBlock(2 * w, 2 * w, 3, None, act)
    self.layer2 = TheirBlock(2 * w, 4 * w, 3, pool, act)
    self.layer3 = TheirBlock(4 * w, 8 * w, 3, pool, act)
    self.layer3_residual1 = TheirBlock(8 * w, 8 * w, 3, None, act)
    self.layer3_residual2 = TheirBlock(8 * w, 8 * w, 3, None, act)
    self.head = torch.nn.Linear(8 * w, model.classes, bias=False)

  def forward(self, x):
    if self.whiten is not None:
      x = self.whiten(x)
    x = self.layer1(self.prep(x))
    x = x + self.layer1_residual2(self.layer1_residual1(x))
    x = self.layer3(self.layer2(x))
    x = x + self.layer3_residual2(self.layer3_residual1(x))
    return self.head(functional.max_pool2d(x, 4).flatten(1)) * self.head_scale


@functools.partial(jax.jit, static_argnums=0)
def init(model, images):
  return model.init(jax.random.key(0), images, train=False)


@functools.partial(jax.jit, static_argnums=0)
def train_logits(model, variables, images):
  return model.apply(variables, images, train=True, mutable=["batch_stats"])[0]


def flat(tree):
  return {
    ".".join(key.key for key in path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def their_form(name, value):
  """Our name and array as PyTorch's state_dict has them."""
  if name == "head.kernel":
    return "head.weight", value.T
  if name.endswith("kernel"):
    return name.replace("kernel", "weight"), value.transpose(0, 3, 1, 2)
  return name.replace("scale", "weight"), value


def random_variables(model, images):
  """Initial variables, with norms and statistics that are not at their initial values."""
  variables = init(model, images)
  rng = np.random.default_rng(1)

  def shake(path, leaf):
    name = path[-1].key
    if name in ("scale", "var"):
      return rng.uniform(0.5, 1.5, leaf.shape)
    if name in ("bias", "mean"):
      return rng.normal(0, 0.2, leaf.shape)
    return leaf

  return jax.tree_util.tree_map_with_path(shake, variables)


def copy_to_torch(variables, theirs):
  state = theirs.state_dict()
  with torch.no_grad():
    for name, value in flat(variables["params"]).items():
      name, value = their_form(name, value)
      state[name].copy_(torch.tensor(value.copy()))
    for name, value in flat(variables["batch_stats"]).items():
      stem, kind = name.rsplit(".", 1)
      state[f"{stem}.running_{kind}"].copy_(torch.tensor(value.copy()))


@pytest.mark.parametrize(
  "model",
  [
    Net(width=8),
    Net(width=8, pool_position="before_activation"),
    Net(width=8, pool_position="before_norm", activation="celu", whiten=True, head_scale=1 / 16),
  ],
  ids=["baseline", "pool_before_activation", "whitened_celu"],
)
def test_resnet9_and_its_gradients_are_torchs(model):
  images = np.random.default_rng(0).standard_normal((16, 32, 32, 3))
  labels = np.arange(16) % 10
  variables = random_variables(model, images)
  theirs = TheirResNet9(model).double()
  copy_to_torch(variables, theirs)
  their_images = torch.tensor(images.transpose(0, 3, 1, 2).copy())

  theirs.eval()
  logits = jax.jit(functools.partial(model.apply, train=False))(variables, images)
  assert_equal(logits, theirs(their_images).detach().numpy())

  theirs.train()
  if model.whiten:
    theirs.whiten.requires_grad_(False)
  their_logits = theirs(their_images)
  functional.cross_entropy(their_logits, torch.tensor(labels), reduction="sum").backward()

  def loss(params):
    logits, updated = model.apply(
      variables | {"params": params}, images, train=True, mutable=["batch_stats"]
    )
    logp = jax.nn.log_softmax(logits)
    return -logp[np.arange(16), labels].sum(), (logits, updated["batch_stats"])

  grads, (logits, stats) = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])
  assert_equal(logits, their_logits.detach().numpy())
  their_grads = {name: p.grad for name, p in theirs.named_parameters()}
  for name, grad in flat(grads).items():
    name, grad = their_form(name, grad)
    if name == "whiten.weight":
      assert not grad.any()
    else:
      assert_equal(grad, their_grads[name].numpy())
  for name, value in flat(stats).items():
    stem, kind = name.rsplit(".", 1)
    assert_equal(value, theirs.state_dict()[f"{stem}.running_{kind}"].numpy())


@pytest.mark.parametrize("size", [8, 20, 32])
def test_bfloat16_gives_float32_logits_at_any_size(size):
  images = np.random.default_rng(0).standard_normal((32, size, size, 3)).astype(np.float32)
  kinds = dict(width=8, classes=7, activation="celu", ghost_splits=2, whiten=True)
  model = ResNet9(dtype=jnp.bfloat16, **kinds)
  variables = init(model, images)
  assert {p.dtype for p in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
  half, full = (train_logits(m, variables, images) for m in (model, ResNet9(**kinds)))
  assert half.shape == (32, 7) and half.dtype == jnp.float32
  assert_close(half, full, 0.1)
