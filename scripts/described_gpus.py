"""Descriptions of GPUs that are not there: XLA compiles from a data sheet, without a device."""

import dataclasses
import importlib.util
import math

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError


@dataclasses.dataclass(frozen=True)
class Gpu:
  """What XLA's compiler needs to know of a GPU, from NVIDIA's data sheets of the SXM versions.

  Attributes:
    cuda: the lowest and highest version of CUDA whose plugin compiles for it.
    precision: the fastest number format in which recipes keep their accuracy.
    multiprocessors: their number; each has `lanes` float32 units.
    bandwidth: of its memory, in bytes/s.
    peak: of its half-precision tensor cores, in FLOP/s.
    cache: bytes of the second-level cache.
    shared: bytes of shared memory per multiprocessor, and how many of them a block may take.
  """

  name: str
  capability: tuple[int, int]
  cuda: tuple[int, int]
  precision: str
  multiprocessors: int
  lanes: int
  clock_ghz: float
  bandwidth: int
  peak: float
  memory: int
  cache: int
  shared: tuple[int, int]


GPUS = {
  "h100": Gpu(
    name="NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    cuda=(12, 13),
    precision="bfloat16",
    multiprocessors=132,
    lanes=128,
    clock_ghz=1.98,
    bandwidth=3_352_320_000_000,
    peak=990e12,
    memory=84_929_347_584,
    cache=52_428_800,
    shared=(233_472, 232_448),
  ),
  "a100": Gpu(
    name="NVIDIA A100-SXM4-80GB",
    capability=(8, 0),
    cuda=(12, 13),
    precision="bfloat16",
    multiprocessors=108,
    lanes=64,
    clock_ghz=1.41,
    bandwidth=2_039_000_000_000,
    peak=312e12,
    memory=84_929_347_584,
    cache=41_943_040,
    shared=(167_936, 166_912),
  ),
  "v100": Gpu(
    name="Tesla V100-SXM2-32GB",
    capability=(7, 0),
    cuda=(12, 12),
    precision="float16",
    multiprocessors=80,
    lanes=64,
    clock_ghz=1.53,
    bandwidth=898_048_000_000,
    peak=125e12,
    memory=34_359_738_368,
    cache=6_291_456,
    shared=(98_304, 98_304),
  ),
}


def described_mesh(kind: str, devices: int = 1, *, per_host: int = 8) -> Mesh:
  """A mesh of GPUs that are not there; call it before making the first array.

  Raises:
    UserError: no plugin for them is installed, or the devices do not divide over the hosts.
  """
  hosts = math.ceil(devices / per_host)
  if devices % hosts:
    raise UserError(f"{devices} devices do not divide over hosts of {per_host}: set --per_host.")
  gpu = GPUS[kind]
  versions = range(gpu.cuda[1], gpu.cuda[0] - 1, -1)
  installed = [v for v in versions if importlib.util.find_spec(f"jax_cuda{v}_plugin")]
  if not installed:
    packages = f"jax-cuda{versions[0]}-plugin=={jax.__version__} jax-cuda{versions[0]}-pjrt"
    # The plugin for CUDA 13 includes its assembler; the one for CUDA 12 needs NVIDIA's package.
    more = "" if versions[0] > 12 else " nvidia-cuda-nvcc-cu12"
    raise UserError(
      f"{kind}: the compiler for CUDA {versions[0]} is not installed: "
      f"pip install {packages}=={jax.__version__}{more}"
    )
  _let_cuda_be_named()
  topology = topologies.get_topology_desc(
    platform="cuda",
    target_config=_target_of(gpu, installed[0]),
    topology=f"1x{hosts}x{devices // hosts}",
  )
  return Mesh(np.array(topology.devices).reshape(-1), (mesh_lib.AXIS,))


def _target_of(gpu: Gpu, cuda: int) -> str:
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
    f"runtime_version {{ major: {cuda} minor: 0 patch: 0 }}"
  )


def _let_cuda_be_named() -> None:
  """Stops JAX from asking which GPU is there before it lowers (issues 23971, 28376)."""
  from jax._src import xla_bridge

  known = xla_bridge.canonicalize_platform

  def canonicalize(platform: str) -> str:
    return "cuda" if platform in ("cuda", "gpu") else known(platform)

  xla_bridge.canonicalize_platform = canonicalize
