"""The nets of CIFAR-10 and their first weights against transcriptions of the published ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported import computed_by, shapes_of
from tolerances import assert_equal
from toy import drawn

from jaxspeed.models import airbench
from jaxspeed.models.airbench import Airbench
from jaxspeed.models.layers.whiten import whitening_kernel
from jaxspeed.models.resnet9 import ResNet9

torch = pytest.importorskip("torch")
import torch_nets as nets  # noqa: E402 (it needs torch)
from torch_nets import arrays, nchw, tensors  # noqa: E402

functional = torch.nn.functional

pytestmark = pytest.mark.equivalence

Wide = functools.partial(Airbench, widths=(8, 16, 16), dtype=jnp.float64)
Nine = functools.partial(ResNet9, width=8, dtype=jnp.float64)
WHITENED = dict(
  pool_position="before_norm", activation="celu", celu_alpha=0.3, whiten=True, head_scale=1 / 16
)
NETS = {
  "airbench94": Wide(),
  "hiverge": Wide(activation="silu", head_unit_std=True, head_scale=1 / 16, norm_momentum=0.5566),
  "airbench96": Wide(widths=(24, 16, 32), depth=3, norm_momentum=0.9),
  "hlb": Wide(widths=(8, 16, 32), whiten_bias="none", init_method="dirac_added"),
  "resnet9": Nine(),
  "resnet9_pool_before_activation": Nine(pool_position="before_activation"),
  "resnet9_whitened_celu": Nine(**WHITENED),
  "airbench96 in plain layers": Wide(widths=(8, 16, 16), depth=3, layers="plain"),
  "resnet9 in plain layers": Nine(**WHITENED, layers="plain"),
}


def logits_of_torch(model, params, stats, x, *, train):
  if isinstance(model, Airbench):
    return nets.airbench_logits(model, params, stats, x, train=train)
  return nets.resnet9_logits(model, params, [stats], x, train=train)


@pytest.mark.parametrize("name", NETS)
def test_the_net_its_gradients_and_its_statistics_are_the_published_ones(name):
  model, rng, labels = NETS[name], np.random.default_rng(0), np.arange(12) % 10
  images = rng.standard_normal((12, 16, 16, 3))
  variables = drawn(shapes_of(model, 16, dtype=np.float64), rng)
  ours = computed_by(model, variables, images, labels)
  weights = tensors(variables["params"], gradients=True)
  stats = tensors(variables["batch_stats"])
  logits = logits_of_torch(model, weights, stats, nchw(images), train=False)
  assert_equal(ours["evaluated"], logits.detach().numpy())
  logits = logits_of_torch(model, weights, stats, nchw(images), train=True)
  functional.cross_entropy(logits, torch.tensor(labels)).backward()
  assert_equal(ours["logits"], logits.detach().numpy())
  assert_equal(ours["stats"], arrays(stats))
  if "whiten" in ours["grads"]:
    assert not np.asarray(ours["grads"]["whiten"].pop("kernel")).any()
    del weights["whiten"]["kernel"]
  assert_equal(ours["grads"], arrays(jax.tree.map(lambda x: x.grad, weights)))


@pytest.mark.parametrize("shape", [(64, 3, 3, 24), (16, 3, 3, 16), (16, 3, 3, 24)])
def test_dirac_init_passes_the_first_channels_on(shape):
  kernel = np.asarray(airbench.dirac_init(jax.random.key(1), shape))
  filters, inputs = shape[0], shape[3]
  theirs = torch.nn.init.dirac_(torch.empty(min(filters, inputs), inputs, 3, 3))
  np.testing.assert_array_equal(kernel[:inputs].transpose(0, 3, 1, 2), theirs)
  rest = kernel[inputs:]
  bound = (inputs * 9) ** -0.5  # U(+-1/sqrt(fan_in))
  if rest.size:
    assert bound * 0.99 < np.abs(rest).max() <= bound
    assert rest.std() == pytest.approx(bound / 3**0.5, rel=0.02)


def test_dirac_added_init_keeps_mean_and_spread_and_the_head_starts_with_a_spread_of_one():
  key, shape = jax.random.key(1), (64, 3, 3, 24)
  plain = np.asarray(airbench.conv_init(key, shape, np.float64))
  kernel = np.asarray(airbench.dirac_added_init(key, shape, np.float64))
  assert (kernel.mean(), kernel.std()) == pytest.approx((plain.mean(), plain.std()), abs=1e-11)
  # What was added is 1 in the middle of 24 filters, before the spread is brought back.
  factor = plain.std() / (plain + np.asarray(airbench.dirac(shape))).std()
  added = (kernel - plain * factor)[np.arange(24), 1, 1, np.arange(24)]
  np.testing.assert_allclose(added, factor, atol=0.01)
  head = np.asarray(airbench.unit_std_init(key, (256, 10), np.float64))
  assert head.std(ddof=1) == pytest.approx(1, rel=1e-11)
  assert np.abs(head).max() < 1.8  # uniform: sqrt(3)


@pytest.mark.parametrize("whiten_bias", ["none", "zero", "uniform"])
def test_the_whitening_bias_starts_as_published(whiten_bias):
  model = Airbench(widths=(4, 4, 4), whiten_bias=whiten_bias)
  init = jax.jit(functools.partial(model.init, train=False))
  whiten = init(jax.random.key(0), np.zeros((1, 16, 16, 3)))["params"]["whiten"]
  assert ("bias" in whiten) is (whiten_bias != "none")
  bias = np.asarray(whiten.get("bias", 0))
  assert np.abs(bias).max() <= (12**-0.5 if whiten_bias == "uniform" else 0)
  assert whiten_bias != "uniform" or bias.min() < -0.2 or bias.max() > 0.2


@pytest.mark.parametrize(
  "filters, patch, epsilon, centered, count",
  [
    (27, 3, 1e-2, False, 300),  # cifar10-fast; 300 images end in an unfilled chunk
    (24, 2, 5e-4, False, 40),  # airbench
    (24, 2, 5e-4, True, 40),  # hlb
  ],
)
def test_the_whitening_layer_is_the_published_one_up_to_signs(
  filters, patch, epsilon, centered, count
):
  """Eigenvectors of the patches' covariance over sqrt(value + epsilon), and their negatives."""
  noise = np.random.default_rng(0).standard_normal((count, 12, 12, 3))
  # Neighbouring pixels correlate, as in photographs.
  images = noise + np.roll(noise, 1, 1) + np.roll(noise, 1, 2) + 0.5
  fields = dict(filters=filters, patch=patch, epsilon=epsilon, centered=centered)
  kernel = jax.jit(functools.partial(whitening_kernel, **fields))(images)
  size = 3 * patch * patch
  ours = nchw(kernel).reshape(filters, size)
  windows = nchw(images).unfold(2, patch, 1).unfold(3, patch, 1).permute(0, 2, 3, 1, 4, 5)
  patches = windows.reshape(-1, size)
  if centered:
    patches = patches - patches.mean(0)
  values, vectors = torch.linalg.eigh(patches.T @ patches / (len(patches) - 1))
  theirs = (vectors / torch.sqrt(values + epsilon)).T.flip(0)
  # Signs of eigenvectors are free; and each is in both halves.
  signs = torch.sign((ours[:size] * theirs).sum(1, keepdim=True))
  assert_equal((ours[:size] * signs).numpy(), theirs.numpy(), 1e-9)
  np.testing.assert_array_equal(ours[size:], -ours[: filters - size])
