"""Exact counts on any number of devices, and the views of test-time augmentation.

In float64, where no rounding decides which of two classes or images comes first.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import EQUAL, assert_equal
from toy import toy_arrays, toy_config, toy_spec

from jaxspeed.data.batch import pad_batches
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.run.evaluation import predictions_of
from jaxspeed.steps import eval_step

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.equivalence

VIEWS = ("center", "flip", "six", "selective")


class Net(nn.Module):
  """Linear in the pixels: its answer changes with every view, and padding is nothing to it."""

  dtype: type = jnp.float64

  @nn.compact
  def __call__(self, x, *, train):
    assert not train and x.dtype == self.dtype
    head = nn.Dense(10, use_bias=False, dtype=x.dtype, name="head")
    return head(x.reshape(len(x), -1))


# Sums of integers times 2^-16 are exact, in any order.
KERNEL = np.random.default_rng(0).integers(-99, 99, size=(3 * 8 * 8, 10)) / 2**16
VARIABLES = {"params": {"head": {"kernel": KERNEL}}}


def spec_of(views, devices=1, **fields):
  plain = {"precision": "float64", "data.mean": (0.0,) * 3, "data.std": (1.0,) * 3}
  config = toy_config(**{"eval.mode": views} | plain | fields)
  return dataclasses.replace(toy_spec(config, devices=devices), model=Net())


def evaluate(spec, arrays, variables=VARIABLES):
  size = spec.plan.eval_batch_size * spec.devices
  data = pad_batches(arrays.eval_images, arrays.eval_labels, size)
  program = jax.jit(eval_step.evaluate_on_mesh(spec))
  return program(*mesh_lib.replicate((variables, data), spec.mesh))


def torch_logits(images, views):
  """The definitions of airbench (tta_level 2) and hiverge in PyTorch; "mean" is of six views."""

  def net(x):
    return x.permute(0, 2, 3, 1).flatten(1) @ torch.tensor(KERNEL)

  x = torch.from_numpy(images).permute(0, 3, 1, 2).double()
  padded = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")
  parts = (x, padded[..., :-2, :-2], padded[..., 2:, 2:])
  flipped, first, last = ((net(each) + net(each.flip(-1))) / 2 for each in parts)
  mean = (flipped + first + last) / 3
  if views == "selective":
    logits = net(x)
    confidence = logits.softmax(1).amax(1)
    # As topk(largest=False), of equals the first.
    uncertain = confidence.argsort(stable=True)[: int(0.25 * len(x))]
    logits[uncertain] = mean[uncertain]
    return logits
  six = (flipped + (first + last) / 2) / 2
  return {"center": net(x), "flip": flipped, "six": six, "mean": mean}[views]


def assert_evaluated(found, arrays, views):
  """The sums and each image's outcome are those of PyTorch's logits of all images at once."""
  logits, labels = torch_logits(arrays.eval_images, views), torch.tensor(arrays.eval_labels).long()
  losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
  best = logits.argsort(dim=1, descending=True, stable=True)
  sums = found.sums
  assert int(sums.count) == len(labels)
  assert int(sums.top1) == (best[:, 0] == labels).sum()
  assert int(sums.top5) == (best[:, :5] == labels[:, None]).any(1).sum()
  np.testing.assert_allclose(sums.loss, losses.sum(), rtol=EQUAL)
  images = predictions_of(found, 9)
  for values, expected in (
    (images.index, np.arange(len(labels))),
    (images.label, arrays.eval_labels),
    (images.predicted, best[:, 0]),
  ):
    np.testing.assert_array_equal(values, expected)
    assert values.dtype == np.int32
  assert_equal(
    (images.probability, images.loss), (logits.softmax(1).amax(1).numpy(), losses.numpy())
  )


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(
  "views, images, batch",
  [
    # Batches of 4 on one device, of 3 on eight: padding in both.
    *((views, 21, 4) for views in VIEWS),
    # A quarter is 50: four batches of 13 on one device, one of 7 on each of eight.
    ("six", 203, 16),
    ("selective", 203, 16),
    ("selective", 3, 4),  # of which none is chosen
  ],
)
def test_every_image_counts_once(views, images, batch, devices):
  spec = spec_of(views, devices, **{"data.eval_images": images, "eval.batch_size": batch})
  assert spec.plan.eval_batch_size == min(batch, -(-images // devices))
  arrays = toy_arrays(spec.config)
  assert_evaluated(evaluate(spec, arrays), arrays, views)


@pytest.mark.parametrize("devices", [1, 8])
def test_of_equally_confident_images_the_first_are_chosen(devices):
  spec = spec_of("selective", devices)
  arrays = toy_arrays(spec.config)
  # One image 21 times, with labels of which the first 5 are others than the last.
  arrays = dataclasses.replace(
    arrays,
    eval_images=np.repeat(arrays.eval_images[:1], 21, axis=0),
    eval_labels=(np.arange(21) // 5).astype(np.int32),
  )
  assert_evaluated(evaluate(spec, arrays), arrays, "selective")


@pytest.mark.parametrize("devices", [1, 8])
def test_a_diverged_net_is_never_right_and_every_image_still_counts_once(devices):
  spec = spec_of("selective", devices)
  nan = jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), VARIABLES)
  found = evaluate(spec, toy_arrays(spec.config), nan)
  sums = found.sums
  assert (int(sums.count), int(sums.top1), int(sums.top5)) == (21, 0, 0)
  assert np.isnan(sums.loss)
  predictions = predictions_of(found, 0)
  np.testing.assert_array_equal(predictions.index, np.arange(21))
  assert set(predictions.predicted.tolist()) == {-1}


@pytest.mark.parametrize(
  "views, of_a_batch",
  [("center", "center"), ("flip", "flip"), ("six", "six"), ("selective", "mean")],
)
def test_predicted_logits_are_torchs(views, of_a_batch):
  spec = spec_of(views)
  images = toy_arrays(spec.config).eval_images
  logits = eval_step.logits_of(VARIABLES, images.astype(np.float64), views, spec=spec)
  assert_equal(logits, torch_logits(images, of_a_batch).numpy())
  # No two kinds agree, so the tests above can tell them apart.
  others = [torch_logits(images, other) for other in (*VIEWS, "mean") if other != of_a_batch]
  assert min(np.abs(logits - other.numpy()).max() for other in others) > 0.01


def test_an_evaluation_is_in_the_precision_of_the_config():
  spec = spec_of("selective", precision="bfloat16")
  spec = dataclasses.replace(spec, model=Net(jnp.bfloat16))
  arrays = toy_arrays(spec.config)
  data = pad_batches(arrays.eval_images, arrays.eval_labels, 4)
  jax.eval_shape(eval_step.evaluate_on_mesh(spec), VARIABLES, data)
