"""SGD on flattened groups against PyTorch and against the formulas written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxspeed import config as config_lib
from jaxspeed import optim

STEPS = 10
CONSTANT = [0.02] * STEPS
CHANGING = list(np.interp(np.arange(STEPS), [0, 4, 9], [0.002, 0.03, 0.004]))


def random(shape, seed):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small_net():
  shapes = {
    "prep": {"conv": {"kernel": (4, 3, 3, 2)}, "norm": {"bias": (4,), "scale": (4,)}},
    "head": {"kernel": (4, 5), "bias": (5,)},
    "whiten": {"kernel": (6, 3, 3, 2)},
  }
  leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
  return jax.tree.unflatten(structure, [random(s, seed) for seed, s in enumerate(leaves)])


def gradients_of_step(step):
  tree = small_net()
  leaves, structure = jax.tree.flatten(tree)
  noise = [random(leaf.shape, 100 * (step + 1) + i) for i, leaf in enumerate(leaves)]
  return jax.tree.unflatten(structure, noise)


def optimizer_fields(**changes):
  fields = config_lib.base().optimizer
  fields.update(changes)
  return fields


def trained(rates, **changes):
  """Parameters after a step at each of the rates, and the optimizer's state."""
  optimizer = optim.make_optimizer(optimizer_fields(**changes))
  params = jax.tree.map(jnp.asarray, small_net())
  state = optimizer.init(params)

  @jax.jit
  def step(params, state, gradients, rate):
    updates, state = optimizer.update(gradients, state, params, learning_rate=rate)
    return optax.apply_updates(params, updates), state

  for number, rate in enumerate(rates):
    params, state = step(params, state, gradients_of_step(number), jnp.float32(rate))
  return params, state


def named_leaves(tree):
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def factors(name, fields):
  """(rate factor, decay factor) of a parameter."""
  return (fields.bias_rate, fields.bias_decay) if "bias" in name else (1.0, 1.0)


def numpy_trained(rates, **changes):
  """In float64, from the formulas of PyTorch's SGD and of davidcpage/cifar10-fast."""
  fields = optimizer_fields(**changes)
  weights = {name: leaf.astype(np.float64) for name, leaf in named_leaves(small_net()).items()}
  velocity = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
  m = fields.momentum
  for number, rate in enumerate(rates):
    for name, gradient in named_leaves(gradients_of_step(number)).items():
      if "whiten" in name:
        continue
      rate_factor, decay_factor = factors(name, fields)
      g = gradient + fields.weight_decay * decay_factor * weights[name]
      if fields.rate_in_momentum:
        dw = -rate * rate_factor * g
        velocity[name] = m * velocity[name] + dw
        step = dw + m * velocity[name] if fields.nesterov else velocity[name]
        weights[name] = weights[name] + step
      else:
        velocity[name] = m * velocity[name] + g
        step = g + m * velocity[name] if fields.nesterov else velocity[name]
        weights[name] = weights[name] - rate * rate_factor * step
  return weights


def torch_trained(rates, **changes):
  torch = pytest.importorskip("torch")
  fields = optimizer_fields(**changes)
  leaves = {n: x for n, x in named_leaves(small_net()).items() if "whiten" not in n}
  weights = {n: torch.tensor(x, dtype=torch.float64, requires_grad=True) for n, x in leaves.items()}
  groups = []
  for name, weight in weights.items():
    rate_factor, decay_factor = factors(name, fields)
    decay = fields.weight_decay * decay_factor
    groups.append({"params": [weight], "weight_decay": decay, "factor": rate_factor})
  sgd = torch.optim.SGD(groups, lr=1.0, momentum=fields.momentum, nesterov=fields.nesterov)
  for number, rate in enumerate(rates):
    gradients = named_leaves(gradients_of_step(number))
    for name, weight in weights.items():
      weight.grad = torch.tensor(gradients[name], dtype=torch.float64)
    for group in sgd.param_groups:
      group["lr"] = rate * group["factor"]
    sgd.step()
  return {name: weight.detach().numpy() for name, weight in weights.items()}


def assert_same(params, expected):
  for name, value in named_leaves(params).items():
    if name in expected:
      np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


VARIANTS = [
  dict(momentum=0.9, nesterov=True, weight_decay=0.05),
  dict(momentum=0.9, nesterov=False, weight_decay=0.05),
  dict(momentum=0.9, nesterov=True, weight_decay=0.0),
  dict(momentum=0.0, nesterov=False, weight_decay=0.05),
]


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("rates", [CONSTANT, CHANGING], ids=["constant", "changing"])
def test_the_rate_outside_the_momentum_is_torchs_sgd(changes, rates):
  assert_same(trained(rates, **changes)[0], torch_trained(rates, **changes))


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("rate_in_momentum", [False, True])
def test_both_orders_of_rate_and_momentum_are_the_formulas(changes, rate_in_momentum):
  changes = changes | dict(rate_in_momentum=rate_in_momentum)
  assert_same(trained(CHANGING, **changes)[0], numpy_trained(CHANGING, **changes))


