"""The mesh of devices with its one axis, data parallelism, and the placing of host arrays on it."""

import ctypes
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxspeed.errors import UserError

AXIS = "data"

# Files in Linux's /dev for GPUs (NVIDIA, AMD, Windows' subsystem for Linux) and TPUs.
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "dxg", "accel[0-9]*", "vfio/[0-9]*")


def find_devices() -> list[jax.Device]:
  """The devices of all processes of the run.

  Raises:
    UserError: JAX finds no device of the kind that JAX_PLATFORMS names, or must not compile.
  """
  if jax.config.values["jax_disable_jit"]:
    raise UserError("JAX_DISABLE_JIT is set, and jaxspeed runs compiled programs: unset it.")
  try:
    return jax.devices()
  # An AssertionError without a message: the plugin for CUDA is missing (jax 0.10).
  except (RuntimeError, AssertionError) as error:
    platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
    reason = str(error).partition(" (set JAX")[0].rstrip(".")
    counts = f"JAX_NUM_CPU_DEVICES={os.environ.get('JAX_NUM_CPU_DEVICES', 1)}"
    for setting in (counts, *os.environ.get("XLA_FLAGS", "").split()) if "'cpu'" in reason else ():
      name, _, count = setting.partition("=")
      if name.endswith(("_DEVICES", "device_count")) and not (count.isdecimal() and int(count)):
        raise UserError(
          f"{setting} is no number of devices: set it to 1 or more, or unset it."
        ) from error
    if not platforms:
      raise UserError(
        f"JAX finds no device ({reason}): python -m jaxspeed.doctor says what to mend."
      ) from error
    raise UserError(
      f"JAX_PLATFORMS={platforms} asks for a device that this machine, or this installation of "
      f"JAX, does not have{reason and f' ({reason})'}: unset it, or set JAX_PLATFORMS=cpu."
    ) from error


def may_have_accelerator(
  environment: Mapping[str, str] = os.environ, folder: pathlib.Path = pathlib.Path("/dev")
) -> bool:
  """Whether JAX might use a device other than the CPU, found without initialising JAX.

  Args:
    environment: the environment, for JAX_PLATFORMS and CUDA_VISIBLE_DEVICES.
    folder: the folder of the devices' files.
  """
  if platforms := environment.get("JAX_PLATFORMS"):
    return platforms.split(",")[0] != "cpu"
  if environment.get("CUDA_VISIBLE_DEVICES") == "":
    return False
  return any(next(folder.glob(pattern), None) for pattern in _ACCELERATORS)


def keep_host_memory() -> None:
  """Lets glibc keep freed memory for the next step instead of returning it to the kernel.

  XLA:CPU allocates a step's memory anew every time: for a ResNet-9 of width 16 at batch 512, with
  1.2 GB, the page faults took a fifth of the step (2.0 s with them, 1.6 s without). The setting
  leaves glibc one arena; threads that decode images for a GPU would compete for its lock. So this
  does nothing if there may be a GPU, or if the C library has no mallopt. Call it before JAX starts
  its threads: 16,000 to 24,000 page faults per step remain; called later, all 79,000.
  """
  if may_have_accelerator():
    return
  try:
    mallopt = ctypes.CDLL(None).mallopt
  except (AttributeError, OSError, TypeError):
    return
  trim_threshold, mmap_max, arena_max = -1, -4, -8  # malloc.h
  mallopt(mmap_max, 0)
  mallopt(trim_threshold, -1)  # never
  mallopt(arena_max, 1)


def make_mesh(devices: int = 0) -> Mesh:
  """The mesh of the first `devices` devices (0: all) on the axis "data"."""
  # Process after process, as they read batches; `jax.make_mesh` would follow the wires of a TPU.
  ordered = sorted(find_devices(), key=lambda device: device.process_index)
  return Mesh(np.array(ordered[: devices or None]), (AXIS,))


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding with the whole array on every device."""
  return NamedSharding(mesh, P())


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Copies host arrays to every device, whole; all processes pass the same arrays."""
  sharding = replicated(mesh)
  if sharding.is_fully_addressable:
    return jax.device_put(tree, sharding)

  def place(x: Any) -> jax.Array:
    # device_put would compare the arrays of all processes over the network.
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

  return jax.tree.map(place, tree)


def sharded(mesh: Mesh) -> NamedSharding:
  """The sharding with a part of the first axis on each device, in order."""
  return NamedSharding(mesh, P(AXIS))


def split(tree: Any, mesh: Mesh) -> Any:
  """Splits host arrays, this process's part of the first axis, over the process's devices.

  All processes pass parts of the same size, in the order of the processes.
  """
  # Without the global shape, processes with parts of different sizes would build different arrays.
  count = len({device.process_index for device in mesh.devices.flat})
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(
      sharded(mesh), x, (len(x) * count, *x.shape[1:])
    ),
    tree,
  )


def abstract(tree: Any, sharding: NamedSharding) -> Any:
  """Shapes and dtypes with a sharding, as arguments for ahead-of-time compilation.

  Without the real sharding, the first call would compile a second time.
  """
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
