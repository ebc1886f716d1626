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
RATES = list(np.interp(np.arange(STEPS), [0, 4, 9], [0.002, 0.03, 0.004]))
# Trained for six steps, then frozen.
WHITEN_BIAS = [0.03 * max(0.0, 1 - step / 6) for step in range(STEPS)]
RENORMALIZE = [1, 1, 0, 1, 0, 0, 1, 1, 0, 0]
# Rates apart, decays such that a step at the peak takes the same share from all weights: airbench.
APART = dict(
  momentum=0.85,
  weight_decay=0.05,
  bias_rate_factor=64.0,
  bias_decay_factor=1 / 64,
  head_rate_factor=2.8,
  head_decay_factor=1 / 2.8,
  scale_decay_factor=0.2,
  whitening_bias_decay=0.3,
)


def random(shape, seed):
  return np.random.default_rng(seed).standard_normal(shape)


def small_net():
  shapes = {
    "prep": {"conv": {"kernel": (4, 3, 3, 2)}, "norm": {"bias": (4,), "scale": (4,)}},
    "layer1": {"conv": {"kernel": (6, 3, 3, 4)}},
    "layer2": {"conv": {"kernel": (12, 1, 1, 6)}},
    "layer3": {"kernel": (6, 30)},
    "head": {"kernel": (4, 5), "bias": (5,)},
    "whiten": {"kernel": (6, 3, 3, 2), "bias": (6,)},
  }
  leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
  return jax.tree.unflatten(structure, [random(s, seed) for seed, s in enumerate(leaves)])


def gradients_of_step(step):
  leaves, structure = jax.tree.flatten(small_net())
  noise = [random(leaf.shape, 100 * (step + 1) + i) for i, leaf in enumerate(leaves)]
  return jax.tree.unflatten(structure, noise)


def make_config(whitening_bias_decay=1.0, bias_epochs=1.0, precision="float64", **changes):
  config = fields_lib.base()
  config.precision = precision
  config.optimizer.update(changes)
  config.whitening.update(bias_epochs=bias_epochs, bias_decay_factor=whitening_bias_decay)
  return config


def made(config, params=None):
  return make_optimizer(config, groups_by_name(params or small_net()))


def first_update(config, params, gradients, **extra):
  """What a first step adds to the parameters."""
  optimizer = made(config, params)

  @jax.jit
  def update(gradients, params, extra):
    return optimizer.update(gradients, optimizer.init(params), params, **extra)[0]

  return update(gradients, params, jax.tree.map(jnp.float64, extra))


def trained(optimizer, rates=RATES, *, net=small_net, gradients=gradients_of_step, **columns):
  """The parameters after a step at each of the rates, by name, and the optimizer's state.

  `columns` are further ones of the plan's table.
  """
  params = jax.tree.map(jnp.asarray, net())
  state = optimizer.init(params)

  @jax.jit
  def step(params, state, gradients, extra):
    updates, state = optimizer.update(gradients, state, params, **extra)
    return optax.apply_updates(params, updates), state

  table = {"learning_rate": rates, "whiten_bias_rate": WHITEN_BIAS, "renormalize": RENORMALIZE}
  table = {name: np.resize(values, len(rates)) for name, values in (table | columns).items()}
  for number in range(len(rates)):
    extra = {name: jnp.float64(values[number]) for name, values in table.items()}
    params, state = step(params, state, gradients(number), extra)
  return named(params), state


def named(tree):
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def rate_and_decay(config):
  """The rate and the decay of a parameter in a step, of SGD and beside Muon; None if it rests."""
  fields, decay = config.optimizer, config.optimizer.weight_decay

  def group(name, step, rate):
    if "whiten" in name:
      return (
        (WHITEN_BIAS[step], decay * config.whitening.bias_decay_factor) if "bias" in name else None
      )
    if "head" in name:
      return rate * fields.head_rate_factor, decay * fields.head_decay_factor
    if "bias" in name or ("scale" in name and fields.name == "muon"):
      return rate * fields.bias_rate_factor, decay * fields.bias_decay_factor
    return rate, decay * fields.scale_decay_factor if "scale" in name else decay

  return group


def torch_trained(make, group, rates=RATES, *, momenta=None, change=None, muon=None):
  """`trained` with an optimizer of torch, which has a group for each parameter.

  Args:
    make: makes the optimizer from the groups.
    group: the rate and the decay of a parameter by its name, the step and the rate; None if it
      is not trained.
    rates: the rates.
    momenta: the momentum of each step.
    change: may change the gradients of the named weights.
    muon: makes what trains the kernels in place of the optimizer (`torch_muon`).
  """
  torch = pytest.importorskip("torch")
  weights = {
    name: torch.tensor(x, requires_grad=True)
    for name, x in named(small_net()).items()
    if group(name, 0, 1.0)
  }
  kernels = [n for n in weights if muon and "kernel" in n and "head" not in n]
  optimizer = make([{"params": [w], "name": n} for n, w in weights.items() if n not in kernels])
  other = muon and muon([weights[name] for name in kernels])
  for step, rate in enumerate(rates):
    gradients = named(gradients_of_step(step))
    for name, weight in weights.items():
      weight.grad = torch.tensor(gradients[name])
    if change:
      change(weights)
    for each in optimizer.param_groups:
      each["lr"], each["weight_decay"] = group(each["name"], step, rate)
      if momenta is not None:
        each["momentum"] = momenta[step]
    optimizer.step()
    if other:
      other.step(rate, renormalize=RENORMALIZE[step])
  return {name: weight.detach().numpy() for name, weight in weights.items()}


def torch_sgd(config):
  torch = pytest.importorskip("torch")
  fields = config.optimizer
  return lambda groups: torch.optim.SGD(
    groups, lr=1.0, momentum=fields.momentum, nesterov=fields.nesterov
  )


def assert_same(params, expected):
  """Named parameters are those expected, and the bits of all others have not changed."""
  assert_equal({name: params[name] for name in expected}, expected)
  for name, first in named(small_net()).items():
    if name not in expected:
      np.testing.assert_array_equal(np.asarray(params[name]).view(np.uint64), first.view(np.uint64))
