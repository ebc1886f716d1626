"""Muon against PyTorch, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_net import (
  APART,
  RATES,
  assert_same,
  first_update,
  made,
  make_config,
  random,
  rate_and_decay,
  torch_sgd,
  torch_trained,
  trained,
)
from tolerances import assert_equal
from toy import load_recipe

from jaxspeed.optim.muon import stacked_together

torch = pytest.importorskip("torch")
from torch_muon import Muon, orthogonal  # noqa: E402 (it needs torch)

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@pytest.mark.parametrize(
  "changes",
  [
    dict(muon_momentum=0.6),
    dict(muon_momentum=0.6, nesterov=False),
    dict(muon_momentum=0.0, nesterov=False),
    dict(muon_momentum=0.655, muon_decay=0.5, muon_coefficients=(3.4576, -4.7391, 2.0843)),
  ],
)
def test_muon_is_torchs_on_oihw_filters_and_sgd_the_rest(changes):
  config = make_config(name="muon", **(APART | changes))
  # Rates of airbench's size; the rest learns at bias_rate_factor = 64 times these.
  rates = [10 * rate for rate in RATES]
  fields = config.optimizer
  fields.bias_rate_factor = 0.2
  muon = functools.partial(
    Muon,
    momentum=fields.muon_momentum,
    nesterov=fields.nesterov,
    coefficients=fields.muon_coefficients,
    epsilon=fields.muon_epsilon,
    decay=fields.muon_decay,
  )
  expected = torch_trained(torch_sgd(config), rate_and_decay(config), rates, muon=muon)
  assert_same(trained(made(config), rates)[0], expected)


@pytest.mark.parametrize("precision, tolerance", [("bfloat16", 0.06), ("float16", 0.008)])
def test_muon_in_half_precision_is_near_torchs(precision, tolerance):
  # An update has singular values around 1; three products in a row, each rounded to 2 ** -8 or
  # 2 ** -11. Gradients of 1e-6, whose squares float16 cannot hold.
  config = make_config(name="muon", precision=precision, momentum=0.85)
  filters = {n: {"kernel": random((24, 3, 3, size), size)} for n, size in (("a", 8), ("b", 24))}
  gradients = jax.tree.map(lambda x: 1e-6 * x, filters)
  params = jax.tree.map(np.zeros_like, filters)
  updates = first_update(config, params, gradients, learning_rate=1, renormalize=0)
  for name, layer in filters.items():
    exact = orthogonal(torch.tensor(layer["kernel"].reshape(24, -1)).double(), COEFFICIENTS)
    error = np.linalg.norm(updates[name]["kernel"].reshape(24, -1) + exact.numpy())
    assert error < tolerance * np.linalg.norm(exact)


@pytest.mark.parametrize(
  "file, variant, epsilon", [("cifar10_airbench.py", "94_muon", 1e-7), ("cifar10.py", None, 1e-5)]
)
def test_muons_epsilon_is_as_large_beside_a_summed_gradient_as_in_the_original(
  file, variant, epsilon
):
  config = load_recipe(file, variant)
  config.precision = "float64"
  summed = torch.tensor(random((24, 18), 0)).double()
  # As long as the epsilon once Nesterov's momentum has been added: the update is halved at first.
  summed *= epsilon / torch.linalg.norm(summed) / (1 + config.optimizer.muon_momentum)
  mean = (summed / config.batch_size).numpy().reshape(24, 3, 3, 2)
  # And of zeros, weights and gradients, there comes no NaN.
  gradients = {"kernel": mean, "zero": {"kernel": np.zeros((4, 3, 3, 2))}}
  zeros = jax.tree.map(np.zeros_like, gradients)
  updates = first_update(config, zeros, gradients, learning_rate=1, renormalize=1)
  expected = orthogonal(
    summed * (1 + config.optimizer.muon_momentum), config.optimizer.muon_coefficients, epsilon
  )
  expected = expected.numpy() * (1 - config.optimizer.muon_decay)
  assert_equal(updates["kernel"].reshape(24, 18), -expected)
  assert not np.any(updates["zero"]["kernel"])


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
