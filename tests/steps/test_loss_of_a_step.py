"""Mixed labels, class weights, masks and micro-batches in the update: the step of torch."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tolerances import assert_equal
from toy import MIXED, LinearNet, inputs_of, toy_arrays, toy_config

from jaxspeed.data.balance import class_weights
from jaxspeed.data.batch import Batch
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.train_step import train_step, update

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
@pytest.mark.usefixtures("float64")
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
