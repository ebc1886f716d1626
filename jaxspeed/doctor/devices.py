"""The devices that JAX sees, beside the GPUs of the driver, and how fast they are."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from rich.filesize import decimal

from jaxspeed.doctor import child, rules, software
from jaxspeed.doctor.findings import Finding, figure, hint
from jaxspeed.doctor.sheets import sheet_of
from jaxspeed.errors import printable

# Seconds of the examination: imports take 3 to 10, finding devices up to 5, measuring 5.
_SECONDS = 30.0
# What did not happen where a stage is missing.
_STAGES = {
  "driver": "NVIDIA's driver did not answer",
  "jax": "JAX found no device",
  "ceilings": "not all was measured",
}


@dataclasses.dataclass(frozen=True)
class Probed:
  """What the examination in a process of its own found.

  Attributes:
    stages: the facts of each stage that ended (`probe.main`).
    problem: why not all of them did; "" if they did.
    hangs: whether that is because its time was over.
  """

  stages: Mapping[str, Any]
  problem: str = ""
  hangs: bool = False

  @property
  def ceilings(self) -> list[dict[str, Any]]:
    """The measured devices, one of each kind, the fastest first."""
    return sorted(self.stages.get("ceilings", []), key=lambda each: -each["tflops"])


def probe() -> Probed:
  """Examines the devices within a limited time."""
  ended = child.run("jaxspeed.doctor.probe", seconds=_SECONDS)
  stages = {name: facts for line in ended.lines for name, facts in line.items()}
  if ended.code == 0:
    return Probed(stages)
  missing = next((words for stage, words in _STAGES.items() if stage not in stages), "")
  reason = f" within {_SECONDS:.0f} s" if ended.code is None else f": {ended.reason}"
  return Probed(stages, missing + reason, hangs=ended.code is None)


def gpu_files(root: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
  """NVIDIA's GPUs in /dev (Windows' Linux has dxg); without a driver, those on the bus."""
  nodes = [*sorted((root / "dev").glob("nvidia[0-9]*")), *(root / "dev").glob("dxg")]
  # Vendor 10de, class 03 (display).
  for vendor in () if nodes else sorted((root / "sys/bus/pci/devices").glob("*/vendor")):
    if vendor.read_text().startswith("0x10de"):
      if vendor.with_name("class").read_text().startswith("0x03"):
        nodes.append(vendor.parent)
  return tuple(f"/{node.relative_to(root)}" for node in nodes)


def facts_of(probed: Probed, precision: str) -> rules.Facts:
  """What the rules need, of a probed machine and the precision of a recipe."""
  driver, seen = probed.stages.get("driver", {}), probed.stages.get("jax", {})
  gpus = (each | {"capability": tuple(each["capability"])} for each in driver.get("gpus", ()))
  found = "kinds" in seen
  return rules.Facts(
    gpus=tuple(rules.Gpu(**each) for each in gpus),
    driver=driver.get("version", ""),
    files=gpu_files(),
    platform=seen.get("platform", ""),
    problem="" if found else printable(seen.get("problem") or probed.problem),
    hangs=probed.hangs,
    complaints=tuple(map(printable, seen.get("complaints", ()))),
    precision=precision,
  )


def check(probed: Probed, precision: str) -> Iterator[Finding]:
  """The devices, the driver, and the rules that they break."""
  facts, kinds = facts_of(probed, precision), probed.stages.get("jax", {}).get("kinds", [])
  if kinds:
    named = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    yield Finding(f"JAX sees {named}", facts={"platform": facts.platform, "devices": kinds})
  for number, gpu in enumerate(facts.gpus):
    capability = ".".join(map(str, gpu.capability))
    yield Finding(
      f"GPU {number}: {gpu.name}, compute capability {capability}, {decimal(gpu.memory)} of "
      f"memory, {decimal(gpu.used)} in use",
      facts=dataclasses.asdict(gpu),
    )
  if facts.driver:
    cudnn = [software.version_of(f"nvidia-cudnn-cu{cuda}") for cuda in rules.plugins()]
    plugins = [f"plugin for CUDA {cuda} {version}" for cuda, version in rules.plugins().items()]
    named = ", ".join([f"driver {facts.driver}", *plugins, *(f"cuDNN {each}" for each in cudnn)])
    yield Finding(named, facts={"driver": facts.driver})
  elif not facts.is_there:
    yield Finding("no NVIDIA GPU")
  yield from rules.broken(facts)


def check_ceilings(probed: Probed) -> Iterator[Finding]:
  """Matrix products, memory and all-reduces, beside the data sheet."""
  for each in probed.ceilings:
    sheet = sheet_of(each["kind"])
    figures = ((each["tflops"], "TFLOP/s in " + each["dtype"]), (each["gb_s"], "GB/s of memory"))
    peaks = sheet or (0.0, 0.0)
    named = ", ".join(
      f"{figure(value)} {unit}" + (f" ({value / peak:.0%} of the data sheet)" if peak else "")
      for (value, unit), peak in zip(figures, peaks, strict=True)
    )
    yield Finding(f"{each['kind']}: {named}", facts=each)
    if any(value < 0.5 * peak for (value, _), peak in zip(figures, peaks, strict=True)):
      what = (
        f"{each['kind']} reaches less than half of its data sheet: is it hot, or used by others?"
      )
      yield hint(what, "nvidia-smi -q -d PERFORMANCE,PIDS")
  if reduced := probed.stages.get("all_reduce"):
    what = f"all-reduce of {reduced['megabytes']} MB between {reduced['devices']} devices"
    yield Finding(f"{what}: {figure(reduced['gb_s'])} GB/s of bus bandwidth", facts=reduced)
  if probed.problem and "jax" in probed.stages:
    yield hint(f"{probed.problem}, as on a busy machine.", "python -m jaxspeed.doctor")
