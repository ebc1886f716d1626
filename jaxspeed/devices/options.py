"""Options of XLA for programs of one platform, "cpu", "gpu" or "tpu"."""

import functools
import os
from typing import Any

import jax

_CPU_LIBRARIES = "xla_cpu_experimental_ynn_fusion_type"

# Of fusions; they compile faster, and jaxlib has them before 0.11.
_EARLIER_EMITTERS = {"xla_cpu_use_fusion_emitters": False}

# GPUs on which `conv_fusion` was measured to be faster (gpu_day's part fusion_resnet50): none yet.
_FASTER_FUSED: tuple[str, ...] = ()


def conv_fusion(platform: str) -> dict[str, Any]:
  """The option that puts what follows a convolution into one graph of cuDNN (`config.conv_fusion`).

  It pays only with the forms that `models.resnet` then has; without them ResNet-50 at 224 pixels
  moves 68.3 instead of 67.2 GB a step, counted for an H100.
  """
  return {"xla_gpu_experimental_enable_conv_fusion": True} if platform == "gpu" else {}


def resolve_conv_fusion(choice: str, device: jax.Device) -> str:
  """`config.conv_fusion` as "on" or "off" for a device; always "off" for a CPU."""
  fuses = choice == "on" or (choice == "auto" and device.device_kind in _FASTER_FUSED)
  return "on" if fuses and device.platform != "cpu" else "off"


def deterministic(platform: str) -> dict[str, Any]:
  """The options with which a GPU computes the same bits in each run and after each compilation.

  XLA then neither uses kernels that sum with atomics nor times kernels to choose among them
  (openxla/xla 12520). Choices that it still makes are kept in the cache of compiled programs, where
  JAX puts XLA's own cache (jax_persistent_cache_enable_xla_caches).
  """
  if platform != "gpu":
    return {}
  return {"xla_gpu_deterministic_ops": True, "xla_gpu_exclude_nondeterministic_ops": True}


def quick(platform: str) -> dict[str, Any]:
  """The options with which a CPU's programs compile fastest without slow steps (`config.compile`).

  A step of airbench94 at a quarter of the width (jaxlib 0.10.2, seconds of CPU time of an EPYC):
  1.9 to compile and 1.5 to run, instead of 3.7 and 1.3. Level 0 takes 0.3, but 3.4 for each step.
  """
  if platform != "cpu":
    return {}
  earlier = {} if jax.version.__version_info__ >= (0, 11) else _EARLIER_EMITTERS
  return {"xla_backend_optimization_level": 1} | earlier


def notes(deterministic: bool, conv_fusion: str, platform: str) -> list[str]:
  """Lines on what `deterministic` costs, and on what it and `conv_fusion` do not do on a CPU."""
  lines = []
  if platform == "cpu" and conv_fusion == "on":
    lines = ["conv_fusion has no effect on CPUs"]
  if not deterministic:
    return lines
  if platform == "cpu":
    same_bits = "deterministic has no effect on CPUs, whose programs always compute the same bits"
    return [*lines, same_bits]
  return [
    "deterministic: kernels are chosen without timing them and never sum with atomics, which makes "
    "steps slower; the same bits after a resumption have been shown on CPUs only"
  ]


@functools.cache
def libraries(platform: str) -> dict[str, Any]:
  """The options that leave a CPU's convolutions to Eigen, its products and sums to YNNPACK.

  They are empty if this jaxlib does not know them, or XLA_FLAGS sets them. jaxlib 0.10 to 0.12 give
  convolutions to YNNPACK by default, whose weight gradients take four times as long, and sums to
  neither. What else was tried is in results/cpu_decisions.json.
  """
  if platform != "cpu" or _CPU_LIBRARIES in os.environ.get("XLA_FLAGS", ""):
    return {}
  options: dict[str, Any] = {_CPU_LIBRARIES: "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"}
  try:
    jax.jit(lambda x: x).lower(0.0).compile(compiler_options=options)
  except jax.errors.JaxRuntimeError:
    return {}
  return options
