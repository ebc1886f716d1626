"""Measured ceilings: matrix products and memory of a device, and all-reduces between devices."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxspeed.devices.mesh import AXIS
from jaxspeed.devices.precision import DTYPES, products, resolve
from jaxspeed.doctor.machine import host_memory

# The sides of the matrices, the megabytes of the array that is read and written (more than a CPU's
# caches), and those that each device adds in an all-reduce.
_CPU, _GPU = (1024, 256, 8), (8192, 1024, 128)
# Seconds of each measurement, without compiling.
_SECONDS = 0.6


def measure(device: jax.Device, precision: str = "auto") -> dict[str, Any]:
  """Times matrix products, and a pass over a large array.

  Args:
    device: the device.
    precision: that of the products; "auto": the device's fastest.

  Returns:
    `tflops` (1e12 operations/s of products), `gb_s` (read and written), and the device's `kind`,
    `dtype` and `free_bytes` (0: unknown).
  """
  on_cpu = device.platform == "cpu"
  side, megabytes, _ = _CPU if on_cpu else _GPU
  stats = device.memory_stats() or {}
  free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
  free = host_memory()[1] if on_cpu else free
  number, dtype = megabytes * 10**6 // 4, resolve(precision, device)
  # Small random numbers: zeros would draw less power, and clocks would be higher.
  noise = np.random.default_rng(0).standard_normal((side, side), np.float32)
  multiply = jax.jit(jnp.matmul)
  add = jax.jit(lambda array: array + np.float32(1), donate_argnums=0)
  with jax.default_device(device), products(dtype):
    matrix = jnp.asarray(noise, DTYPES[dtype])
    product = _best_seconds(lambda _: multiply(matrix, matrix), None)
    passed = _best_seconds(add, jnp.zeros((number,), jnp.float32))
  return {
    "kind": device.device_kind,
    "dtype": dtype,
    "free_bytes": max(0, free),
    "tflops": 2 * side**3 / product / 1e12,
    "gb_s": 2 * 4 * number / passed / 1e9,
  }


def _best_seconds(call: Callable[[Any], Any], value: Any) -> float:
  """The least seconds of a call, which takes what the one before returned; the first compiles."""
  value = jax.block_until_ready(call(value))
  until, best = time.perf_counter() + _SECONDS, float("inf")
  while best == float("inf") or time.perf_counter() < until:
    start = time.perf_counter()
    value = jax.block_until_ready(call(value))
    best = min(best, time.perf_counter() - start)
  return best


def all_reduce(devices: Sequence[jax.Device]) -> dict[str, Any]:
  """Times sums over several devices.

  Returns:
    `gb_s` (the bus bandwidth, 2 (n - 1) / n of the bytes divided by the seconds, as in NCCL's
    tests), `devices`, and `megabytes`, which each device adds.
  """
  megabytes = (_CPU if devices[0].platform == "cpu" else _GPU)[2]
  n, number = len(devices), megabytes * 10**6 // 4
  mesh, ones = Mesh(np.array(devices), (AXIS,)), np.ones((1, number), np.float32)
  array = jax.make_array_from_callback((n, number), NamedSharding(mesh, P(AXIS)), lambda _: ones)
  total = functools.partial(lax.psum, axis_name=AXIS)
  add = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P(AXIS), out_specs=P()))
  seconds = _best_seconds(lambda _: add(array), None)
  gb_s = 2 * (n - 1) / n * 4 * number / seconds / 1e9
  return {"devices": n, "megabytes": megabytes, "gb_s": gb_s}
