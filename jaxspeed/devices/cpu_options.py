"""Options of XLA that only programs for CPUs get."""

import functools
import os
from typing import Any

import jax

_NAME = "xla_cpu_experimental_ynn_fusion_type"


@functools.cache
def libraries(platform: str) -> dict[str, Any]:
  """The options that leave a CPU's convolutions to Eigen, its products and sums to YNNPACK.

  They are empty if this jaxlib does not know them, or XLA_FLAGS sets them. jaxlib 0.10 to 0.12 give
  convolutions to YNNPACK by default, whose weight gradients take four times as long, and sums to
  neither. What else was tried is in results/cpu_decisions.json.
  """
  if platform != "cpu" or _NAME in os.environ.get("XLA_FLAGS", ""):
    return {}
  options: dict[str, Any] = {_NAME: "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"}
  try:
    jax.jit(lambda x: x).lower(0.0).compile(compiler_options=options)
  except jax.errors.JaxRuntimeError:
    return {}
  return options
