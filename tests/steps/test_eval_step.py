"""Exact counts on any number of devices, and the views of test-time augmentation.

In float64, where no rounding decides which of two classes or images comes first.
"""

import dataclasses
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import EQUAL
from tolerances import assert_equal as assert_same
from toy import toy_arrays, toy_config, toy_spec

from jaxspeed.data.augment import normalize
from jaxspeed.data.batch import pad_batches, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.precision import accumulation
from jaxspeed.records.predictions import Predictions
from jaxspeed.run.evaluation import predictions_of
from jaxspeed.steps import eval_step
from jaxspeed.steps.init import init_state
from jaxspeed.steps.programs import on_mesh

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

VIEWS = ("center", "flip", "six", "selective")
SEEN = []


class SmallNet(nn.Module):
  """One convolution and a linear layer: its answer changes with every view."""

  @nn.compact
  def __call__(self, x, *, train):
    assert not train
    SEEN.append((len(x), x.dtype))
    masters = accumulation(x.dtype)
    conv = nn.Conv(4, (3, 3), dtype=x.dtype, param_dtype=masters, name="conv")
    x = nn.relu(conv(x)).astype(masters)
    return nn.Dense(10, param_dtype=masters, name="head")(x.reshape(len(x), -1))


def small_job(views, devices=1, **fields):
  spec = toy_spec(
    toy_config(**{"precision": "float64", "eval.mode": views, **fields}), devices=devices
  )
  return dataclasses.replace(spec, model=SmallNet())


def small_variables(spec, seed=0):
  size = spec.config.data.image_size
  return spec.model.init(
    jax.random.key(seed), jnp.zeros((1, size, size, 3), spec.accumulation), train=False
  )


def evaluate(spec, variables, arrays=None):
  arrays = arrays or toy_arrays(spec.config)
  data = pad_batches(
    arrays.eval_images, arrays.eval_labels, batch=spec.plan.eval_batch_size, devices=spec.devices
  )
  program = jax.jit(eval_step.evaluate_on_mesh(spec))
  return program(*mesh_lib.replicate((variables, data), spec.mesh))


def sums_of(*arguments):
  return evaluate(*arguments).sums


def view_logits(spec, variables, images):
  """Logits of the six views of all images at once, [6, n, classes]; moved by NumPy."""
  config = spec.config
  images = np.asarray(normalize(images, config.data.mean, config.data.std, spec.accumulation))
  h, w = images.shape[1:3]
  padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
  apply = jax.jit(lambda x: spec.model.apply(variables, x, train=False))
  moved = (images, padded[:, 0:h, 0:w], padded[:, 2 : 2 + h, 2 : 2 + w])
  return np.stack([apply(x) for view in moved for x in (view, view[:, :, ::-1])])


