"""Time all-reduces between this machine's devices, by size.

    python scripts/bench_allreduce.py --megabytes=1,4,16,64,256 --out=allreduce.json

Bandwidth is that of a ring: 2 (n - 1) / n times the bytes, over the seconds; NCCL's "busbw".
"""

import argparse
import pathlib
import time
from typing import Any

import benchmarking
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.records import provenance


def seconds_of(megabytes: float, turns: int) -> list[float]:
  """Seconds of one all-reduce of float32, each turn the mean of ten that are queued."""
  mesh, queued = mesh_lib.make_mesh(), 10
  sharding = mesh_lib.sharded(mesh)
  elements = int(megabytes * 1e6 / 4)
  # Each sum is the next one's operand, so none is dropped; dividing keeps the numbers small.
  spec = PartitionSpec(mesh_lib.AXIS)

  def add(x: jax.Array) -> jax.Array:
    total = jax.lax.psum(x, mesh_lib.AXIS) / mesh.size
    return jax.lax.pcast(total, mesh_lib.AXIS, to="varying")

  run = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0)
  ones = jax.jit(lambda: jnp.ones((mesh.size, elements), jnp.float32), out_shardings=sharding)
  x, seconds = jax.block_until_ready(run(ones())), []
  for _ in range(turns):
    start = time.perf_counter()
    for _ in range(queued):
      x = run(x)
    jax.block_until_ready(x)
    seconds.append((time.perf_counter() - start) / queued)
  return seconds


def row_of(megabytes: float, seconds: list[float], devices: int) -> dict[str, Any]:
  """Milliseconds and the bandwidth of a ring in GB/s."""
  milliseconds = benchmarking.interval([1e3 * each for each in seconds])
  moved = 2 * (devices - 1) / devices * megabytes / 1e3
  return {
    "megabytes": megabytes,
    "milliseconds": milliseconds,
    "gigabytes_per_s": moved / (milliseconds["mean"] / 1e3),
  }


def sizes(text: str) -> list[float]:
  """The numbers of --megabytes.

  Raises:
    ValueError: one of them is no number, or holds no float32.
  """
  found = [float(part) for part in text.split(",")]
  if not all(4e-6 <= size < 1e6 for size in found):
    raise ValueError
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument(
    "--megabytes",
    type=sizes,
    default=[1.0, 4.0, 16.0, 64.0, 256.0],
    help="sizes, separated by commas",
  )
  parser.add_argument("--turns", type=int, default=7, help="of each size, timed")
  parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the figures")
  given = parser.parse_args()
  if given.turns < 1:
    parser.error(f"--turns={given.turns}: give at least 1")
  devices = len(jax.devices())
  if devices < 2:
    parser.error("an all-reduce needs two devices, and JAX sees one")
  report = {
    "what": "All-reduces of float32 by size; written by scripts/bench_allreduce.py.",
    "device": provenance.describe_device(),
    "devices": devices,
    **benchmarking.environment(),
    "rows": [],
  }
  for megabytes in given.megabytes:
    row = row_of(megabytes, seconds_of(megabytes, given.turns), devices)
    report["rows"].append(row)
    shown = benchmarking.show(row["milliseconds"], ".3f")
    print(f"{megabytes:g} MB: {shown} ms, {row['gigabytes_per_s']:.1f} GB/s", flush=True)
    benchmarking.write_report(given.out, report)


if __name__ == "__main__":
  main()
