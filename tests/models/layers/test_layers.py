"""Every layer beside PyTorch's, in its forms for CPUs and GPUs and in its plain one, in float64."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported import shapes_of
from tolerances import assert_close, assert_equal, rounding

from jaxspeed.devices.precision import accumulation
from jaxspeed.errors import UserError
from jaxspeed.models import airbench
from jaxspeed.models.layers import activations, conv, fused_norm, norm, pool, whiten
from jaxspeed.models.layers.plain import FORM
from jaxspeed.models.make import for_device
from jaxspeed.models.resnet import STAGES, ResNet
from jaxspeed.models.resnet9 import ResNet9

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = pytest.mark.equivalence


def random(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


def with_ties(*size):
  """Small whole numbers, none above 0 here and there: most windows hold a tie, at borders too."""
  return np.random.default_rng(0).integers(-2, 2, (2, *size, 3)).astype(np.float64)


def to_torch(x):
  """A leaf that takes a gradient; images are NCHW and kernels OIHW there, NHWC and OHWI here."""
  x = np.asarray(x)
  return torch.tensor((np.moveaxis(x, -1, 1) if x.ndim > 2 else x).copy(), requires_grad=True)


def to_numpy(x):
  x = x.detach().numpy()
  return np.moveaxis(x, 1, -1) if x.ndim > 2 else x


MAPS = random(6, 7, 8, 4)
# Of a negative scale the smallest input is the maximum, and a map stays below 0.
VECTORS = np.asarray([1.0, -2.0, 0.5, 1.5]), np.asarray([0.3, -0.2, -3.0, 0.1])
KERNEL, POINT = random(5, 3, 3, 4, seed=1), random(4, 1, 1, 4, seed=2)
SHORTCUT = random(6, 7, 8, 4, seed=3)
CENTERED = MAPS + VECTORS[1]  # means that are not zero, as behind a ReLU
ZEROS = np.where(MAPS > 0.5, -SHORTCUT, MAPS)  # its sum with SHORTCUT is 0 here and there
BORDER = ((1, 0), (2, 1))


def same(x):
  return x


def added(x, y):
  return functional.relu(x + y)


def bordered(x):
  return functional.pad(x, (*BORDER[1], *BORDER[0]))


def blurred(x, strides):
  line = torch.tensor([1.0, 2.0, 1.0]).double() / 4
  blur = torch.outer(line, line).expand(3, 1, 3, 3)
  return functional.conv2d(x, blur, padding=1, stride=strides, groups=3)


def normalized(x, scale, bias, splits=1):
  """Batch norm of ghost batches."""
  y = torch.empty_like(x)
  for ghost in range(splits):
    part = x[ghost::splits]
    y[ghost::splits] = functional.batch_norm(part, None, None, scale, bias, training=True)
  return y


def convolution(size, channels, features, kernel, strides, padding):
  ours = functools.partial(conv.convolve, strides=strides, padding=padding)
  theirs = functools.partial(functional.conv2d, stride=strides, padding=padding)
  return ours, theirs, random(6, size, size, channels), random(features, kernel, kernel, channels)


def a_norm(splits, activation=None, theirs=same, border=None, maps=MAPS):
  around = same if border is None else bordered
  return (
    lambda *a: norm._norm(*a, splits, 1e-5, activation, border),
    lambda *a: around(theirs(normalized(*a, splits))),
    maps,
    *VECTORS,
  )


def a_norm_after_a_pool(splits, activation, theirs, maps=MAPS):
  return (
    lambda *a: fused_norm._max_pool_norm(*a, splits, 1e-5, activation),
    lambda x, *a: theirs(normalized(functional.max_pool2d(x, 2), *a, splits)),
    maps,
    *VECTORS,
  )


def the_end_of_a_block(conv_fusion):
  return (
    lambda *a: fused_norm._conv1x1_norm(*a, 1e-5, conv_fusion),
    lambda x, k, scale, bias, y: added(normalized(functional.conv2d(x, k), scale, bias), y),
    CENTERED,
    POINT,
    *VECTORS,
    SHORTCUT,
  )


# Name: a function of arrays in all forms, PyTorch's, and the arrays. Of a tuple of results, the
# first has a gradient.
CASES = {
  "3x3": convolution(8, 3, 8, 3, 1, 1),
  "3x3, stride 2": convolution(9, 16, 8, 3, 2, 1),
  "3x3 on a map of 3x3": convolution(3, 6, 8, 3, 1, 1),
  "1x1": convolution(9, 16, 8, 1, 1, 0),
  "1x1, stride 2": convolution(9, 16, 8, 1, 2, 0),
  "2x2 without padding": convolution(9, 3, 12, 2, 1, 0),
  "7x7, stride 2": convolution(16, 3, 8, 7, 2, 3),
  **{
    f"whiten, stride {step}, padding {n}": (
      lambda x, step=step, n=n: whiten._whiten(x, KERNEL, step, n),
      lambda x, step=step, n=n: functional.conv2d(x, to_torch(KERNEL), stride=step, padding=n),
      MAPS,
    )
    for step, n in ((1, 0), (1, 1), (2, 1))
  },
  # PyTorch rounds alpha to float32 for its gradient: 0.25 is the same in both.
  "celu": (lambda x: activations.celu(x, 0.25), lambda x: functional.celu(x, 0.25), 4 * MAPS),
  "gelu": (activations.gelu, functional.gelu, 4 * MAPS),
  "relu": (lambda x, y: activations.relu(x + y), added, ZEROS, SHORTCUT),
  "add, relu": (activations.add_relu, added, ZEROS, SHORTCUT),
  "border": (lambda x: conv.add_border(x, BORDER), bordered, MAPS),
  **{
    f"max pool {n}x{n} of {size}": (
      functools.partial(pool.max_pool, window=n),
      functools.partial(functional.max_pool2d, kernel_size=n),
      with_ties(*size),
    )
    for n, size in ((2, (8, 8)), (2, (31, 9)), (3, (7, 6)), (4, (4, 4)))
  },
  **{
    f"max pool of the stem, {size}": (
      pool.max_pool_3x3,
      functools.partial(functional.max_pool2d, kernel_size=3, stride=2, padding=1),
      with_ties(*size),
    )
    for size in ((8, 8), (7, 10), (1, 1), (2, 3))
  },
  **{
    f"global max pool of {size}": (
      pool.global_max_pool,
      lambda x: x.amax((2, 3)),
      random(2, *size, 4),
    )
    for size in ((3, 5), (16, 16), (17, 17))
  },
  **{
    f"blur of {size}, stride {n}": (
      functools.partial(pool.blur_pool, strides=n),
      functools.partial(blurred, strides=n),
      random(2, *size, 3),
    )
    for size, n in (((8, 8), 1), ((7, 10), 2), ((1, 1), 2), ((2, 3), 2))
  },
  **{
    f"pixels, stride {n}": (
      lambda x, n=n: sum(
        jnp.sin(each).sum() * k for k, each in enumerate(pool.with_strided(x, n), 1)
      ),
      lambda x, n=n: x.sin().sum() + 2 * x[..., ::n, ::n].sin().sum(),
      random(2, 7, 9, 3),
    )
    for n in (2, 3)
  },
  "norm": a_norm(1),
  "norm, relu": a_norm(2, activations.relu, functional.relu),
  "norm, celu, border": a_norm(
    3, functools.partial(activations.celu, alpha=0.25), lambda x: functional.celu(x, 0.25), BORDER
  ),
  # A GPU sums parts of 8, 2 and 1 images.
  **{
    f"norm of {n} images, silu, border": a_norm(
      1, jax.nn.silu, functional.silu, BORDER, random(n, 7, 8, 4)
    )
    for n in (16, 6, 5)
  },
  "max pool, norm": a_norm_after_a_pool(1, None, same),
  "max pool, norm, gelu": a_norm_after_a_pool(3, activations.gelu, functional.gelu),
  "max pool of one pixel, norm, silu": a_norm_after_a_pool(
    2, jax.nn.silu, functional.silu, random(12, 2, 3, 4)
  ),
  "norm, relu, max pool": (
    lambda *a: fused_norm._norm_relu_max_pool(*a, 2, 1e-5),
    lambda *a: functional.max_pool2d(functional.relu(normalized(*a, 2)), 3, 2, 1),
    MAPS,
    *VECTORS,
  ),
  "1x1, norm": (
    lambda *a: fused_norm._conv1x1_norm(*a, None, 1e-5, False),
    lambda x, k, *a: normalized(functional.conv2d(x, k), *a),
    CENTERED,
    POINT,
    *VECTORS,
  ),
  "1x1, norm, add, relu": the_end_of_a_block(conv_fusion=False),
  "1x1, norm, add, relu, with conv_fusion": the_end_of_a_block(conv_fusion=True),
}


def results_of(function, arrays, form):
  """Value, statistics and gradients, the value where no gradient is asked for; and the program."""

  def separated(*arrays):
    token = FORM.set(form)
    found = function(*arrays)
    FORM.reset(token)
    return (found[0], found[1:]) if isinstance(found, tuple) else (found, ())

  @jax.jit
  def run(*arrays):
    y, pull, statistics = jax.vjp(separated, *arrays, has_aux=True)
    return y, statistics, pull(random(*y.shape, seed=9)), separated(*arrays)[0]

  return run(*arrays), str(jax.make_jaxpr(run)(*arrays))


@pytest.mark.parametrize("name", CASES)
def test_a_layer_and_its_gradients_are_torchs_in_every_form(name, monkeypatch):
  function, theirs, *arrays = CASES[name]
  plain, plain_program = results_of(function, arrays, "plain")
  on_cpu, program = results_of(function, arrays, "fused")
  monkeypatch.setattr(jax.lax, "platform_dependent", lambda *a, default, **_: default(*a))
  on_gpu, _ = results_of(function, arrays, "fused")
  assert_equal(on_cpu, plain)
  assert_equal(on_gpu, plain)
  assert program != plain_program
  inputs = [to_torch(x) for x in arrays]
  y = theirs(*inputs)
  y.backward(to_torch(random(*plain[0].shape, seed=9)).detach())
  gradients = tuple(to_numpy(x.grad) for x in inputs)
  assert_equal((plain[0], plain[2], plain[3]), (to_numpy(y), gradients, to_numpy(y)))


@pytest.mark.parametrize(
  "model",
  [
    airbench.Airbench(widths=(8, 8, 8), depth=3),
    ResNet9(width=8, whiten=True, activation="celu", pool_position="before_norm"),
    ResNet(depth=50, width=16, blurpool=True, ghost_splits=2),
  ],
)
def test_the_choice_reaches_every_layer_of_a_model(model, monkeypatch):
  """A layer in its fused form has a derivative, a barrier or a branch of its own."""
  monkeypatch.setitem(STAGES, 50, (2, 2, 1, 1))  # the other blocks repeat these
  variables = shapes_of(model, 32)

  def logits(variables, images):
    chosen = for_device(model, types.SimpleNamespace(platform=device))
    y, updated = chosen.apply(variables, images, train=True, mutable=["batch_stats"])
    return y.sum(), (updated, chosen.apply(variables, images, train=False))

  for device in ("gpu", "tpu"):
    images = jax.ShapeDtypeStruct((4, 32, 32, 3), jnp.float32)
    program = str(jax.make_jaxpr(jax.grad(logits, has_aux=True))(variables, images))
    found = re.search("custom_vjp_call|optimization_barrier|platform_index", program)
    assert bool(found) is (device != "tpu")


@pytest.mark.parametrize("size", [(7, 7), (8, 8), (9, 6), (2, 3)])
def test_a_pool_sees_no_difference_between_a_border_and_padding(size):
  x, kernel = random(2, *size, 4), KERNEL
  border = conv.border_before_pool(x)

  def padded(x, kernel):
    return pool.max_pool(conv.convolve(x, kernel, 1, 1), 2)

  def with_border(x, kernel):
    y = conv.convolve(conv.add_border(x, border), kernel, 1, 0)
    assert y.shape[1:3] == tuple(side // 2 * 2 for side in size)  # only what the pool reads
    return pool.max_pool(y, 2)

  ours, expected = (results_of(each, (x, kernel), "fused")[0] for each in (with_border, padded))
  assert_equal(ours, expected)


def test_max_pools_pass_nans_on():
  for k in range(9):
    x = random(9)
    x[k] = np.nan
    x = x.reshape(1, 3, 3, 1)
    for result in (pool.max_pool(x, 3), pool.max_pool_3x3(x), jax.vjp(pool.max_pool_3x3, x)[0]):
      assert np.isnan(result).any()


def test_a_celu_is_smooth_at_0():
  assert jax.grad(functools.partial(activations.celu, alpha=0.3))(0.0) == 1


# In half precision


def test_max_pool_3x3_keeps_its_dtype_and_sums_in_float32():
  # All of four windows choose the pixel (1, 1); one by one in bfloat16 256 + 1 is 256.
  x = jnp.zeros((1, 4, 4, 1), jnp.bfloat16).at[0, 1, 1, 0].set(1)
  y, pull = jax.vjp(pool.max_pool_3x3, x)
  (grad,) = pull(jnp.array([256, 1, 1, 1], jnp.bfloat16).reshape(1, 2, 2, 1))
  assert y.dtype == grad.dtype == jnp.bfloat16
  assert float(grad[0, 1, 1, 0]) == float(jnp.bfloat16(259))
  assert jnp.count_nonzero(grad) == 1


def test_norm_in_bfloat16_keeps_float32_statistics_and_refuses_a_batch_that_does_not_divide():
  x = jnp.asarray(100 + random(64, 8, 8, 4), jnp.bfloat16)
  layer = norm.Norm(use_running_average=False, train_scale=False)
  variables = layer.init(jax.random.key(0), x)
  assert set(variables["params"]) == {"bias"}
  y, updated = layer.apply(variables, x, mutable=["batch_stats"])
  assert y.dtype == jnp.bfloat16
  exact = np.asarray(x, np.float64)
  # Sums over 64 * 8 * 8 pixels; the variance is 1 beside a squared mean of 10,000.
  terms, stats = 64 * 8 * 8, updated["batch_stats"]
  assert_close(stats["mean"], 0.1 * exact.mean(axis=(0, 1, 2)), terms=terms)
  variance = 0.9 + 0.1 * exact.var(axis=(0, 1, 2), ddof=1)
  np.testing.assert_allclose(stats["var"], variance, atol=0.1 * 10_000 * rounding(terms))
  with pytest.raises(UserError, match="64, does not divide into 3"):
    norm.Norm(use_running_average=False, splits=3).init(jax.random.key(0), x)


def test_sums_in_float16_are_those_of_float64():
  """Each of them computes its own derivative there."""
  grad = random(*MAPS.shape, seed=1)

  def sums(dtype):
    images, of_result = (each.astype(jnp.float16).astype(dtype) for each in (MAPS, grad))
    vectors = (each.astype(accumulation(dtype)) for each in VECTORS)
    _, kept = norm.normalize_forward(images, *vectors, 2, 1e-5, jax.nn.silu)
    return norm.gradient_sums(images, of_result, kept, 2, jax.nn.silu)

  for half, whole in zip(sums(jnp.float16), sums(jnp.float64), strict=True):
    assert_close(half, whole, terms=MAPS.size)  # all but the images is in float32
