"""A small net whose optimizer is followed in NumPy and in PyTorch, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tolerances import assert_equal

from jaxspeed.config import fields as fields_lib
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.optim.make import make_optimizer

STEPS = 10
CONSTANT = [0.02] * STEPS
CHANGING = list(np.interp(np.arange(STEPS), [0, 4, 9], [0.002, 0.03, 0.004]))
# Trained for six steps, then frozen.
WHITEN_BIAS = [0.03 * max(0.0, 1 - step / 6) for step in range(STEPS)]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Rates apart, decays such that a step at the peak takes the same share from all weights: airbench.
APART = dict(
  momentum=0.85,
  weight_decay=0.05,
  bias_rate=64.0,
  bias_decay=1 / 64,
  head_rate=2.8,
  head_decay=1 / 2.8,
  scale_decay=0.2,
  whitening_bias_decay=0.3,
)


def random(shape, seed):
  return np.random.default_rng(seed).standard_normal(shape)


def small_net():
  shapes = {
    "prep": {"conv": {"kernel": (4, 3, 3, 2)}, "norm": {"bias": (4,), "scale": (4,)}},
    "layer1": {"conv": {"kernel": (6, 3, 3, 4)}},
    "layer2": {"conv": {"kernel": (12, 1, 1, 6)}},
    "head": {"kernel": (4, 5), "bias": (5,)},
    "whiten": {"kernel": (6, 3, 3, 2), "bias": (6,)},
  }
  leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
  return jax.tree.unflatten(structure, [random(s, seed) for seed, s in enumerate(leaves)])


def gradients_of_step(step):
  leaves, structure = jax.tree.flatten(small_net())
  noise = [random(leaf.shape, 100 * (step + 1) + i) for i, leaf in enumerate(leaves)]
  return jax.tree.unflatten(structure, noise)


def make_config(whitening_bias_decay=1.0, precision="float64", **changes):
  config = fields_lib.base()
  config.precision = precision
  config.optimizer.update(changes)
  config.whitening.update(bias_epochs=1.0, bias_decay=whitening_bias_decay)
  return config


def extra_arguments(rates, renormalize=None, momenta=None):
  """One dict a step, of what the plan's table gives."""
  columns = {"learning_rate": rates, "whiten_bias_rate": WHITEN_BIAS}
  columns["renormalize"] = [1.0] * len(rates) if renormalize is None else renormalize
  if momenta is not None:
    columns["momentum"] = momenta
  rows = zip(*columns.values(), strict=False)
  return [dict(zip(columns, map(jnp.float64, row), strict=True)) for row in rows]


def first_update(config, params, gradients, **extra):
  """What a first step adds to the parameters."""
  optimizer = make_optimizer(config, groups_by_name)

  @jax.jit
  def update(gradients, params, extra):
    return optimizer.update(gradients, optimizer.init(params), params, **extra)[0]

  return update(gradients, params, jax.tree.map(jnp.float64, extra))


def trained(config, rates, renormalize=None, momenta=None):
  """Parameters after a step at each of the rates, and the optimizer's state."""
  optimizer = make_optimizer(config, groups_by_name)
  params = jax.tree.map(jnp.asarray, small_net())
  state = optimizer.init(params)

  @jax.jit
  def step(params, state, gradients, extra):
    updates, state = optimizer.update(gradients, state, params, **extra)
    return optax.apply_updates(params, updates), state

  for number, extra in enumerate(extra_arguments(rates, renormalize, momenta)):
    params, state = step(params, state, gradients_of_step(number), extra)
  return params, state


def named_leaves(tree):
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def rate_and_decay(name, config, step, rate):
  """Those of a parameter at a step."""
  fields, decay = config.optimizer, config.optimizer.weight_decay
  if "whiten" in name:
    return WHITEN_BIAS[step], decay * config.whitening.bias_decay
  if "head" in name:
    return rate * fields.head_rate, decay * fields.head_decay
  if "bias" in name or ("scale" in name and fields.name == "muon"):
    return rate * fields.bias_rate, decay * fields.bias_decay
  return rate, decay * fields.scale_decay if "scale" in name else decay