@pytest.mark.parametrize(
  "rates, least, most", [(CONSTANT, 0, 1e-6), (CHANGING, 1e-2, 1)], ids=["constant", "changing"]
)
def test_the_two_orders_differ_only_when_the_rate_changes(rates, least, most):
  outside, inside = (trained(rates, rate_in_momentum=r)[0]["head"]["kernel"] for r in (False, True))
  assert least <= float(jnp.abs(outside - inside).max()) <= most


@pytest.mark.parametrize("rate_in_momentum", [False, True])
def test_biases_have_their_own_rate_and_decay(rate_in_momentum):
  changes = dict(
    weight_decay=0.5, bias_rate=64.0, bias_decay=1 / 64, rate_in_momentum=rate_in_momentum
  )
  rates = [rate / 64 for rate in CHANGING]
  params, _ = trained(rates, **changes)
  assert_same(params, numpy_trained(rates, **changes))
  if not rate_in_momentum:
    assert_same(params, torch_trained(rates, **changes))


def test_the_first_step_of_a_bias_is_64_of_a_weights():
  # Without decay: -rate * (1 + momentum) * gradient.
  params, _ = trained([0.001], bias_rate=64.0)
  start, gradient = small_net()["head"], gradients_of_step(0)["head"]
  for name, factor in (("kernel", 1), ("bias", 64)):
    np.testing.assert_allclose(
      params["head"][name], start[name] - factor * 0.0019 * gradient[name], rtol=1e-5, atol=1e-6
    )


def test_norm_scales_and_kernels_are_weights():
  assert optim.labels_of(small_net()) == {
    "prep": {"conv": {"kernel": "weight"}, "norm": {"bias": "bias", "scale": "weight"}},
    "head": {"kernel": "weight", "bias": "bias"},
    "whiten": {"kernel": "frozen"},
  }


@pytest.mark.parametrize("rate_in_momentum", [False, True])
def test_whitening_never_changes(rate_in_momentum):
  params, _ = trained(CHANGING, weight_decay=0.5, rate_in_momentum=rate_in_momentum)
  np.testing.assert_array_equal(params["whiten"]["kernel"], small_net()["whiten"]["kernel"])
  assert not np.array_equal(params["prep"]["conv"]["kernel"], small_net()["prep"]["conv"]["kernel"])


def test_the_state_is_one_vector_a_group():
  _, state = trained(CONSTANT)
  # Kernels and the scale; the two biases. The frozen kernel has no momentum.
  weights = 4 * 3 * 3 * 2 + 4 + 4 * 5
  assert sorted(leaf.shape for leaf in jax.tree.leaves(state)) == [(4 + 5,), (weights,)]
  assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32")}


def test_without_momentum_there_is_no_state():
  assert jax.tree.leaves(trained([0.1], momentum=0.0)[1]) == []


def test_a_net_without_biases_has_one_group():
  optimizer = optim.make_optimizer(optimizer_fields())
  params = {"head": {"kernel": jnp.ones((2, 3))}}
  state = optimizer.init(params)
  assert len(jax.tree.leaves(state)) == 1
  updates, _ = optimizer.update(params, state, params, learning_rate=jnp.float32(0.5))
  np.testing.assert_allclose(updates["head"]["kernel"], np.full((2, 3), -0.5 * 1.9), rtol=1e-6)


def test_updates_have_the_structure_the_shapes_and_the_types_of_the_parameters():
  params = {
    "b": {"kernel": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), "bias": jnp.zeros((), "f2")},
    "a": [{"scale": jnp.ones((1, 4))}, {"kernel": jnp.ones((0, 3))}],
  }
  identity = optim.flatten_groups(
    {"weight": optax.identity()}, lambda tree: jax.tree.map(lambda _: "weight", tree)
  )
  updates, _ = identity.update(params, identity.init(params), params)
  assert jax.tree.structure(updates) == jax.tree.structure(params)
  for new, old in zip(jax.tree.leaves(updates), jax.tree.leaves(params), strict=True):
    assert (new.shape, new.dtype) == (old.shape, old.dtype)
    np.testing.assert_array_equal(new, old)


def test_a_parameter_whose_label_has_no_transformation_gets_zero():
  params = {"a": jnp.ones(3), "b": jnp.ones(2)}
  only_a = optim.flatten_groups({"moves": optax.identity()}, lambda _: {"a": "moves", "b": "rests"})
  updates, _ = only_a.update(params, only_a.init(params), params)
  np.testing.assert_array_equal(updates["a"], np.ones(3))
  np.testing.assert_array_equal(updates["b"], np.zeros(2))


def test_a_change_of_rate_compiles_nothing():
  optimizer = optim.make_optimizer(optimizer_fields())
  params = {"head": {"kernel": jnp.ones((2, 3))}}
  traces = []

  @jax.jit
  def step(state, rate):
    traces.append(rate)
    return optimizer.update(params, state, params, learning_rate=rate)[1]

  state = optimizer.init(params)
  for rate in (0.1, 0.2, 0.3):
    state = step(state, jnp.float32(rate))
  assert len(traces) == 1
