"""Time all-reduces between this machine's devices, by size.

    python scripts/bench_allreduce.py --megabytes=1,4,16,64,256 --out=allreduce.json

Bandwidth is that of a ring: 2 (n - 1) / n times the bytes, over the seconds; NCCL's "busbw".
"""

import time
from typing import Any

import benchmarking
import jax
import jax.numpy as jnp
from absl import flags
from jax.sharding import PartitionSpec

from jaxspeed.config import flags as command_line
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.records import provenance

_QUEUED = 10


def seconds_of(megabytes: float, turns: int) -> list[float]:
  """Seconds of one all-reduce of float32, each turn the mean of ten that are queued."""
  mesh = mesh_lib.make_mesh()
  # Each sum is the next one's operand, so none is dropped; dividing keeps the numbers small.
  spec = PartitionSpec(mesh_lib.AXIS)

  def add(x: jax.Array) -> jax.Array:
    total = jax.lax.psum(x, mesh_lib.AXIS) / mesh.size
    return jax.lax.pcast(total, mesh_lib.AXIS, to="varying")

  run = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0)
  ones = jax.jit(
    lambda: jnp.ones((mesh.size, int(megabytes * 1e6 / 4)), jnp.float32),
    out_shardings=mesh_lib.sharded(mesh),
  )
  x, seconds = jax.block_until_ready(run(ones())), []
  for _ in range(turns):
    start = time.perf_counter()
    for _ in range(_QUEUED):
      x = run(x)
    jax.block_until_ready(x)
    seconds.append((time.perf_counter() - start) / _QUEUED)
  return seconds


def main() -> None:
  megabytes = flags.DEFINE_list("megabytes", ["1", "4", "16", "64", "256"], "Sizes.")
  turns = flags.DEFINE_integer("turns", 7, "Of each size, timed.", lower_bound=1)
  out = benchmarking.define_out()

  def bench(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    devices = len(jax.devices())
    chosen = benchmarking.numbers("megabytes", megabytes.value, float)
    if devices < 2:
      raise UserError("an all-reduce needs two devices, and JAX sees one.")
    rows: list[dict[str, Any]] = []
    report: dict[str, Any] = {
      "what": "All-reduces of float32 by size; written by scripts/bench_allreduce.py.",
      "device": provenance.describe_device(),
      "devices": devices,
      **benchmarking.environment(),
      "rows": rows,
    }
    for size in chosen:
      time_s = benchmarking.interval(seconds_of(size, turns.value))
      moved = 2 * (devices - 1) / devices * size / 1e3
      milliseconds = {k: v if k == "n" or v is None else 1e3 * v for k, v in time_s.items()}
      rate = moved / time_s["mean"]
      rows.append({"megabytes": size, "milliseconds": milliseconds, "gigabytes_per_s": rate})
      figure = f"{benchmarking.show(milliseconds, '.3f')} ms, {rate:.1f} GB/s"
      benchmarking.say(report, f"all-reduce of {size:g} MB over {devices} devices", figure)
      benchmarking.write_report(out.value, report)

  command_line.run(bench)


if __name__ == "__main__":
  main()