def trained_names():
  return [name for name in named_leaves(small_net()) if name != "['whiten']['kernel']"]


def numpy_trained(config, rates):
  """In float64, from the formulas of PyTorch's SGD and of davidcpage/cifar10-fast."""
  fields = config.optimizer
  weights = named_leaves(small_net())
  velocity = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
  m = fields.momentum
  for number, main_rate in enumerate(rates):
    gradients = named_leaves(gradients_of_step(number))
    for name in trained_names():
      rate, decay = rate_and_decay(name, config, number, main_rate)
      g = gradients[name] + decay * weights[name]
      if fields.rate_in_momentum:
        velocity[name] = m * velocity[name] - rate * g
        step = m * velocity[name] - rate * g if fields.nesterov else velocity[name]
        # Frozen is frozen: momentum that is left does not move the whitening bias.
        weights[name] = weights[name] + (step if rate else 0.0)
      else:
        velocity[name] = m * velocity[name] + g
        step = g + m * velocity[name] if fields.nesterov else velocity[name]
        weights[name] = weights[name] - rate * step
  return weights


def torch_orthogonal(torch, u, coefficients, epsilon=1e-7):
  """The published iteration on one matrix in float64, without stack and padding."""
  a, b, c = coefficients
  x = u / (torch.linalg.norm(u) + epsilon)
  x = x.T if u.shape[0] > u.shape[1] else x
  for _ in range(3):
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.T if u.shape[0] > u.shape[1] else x


def torch_trained(config, rates, renormalize=None, momenta=None):
  """torch.optim.SGD with a group for each parameter, and Muon on OIHW filters, in float64."""
  torch = pytest.importorskip("torch")
  fields = config.optimizer
  net = named_leaves(small_net())
  weights = {
    n: torch.tensor(net[n], dtype=torch.float64, requires_grad=True) for n in trained_names()
  }
  filters = [n for n, w in weights.items() if w.ndim == 4] if fields.name == "muon" else []
  oihw = {n: weights[n].detach().permute(0, 3, 1, 2).clone() for n in filters}
  velocity = {n: torch.zeros_like(w) for n, w in oihw.items()}
  groups = [{"params": [w], "name": n} for n, w in weights.items() if n not in filters]
  sgd = torch.optim.SGD(groups, lr=1.0, momentum=fields.momentum, nesterov=fields.nesterov)
  for number, main_rate in enumerate(rates):
    gradients = {
      name: torch.tensor(leaf, dtype=torch.float64)
      for name, leaf in named_leaves(gradients_of_step(number)).items()
    }
    for group in sgd.param_groups:
      group["momentum"] = fields.momentum if momenta is None else momenta[number]
      group["lr"], group["weight_decay"] = rate_and_decay(group["name"], config, number, main_rate)
      group["params"][0].grad = gradients[group["name"]]
    sgd.step()
    for name, w in oihw.items():
      g = gradients[name].permute(0, 3, 1, 2)
      velocity[name] = fields.muon_momentum * velocity[name] + g
      u = g + fields.muon_momentum * velocity[name] if fields.nesterov else velocity[name]
      if renormalize is None or renormalize[number]:
        w *= w.shape[0] ** 0.5 / torch.linalg.norm(w)
      matrix = u.reshape(u.shape[0], -1)
      iteration = (fields.muon_coefficients, fields.muon_epsilon)
      w -= main_rate * torch_orthogonal(torch, matrix, *iteration).reshape(w.shape)
      w *= 1 - main_rate * fields.muon_decay
  result = {name: weight.detach().numpy() for name, weight in weights.items()}
  return result | {name: w.permute(0, 2, 3, 1).numpy() for name, w in oihw.items()}


def assert_same(params, expected):
  actual = named_leaves(params)
  names = trained_names()
  assert_equal([actual[name] for name in names], [expected[name] for name in names])
