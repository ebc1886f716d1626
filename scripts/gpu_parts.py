"""Parts of a day on a GPU (`gpu_day.py`), in order of value; their files, and the table of those.

On an H200 (November 2026, jax 0.11.2) whole runs with their starts took 1.1 to 1.7 minutes and
profiles 0.4 to 0.5; a peer of max-autotune warmed up in 3.8, and ResNet-50 beside torch.compile was
not ready after 2.1. The other minutes are estimates.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

TOY = "TOY SIZE, NO MEASUREMENT"

Report = Mapping[str, Any]

_RUNS = "bench_cifar.py --runs=10"
_RESNET = "bench_resnet50.py"
_PROFILE = "profile_step.py --steps=20"
_OPTIONS = "bench_options.py --steps=20"
_CIFAR10 = "--config=configs/cifar10.py"
_MUON = "--config=configs/cifar10_airbench.py:94_muon"
_IMAGENET = "--config=configs/imagenet18.py:1 --image_size=224 --batch_size=256"
# XLA's own choice in jax 0.11.2, which leaves convolutions and loops out. An option replaces it.
_BUFFER = "--option=xla_gpu_enable_command_buffer="
_USUAL = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL"
_BUFFERS = f"{_BUFFER} {_BUFFER}{_USUAL},CONVOLUTION {_BUFFER}{_USUAL},CONVOLUTION,WHILE"
# With it, XLA's schedule of several GPUs leaves no all-reduce without kernels beside it.
_NO_ESTIMATOR = "--option=xla_gpu_enable_analytical_sol_latency_estimator=false"

# By script, what a dry run adds: the last of two flags counts.
_TOY_STEP = "--config=configs/quickstart.py --config.model.width=4 --image_size=0 --batch_size=16"
_TOY_TURNS = "--turns=2 --turn_seconds=0.01"
TOYS = {
  "bench_cifar.py": "--config=configs/quickstart.py --config.data.name=cifar10 "
  "--config.model.width=2 --config.model.whiten=False --config.batch_size=20 "
  "--config.average.kind=none --config.epochs=1 --config.target=0 --runs=2",
  "bench_resnet50.py": f"--size=32 --batch=8 --depth=18 --width=2 --precision=float32 --mode=eager "
  f"{_TOY_TURNS}",
  "profile_step.py": f"{_TOY_STEP} --steps=2 --top=3",
  "bench_options.py": f"{_TOY_STEP} {_TOY_TURNS} {_BUFFER} --option=xla_no_such=1 "
  "--option=config.deterministic=True",
}


@dataclasses.dataclass(frozen=True)
class Part:
  """One measurement: a script with its arguments.

  Attributes:
    name: names its files.
    most: minutes after which it is cut off; it is not begun with less than half of them left.
    command: a file in scripts/, which writes JSON to --out, and its arguments.
    trains: whether it takes a data set in --config.data.path.
    peers: whether it takes PyTorch scripts in --peer.
    torch: whether it compares with PyTorch by --frameworks.
    devices: fewest devices.
  """

  name: str
  most: float
  command: str
  trains: bool = False
  peers: bool = False
  torch: bool = False
  devices: int = 1


PARTS = (
  # Our own figures, so that a short lease has them all.
  Part("cifar10", 4, f"{_RUNS} --cold_starts=1 {_CIFAR10}", trains=True),
  Part("cifar10_muon", 5, f"{_RUNS} --cold_starts=1 {_MUON}", trains=True),
  Part(
    "cifar10_flip_tta",
    6,
    f"{_RUNS} --cold_starts=1 --config=configs/cifar10_resnet9.py:flip_tta",
    trains=True,
  ),
  Part("profile_cifar10", 2, f"{_PROFILE} {_CIFAR10}"),
  Part("profile_resnet50", 2, f"{_PROFILE} {_IMAGENET}"),
  Part("cifar10_peers", 15, f"{_RUNS} --cold_starts=0 {_CIFAR10}", trains=True, peers=True),
  Part("resnet50_224", 6, _RESNET, torch=True),
  Part("overlap_resnet50", 3, f"{_OPTIONS} {_IMAGENET} {_NO_ESTIMATOR}", devices=2),
  Part("resnet50_224_max_autotune", 10, f"{_RESNET} --mode=max-autotune", torch=True),
  Part("buffers_cifar10", 3, f"{_OPTIONS} {_CIFAR10} {_BUFFERS}"),
  Part("buffers_resnet50", 3, f"{_OPTIONS} {_IMAGENET} {_BUFFERS}"),
  Part("fusion_resnet50", 3, f"{_OPTIONS} {_IMAGENET} --option=config.conv_fusion=on"),
  Part("profile_muon", 2, f"{_PROFILE} {_MUON}"),
  Part("resnet50_sizes", 15, f"{_RESNET} --size=128 --size=288 --size=160 --size=192", torch=True),
)


def in_a_dry_run() -> list[Part]:
  """The parts that take each path once, on one device: the first of each script, and the peers'."""
  parts = [part for part in PARTS if part.devices == 1]
  firsts = {part.command.partition(" ")[0]: part for part in reversed(parts)}
  return [part for part in parts if part.peers or part in firsts.values()]


