"""Losses, accuracies and predictions against NumPy, and the update against PyTorch's: mixed labels,
class weights, masks and micro-batches.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy
from tolerances import assert_close, assert_equal
from toy import MIXED, LinearNet, inputs_of, toy_arrays, toy_config

from jaxspeed.data.batch import Batch, class_weights
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.losses import MetricSums, cross_entropy, masked_sums
from jaxspeed.steps.outcomes import outcomes_of
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.train_step import train_step, update

NAN, INF = np.nan, np.inf


def some_logits(n=16, classes=10):
  rng = np.random.default_rng(0)
  return 3 * rng.standard_normal((n, classes)), rng.integers(classes, size=n).astype(np.int32)


def one_hot(labels, dtype=jnp.float32, classes=10):
  return jax.nn.one_hot(jnp.asarray(labels), classes, dtype=dtype)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_cross_entropy_and_class_weights_are_float32(dtype):
  logits, labels = some_logits()
  logits[0, 0] = 1e4
  half, weights = jnp.asarray(logits, dtype), np.geomspace(1e5, 1e-5, 10)  # 1e5 is no float16
  losses = cross_entropy(half, one_hot(labels), 0.0, weights)
  assert losses.dtype == jnp.float32
  log_p = scipy.special.log_softmax(np.asarray(half, np.float64), axis=1)
  expected = -weights[labels] * log_p[np.arange(16), labels]
  for name in (labels > 4, labels <= 4):
    assert_close(np.asarray(losses)[name], expected[name], terms=2 * 10)


@jax.jit
def found(logits, labels, mask):
  index = jnp.arange(len(labels), dtype=jnp.int32)
  losses = cross_entropy(logits, one_hot(labels, classes=logits.shape[-1]))
  batch = Batch(image=jnp.zeros(0), label=labels, mask=mask, index=index)
  return outcomes_of(logits, losses, batch), masked_sums(logits, losses, labels, mask)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_an_image_is_right_just_where_top1_counts_it(dtype):
  # Few values, so ties are many, some of them NaN or infinite.
  rng = np.random.default_rng(0)
  values, p = [-INF, -1.0, 0.0, 0.5, 1.0, INF, NAN], [0.03, 0.3, 0.3, 0.2, 0.11, 0.03, 0.03]
  logits, labels = rng.choice(values, size=(4000, 6), p=p), rng.integers(6, size=4000)
  mask = rng.random(len(labels)) < 0.8
  arguments = jnp.asarray(logits, dtype), jnp.asarray(labels, jnp.int32), jnp.asarray(mask)
  outcomes, sums = jax.device_get(found(*arguments))
  np.testing.assert_array_equal(outcomes.index, np.where(mask, np.arange(4000), -1))
  right = outcomes.predicted == outcomes.label
  assert sums.top1 == right[mask].sum() > 200
  # One by one, too: a sum of two mistakes could agree.
  for value in (True, False):
    some = jnp.asarray(mask & (right == value))
    assert found(*arguments[:2], some)[1].top1 == (mask & right).sum() * value
  largest = logits.max(axis=1)  # NaN if there is one
  finite = np.isfinite(largest)
  assert 0.4 < finite.mean() < 0.9
  np.testing.assert_array_equal(outcomes.predicted[~finite], -1)
  np.testing.assert_array_equal(outcomes.predicted[finite], logits[finite].argmax(axis=1))


@pytest.mark.parametrize(
  "logits, label, expected",
  [
    # A constant answer is right for class 0 alone, and "in the first five" for five classes.
    *(([0] * 10, label, (label == 0, label < 5)) for label in (0, 1, 4, 5, 9)),
    *(([0, 2, 2, 1], label, (label == 1, True)) for label in range(4)),
    # A label beside a NaN is never first. PyTorch's topk likewise puts a NaN before every number.
    ([NAN] * 10, 0, (False, False)),
    ([NAN, *[1] * 9], 0, (False, False)),
    ([1, NAN, *[0] * 8], 0, (False, True)),
    ([1, *[NAN] * 5], 0, (False, False)),
    # An infinite logit of the label is never right, and those of others count as numbers.
    ([INF, 1, 0, 0, 0, 0], 0, (False, False)),
    ([0, -INF, 0, -1, -INF, -INF], 0, (True, True)),
  ],
)
def test_ties_and_what_is_not_finite(logits, label, expected):
  labels = jnp.asarray([label], jnp.int32)
  sums = masked_sums(jnp.float32([logits]), jnp.zeros(1), labels, jnp.ones(1, bool))
  assert (bool(sums.top1), bool(sums.top5)) == expected


def test_sums_add_field_by_field_and_divide_when_read():
  sums = MetricSums(jnp.float32(3.0), jnp.int32(1), jnp.int32(2), jnp.int32(4))
  # Of five classes or fewer there is no top-5.
  for classes, top5 in ((2, {}), (5, {}), (6, {"top5": 0.75})):
    means = (sums + sums.replace(top5=jnp.int32(4))).means(classes)
    assert means == {"loss": 0.75, "top1": 0.25} | top5
  zero = MetricSums.zero()
  # The types of the carry must be those that a step returns, or a second program is compiled.
  assert jax.tree.map(lambda x: x.dtype, zero + sums) == jax.tree.map(lambda x: x.dtype, zero)
  assert (zero + sums).means(10) == sums.means(10)
  assert all(np.isnan(value) for value in zero.means(10).values())
  nothing = jnp.full((1, 10), NAN), jnp.full(1, NAN), jnp.zeros(1, jnp.int32), jnp.zeros(1, bool)
  assert jax.tree.leaves(masked_sums(*nothing)) == [0] * 4
  # An array of JAX's would compile a program.
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(zero))


# The update


COUNTS = np.array([2, 40, 1, 3, 5, 0, 8, 13, 21, 34])
WEIGHTED = {"data.balance": "weights"}
SMOOTHING, SHARE, RATE = 0.1, 0.3, 0.5
SHARES = np.random.default_rng(2).random(16)


def linear_spec(devices=1, **fields):
  config = toy_config(**{"precision": "float64", "average.kind": "none"} | fields)
  dtype = jnp.dtype(config.precision)
  parts = dict(model=LinearNet(dtype=dtype), optimizer=optax.identity(), class_counts=COUNTS)
  mesh = mesh_lib.make_mesh(devices)
  return make_train_spec(config, make_plan(config, devices=devices), mesh, **parts)


def some_batch(share=SHARE, dtype=np.float64):
  rng = np.random.default_rng(1)
  images = rng.standard_normal((16, 8, 8, 3)).astype(dtype)
  label, partner = rng.integers(10, size=(2, 16)).astype(np.int32)
  weight = np.broadcast_to(share, 16).astype(np.float64 if dtype == np.float64 else np.float32)
  mask = np.arange(16) % 5 != 0
  return Batch(images, label, mask, partner=partner, partner_weight=weight)


@pytest.mark.equivalence
@pytest.mark.parametrize(
  "devices, accumulate, share, fields",
  [
    (1, 1, 0.0, WEIGHTED),
    (8, 1, SHARE, WEIGHTED),
    (2, 4, 0.0, WEIGHTED),
    (1, 2, SHARES, WEIGHTED),
    (1, 2, SHARES, {}),
  ],
)
def test_a_step_is_torchs(devices, accumulate, share, fields):
  torch = pytest.importorskip("torch")
  spec = linear_spec(devices, accumulate=accumulate, label_smoothing=SMOOTHING, **fields)
  batch = some_batch(share)
  state = inputs_of(spec)[0].state
  step = on_mesh(update, spec, kind=StepKind(), split=(False, True, False))
  own = mesh_lib.split(batch, spec.mesh)
  new, sums = jax.jit(step)(state, own, {"learning_rate": jnp.float64(RATE)})

  before, kept = state.params["head"], batch.mask
  kernel, bias = (torch.tensor(np.array(before[n]), requires_grad=True) for n in ("kernel", "bias"))
  logits = torch.tensor(batch.image[kept].reshape(kept.sum(), -1)) @ kernel + bias
  weights = torch.tensor(class_weights(COUNTS)) if fields else torch.ones(10).double()
  shares = torch.tensor(batch.partner_weight[kept])
  total, norm = 0.0, 0.0
  for labels, part in ((batch.label, 1 - shares), (batch.partner, shares)):
    target = torch.tensor(labels[kept]).long()
    losses = torch.nn.functional.cross_entropy(
      logits, target, weight=weights, label_smoothing=SMOOTHING, reduction="none"
    )
    total, norm = total + (part * losses).sum(), norm + (part * weights[target]).sum()
  if not fields:
    own, mixed = (torch.eye(10)[each[kept]].double() for each in (batch.label, batch.partner))
    target = (1 - shares)[:, None] * own + shares[:, None] * mixed
    soft = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)(logits, target)
    assert_equal((total / norm).detach().numpy(), soft.detach().numpy())
  (total / norm).backward()
  for name, each in (("kernel", kernel), ("bias", bias)):
    moved = np.asarray(before[name]) - RATE * each.grad.numpy()
    assert_equal(np.asarray(new.params["head"][name]), moved)
  assert_equal(np.asarray(sums.loss), total.detach().numpy())
  top1 = (logits.argmax(dim=1).numpy() == batch.label[kept]).sum()
  assert (int(sums.count), int(sums.top1)) == (kept.sum(), top1)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_in_half_precision_parameters_and_weighted_losses_are_float32(precision):
  spec = linear_spec(precision=precision, **WEIGHTED)
  step = on_mesh(update, spec, kind=StepKind())
  # Strict promotion (conftest.py) refuses to mix dtypes unseen.
  row = {"learning_rate": np.float32(RATE)}
  batch = some_batch(dtype=jnp.dtype(precision))
  new, sums = jax.eval_shape(step, inputs_of(spec)[0].state, batch, row)
  assert new.params["head"]["kernel"].dtype == sums.loss.dtype == np.float32


def test_gradients_are_summed_in_the_dtype_of_the_config():
  spec = linear_spec(2, precision="float32", **{"allreduce.dtype": "bfloat16"})
  step = on_mesh(update, spec, kind=StepKind(), split=(False, True, False))
  row = {"learning_rate": np.float32(RATE)}
  program = jax.make_jaxpr(step)(inputs_of(spec)[0].state, some_batch(dtype=np.float32), row)
  assert re.search(r"bf16\[\d+\][^\n]* = psum", str(program))


class Steps:
  """The first three steps of a spec on 8-pixel images, compiled once."""

  def __init__(self, spec):
    self.spec, self.arrays = spec, toy_arrays(spec.config)
    kind = spec.plan.kind_of(spec.plan.total_steps - 1)
    self.step = jax.jit(on_mesh(train_step, spec, kind=kind, split=(False, True, False)))

  def run(self, padding=0):
    """Parameters and loss sums, with `padding` in the masked pixels."""
    state, losses, mask = inputs_of(self.spec)[0].state, [], np.arange(16) < 11
    for first in (0, 16, 32):
      own = slice(first, first + 16)
      image = np.where(mask[:, None, None, None], self.arrays.train_images[own], np.uint8(padding))
      label = np.where(mask, self.arrays.train_labels[own], np.int32(padding % 10))
      batch = Batch(image, label, mask, np.arange(16) % 3 == 0)
      state, sums = self.step(state, batch, {"learning_rate": jnp.float64(0.01)})
      losses.append(np.asarray(sums.loss))
    return jax.device_get(state.params), np.array(losses)


@pytest.mark.usefixtures("float64")
def test_one_device_equals_eight_and_padding_is_mixed_into_no_image():
  mixed = MIXED | {"augment.crop_padding": 1, "augment.flip": "random"}
  steps = Steps(linear_spec(**mixed, accumulate=2))
  one = steps.run()
  assert_equal(Steps(linear_spec(8, **mixed)).run(), one)
  jax.tree.map(np.testing.assert_array_equal, steps.run(255), one)
  assert (np.diff(one[1]) != 0).all()


@pytest.mark.usefixtures("float64")
def test_padding_is_in_no_square_of_cutmix():
  stream = {"data.feed": "stream", "data.last_batch": "keep", "model.whiten": False}
  steps = Steps(linear_spec(**{"augment.cutmix": 3, "augment.cutmix_epochs": 9.0}, **stream))
  jax.tree.map(np.testing.assert_array_equal, steps.run(), steps.run(255))
