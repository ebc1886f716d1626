"""A parameter or more of each kind, trained by an optimizer of ours and by one of PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tolerances import assert_equal

from jaxspeed.config import fields as fields_lib
from jaxspeed.optim.make import make_optimizer

STEPS = 10
RATES = np.interp(np.arange(STEPS), [0, 4, 9], [0.02, 0.3, 0.04])
COLUMNS = {
  "learning_rate": RATES,
  "whiten_bias_rate": [0.3 * max(0.0, 1 - step / 6) for step in range(STEPS)],  # 0 from the sixth
  "renormalize": [1, 1, 0, 1, 0, 0, 1, 1, 0, 0],
}
SHAPES = {
  "kernel": (4, 3, 3, 2),
  "kernel 1x1": (12, 1, 1, 6),
  "kernel io": (6, 30),
  "scale": (4,),
  "bias": (4,),
  "embedding": (3, 4),
  "head": (4, 5),
  "head_bias": (5,),
  "whiten_bias": (6,),
  "frozen": (6, 3, 3, 2),
}
LABELS = {name: name.split()[0] for name in SHAPES}


def random(shape, seed):
  return np.random.default_rng(seed).standard_normal(shape)


def drawn(seed=0):
  return {name: random(shape, 100 * seed + i) for i, (name, shape) in enumerate(SHAPES.items())}


def gradients_of(step):
  return drawn(step + 1)


def make_config(bias_epochs=1.0, precision="float64", **changes):
  config = fields_lib.base()
  config.precision = precision
  config.optimizer.update(changes)
  config.whitening.bias_epochs = bias_epochs
  return config


def first_update(optimizer, params, gradients, **row):
  """What a first step adds to the parameters."""

  @jax.jit
  def update(gradients, params, row):
    return optimizer.update(gradients, optimizer.init(params), params, **row)[0]

  return update(gradients, params, jax.tree.map(jnp.float64, row))


def trained(optimizer, params=None, gradients=gradients_of, **columns):
  """The parameters after a step with each row of a table, and the optimizer's state."""
  params = jax.tree.map(jnp.asarray, params or drawn())
  state = optimizer.init(params)

  @jax.jit
  def step(params, state, gradients, row):
    updates, state = optimizer.update(gradients, state, params, **row)
    return optax.apply_updates(params, updates), state

  table = COLUMNS | columns
  for number in range(len(table["learning_rate"])):
    row = {name: jnp.float64(column[number]) for name, column in table.items()}
    params, state = step(params, state, gradients(number), row)
  return params, state


def made(config):
  return make_optimizer(config, LABELS)


def assert_same(params, expected):
  """Parameters are those expected, and the bits of all others have not changed."""
  assert_equal({name: params[name] for name in expected}, expected)
  for name, first in drawn().items():
    if name not in expected:
      np.testing.assert_array_equal(np.asarray(params[name]).view(np.uint64), first.view(np.uint64))


def torch_trained(config, groups, *, momenta=None, change=lambda weights: None):
  """`trained` with SGD or AdamW of torch, and with Muon's published form for kernels.

  Args:
    config: the optimizer's numbers.
    groups: the factor on the rate and the decay by label; None: not trained.
    momenta: the momentum of each step.
    change: may change the gradients of the named weights.
  """
  torch = pytest.importorskip("torch")
  from torch_nets import Muon

  fields, own, others = config.optimizer, [], []
  params = {n: torch.tensor(x, requires_grad=True) for n, x in drawn().items() if groups[LABELS[n]]}
  for name, weight in params.items():
    is_own = fields.name == "muon" and LABELS[name] == "kernel"
    (own if is_own else others).append({"params": [weight], "label": LABELS[name]})
  if fields.name == "adamw":
    parts = dict(lr=1.0, betas=(fields.b1, fields.b2), eps=fields.epsilon)
    optimizer = torch.optim.AdamW(others, **parts)
  else:
    parts = dict(lr=1.0, momentum=fields.momentum, nesterov=fields.nesterov)
    optimizer = torch.optim.SGD(others, **parts)
  muon = Muon(
    [group["params"][0] for group in own],
    momentum=fields.muon_momentum,
    nesterov=fields.nesterov,
    coefficients=fields.muon_coefficients,
    epsilon=fields.muon_epsilon,
    decay=fields.muon_decay,
  )
  for step, rate in enumerate(RATES):
    for name, gradient in gradients_of(step).items():
      if name in params:
        params[name].grad = torch.tensor(gradient)
    change(params)
    for group in optimizer.param_groups:
      factor, group["weight_decay"] = groups[group["label"]]
      is_whiten = group["label"] == "whiten_bias"
      group["lr"] = COLUMNS["whiten_bias_rate"][step] if is_whiten else factor * rate
      if momenta is not None:
        group["momentum"] = momenta[step]
    optimizer.step()
    muon.step(rate, renormalize=COLUMNS["renormalize"][step])
  return {name: weight.detach().numpy() for name, weight in params.items()}