def file_of(out: pathlib.Path, name: str) -> pathlib.Path:
  return out / "gpu_day" / f"{name}.json"


def read(out: pathlib.Path) -> dict[str, Report]:
  """The reports of the parts that have one, by name, in order of value."""
  reports = {}
  for part in PARTS:
    try:
      report = json.loads(file_of(out, part.name).read_text("utf-8"))
    except (OSError, ValueError):
      continue  # its part is not done
    if isinstance(report, dict) and "gpu_day" in report:
      reports[part.name] = report
  return reports


def heading(report: Report) -> str:
  """The device, the driver, versions and the commit of a report."""
  machine = report["gpu_day"]["machine"]
  versions, driver = machine["versions"], machine["gpu"] or "nvidia-smi says nothing"
  named = [f"{k} {versions[k]}" for k in ("jax", "torch", "nvidia-cudnn-cu13") if versions.get(k)]
  first = f"{TOY}: " if report["gpu_day"]["toy"] else ""
  commit = f"commit {machine['commit'] or 'unknown'}"
  return "; ".join([f"{first}{machine['device']}", driver, *named, commit]) + "."


def markdown(out: pathlib.Path, skipped: Mapping[str, str] | None = None) -> str:
  """A table for each machine and commit, then a list of what was not measured, and why.

  Args:
    out: the folder of the figures.
    skipped: why the call did not run a part, by name.
  """
  reports, tables, lacking = read(out), dict[str, list[str]](), []
  for part in PARTS:
    report = reports.get(part.name)
    if report is None:
      reason = (skipped or {}).get(part.name, "no call has come to it")
      lacking.append(f"- {part.name}: not run: {reason}")
      continue
    entry, file = report["gpu_day"], f"gpu_day/{part.name}"
    note = "" if entry["state"] == "done" else f" ({entry['state']})"
    rows = tables.setdefault(heading(report), [])
    rows += [f"| {what}{note} | {said} | `{file}.json` |" for what, said in report.get("said", ())]
    if without := entry.get("no_comparison"):
      lacking.append(f"- {part.name}: no comparison with PyTorch: {without}")
    if note:
      reason = f"{entry['state']}: {entry['reason']}"
      lacking.append(f"- {part.name}: {reason}, `{file}.log`")
  blocks = [
    "\n".join([title, "", "| measured | figure | file |", "|---|---|---|", *rows])
    for title, rows in tables.items()
  ] or ["Nothing was measured yet."]
  if lacking:
    blocks.append("\n".join(["Not measured, or not to the end:", "", *lacking]))
  return "\n\n".join(blocks)
