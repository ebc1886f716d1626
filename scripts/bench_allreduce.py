"""Time all-reduces between this machine's devices, by size.

    python scripts/bench_allreduce.py --megabytes=1,4,16,64,256 --out=allreduce.json

Bandwidth is that of a ring: 2 (n - 1) / n times the bytes, over the seconds; NCCL's "busbw".
"""

import functools
import pathlib
from typing import Any

import benchmarking
import jax
import jax.numpy as jnp
from absl import flags
from jax.sharding import PartitionSpec
from side_by_side import Here, Prepared, time_in_turns

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.records import provenance

_TURN_SECONDS, _QUEUED = 0.1, 10


def make_sums(megabytes: float) -> Prepared:
  """A function that makes all-reduces of float32, ten of them queued, and waits for the last."""
  mesh = mesh_lib.make_mesh()
  # Each sum is the next one's operand, so none is dropped; dividing keeps the numbers small.
  spec = PartitionSpec(mesh_lib.AXIS)

  def add(x: jax.Array) -> jax.Array:
    total = jax.lax.psum(x, mesh_lib.AXIS) / mesh.size
    return jax.lax.pcast(total, mesh_lib.AXIS, to="varying")

  sums = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0)
  ones = functools.partial(jnp.ones, (mesh.size, int(megabytes * 1e6 / 4)), jnp.float32)
  x = jax.jit(ones, out_shardings=mesh_lib.sharded(mesh))()

  def run(times: int) -> float:
    nonlocal x
    for number in range(times):
      x = sums(x)
      if number % _QUEUED == 0:  # a CPU's threads would not serve hundreds of them
        jax.block_until_ready(x)
    return float(x[0, 0])

  return run, {}


def main() -> None:
  megabytes = flags.DEFINE_list("megabytes", ["1", "4", "16", "64", "256"], "Sizes.")
  turns = flags.DEFINE_integer("turns", 7, "Of each size, timed.", lower_bound=1)
  out = benchmarking.define_out()

  def bench(scratch: pathlib.Path) -> None:
    devices = len(jax.devices())
    sizes = benchmarking.numbers("megabytes", megabytes.value, float)
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
    for size in sizes:
      makes = {"": functools.partial(make_sums, size)}
      timing = time_in_turns(makes, Here, turns=turns.value, turn_seconds=_TURN_SECONDS)[""]
      if timing.failed:
        raise UserError(f"an all-reduce of {size:g} MB fails ({timing.failed}).")
      time_ms = benchmarking.interval([1e3 * seconds for seconds in timing.step_s])
      rate = 2 * (devices - 1) / devices * size / time_ms["mean"]
      rows.append({"megabytes": size, "milliseconds": time_ms, "gigabytes_per_s": rate})
      figure = f"{benchmarking.show(time_ms, '.3f')} ms, {rate:.1f} GB/s"
      benchmarking.say(report, f"all-reduce of {size:g} MB over {devices} devices", figure)
      benchmarking.write_report(out.value, report)

  benchmarking.run(bench)


if __name__ == "__main__":
  main()
