"""Devices that are not there: XLA compiles for a GPU from its data sheet, and for a TPU v5e."""

import dataclasses
import importlib.util
import math
import os
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError

TPU = "v5e"
# The shape of a slice of v5e by its number of chips.
_SLICES = {1: "1x1", 8: "2x4", 256: "16x16"}


@dataclasses.dataclass(frozen=True)
class Gpu:
  """What XLA's compiler needs to know of a GPU, from NVIDIA's data sheets of the SXM versions.

  Attributes:
    multiprocessors: their number; each has `lanes` float32 units.
    bandwidth: of its memory, in bytes/s.
    cache: bytes of the second-level cache.
    shared: bytes of shared memory per multiprocessor, and how many of them a block may take.
  """

  name: str
  capability: tuple[int, int]
  multiprocessors: int
  lanes: int
  clock_ghz: float
  bandwidth: int
  memory: int
  cache: int
  shared: tuple[int, int]


GPUS = {
  "h100": Gpu(
    name="NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    multiprocessors=132,
    lanes=128,
    clock_ghz=1.98,
    bandwidth=3_352_320_000_000,
    memory=84_929_347_584,
    cache=52_428_800,
    shared=(233_472, 232_448),
  ),
  "a100": Gpu(
    name="NVIDIA A100-SXM4-80GB",
    capability=(8, 0),
    multiprocessors=108,
    lanes=64,
    clock_ghz=1.41,
    bandwidth=2_039_000_000_000,
    memory=84_929_347_584,
    cache=41_943_040,
    shared=(167_936, 166_912),
  ),
}


def described_mesh(kind: str, devices: int = 1) -> Mesh:
  """A mesh of devices that are not there; call it before making the first array.

  Args:
    kind: a key of `GPUS`, or `TPU`.
    devices: their number, 8 a host at most.

  Raises:
    UserError: the compiler for them is not installed, or they do not divide over the hosts.
  """
  jax.config.update("jax_platforms", "cpu")
  topology = _tpus(devices) if kind == TPU else _gpus(kind, devices)
  return Mesh(np.array(topology.devices).reshape(-1), (mesh_lib.AXIS,))


def _tpus(devices: int) -> Any:
  """A slice of v5e."""
  if devices not in _SLICES:
    raise UserError(f"--devices={devices}: a slice of {TPU} has {', '.join(map(str, _SLICES))}.")
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no question to Google's cloud where this is
  name = f"v5e:{_SLICES[devices]}"
  more = {"chips_per_host_bounds": (1, 1, 1)} if devices == 1 else {}
  try:
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **more)
  except (RuntimeError, ValueError) as error:
    reason = str(error).splitlines()[0][:200]
    raise UserError(f"{name} cannot be described ({reason}): pip install libtpu.") from error


def _gpus(kind: str, devices: int) -> Any:
  hosts = math.ceil(devices / 8)
  if devices % hosts:
    raise UserError(f"--devices={devices}: they do not divide over hosts of 8.")
  if not importlib.util.find_spec("jax_cuda13_plugin"):
    packages = " ".join(f"jax-cuda13-{part}=={jax.__version__}" for part in ("plugin", "pjrt"))
    raise UserError(f"{kind}: the compiler for CUDA 13 is not installed: pip install {packages}.")
  _let_cuda_be_named()
  return topologies.get_topology_desc(
    platform="cuda",
    target_config=_target_of(GPUS[kind]),
    topology=f"1x{hosts}x{devices // hosts}",
  )


def _target_of(gpu: Gpu) -> str:
  """The device as XLA's GpuTargetConfigProto, in text form."""
  major, minor = gpu.capability
  device = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49_152,
    "shared_memory_per_core": gpu.shared[0],
    "shared_memory_per_block_optin": gpu.shared[1],
    "threads_per_core_limit": 2048,
    "core_count": gpu.multiprocessors,
    "fpus_per_core": gpu.lanes,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65_535,
    "block_dim_limit_z": 65_535,
    "memory_bandwidth": gpu.bandwidth,
    "l2_cache_size": gpu.cache,
    "clock_rate_ghz": gpu.clock_ghz,
    "device_memory_size": gpu.memory,
    "registers_per_core_limit": 65_536,
    "registers_per_block_limit": 65_536,
    "cuda_compute_capability": f"{{ major: {major} minor: {minor} }}",
  }
  fields = " ".join(
    f"{name} {value}" if str(value).startswith("{") else f"{name}: {value}"
    for name, value in device.items()
  )
  return (
    f'gpu_device_info {{ {fields} }} platform_name: "CUDA" device_description_str: "{gpu.name}" '
    f"dnn_version_info {{ major: 9 minor: 10 }} "
    f"runtime_version {{ major: 13 minor: 0 patch: 0 }}"
  )


def _let_cuda_be_named() -> None:
  """Stops JAX from asking which GPU is there before it lowers (issues 23971, 28376)."""
  from jax._src import xla_bridge

  known = xla_bridge.canonicalize_platform

  def canonicalize(platform: str) -> str:
    return "cuda" if platform in ("cuda", "gpu") else known(platform)

  xla_bridge.canonicalize_platform = canonicalize
