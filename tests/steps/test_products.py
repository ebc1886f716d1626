"""In which precision each product and convolution of the programs is asked for."""

import collections

import jax
import pytest
from jax import lax
from jax.extend import core
from small_steps import RESNET, small_airbench
from toy import inputs_of, toy_config, toy_spec

from jaxspeed.data.batch import seed_key
from jaxspeed.steps import eval_step
from jaxspeed.steps.init import init_state
from jaxspeed.steps.programs import on_mesh, step_of

PRODUCTS = ("dot_general", "conv_general_dilated")
HIGHEST = (lax.Precision.HIGHEST,) * 2


def equations(jaxpr):
  """Those of a program and of all programs in it, branches for other platforms too."""
  for equation in jaxpr.eqns:
    yield equation
    for value in jax.tree.leaves(
      list(equation.params.values()),
      is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr),
    ):
      if isinstance(value, core.ClosedJaxpr):
        yield from equations(value.jaxpr)
      elif isinstance(value, core.Jaxpr):
        yield from equations(value)


def precisions(function, *arguments):
  """How many products and convolutions ask for which precision."""
  found = equations(jax.make_jaxpr(function)(*arguments).jaxpr)
  return collections.Counter(e.params["precision"] for e in found if e.primitive.name in PRODUCTS)


def resnet50():
  config = toy_config(**{"data.image_size": 32})
  config.model = RESNET | {"depth": 50, "blurpool": True}
  return config


NETS = {
  "resnet9": toy_config,
  "airbench with Muon": lambda: small_airbench("94_muon"),
  "airbench with a proxy": lambda: small_airbench("96_faster"),
  "resnet50": resnet50,
}


def programs(config):
  """The precisions of the training step, the evaluation and the first state of a config."""
  job = toy_spec(config)
  carry, batch, table = inputs_of(job)
  state, row = carry.state, {name: column[0] for name, column in table.items()}
  step = on_mesh(step_of(job), job, kind=job.plan.kind_of(0))
  return (
    precisions(step, state, batch.replace(flip=batch.mask), row),
    precisions(
      eval_step.evaluate_on_mesh(job), state.eval_variables(), batch.replace(index=batch.label)
    ),
    precisions(on_mesh(init_state, job), seed_key(0), batch.image),
  )


@pytest.mark.parametrize("name", NETS)
def test_float32_is_float32_in_every_product_and_tf32_where_a_gpu_makes_it_that(name):
  config = NETS[name]()
  config.precision = "float32"
  full = programs(config)
  config.precision = "tf32"
  fast = programs(config)
  for program, same in zip(full, fast, strict=True):
    assert set(program) == {HIGHEST}
    assert sum(program.values()) == sum(same.values())
  # What asks for more by itself: the covariances of whitening, and of the norms behind 1x1
  # convolutions, which bottlenecks and shortcuts have.
  step, evaluation, init = fast
  assert set(evaluation) == {None} and set(step) <= {None, HIGHEST}
  assert (step[HIGHEST] > 0) == (name == "resnet50") and step[None] > step[HIGHEST] / 2
  assert (init[HIGHEST] > 0) == (name != "resnet50")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_asks_for_nothing(precision):
  step, evaluation, _ = programs(toy_config(precision=precision))
  assert set(step) == set(evaluation) == {None}
