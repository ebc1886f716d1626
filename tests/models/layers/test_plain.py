"""The plain forms of layers beside the fused ones, values and gradients, in float64."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_equal

from jaxspeed.models import airbench
from jaxspeed.models.layers import activations, conv, fused_norm, norm, pool, whiten
from jaxspeed.models.layers.plain import FORM
from jaxspeed.models.make import for_device
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.resnet9 import ResNet9

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]


def random(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


MAPS = random(6, 7, 8, 4)
# Of a negative scale the smallest input is the maximum, and a map stays below 0.
VECTORS = np.asarray([1.0, -2.0, 0.5, 1.5]), np.asarray([0.3, -0.2, -3.0, 0.1])
KERNEL, POINT = random(5, 3, 3, 4, seed=1), random(4, 1, 1, 4, seed=2)
SHORTCUT = random(6, 7, 8, 4, seed=3)

# Name: a function of arrays in the two forms, and the arrays. Of a tuple of results, the first
# has a gradient.
CASES = {
  "convolve": (lambda x, k: conv.convolve(x, k, 2, 1), MAPS, KERNEL),
  "convolve a small map": (lambda x, k: conv.convolve(x, k, 1, 1), MAPS[:, :3, :3], KERNEL),
  "whiten": (lambda x: whiten._whiten(x, KERNEL, 1), MAPS),
  "celu": (lambda x: activations.celu(x, 0.3), MAPS),
  "relu": (activations.relu, MAPS),
  "gelu": (activations.gelu, MAPS),
  "add, relu": (activations.add_relu, MAPS, SHORTCUT),
  "border": (lambda x: conv.add_border(x, ((1, 0), (1, 1))), MAPS),
  "max pool": (lambda x: pool.max_pool(x, 2), MAPS),
  "max pool 3x3": (pool.max_pool_3x3, MAPS),
  "global max pool": (pool.global_max_pool, MAPS),
  "global max pool of a large map": (pool.global_max_pool, random(2, 17, 17, 3)),
  "strided": (lambda x: sum(each.sum() for each in pool.with_strided(x, 2)), MAPS),
  "blur": (lambda x: pool.blur_pool(x, 2), MAPS),
  "norm": (lambda *a: norm._norm(*a, 2, 1e-5, jax.nn.silu, ((1, 0), (2, 1))), MAPS, *VECTORS),
  "norm alone": (lambda *a: norm._norm(*a, 1, 1e-5, None, None), MAPS, *VECTORS),
  "max pool, norm": (
    lambda *a: fused_norm._max_pool_norm(*a, 3, 1e-12, activations.gelu),
    MAPS,
    *VECTORS,
  ),
  "norm, relu, max pool": (
    lambda *a: fused_norm._norm_relu_max_pool(*a, 2, 1e-5),
    MAPS,
    *VECTORS,
  ),
  "1x1, norm": (
    lambda x, k, s, b: fused_norm._conv1x1_norm(x, k, s, b, None, 1e-5, False),
    MAPS + VECTORS[1],  # means that are not zero, as behind a ReLU
    POINT,
    *VECTORS,
  ),
  **{
    f"1x1, norm, add, relu, conv_fusion={fusion}": (
      lambda *a, fusion=fusion: fused_norm._conv1x1_norm(*a, 1e-5, fusion),
      MAPS + VECTORS[1],
      POINT,
      *VECTORS,
      SHORTCUT,
    )
    for fusion in (False, True)
  },
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_and_its_gradients_are_those_of_its_plain_form(name):
  function, *arrays = CASES[name]

  def results(form):
    def separated(*arrays):
      token = FORM.set(form)
      found = function(*arrays)
      FORM.reset(token)
      return (found[0], found[1:]) if isinstance(found, tuple) else (found, ())

    @jax.jit
    def run(*arrays):
      y, pull, statistics = jax.vjp(separated, *arrays, has_aux=True)
      return y, statistics, pull(random(*y.shape, seed=4))

    return run(*arrays), str(jax.make_jaxpr(run)(*arrays))

  (fused, fused_program), (plain, plain_program) = results("fused"), results("plain")
  assert_equal(fused, plain)
  assert fused_program != plain_program


MODELS = {
  "airbench94": airbench.Airbench(widths=(8, 8, 8)),
  "airbench96": airbench.Airbench(widths=(8, 8, 8), depth=3),
  "celu": ResNet9(width=8, whiten=True, activation="celu", pool_position="before_norm"),
  "ghosts": ResNet9(width=8, pool_position="before_activation", ghost_splits=2),
  "basic blocks": ResNet(depth=18, width=16),
  "bottlenecks": ResNet(depth=50, width=16),
  "blurred": ResNet(depth=50, width=16, blurpool=True, ghost_splits=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_choice_reaches_every_layer_of_a_model(name):
  """A layer in its fused form has a derivative, a barrier or a branch of its own."""
  images = jax.ShapeDtypeStruct((4, 32, 32, 3), jnp.float32)

  def program(device):
    model = for_device(MODELS[name], types.SimpleNamespace(platform=device))
    init = functools.partial(model.init, train=False)
    variables = jax.eval_shape(init, jax.random.key(0), images)

    def logits(variables, images):
      y, updated = model.apply(variables, images, train=True, mutable=["batch_stats"])
      return y.sum(), (updated, model.apply(variables, images, train=False))

    return str(jax.make_jaxpr(jax.grad(logits, has_aux=True))(variables, images))

  for device in ("cpu", "gpu", "tpu"):
    found = re.search("custom_vjp_call|optimization_barrier|platform_index", program(device))
    assert bool(found) is (device != "tpu")
