"""The forward pass of training: logits, running statistics and the keys of dropout."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree, UInt32

from jaxspeed.data.batch import DROPOUT, purpose_key
from jaxspeed.devices.mesh import AXIS
from jaxspeed.errors import UserError
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState, variables_of


def forward(
  params: PyTree,
  batch_stats: PyTree,
  images: Float[Array, "n h w 3"],
  key: UInt32[Array, "2"] | None,
  *,
  spec: TrainSpec,
) -> tuple[Float[Array, "n classes"], PyTree]:
  """Apply the model as in training.

  Args:
    params: the parameters.
    batch_stats: the running statistics, {} if the model has none.
    images: normalised images.
    key: the key of dropout (`dropout_keys`); None if the model draws none.
    spec: the run's constants.

  Returns:
    The logits, and the new running statistics.

  Raises:
    UserError: the model does not return logits [n, classes].
  """
  rngs = {} if key is None else {"dropout": jax.random.wrap_key_data(key)}
  variables = variables_of(params, batch_stats)
  # Only models with running statistics have something to freeze in the forward pass.
  frozen: dict[str, Any] = {"frozen": spec.frozen} if spec.frozen and batch_stats else {}
  logits, updated = spec.model.apply(
    variables, images, train=True, mutable=["batch_stats"], rngs=rngs, **frozen
  )
  check_logits(logits, len(images), spec=spec)
  return logits, updated.get("batch_stats", {})


def check_logits(logits: Array, images: int, *, spec: TrainSpec) -> None:
  """Make sure that a model returned logits [images, classes], or raise a UserError."""
  wanted, shape = (images, spec.config.data.classes), getattr(logits, "shape", None)
  if shape != wanted:
    found = f"an array of shape {shape}" if shape is not None else f"a {type(logits).__name__}"
    raise UserError(
      f"the model {spec.config.model.name} returns {found} for {images} images and "
      f"config.data.classes={wanted[1]}: it must return logits of shape {wanted}."
    )


def dropout_keys(state: TrainState, *, spec: TrainSpec) -> UInt32[Array, "parts 2"] | None:
  """Return a key of dropout for each micro-batch of this device; None for a model without dropout.

  A key is a function of the run's key, the step, the device and the micro-batch, so a resumed run
  draws the same numbers.
  """
  if not spec.draws_dropout:
    return None
  parts = spec.config.accumulate
  numbers = lax.axis_index(AXIS) * parts + jnp.arange(parts, dtype=jnp.int32)
  key = jax.random.wrap_key_data(purpose_key(state.key, DROPOUT, state.step))
  return jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, numbers))
