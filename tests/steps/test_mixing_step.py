"""Mixed labels in the step: the loss and gradient of torch's soft targets, on any devices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tolerances import assert_equal
from toy import MIXED, toy_arrays, toy_config

from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.state import TrainState
from jaxspeed.steps.train_step import train_step
from jaxspeed.steps.update import update

ON = MIXED | {"augment.crop_padding": 1, "augment.flip": "random"}


class Linear(nn.Module):
  """Logits that are linear in the pixels: they compile at once, and torch has them too."""

  @nn.compact
  def __call__(self, images, *, train):
    return nn.Dense(10, name="head", param_dtype=images.dtype)(images.reshape(len(images), -1))


def linear_spec(devices=1, **fields):
  config = toy_config(**{"precision": "float64", "average.kind": "none", **fields})
  parts = dict(model=Linear(), optimizer=optax.identity())
  return make_train_spec(
    config, make_plan(config, devices=devices), mesh_lib.make_mesh(devices), **parts
  )


def initial_state(spec):
  kernel = np.random.default_rng(0).normal(size=(192, 10))
  params = {"head": {"bias": np.zeros(10), "kernel": kernel}}
  state = TrainState(
    step=np.int32(0),
    key=seed_key(0),
    params=params,
    batch_stats={},
    opt_state=spec.optimizer.init(params),
    average=None,
    slow=None,
    loss_scale=None,
    proxy=None,
  )
  return mesh_lib.replicate(state, spec.mesh)


@pytest.mark.usefixtures("float64")
def test_the_gradient_is_torchs_of_the_mixed_targets():
  torch = pytest.importorskip("torch")
  spec = linear_spec(accumulate=2, label_smoothing=0.1)
  rng = np.random.default_rng(1)
  images, mask = rng.normal(size=(16, 8, 8, 3)), np.arange(16) < 14
  label, partner = rng.integers(10, size=(2, 16)).astype(np.int32)
  share = rng.random(16)
  state = initial_state(spec)

  def run(state, batch, partner, hyper, share, *, spec):
    return update(state, batch, partner, hyper, share=share, spec=spec, kind=StepKind())

  step = jax.jit(on_mesh(run, spec))
  hyper = {"learning_rate": jnp.float64(1.0)}
  new, sums = step(state, Batch(images, label, mask), partner, hyper, share)

  weight, bias = (torch.tensor(np.array(state.params["head"][n])) for n in ("kernel", "bias"))
  weight.requires_grad_(), bias.requires_grad_()
  logits = torch.tensor(images.reshape(16, -1)) @ weight + bias
  one_hot = np.eye(10)
  target = (1 - share)[:, None] * one_hot[label] + share[:, None] * one_hot[partner]
  loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(logits[:14], torch.tensor(target[:14]))
  loss.backward()
  assert float(sums.loss) / 14 == pytest.approx(loss.item(), rel=1e-12)
  top1 = (logits.argmax(dim=1).numpy() == label)[mask].sum()
  assert (int(sums.count), int(sums.top1)) == (14, top1)
  expected = {
    "kernel": (weight - weight.grad).detach().numpy(),
    "bias": (bias - bias.grad).detach().numpy(),
  }
  assert_equal(dict(new.params["head"]), expected)


class Steps:
  """The first three steps of a spec on 8-pixel images, compiled once."""

  def __init__(self, spec):
    self.spec, self.arrays = spec, toy_arrays(spec.config)
    kind = spec.plan.kind_of(spec.plan.total_steps - 1)
    self.step = jax.jit(on_mesh(train_step, spec, kind=kind, split=(False, True, False)))

  def run(self, mask, padding=0):
    """Parameters and loss sums, with `padding` in the masked pixels."""
    state, losses = initial_state(self.spec), []
    for first in (0, 16, 32):
      own = slice(first, first + 16)
      image = np.where(mask[:, None, None, None], self.arrays.train_images[own], np.uint8(padding))
      label = np.where(mask, self.arrays.train_labels[own], np.int32(padding % 10))
      batch = Batch(image, label, mask, np.arange(16) % 3 == 0)
      state, sums = self.step(state, batch, {"learning_rate": jnp.float64(0.01)})
      losses.append(np.asarray(sums.loss))
    return jax.device_get(state.params), np.array(losses)


MASK = np.arange(16) < 11


@pytest.mark.usefixtures("float64")
def test_one_device_equals_eight_and_padding_is_mixed_into_no_image():
  steps = Steps(linear_spec(**ON, accumulate=2))
  one = steps.run(MASK)
  assert_equal(Steps(linear_spec(8, **ON)).run(MASK), one)
  jax.tree.map(np.testing.assert_array_equal, steps.run(MASK, 255), one)
  assert (np.diff(one[1]) != 0).all()


@pytest.mark.usefixtures("float64")
def test_padding_is_in_no_square_of_cutmix():
  stream = {"data.feed": "stream", "data.last_batch": "keep", "model.whiten": False}
  steps = Steps(linear_spec(**{"augment.cutmix": 3, "augment.cutmix_epochs": 9.0}, **stream))
  jax.tree.map(np.testing.assert_array_equal, steps.run(MASK), steps.run(MASK, 255))