def logits_by_hand(spec, variables, images):
  x, x_mirrored, *four = view_logits(spec, variables, images).astype(np.float64)
  if spec.config.eval.mode == "center":
    return x
  if spec.config.eval.mode == "flip":
    return (x + x_mirrored) / 2
  if spec.config.eval.mode == "six":
    return 0.5 * (x + x_mirrored) / 2 + 0.5 * sum(four) / 4
  p = np.exp(x - x.max(axis=1, keepdims=True))
  confidence = (p / p.sum(axis=1, keepdims=True)).max(axis=1)
  chosen = np.argsort(confidence, kind="stable")[: len(images) // 4]
  result = x.copy()
  result[chosen] = ((x + x_mirrored + sum(four)) / 6)[chosen]
  return result


def by_hand(spec, variables, arrays=None):
  """Accuracies of all images at once, in NumPy after the net."""
  arrays = arrays or toy_arrays(spec.config)
  logits = logits_by_hand(spec, variables, arrays.eval_images)
  shifted = logits - logits.max(axis=1, keepdims=True)
  log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
  best = np.argsort(-logits, axis=1, kind="stable")
  labels = arrays.eval_labels[:, None]
  return {
    "loss": -np.take_along_axis(log_p, labels, axis=1).mean(),
    "top1": (best[:, :1] == labels).any(axis=1).mean(),
    "top5": (best[:, :5] == labels).any(axis=1).mean(),
  }


def outcomes_by_hand(spec, variables, arrays=None):
  """What each image comes to, in NumPy after the net."""
  arrays = arrays or toy_arrays(spec.config)
  logits = logits_by_hand(spec, variables, arrays.eval_images)
  p = np.exp(logits - logits.max(axis=1, keepdims=True))
  p /= p.sum(axis=1, keepdims=True)
  rows = np.arange(len(logits))
  return Predictions(
    step=9,
    index=rows,
    label=arrays.eval_labels,
    predicted=logits.argmax(axis=1),
    probability=p.max(axis=1),
    loss=-np.log(p[rows, arrays.eval_labels]),
  )


def assert_predictions(evaluated, expected):
  found = predictions_of(evaluated, 9)
  # The counts on the device are exactly those of the images.
  assert int(evaluated.sums.top1) == (found.label == found.predicted).sum()
  assert int(evaluated.sums.count) == len(found.index)
  for name in ("index", "label", "predicted"):
    np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert getattr(found, name).dtype == np.int32
  for name in ("probability", "loss"):
    assert_same(getattr(found, name), getattr(expected, name))


def assert_equal(sums, expected, count):
  assert int(sums.count) == count
  for name, value in sums.means(10).items():
    np.testing.assert_allclose(value, expected[name], rtol=EQUAL, err_msg=name)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("views", VIEWS)
def test_every_image_counts_once(devices, views):
  # 21 images in batches of 4 on one device, of 3 on eight: padding in both.
  spec = small_job(views, devices)
  assert spec.plan.eval_batch_size == (4 if devices == 1 else 3)
  variables = small_variables(spec)
  found = evaluate(spec, variables)
  assert_equal(found.sums, by_hand(spec, variables), 21)
  assert_predictions(found, outcomes_by_hand(spec, variables))


@pytest.mark.parametrize("devices", [1, 8])
def test_the_least_confident_quarter_in_several_batches(devices):
  # A quarter of 203 is 50: four batches of 13 on one device, one of 7 on each of eight.
  spec = small_job("selective", devices, **{"data.eval_images": 203, "eval.batch_size": 16})
  variables = small_variables(spec)
  found = evaluate(spec, variables)
  assert_equal(found.sums, by_hand(spec, variables), 203)
  assert_predictions(found, outcomes_by_hand(spec, variables))


def test_the_net_of_the_recipe_with_its_running_statistics():
  spec = toy_spec(toy_config(**{"precision": "float64", "eval.mode": "flip"}), devices=8)
  init = jax.jit(on_mesh(init_state, spec))
  state = jax.device_get(init(seed_key(0), toy_arrays(spec.config).train_images))
  assert_equal(sums_of(spec, state.evaluated()), by_hand(spec, state.evaluated()), 21)


class Bright(nn.Module):
  """Linear in the pixels, of which black ones count nothing: so of padding it knows nothing."""

  @nn.compact
  def __call__(self, x, *, train):
    return nn.Dense(10, use_bias=False, name="head")(x.reshape(len(x), -1))


def bright_job(devices, **fields):
  plain = {"data.mean": (0.0,) * 3, "data.std": (1.0,) * 3}
  spec = toy_spec(
    toy_config(**{"precision": "float64", "eval.mode": "selective"} | plain | fields),
    devices=devices,
  )
  return dataclasses.replace(spec, model=Bright())


def bright_variables(spec):
  # Sums of integers times 2^-16 are exact, in any order.
  weights = np.random.default_rng(0).integers(-99, 99, size=(3 * 8 * 8, 10)) / 2**16
  return {"params": {"head": {"kernel": weights}}}


@pytest.mark.parametrize("devices", [1, 8])
def test_padding_is_never_among_the_least_confident(devices):
  spec = bright_job(devices)
  variables = bright_variables(spec)
  black = spec.model.apply(variables, np.zeros((1, 8, 8, 3)), train=False)
  np.testing.assert_array_equal(black, np.zeros((1, 10)))
  assert_equal(sums_of(spec, variables), by_hand(spec, variables), 21)


@pytest.mark.parametrize("devices", [1, 8])
def test_of_equally_confident_images_the_first_are_chosen(devices):
  spec = bright_job(devices)
  arrays = toy_arrays(spec.config)
  # One image 21 times, with labels of which the first 5 are others than the last.
  arrays = dataclasses.replace(
    arrays,
    eval_images=np.repeat(arrays.eval_images[:1], 21, axis=0),
    eval_labels=(np.arange(21) // 5).astype(np.int32),
  )
  variables = bright_variables(spec)
  assert_equal(sums_of(spec, variables, arrays), by_hand(spec, variables, arrays), 21)


def test_of_three_images_none_is_chosen():
  fields = {"data.eval_images": 3}
  selective, center = small_job("selective", 8, **fields), small_job("center", 8, **fields)
  variables = small_variables(center)
  expected = sums_of(center, variables)
  jax.tree.map(np.testing.assert_array_equal, sums_of(selective, variables), expected)


@pytest.mark.parametrize("devices", [1, 8])
def test_a_diverged_net_is_never_right_and_every_image_still_counts_once(devices):
  spec = small_job("selective", devices)
  nan = jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), small_variables(spec))
  found = evaluate(spec, nan)
  sums = found.sums
  assert (int(sums.count), int(sums.top1), int(sums.top5)) == (21, 0, 0)
  assert np.isnan(sums.loss)
  predictions = predictions_of(found, 0)
  np.testing.assert_array_equal(predictions.index, np.arange(21))
  assert set(predictions.predicted.tolist()) == {-1}


