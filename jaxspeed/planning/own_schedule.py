"""The values of a schedule of Optax's: of a config, or one that Python passes."""

from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxspeed.errors import UserError

# Rounds each operation by itself, as NumPy does. LLVM's optimisation, and the emitters of fusions
# that jaxlib had before 0.11 and XLA_FLAGS can choose, round some together: 0 ** 2.2 becomes NaN.
_AS_WRITTEN: dict[str, Any] = {"xla_backend_optimization_level": 0}
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
  _AS_WRITTEN["xla_cpu_use_fusion_emitters"] = True


def evaluate(schedule: Any, positions: np.ndarray) -> np.ndarray:
  """The values of a schedule at each position, computed in float64 on this machine's CPU.

  Args:
    schedule: an `optax.Schedule`; JAX traces it.
    positions: positions [n], in the unit of the schedule.
  """
  import jax

  try:
    host = jax.local_devices(backend="cpu")[0]
  except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
    host = None
  promoting = jax.numpy_dtype_promotion("standard")  # optax mixes integers and floats
  with jax.enable_x64(True), promoting, jax.default_device(host):
    program = jax.jit(jax.vmap(schedule), compiler_options=_AS_WRITTEN if host else None)
    return np.asarray(program(positions), np.float64)


def rates_of(schedule: Any, total_steps: int) -> Float[np.ndarray, "steps"]:
  """The learning rate of each step: the schedule at 0, 1, ..., computed once in float64.

  Args:
    schedule: an `optax.Schedule`, or another function from a step's number to a number.
    total_steps: the number of steps of the run.

  Raises:
    UserError: it fails, or gives anything but a number of at least 0.
  """
  try:
    rates = evaluate(schedule, np.arange(total_steps))
  except Exception:  # a function of Python's or NumPy's numbers, which JAX cannot trace
    rates = _one_by_one(schedule, total_steps)
  if rates.shape != (total_steps,):
    raise UserError(
      f"schedule= gives values of shape {rates.shape[1:]}: it must give one number for each step."
    )
  if wrong := np.flatnonzero(~(np.isfinite(rates) & (rates >= 0))).tolist():
    raise UserError(
      f"schedule= gives {rates[wrong[0]]:g} at step {wrong[0]} of {total_steps}: a learning rate "
      "is a number of at least 0."
    )
  return rates


def _one_by_one(schedule: Any, total_steps: int) -> Float[np.ndarray, "steps"]:
  try:
    return np.array([float(schedule(step)) for step in range(total_steps)], np.float64)
  except Exception as error:
    reason = next(iter(str(error).splitlines()), "")[:200].rstrip(".")
    raise UserError(
      f"schedule= fails ({type(error).__name__}: {reason}): it must be a function from the number "
      "of a step, from 0, to its learning rate, such as optax.cosine_decay_schedule(0.1, 1000)."
    ) from error


def describe_rates(schedule: Any, total_steps: int) -> str:
  """The learning rates of a schedule in words, rounded: processors differ in the last digits."""
  rates = rates_of(schedule, total_steps)
  return (
    f"{total_steps} learning rates, {rates[0]:.3g} at first, {rates.max():.3g} at most, "
    f"{rates[-1]:.3g} at last"
  )
