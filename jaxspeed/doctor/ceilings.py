"""Measured ceilings: matrix products and memory of a device, and all-reduces between devices."""

import dataclasses
import functools
import statistics
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
from jaxspeed.devices.precision import resolve
from jaxspeed.doctor.part import Advice, Part, figure
from jaxspeed.doctor.sheets import Sheet, sheet_of


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What is measured on a device.

  Attributes:
    side: the sides of the matrices.
    megabytes: the array that is read and written; larger than a CPU's caches.
    reduced: megabytes that each device adds in an all-reduce.
    seconds: the time of each measurement, without compiling.
  """

  side: int
  megabytes: int
  reduced: int
  seconds: float


CPU = Sizes(side=1024, megabytes=256, reduced=8, seconds=1.0)
GPU = Sizes(side=8192, megabytes=1024, reduced=128, seconds=0.7)


@dataclasses.dataclass(frozen=True)
class Ceiling:
  """The best of several timings on one device.

  Attributes:
    kind: the device's kind.
    count: the number of its kind.
    dtype: the dtype of the matrix products.
    tflops: 1e12 operations/s of matrix products.
    gb_s: GB/s of memory, read and written.
    sheet: its data sheet, if there is one here.
  """

  kind: str
  count: int
  dtype: str
  tflops: float
  gb_s: float
  sheet: Sheet | None


def sizes_of(device: jax.Device, free: int) -> Sizes:
  """The sizes for a device with `free` bytes of memory, of which at most a quarter is used."""
  sizes = CPU if device.platform == "cpu" else GPU
  most = max(1, free // 4 // 10**6) if free else sizes.megabytes
  side = sizes.side
  while side > 256 and 3 * 4 * side * side > most * 10**6:
    side //= 2
  return dataclasses.replace(
    sizes, side=side, megabytes=min(sizes.megabytes, most), reduced=min(sizes.reduced, most)
  )


def free_memory(device: jax.Device, host_free: int) -> int:
  """Bytes that are free on a device; a CPU's are the host's; 0: unknown."""
  if device.platform == "cpu":
    return host_free
  stats = device.memory_stats() or {}
  return max(0, int(stats.get("bytes_limit", 0)) - int(stats.get("bytes_in_use", 0)))


def best_seconds(
  call: Callable[[], Any], *, seconds: float, begun: Callable[[], Any] = lambda: None
) -> float:
  """The least seconds of a call, of as many as fit in `seconds`, at least one, after one untimed.

  Args:
    call: starts work on a device, and returns its result.
    seconds: the time to spend.
    begun: called after the untimed call, which compiles.
  """
  jax.block_until_ready(call())
  begun()
  until, best, number = time.perf_counter() + seconds, float("inf"), 0
  while number < 1 or time.perf_counter() < until:
    start = time.perf_counter()
    jax.block_until_ready(call())
    best = min(best, time.perf_counter() - start)
    number += 1
  return best


def measure(
  device: jax.Device, count: int, sizes: Sizes, *, begun: Callable[[], Any] = lambda: None
) -> Ceiling:
  """Times matrix products in the device's fastest dtype, and a pass over a large array.

  Args:
    device: the device.
    count: the number of its kind.
    sizes: what is measured.
    begun: called when the device begins to work without a pause.
  """
  dtype = resolve("auto", device)
  with jax.default_device(device):
    return Ceiling(
      kind=device.device_kind,
      count=count,
      dtype=dtype,
      tflops=_products(dtype, sizes, begun),
      gb_s=_bandwidth(sizes),
      sheet=sheet_of(device.device_kind),
    )


def _products(dtype: str, sizes: Sizes, begun: Callable[[], Any]) -> float:
  """1e12 operations/s of a matrix product."""
  # Small random numbers: zeros would draw less power, and clocks would be higher.
  noise = np.random.default_rng(0).standard_normal((sizes.side, sizes.side), np.float32)
  matrix = jnp.asarray(noise, jnp.dtype(dtype))
  multiply = jax.jit(jnp.matmul)
  seconds = best_seconds(lambda: multiply(matrix, matrix), seconds=sizes.seconds, begun=begun)
  return 2 * sizes.side**3 / seconds / 1e12


def _bandwidth(sizes: Sizes) -> float:
  """GB/s of a pass that reads and writes an array in its place."""
  number = sizes.megabytes * 10**6 // 4
  add = jax.jit(lambda array: array + np.float32(1), donate_argnums=0)
  kept = [jnp.zeros((number,), jnp.float32)]

  def step() -> Any:
    kept[0] = add(kept[0])
    return kept[0]

  return 2 * 4 * number / best_seconds(step, seconds=sizes.seconds) / 1e9


def examine(ceilings: Sequence[Ceiling]) -> Part:
  """The ceilings beside the data sheets."""
  lines, advice, facts = [], [], []
  for each in ceilings:
    name = each.kind.upper() if each.kind == "cpu" else each.kind
    matrix = f"{figure(each.tflops)} TFLOP/s in {each.dtype}"
    memory = f"{figure(each.gb_s)} GB/s of memory"
    if each.sheet is None:
      lines.append(f"{name}: {matrix}, {memory} (no data sheet of it is here)")
    else:
      shares = each.tflops / each.sheet.tflops, each.gb_s / each.sheet.gb_s
      lines.append(
        f"{name}: {matrix} ({shares[0]:.0%} of the data sheet's {each.sheet.tflops:g}), {memory} "
        f"({shares[1]:.0%} of {each.sheet.gb_s:g})"
      )
      if min(shares) < 0.5:
        what = f"{name} reaches less than half of its data sheet: is another program using it?"
        advice.append(Advice(what, "nvidia-smi", mend=False))
    facts.append(dataclasses.asdict(each))
  return Part("ceilings", lines, {"devices": facts}, advice)


@dataclasses.dataclass(frozen=True)
class Exchanged:
  """A timed all-reduce.

  Attributes:
    devices: the number of devices.
    processes: the number of processes whose devices they are.
    megabytes: what each device adds.
    gb_s: the bus bandwidth, 2 (n - 1) / n of the bytes divided by the seconds, as in NCCL's tests.
  """

  devices: int
  processes: int
  megabytes: int
  gb_s: float


# The same number of calls in every process, whatever its clock says.
_ROUNDS = 8


def all_reduce(devices: Sequence[jax.Device], megabytes: int) -> Exchanged | None:
  """Times sums over devices; None for a single one. Every process of the devices must call it."""
  n = len(devices)
  if n < 2:
    return None
  mesh = Mesh(np.array(devices), (AXIS,))
  number = megabytes * 10**6 // 4
  ones = np.ones((1, number), np.float32)
  array = jax.make_array_from_callback(
    (n, number), NamedSharding(mesh, P(AXIS)), lambda index: ones
  )
  total = functools.partial(lax.psum, axis_name=AXIS)
  add = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P(AXIS), out_specs=P()))
  seconds = []
  for _ in range(_ROUNDS):
    start = time.perf_counter()
    jax.block_until_ready(add(array))
    seconds.append(time.perf_counter() - start)
  best = min(statistics.median(seconds[1:]), seconds[-1])
  processes = len({device.process_index for device in devices})
  return Exchanged(n, processes, megabytes, 2 * (n - 1) / n * 4 * number / best / 1e9)


def exchange_part(found: Sequence[Exchanged], virtual: bool) -> Part:
  """The all-reduces as lines.

  Args:
    found: those between the devices of this process, then those of all processes.
    virtual: whether the devices share one CPU.
  """
  shared = ", which share this host's CPU" if virtual else ""
  lines = []
  for each in found:
    among = f" of {each.processes} processes" if each.processes > 1 else shared
    lines.append(
      f"{figure(each.gb_s)} GB/s of bus bandwidth between {each.devices} devices{among}, "
      f"{each.megabytes} MB each"
    )
  lines = lines or ["one device: there is nothing to all-reduce"]
  return Part("all-reduce", lines, {"measured": [dataclasses.asdict(each) for each in found]})
