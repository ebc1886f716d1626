"""Options of XLA that only programs for GPUs get."""

from typing import Any

# XLA's default kinds, then convolutions and loops. A compiler option takes the names of all kinds;
# only XLA_FLAGS knows +NAME.
_KINDS = (
  "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,DYNAMIC_SLICE_FUSION,CONVOLUTION,WHILE"
)


def command_buffers(platform: str) -> dict[str, Any]:
  """The options that put convolutions and loops into command buffers, too.

  A loop whose number of iterations is not known when it is compiled otherwise waits for the GPU in
  each iteration. XLA leaves both out by default, because buffers were fragmented (openxla/xla
  34572).
  """
  return {"xla_gpu_enable_command_buffer": _KINDS} if platform == "gpu" else {}


def deterministic(platform: str) -> dict[str, Any]:
  """The options with which a GPU computes the same bits in each run and after each compilation.

  XLA then neither uses kernels that sum with atomics nor times kernels to choose among them
  (openxla/xla 12520). Choices that it still makes are kept in the cache of compiled programs, where
  JAX puts XLA's own cache (jax_persistent_cache_enable_xla_caches).
  """
  if platform != "gpu":
    return {}
  return {"xla_gpu_deterministic_ops": True, "xla_gpu_exclude_nondeterministic_ops": True}


def told(deterministic: bool, platform: str) -> list[str]:
  """A line on what `deterministic` costs or does not do; none if it is off."""
  if not deterministic:
    return []
  if platform == "cpu":
    return ["deterministic has no effect on CPUs, whose programs always compute the same bits"]
  return [
    "deterministic: kernels are chosen without timing them and never sum with atomics, which makes "
    "steps slower; the same bits after a resumption have been shown on CPUs only"
  ]
