"""Muon against PyTorch and the formulas written out in NumPy, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_net import (
  APART,
  CHANGING,
  COEFFICIENTS,
  assert_same,
  first_update,
  make_config,
  random,
  torch_orthogonal,
  torch_trained,
  trained,
)
from tolerances import EQUAL, assert_equal
from toy import load_recipe

from jaxspeed.optim.muon import (
  frobenius_norms,
  newton_schulz,
  stack_matrices,
  stacked_together,
  unstack_matrices,
)

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

MUONS = [
  dict(muon_momentum=0.6),
  dict(muon_momentum=0.6, nesterov=False),
  dict(muon_momentum=0.0, nesterov=False),
  dict(muon_momentum=0.655, muon_decay=0.5, muon_coefficients=(3.4576, -4.7391, 2.0843)),
]


@pytest.mark.parametrize("changes", MUONS)
def test_muon_is_torchs_on_oihw_filters_and_sgd_the_rest(changes):
  config = make_config(name="muon", **(APART | changes))
  # Rates of airbench's size; the rest learns at bias_rate = 64 times these.
  rates = [10 * rate for rate in CHANGING]
  config.optimizer.bias_rate = 0.2
  renormalize = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
  params, _ = trained(config, rates, renormalize)
  assert_same(params, torch_trained(config, rates, renormalize))


@pytest.mark.parametrize("precision, tolerance", [("bfloat16", 0.06), ("float16", 0.008)])
def test_muon_in_half_precision_is_near_torchs(precision, tolerance):
  # An update has singular values around 1; three products in a row, each rounded to 2 ** -8 or
  # 2 ** -11. Gradients of 1e-6, whose squares float16 cannot hold.
  config = make_config(name="muon", precision=precision, momentum=0.85)
  filters = {n: {"kernel": random((24, 3, 3, size), size)} for n, size in (("a", 8), ("b", 24))}
  gradients = jax.tree.map(lambda x: 1e-6 * x, filters)
  params = jax.tree.map(np.zeros_like, filters)
  updates = first_update(config, params, gradients, learning_rate=1, renormalize=0)
  torch = pytest.importorskip("torch")
  for name, layer in filters.items():
    exact = torch_orthogonal(
      torch, torch.tensor(layer["kernel"].reshape(24, -1)).double(), COEFFICIENTS
    )
    error = np.linalg.norm(updates[name]["kernel"].reshape(24, -1) + exact.numpy())
    assert error < tolerance * np.linalg.norm(exact)


def test_the_first_step_of_muon_is_orthogonal_and_the_weight_has_its_norm():
  config = make_config(name="muon")
  params, gradients = {"kernel": random((8, 3, 3, 4), 0)}, {"kernel": random((8, 3, 3, 4), 1)}
  updates = first_update(config, params, gradients, learning_rate=0, renormalize=1)
  np.testing.assert_allclose(
    np.linalg.norm(params["kernel"] + updates["kernel"]), 8**0.5, rtol=EQUAL
  )
  updates = first_update(config, params, gradients, learning_rate=1, renormalize=0)
  left, values, right = np.linalg.svd(gradients["kernel"].reshape(8, 36), full_matrices=False)
  rotated = left.T @ -updates["kernel"].reshape(8, 36) @ right.T
  # The polynomial maps singular values one by one and keeps the vectors.
  expected = values / np.linalg.norm(values)
  for _ in range(3):
    expected = 3.4445 * expected - 4.775 * expected**3 + 2.0315 * expected**5
  np.testing.assert_allclose(rotated, np.diag(expected), rtol=0, atol=EQUAL)
  assert 0.6 < expected.min() and expected.max() < 1.3


@pytest.mark.parametrize(
  "file, variant, epsilon", [("cifar10_airbench.py", "94_muon", 1e-7), ("cifar10.py", None, 1e-5)]
)
def test_muons_epsilon_is_as_large_beside_a_summed_gradient_as_in_the_original(
  file, variant, epsilon
):
  torch = pytest.importorskip("torch")
  config = load_recipe(file, variant)
  config.precision = "float64"
  summed = torch.tensor(random((24, 18), 0)).double()
  # As long as the epsilon once Nesterov's momentum has been added: the update is halved at first.
  summed *= epsilon / torch.linalg.norm(summed) / (1 + config.optimizer.muon_momentum)
  mean = (summed / config.batch_size).numpy().reshape(24, 3, 3, 2)
  zeros = {"kernel": np.zeros_like(mean)}
  updates = first_update(config, zeros, {"kernel": mean}, learning_rate=1, renormalize=0)
  expected = torch_orthogonal(
    torch,
    summed * (1 + config.optimizer.muon_momentum),
    config.optimizer.muon_coefficients,
    epsilon,
  )
  expected = expected.numpy() * (1 - config.optimizer.muon_decay)
  assert_equal(updates["kernel"].reshape(24, 18), -expected)


def test_a_gradient_of_zeros_moves_nothing():
  params, zeros = {"kernel": random((4, 3, 3, 2), 0)}, {"kernel": np.zeros((4, 3, 3, 2))}
  updates = first_update(make_config(name="muon"), params, zeros, learning_rate=1, renormalize=0)
  np.testing.assert_array_equal(updates["kernel"], zeros["kernel"])


# Lower than wide, square, and higher than wide.
SHAPES = [(4, 3, 3, 2), (6, 3, 3, 4), (9, 3, 3, 1), (40, 1, 1, 7), (3, 5)]


def test_a_stack_gives_back_what_it_holds_and_the_rest_is_zero():
  leaves = [jnp.asarray(random(shape, i)) for i, shape in enumerate(SHAPES)]
  stack = stack_matrices(leaves)
  assert stack.shape == (5, 9, 40)
  assert int((stack != 0).sum()) == sum(leaf.size for leaf in leaves)
  for old, new in zip(leaves, unstack_matrices(stack, leaves), strict=True):
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_padding_changes_nothing_and_stays_zero(dtype):
  leaves = [random(shape, i) for i, shape in enumerate(SHAPES)]
  leaves = [leaf / np.linalg.norm(leaf) for leaf in leaves]

  @jax.jit
  def iterate(leaves):
    stacks = [stack_matrices(part).astype(dtype) for part in (leaves, *([x] for x in leaves))]
    return [newton_schulz(stack, coefficients=COEFFICIENTS) for stack in stacks]

  stack, *alone_stacks = jax.tree.map(np.asarray, iterate(leaves))
  assert stack.dtype == dtype
  for padded, (alone,) in zip(stack, alone_stacks, strict=True):
    high, wide = alone.shape
    # The same products and zeros, summed in another order.
    np.testing.assert_allclose(
      np.asarray(padded[:high, :wide], np.float32),
      np.asarray(alone, np.float32),
      rtol=0,
      atol=8 * float(jnp.finfo(dtype).eps),
    )
    assert not padded[high:].any() and not padded[:, wide:].any()


def test_kernels_that_padding_would_double_have_a_stack_a_shape_and_equal_updates():
  config = make_config(name="muon")
  shapes = [(4, 3, 3, 2), (4, 1, 1, 128), (4, 3, 3, 2)]
  assert stacked_together([jnp.zeros(shape) for shape in shapes[::2]]) == [[0, 1]]
  assert stacked_together([jnp.zeros(shape) for shape in shapes]) == [[0, 2], [1]]
  params = {f"{i}": {"kernel": random(shape, i)} for i, shape in enumerate(shapes)}
  gradients = jax.tree.map(lambda x: 2 * x[::-1], params)
  together = first_update(config, params, gradients, learning_rate=0.1, renormalize=1)
  for name in params:
    parts = ({name: tree[name]} for tree in (params, gradients))
    alone = first_update(config, *parts, learning_rate=0.1, renormalize=1)
    assert_equal(together[name], alone[name])


def test_norms_are_those_of_each_matrix():
  x, y = random((3, 4, 5), 0), random((3, 4, 5), 1)
  norms = frobenius_norms(jnp.asarray(x), jnp.asarray(y))
  for norm, stack in zip(norms, (x, y), strict=True):
    np.testing.assert_allclose(norm, np.sqrt((stack**2).sum((1, 2))), rtol=EQUAL)
