"""The devices that JAX sees, beside the GPUs of the driver, and how fast they are."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

import pydantic
from rich.filesize import decimal

from jaxspeed.devices.host import has_tpu
from jaxspeed.doctor import child, rules
from jaxspeed.doctor.findings import Finding, figure, hint
from jaxspeed.doctor.rules import Facts
from jaxspeed.scaling.hardware import DEVICES

# A part of JAX's name of each device of `scaling.hardware`; the first one that is found counts.
KINDS = {
  "TPU v4": "tpu_v4",
  "TPU v5 lite": "tpu_v5e",
  "TPU v5": "tpu_v5p",
  "TPU v6 lite": "tpu_v6e",
}
KINDS |= {kind.upper().replace("_", " "): kind for kind in DEVICES}
# TFLOP/s of matrix products in half precision with sums in float32, and GB/s of memory, likewise.
# Sources: NVIDIA's data sheets, `scaling.hardware`.
_SHEETS: dict[str, tuple[float, float]] = {
  "H100 PCIe": (756, 2039),
  "H100 NVL": (835, 3938),
  "A100-SXM4-40GB": (312, 1555),
  "A100-PCIE-40GB": (312, 1555),
  "A100 80GB PCIe": (312, 1935),
  "V100-PCIE": (112, 900),
  "V100S": (130, 1134),
  "L40S": (362, 864),
  "L4": (121, 300),
  "A10G": (70, 600),
  "T4": (65, 320),
  **{name: (DEVICES[kind].tflops, DEVICES[kind].memory_gb_s) for name, kind in KINDS.items()},
}
# Seconds of the examination: imports take 3 to 10, finding devices up to 5, measuring 5.
_SECONDS = 30.0
# What did not happen where a fact of each stage is missing.
_STAGES = {
  "driver": "NVIDIA's driver did not answer",
  "kinds": "JAX found no device",
  "ceilings": "not all was measured",
}
# A plugin in JAX's message or in a frame of a traceback, and the exception below it.
_FAILED_PLUGIN = re.compile(
  r"jax_plugins[./](\w+).*\n(?:(?: |Traceback).*\n)*([\w.]*(?:Error|Exception|Exit)\b.*)"
)


def probe(precision: str = "") -> Facts:
  """Examines the devices within a limited time, in a process of its own."""
  ended = child.run("jaxspeed.doctor.probe", seconds=_SECONDS)
  said = {name: value for line in ended.lines for name, value in line.items()}
  if ended.code != 0:
    what = next((words for name, words in _STAGES.items() if name not in said), "")
    why = f" within {_SECONDS:.0f} s" if ended.code is None else f": {ended.reason}"
    said["unmeasured" if said.get("kinds") else "problem"] = what + why
  said |= {
    "files": gpu_files(),
    "tpu": has_tpu(),
    "hangs": ended.code is None,
    "failed_plugins": dict(_FAILED_PLUGIN.findall(ended.error)),
    "precision": precision,
  }
  return pydantic.TypeAdapter(Facts).validate_python(said)


def gpu_files(root: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
  """NVIDIA's GPUs in /dev (Windows' Linux has dxg); without a driver, those on the bus."""
  nodes = [*sorted((root / "dev").glob("nvidia[0-9]*")), *(root / "dev").glob("dxg")]
  # Vendor 10de, class 03 (display).
  for vendor in () if nodes else sorted((root / "sys/bus/pci/devices").glob("*/vendor")):
    if vendor.read_text().startswith("0x10de"):
      if vendor.with_name("class").read_text().startswith("0x03"):
        nodes.append(vendor.parent)
  return tuple(f"/{node.relative_to(root)}" for node in nodes)


def check(facts: Facts) -> Iterator[Finding]:
  """The devices, the driver, and the rules that they break."""
  if kinds := facts.kinds:
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
    cudnn = [rules.version_of(f"nvidia-cudnn-cu{cuda}") for cuda in rules.plugins()]
    plugins = [f"plugin for CUDA {cuda} {version}" for cuda, version in rules.plugins().items()]
    named = ", ".join([f"driver {facts.driver}", *plugins, *(f"cuDNN {each}" for each in cudnn)])
    yield Finding(named, facts={"driver": facts.driver})
  elif not facts.is_there and not facts.tpu:
    yield Finding("no NVIDIA GPU")
  yield from rules.broken(facts)


def sheet_of(name: str) -> tuple[float, float] | None:
  """TFLOP/s and GB/s of a GPU by its name; None for a device without a sheet, such as a CPU."""
  return next((sheet for key, sheet in _SHEETS.items() if key in name), None)


def check_ceilings(facts: Facts) -> Iterator[Finding]:
  """Matrix products, memory and all-reduces, beside the data sheet."""
  for each in facts.ceilings:
    kind, peaks = each["kind"], sheet_of(each["kind"]) or (0.0, 0.0)
    figures = ((each["tflops"], "TFLOP/s in " + each["dtype"]), (each["gb_s"], "GB/s of memory"))
    named = ", ".join(
      f"{figure(value)} {unit}" + (f" ({value / peak:.0%} of the data sheet)" if peak else "")
      for (value, unit), peak in zip(figures, peaks, strict=True)
    )
    yield Finding(f"{kind}: {named}", facts=each)
    if any(value < 0.5 * peak for (value, _), peak in zip(figures, peaks, strict=True)):
      what = f"{kind} reaches less than half of its data sheet: is it hot, or used by others?"
      yield hint(what, "nvidia-smi -q -d PERFORMANCE,PIDS")
  if reduced := facts.all_reduce:
    what = f"all-reduce of {reduced['megabytes']} MB between {reduced['devices']} devices"
    yield Finding(f"{what}: {figure(reduced['gb_s'])} GB/s of bus bandwidth", facts=reduced)
  if facts.unmeasured:
    yield hint(f"{facts.unmeasured}, as on a busy machine.", "python -m jaxspeed.doctor")
