"""The dtype in which a model computes, and loss scaling for float16.

Parameters, statistics and the loss are in the dtype of sums (`accumulation`), which is float32 even
with half precision: only activations and the weights that convolutions read are cast. With float64,
on CPUs, everything is float64: programs that should agree do so to 1e-11 over a few steps, whatever
code XLA generates for the processor (tests/tolerances.py).
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxspeed.errors import UserError

DTYPES: dict[str, Any] = {
  "float32": jnp.float32,
  "tf32": jnp.float32,
  "bfloat16": jnp.bfloat16,
  "float16": jnp.float16,
  "float64": jnp.float64,
}


def accumulation(dtype: DTypeLike) -> np.dtype:
  """The dtype of parameters, statistics and sums of a model that computes in `dtype`."""
  return jnp.dtype(jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32)


def products(name: str) -> contextlib.AbstractContextManager[Any]:
  """A block that traces matrix products and convolutions, and their gradients, at a precision.

  GPUs since Ampere round float32 factors to TF32 unless a product asks for more precision. In
  "float32" every product without a precision of its own does ask; "tf32" keeps the GPU's default.
  """
  if name == "float32":
    return jax.default_matmul_precision("highest")
  return contextlib.nullcontext()


@contextlib.contextmanager
def wide_enough(name: str) -> Iterator[None]:
  """A block in which JAX supports a precision: "float64" enables 64-bit types, others do nothing.

  It holds in all threads, because several compile; `jax.enable_x64` covers only the current one.
  """
  if name != "float64":
    yield
    return
  before = jax.config.read("jax_enable_x64")
  jax.config.update("jax_enable_x64", True)
  try:
    yield
  finally:
    jax.config.update("jax_enable_x64", before)


def resolve(name: str, device: jax.Device) -> str:
  """`name`, or for "auto" the fastest precision on `device` that keeps the recipes' accuracy.

  Raises:
    UserError: an unknown name, or float64 anywhere but on a CPU in a `wide_enough` block.
  """
  if name == "auto":
    return _fastest(device)
  if name not in DTYPES:
    raise UserError(f"config.precision={name!r}: choose one of auto, {', '.join(DTYPES)}.")
  if name == "float64" and device.platform != "cpu":
    raise UserError(
      f"config.precision={name!r}: it is for CPUs, and this is a {device.platform.upper()}: choose "
      "another one, or set JAX_PLATFORMS=cpu in the environment."
    )
  if name == "float64" and not jax.config.read("jax_enable_x64"):
    raise UserError(
      f"config.precision={name!r}: JAX's 64-bit types are off: set JAX_ENABLE_X64=1 in the "
      "environment."
    )
  return name


def _fastest(device: jax.Device) -> str:
  """float32 on a CPU, float16 on GPUs before Ampere, which have no bfloat16, else bfloat16."""
  if device.platform == "cpu":
    return "float32"
  # "7.0" on NVIDIA's GPUs; AMD's are named like gfx90a, TPUs have none; both support bfloat16.
  capability = re.fullmatch(r"(\d+)\.\d+", getattr(device, "compute_capability", ""))
  return "float16" if capability and int(capability[1]) < 8 else "bfloat16"


# The scale is doubled after this many steps without an overflow and halved at each overflow, as in
# flax.training.dynamic_scale and NVIDIA's apex.
GROWTH_STEPS = 2000
FIRST_SCALE = 2.0**16
# Consecutive steps without finite gradients after which a run stops. 16 halvings take the first
# scale down to 1, its minimum: an overflow after that has another cause.
MOST_SKIPPED = 24
# The loss that reports `MOST_SKIPPED` steps in a row; a cross entropy is never below 0.
TOO_MANY_SKIPPED = float("-inf")


class LossScale(flax.struct.PyTreeNode):
  """The factor on the loss that keeps float16 gradients from underflowing, and its history.

  Values that change are arrays from the start: Python numbers would cost a second compilation at
  the second step.

  Attributes:
    scale: the factor.
    good_steps: the steps without an overflow since the scale last changed.
    skipped: the steps with gradients that were not finite.
    in_row: the consecutive skipped steps up to now.
    dynamic: whether the scale changes.
  """

  scale: Float[Array, ""]
  good_steps: Int[Array, ""]
  skipped: Int[Array, ""]
  in_row: Int[Array, ""]
  dynamic: bool = flax.struct.field(pytree_node=False, default=True)

  @classmethod
  def create(cls, scale: float = 0.0) -> "LossScale":
    """The loss scale of the first step: fixed at `scale`, or dynamic if that is 0."""
    return cls(
      scale=jnp.float32(scale or FIRST_SCALE),
      good_steps=jnp.int32(0),
      skipped=jnp.int32(0),
      in_row=jnp.int32(0),
      dynamic=not scale,
    )

  def update(self, finite: Bool[Array, ""]) -> "LossScale":
    """The next scale, given whether this step's gradients were finite."""
    skipped = self.skipped + (~finite).astype(jnp.int32)
    in_row = jnp.where(finite, 0, self.in_row + 1)
    if not self.dynamic:
      return self.replace(skipped=skipped, in_row=in_row)
    grow = finite & (self.good_steps + 1 >= GROWTH_STEPS)
    scale = jnp.where(grow, self.scale * 2, jnp.where(finite, self.scale, self.scale / 2))
    return self.replace(
      scale=jnp.maximum(scale, 1.0),
      good_steps=jnp.where(finite & ~grow, self.good_steps + 1, 0),
      skipped=skipped,
      in_row=in_row,
    )

  def reported_loss(self, loss: Float[Array, ""]) -> Float[Array, ""]:
    """The loss of a step, or `TOO_MANY_SKIPPED`, as the host reads only the loss of a step."""
    return jnp.where(self.in_row >= MOST_SKIPPED, TOO_MANY_SKIPPED, loss)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
  """Whether every number is finite, from one sum per leaf."""
  return jnp.isfinite(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree)))


def select(take: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
  """`new` where `take`, else `old`, leaf by leaf."""
  return jax.tree.map(lambda a, b: jnp.where(take, a, b), new, old)