@pytest.mark.parametrize(
  "views, sizes",
  # 203 images are 13 batches of 16. A quarter, 50, is four of 13 with six views each.
  [("center", [16]), ("flip", [2 * 16]), ("six", [6 * 16]), ("selective", [16, 6 * 13])],
)
def test_the_net_sees_batches_of_equal_size_in_the_precision_of_the_config(views, sizes):
  fields = {"data.eval_images": 203, "eval.batch_size": 16, "precision": "bfloat16"}
  spec = small_job(views, **fields)
  variables, arrays = small_variables(spec), toy_arrays(spec.config)
  data = pad_batches(arrays.eval_images, arrays.eval_labels, batch=16, devices=1)
  SEEN.clear()
  jax.eval_shape(eval_step.evaluate_on_mesh(spec), variables, data)
  assert sorted(set(SEEN)) == [(size, jnp.bfloat16) for size in sizes]


def test_logits_are_weighted_means_over_the_views():
  jobs = [small_job(views) for views in VIEWS]
  variables, data = small_variables(jobs[0]), jobs[0].config.data
  images = toy_arrays(jobs[0].config).eval_images
  normal = normalize(images, data.mean, data.std, np.float64)
  rows = [np.asarray(eval_step.predict_logits(variables, normal, spec=spec)) for spec in jobs]
  a, b, c, d, e, f = view_logits(jobs[0], variables, images)
  expected = [a, (a + b) / 2, (a + b) / 4 + (c + d + e + f) / 8, (a + b + c + d + e + f) / 6]
  assert_same(rows, expected)
  # No two kinds agree, so the tests above can tell them apart.
  for first, second in itertools.combinations(rows, 2):
    assert np.abs(first - second).max() > 0.01


class TestAgainstTorch:
  """The definitions of airbench (tta_level 2) and hiverge in PyTorch, on a net of equal weights."""

  def torch_net(self, variables):
    torch = pytest.importorskip("torch")
    params = jax.tree.map(lambda x: torch.from_numpy(np.array(x)), variables["params"])
    conv, head = params["conv"], params["head"]

    def net(x):
      x = torch.nn.functional.conv2d(
        x, conv["kernel"].permute(3, 2, 0, 1), conv["bias"], padding="same"
      )
      return x.relu().permute(0, 2, 3, 1).flatten(1) @ head["kernel"] + head["bias"]

    return net

  def images_of(self, spec):
    import torch

    arrays, data = toy_arrays(spec.config), spec.config.data
    pixels = torch.from_numpy(arrays.eval_images).permute(0, 3, 1, 2).double()
    mean, std = (torch.tensor(v).double()[:, None, None] for v in (data.mean, data.std))
    return (pixels - mean) / std, torch.from_numpy(arrays.eval_labels).long()

  def corners(self, x):
    import torch

    padded = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")
    return padded[..., :-2, :-2], padded[..., 2:, 2:]

  def six(self, net, x):
    def mirrored(x):
      return (net(x) + net(x.flip(-1))) / 2

    first, last = self.corners(x)
    return (mirrored(x) + (mirrored(first) + mirrored(last)) / 2) / 2

  def plain_mean(self, net, x):
    import torch

    right_way = torch.cat([x, *self.corners(x)])
    return net(torch.cat([right_way, right_way.flip(-1)])).reshape(6, len(x), -1).mean(0)

  def selective(self, net, x):
    logits = net(x)
    confidence = logits.softmax(1).amax(1)
    uncertain = confidence.topk(int(0.25 * len(x)), largest=False).indices
    logits[uncertain] = self.plain_mean(net, x[uncertain])
    return logits

  @pytest.mark.parametrize("views, of_a_batch", [("six", "six"), ("selective", "plain_mean")])
  def test_logits(self, views, of_a_batch):
    spec = small_job(views)
    variables = small_variables(spec)
    net = self.torch_net(variables)
    x, _ = self.images_of(spec)
    logits = eval_step.predict_logits(variables, x.permute(0, 2, 3, 1).numpy(), spec=spec)
    assert_same(logits, getattr(self, of_a_batch)(net, x).numpy())

  @pytest.mark.parametrize("devices", [1, 8])
  @pytest.mark.parametrize("views", ["six", "selective"])
  def test_accuracy_and_loss(self, views, devices):
    spec = small_job(views, devices, **{"data.eval_images": 203, "eval.batch_size": 16})
    variables = small_variables(spec, seed=1)
    net = self.torch_net(variables)
    import torch

    x, labels = self.images_of(spec)
    logits = getattr(self, views)(net, x)
    expected = {
      "loss": float(torch.nn.functional.cross_entropy(logits, labels)),
      "top1": float((logits.argmax(1) == labels).double().mean()),
      "top5": float((logits.topk(5).indices == labels[:, None]).any(1).double().mean()),
    }
    assert_equal(sums_of(spec, variables), expected, 203)
