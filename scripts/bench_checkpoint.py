"""What checkpoints cost a run: a save of its state beside the steps between two saves.

    python scripts/bench_checkpoint.py configs/smoke_imagenet.py --out=results/checkpoint_cost.json

Turn by turn in one process: steps of the first phase on one batch of noise, then a save. As in a
run, training waits for the save, and the oldest checkpoint is removed.
"""

import argparse
import importlib.util
import os
import pathlib
import statistics
import tempfile
import time

import benchmarking
import jax
import numpy as np

from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import compile_program
from jaxspeed.planning.make import make_plan
from jaxspeed.records import provenance
from jaxspeed.run.checkpoint import Checkpoints
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.state import Carry


def load_config(path: pathlib.Path):
  """Returns the `get_config()` of a recipe."""
  spec = importlib.util.spec_from_file_location(path.stem, path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config()


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("config", type=pathlib.Path)
  parser.add_argument("--turns", type=int, default=15)
  parser.add_argument("--steps", type=int, default=3, help="of a turn")
  parser.add_argument("--folder", help="where checkpoints are written; the default is /tmp's")
  parser.add_argument("--out", type=pathlib.Path)
  arguments = parser.parse_args()

  config = load_config(arguments.config).copy_and_resolve_references()
  config.precision = "float32"
  plan = make_plan(config)
  phase, mesh = plan.phases[0], mesh_lib.make_mesh(1)
  spec = make_train_spec(config, plan, mesh)
  size, n = phase.image_size, phase.batch_size
  rng = np.random.default_rng(0)
  batch = Batch(
    image=rng.integers(256, size=(n, size, size, 3), dtype=np.uint8),
    label=rng.integers(config.data.classes, size=n).astype(np.int32),
    mask=np.ones(n, bool),
    flip=np.zeros(n, bool),
  )
  batch = mesh_lib.split(batch, mesh)
  table = mesh_lib.replicate(plan.table_in(np.float32), mesh)
  state = jax.jit(on_mesh(init_state, spec))(seed_key(0), np.zeros((1, size, size, 3), np.uint8))
  carry = mesh_lib.replicate(Carry(state, MetricSums.zero()), mesh)
  program = compile_program(
    batch_step(spec),
    (mesh_lib.abstract(carry, mesh_lib.replicated(mesh)), batch, table),
    donate=(0,),
  )

  steps, saves, cpu = [], [], []
  with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
    checkpoints = Checkpoints(pathlib.Path(folder), keep=config.checkpoint.keep)
    for turn in range(arguments.turns + 1):
      start = time.perf_counter()
      for _ in range(arguments.steps):
        carry, _ = program.call(carry, batch, table)
      jax.block_until_ready(carry)
      middle, cpu_before = time.perf_counter(), time.process_time()
      checkpoints.save(turn + 1, carry, {})
      if turn:  # the first turn imports Orbax
        steps.append((middle - start) / arguments.steps)
        saves.append(time.perf_counter() - middle)
        cpu.append(time.process_time() - cpu_before)
  interval = config.checkpoint.every_seconds
  step_seconds, save_seconds = statistics.median(steps), statistics.median(saves)
  report = {
    "what": f"scripts/bench_checkpoint.py {arguments.config}: a save of the state beside the steps "
    "of the first phase, turn by turn in one process. cost: the median save over the seconds of "
    "training between two (checkpoint.every_seconds), at the load that load_average tells; "
    "cost_in_cpu_seconds: of the processor's time that a save takes, whatever others do. Not "
    "measured: a network's disk, a GPU's copy to the host.",
    "device": provenance.describe_device(),
    "versions": provenance.versions(),
    "commit": provenance.commit(),
    "state_mb": sum(x.nbytes for x in jax.tree.leaves(carry)) / 1e6,
    "batch_size": n,
    "image_size": size,
    "interval_seconds": interval,
    "step_seconds": step_seconds,
    "steps_between_saves": interval / step_seconds,
    "save_seconds": {"median": save_seconds, "min": min(saves), "max": max(saves), "n": len(saves)},
    "save_cpu_seconds": statistics.median(cpu),
    "save_over_step": save_seconds / step_seconds,
    "load_average": os.getloadavg()[0],
    "cores": os.cpu_count(),
    "cost": save_seconds / interval,
    "cost_in_cpu_seconds": statistics.median(cpu) / interval,
    "cost_of_the_slowest": max(saves) / interval,
  }
  benchmarking.write_report(arguments.out, report)
  print(
    f"{report['state_mb']:.1f} MB; a step {step_seconds:.2f} s, a save {save_seconds:.2f} s, of "
    f"the processor {statistics.median(cpu):.2f} s: {report['cost']:.2%} of {interval:g} s"
  )


if __name__ == "__main__":
  main()
