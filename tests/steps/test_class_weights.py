"""Class weights in the update: PyTorch's weighted mean, over devices, micro-batches and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tolerances import assert_close, assert_equal
from toy import LinearNet, toy_arrays, toy_config

from jaxspeed.data.balance import class_weights
from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import smoothed_cross_entropy
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.update import update

SMOOTHING, SHARE, RATE = 0.1, 0.3, 0.5
COUNTS = np.array([2, 40, 1, 3, 5, 0, 8, 13, 21, 34])


def spec_of(precision, devices, accumulate=1):
  config = toy_config(
    precision=precision,
    accumulate=accumulate,
    label_smoothing=SMOOTHING,
    **{"data.balance": "weights", "average.kind": "none", "optimizer.weight_decay": 0.0},
  )
  return make_train_spec(
    config,
    make_plan(config, devices=devices),
    mesh_lib.make_mesh(devices),
    model=LinearNet(),
    optimizer=optax.identity(),
    class_counts=COUNTS,
  )


def some_batch(dtype):
  rng = np.random.default_rng(0)
  image = rng.standard_normal((16, 8, 8, 3)).astype(dtype)
  labels, partner = (rng.integers(10, size=16).astype(np.int32) for _ in range(2))
  return Batch(image, labels, np.arange(16) % 5 != 0), partner


def updated(spec, share):
  """The parameters before and after a step, and its sums."""
  batch, partner = some_batch(jnp.dtype(spec.model.dtype))
  images = toy_arrays(spec.config).train_images
  key = mesh_lib.replicate(seed_key(0), spec.mesh)
  state = jax.jit(on_mesh(init_state, spec))(key, mesh_lib.replicate(images, spec.mesh))
  before = jax.device_get(state.params)
  hyper = {"learning_rate": jnp.asarray(RATE, spec.accumulation)}
  step = on_mesh(update, spec, kind=StepKind(), share=share, split=(False, True, True, False))
  parts = mesh_lib.split((batch, partner), spec.mesh)
  state, sums = jax.jit(step)(state, *parts, hyper)
  return before["head"], jax.device_get(state.params)["head"], jax.device_get(sums)


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices, accumulate, share", [(1, 1, 0.0), (8, 1, SHARE), (2, 4, 0.0)])
def test_a_step_is_torchs_with_weights(devices, accumulate, share):
  torch = pytest.importorskip("torch")
  before, after, sums = updated(spec_of("float64", devices, accumulate), share)

  batch, partner = some_batch(np.float64)
  counted = batch.mask
  kernel, bias = (torch.tensor(before[name], requires_grad=True) for name in ("kernel", "bias"))
  logits = torch.tensor(batch.image[counted].reshape(counted.sum(), -1)) @ kernel + bias
  weights = torch.tensor(class_weights(COUNTS))
  total, norm = torch.zeros((), dtype=torch.float64), 0.0
  for labels, part in ((batch.label, 1 - share), (partner, share)):
    target = torch.tensor(labels[counted]).long()
    total = total + part * torch.nn.functional.cross_entropy(
      logits, target, weight=weights, label_smoothing=SMOOTHING, reduction="sum"
    )
    norm = norm + part * weights[target].sum()
  (total / norm).backward()
  for name, each in (("kernel", kernel), ("bias", bias)):
    assert_equal(after[name], before[name] - RATE * each.grad.numpy())
  assert_equal(sums.loss, total.detach().numpy())
  assert int(sums.count) == counted.sum()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_in_half_precision_weights_are_float32(precision):
  spec, dtype = spec_of(precision, 1), jnp.dtype(precision)
  batch, partner = some_batch(dtype)
  images = jax.ShapeDtypeStruct((16, 8, 8, 3), jnp.uint8)
  state = jax.eval_shape(on_mesh(init_state, spec), seed_key(0), images)
  hyper = {"learning_rate": np.float32(RATE)}
  step = on_mesh(update, spec, kind=StepKind(), share=SHARE)
  # Strict promotion (conftest.py) refuses to mix dtypes unseen.
  new, sums = jax.eval_shape(step, state, batch, partner, hyper)
  assert new.params["head"]["kernel"].dtype == sums.loss.dtype == np.float32
  # 1e5 is no float16. Relative to the larger loss:
  logits = np.array([[0.0, 5.0], [5.0, 0.0]], dtype)
  losses = smoothed_cross_entropy(
    jnp.asarray(logits), jnp.array([0, 1]), 0.0, np.array([1e5, 1e-5])
  )
  assert_close(losses, np.log1p(np.exp(5)) * np.array([1e5, 1e-5], np.float32), terms=8)


def test_without_the_field_or_in_an_evaluation_there_are_no_weights():
  config = toy_config()
  plan, mesh = make_plan(config), mesh_lib.make_mesh(1)
  assert make_train_spec(config, plan, mesh, class_counts=COUNTS).class_weights is None
  config.data.balance = "weights"
  assert make_train_spec(config, plan, mesh).class_weights is None
