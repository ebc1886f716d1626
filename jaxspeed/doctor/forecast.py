"""The time and memory of a recipe here, by `jaxspeed.scaling` with the ceilings measured here.

ResNet-50's rate on this device is a published one times the smaller of (matrix ceiling here / data
sheet) and (memory ceiling here / data sheet); on a CPU it is a share of the matrix ceiling.
"""

import dataclasses
import math
from collections.abc import Iterator

from ml_collections import ConfigDict

from jaxspeed.doctor.devices import KINDS
from jaxspeed.doctor.findings import Finding, mend
from jaxspeed.doctor.machine import cpus
from jaxspeed.doctor.rules import Facts
from jaxspeed.planning.make import make_plan
from jaxspeed.scaling.allreduce_time import exchange_of
from jaxspeed.scaling.command import describe
from jaxspeed.scaling.hardware import DEVICES, LAUNCH_S, Cluster, cluster_of
from jaxspeed.scaling.predict import decoded_per_core, predict
from jaxspeed.scaling.work import PASSES, RESNET50, work_of

# Share of a CPU's matrix ceiling that a step of ResNet-9, width 64, reaches: 352 GFLOP/s of the 487
# of a product of 2,048 x 2,048 matrices (results/bench_cpu_width64.json).
CPU_SHARE = 0.7


def cluster_for(facts: Facts) -> tuple[Cluster, str]:
  """This machine as `jaxspeed.scaling` describes one, and what its rate of ResNet-50 rests on."""
  best = facts.ceilings[0]
  kind = next((kind for name, kind in KINDS.items() if name in best["kind"]), "a100")
  device = DEVICES[kind]
  if best["kind"] == "cpu":
    rate, launch = CPU_SHARE * best["tflops"] * 1e12 / (PASSES * RESNET50), 0.0
    words = f"{CPU_SHARE:.0%} of the matrix ceiling measured here (results/bench_cpu_width64.json)"
  else:
    shares = {"matrix": best["tflops"] / device.tflops, "memory": best["gb_s"] / device.memory_gb_s}
    lower, share = min(shares.items(), key=lambda each: each[1])
    rate, launch = share * cluster_of(device).images_per_s, LAUNCH_S
    words = (
      f"{device.images_per_s:,.0f} images/s of ResNet-50 on {kind.upper()}, times {share:.2g}, the "
      f"{lower} ceiling measured here over that data sheet"
    )
  reduced = facts.all_reduce
  return Cluster(
    images_per_s=rate,
    launch_s=launch,
    per_host=len(facts.kinds),
    local_gb_s=reduced["gb_s"] if reduced else device.local_gb_s,
  ), words


def check(config: ConfigDict, facts: Facts, decoded: float) -> Iterator[Finding]:
  """The predicted time of a recipe, what it rests on, and its memory.

  Args:
    config: the recipe.
    facts: of the devices, one at least measured.
    decoded: images/s of 224 px that this host decodes; 0: not measured.
  """
  best = facts.ceilings[0]
  # The devices of a CPU share its cores.
  devices = 1 if best["kind"] == "cpu" else len(facts.kinds)
  plan, work = make_plan(config, devices=devices), work_of(config)
  cluster, words = cluster_for(facts)
  cluster = dataclasses.replace(cluster, images_per_s=work.rate(cluster.images_per_s))
  if plan.streams:
    side = dataclasses.replace(plan.phases[0], image_size=224)
    cores = decoded / decoded_per_core(side) if decoded else cpus()
    cluster = dataclasses.replace(cluster, cores=cores)
    words += "" if decoded else f", and on {cores:g} cores that decode (--data=DIR measures them)"
  found = predict(config, plan, cluster, exchange_of(config), devices=devices)
  needed = [work.memory_gb(config, plan, each, devices, best["dtype"]) for each in plan.phases]
  there = best["free_bytes"] / 1e9
  lines = describe(plan, found, needed, there)
  figures = {"seconds": found.seconds, "step_s": [step.seconds for step in found.steps]}
  yield Finding(f"{config.name} on {lines[0]}", facts=figures | {"needed_gb": max(needed)})
  yield from (Finding(line) for line in lines[1:])
  images = f"an epoch is one of the recipe's {plan.train_images:,} images"
  yield Finding(f"rests on {words}; {images} (--config.data.train_images=N for others)")
  if 0 < there < max(needed):
    times = math.ceil(max(needed) / there) * max(1, config.accumulate)
    parts = [phase.batch_size // devices for phase in plan.phases]
    number = next((n for n in range(times, min(parts) + 1) if not any(p % n for p in parts)), 0)
    smaller = f"--config.batch_size={max(1, min(parts) * devices // times)}"
    what = f"{config.name} needs {max(needed):.3g} GB on a device that has {there:.3g}."
    yield mend(what, f"--config.accumulate={number}" if number else smaller)
