"""Which number format the net computes in, and loss scaling where the format needs it.

Parameters, statistics and the loss are in the format of sums (`accumulation`): float32, also beside
half precision, where only activations and the weights that convolutions read are cast. In float64,
on CPUs, nothing is smaller: two programs that should agree then do so to 1e-11 over a few steps,
whatever code XLA writes for the processor (tests/tolerances.py).
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
  """The format of parameters, statistics and sums of a net that computes in `dtype`."""
  return jnp.dtype(jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32)


def products(name: str) -> contextlib.AbstractContextManager[Any]:
  """A block in which products and convolutions are traced in a precision, backward passes too.

  GPUs from Ampere on multiply float32 numbers of 8 bits less, TF32, unless each product asks for
  more: in "float32" each does that names no precision of its own; "tf32" takes what the GPU does.
  """
  if name == "float32":
    return jax.default_matmul_precision("highest")
  return contextlib.nullcontext()


@contextlib.contextmanager
def wide_enough(name: str) -> Iterator[None]:
  """A block in which JAX has a precision's types: for "float64" its 64-bit ones, else no change.

  In all threads, as programs are compiled in several; `jax.enable_x64` is of this one only.
  """
  before = jax.config.read("jax_enable_x64")
  jax.config.update("jax_enable_x64", before or name == "float64")
  try:
    yield
  finally:
    jax.config.update("jax_enable_x64", before)


def resolve(name: str, device: jax.Device) -> str:
  """`name`, or for "auto" the fastest format of `device` that the recipes hold their accuracy in.

  float32 on a CPU, which gains nothing from less; float16 on GPUs before Ampere, whose tensor cores
  know no bfloat16; bfloat16 elsewhere.

  Raises:
    UserError: an unknown name, or float64 anywhere but on a CPU in a `wide_enough` block.
  """
  if name == "auto":
    if device.platform == "cpu":
      return "float32"
    # "7.0" on NVIDIA's GPUs; AMD's are named like gfx90a, TPUs have none, and both know bfloat16.
    capability = re.fullmatch(r"(\d+)\.\d+", getattr(device, "compute_capability", ""))
    return "float16" if capability and int(capability[1]) < 8 else "bfloat16"
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


# Doubled after this many steps without an overflow, halved at each: the values of
# flax.training.dynamic_scale and of NVIDIA's apex.
GROWTH_STEPS = 2000
FIRST_SCALE = 2.0**16
# Steps in a row without finite gradients, after which a run is stopped. The first scale has 16
# halvings down to 1, from which it does not fall: what overflows then is not the scale's fault.
MOST_SKIPPED = 24
# The loss of a step that is one too many; a cross entropy is never below 0.
TOO_MANY_SKIPPED = float("-inf")


class LossScale(flax.struct.PyTreeNode):
  """The factor on the loss that keeps float16 gradients from vanishing, and its history.

  What changes is an array from the start: as Python numbers they would compile a second program at
  the second step.

  Attributes:
    scale: the factor.
    good_steps: without an overflow since the scale last changed.
    skipped: steps whose gradients were not finite.
    in_row: such steps since the last one with finite gradients.
    dynamic: whether the scale changes.
  """

  scale: Float[Array, ""]
  good_steps: Int[Array, ""]
  skipped: Int[Array, ""]
  in_row: Int[Array, ""]
  dynamic: bool = flax.struct.field(pytree_node=False, default=True)

  @classmethod
  def create(cls, scale: float = 0.0) -> "LossScale":
    """The scale of the first step: `scale` for good, or for 0 one that changes."""
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

  def told(self, loss: Float[Array, ""]) -> Float[Array, ""]:
    """The loss of a step, or `TOO_MANY_SKIPPED`: the host sees no more of a step than its loss."""
    return jnp.where(self.in_row >= MOST_SKIPPED, TOO_MANY_SKIPPED, loss)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
  """Whether every number is finite, by one sum a leaf."""
  return jnp.isfinite(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree)))


def select(take: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
  """`new` where `take`, else `old`, leaf by leaf."""
  return jax.tree.map(lambda a, b: jnp.where(take, a, b), new, old)
