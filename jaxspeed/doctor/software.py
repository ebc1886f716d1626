"""Versions of the packages, and the extras that are missing."""

import importlib.metadata
import platform
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxspeed.doctor.part import Advice, Part

CORE = ("jaxspeed", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# The packages of each extra in pyproject.toml, and what needs them.
EXTRAS = {
  "imagenet": (("tensorflow", "tensorflow-datasets"), "training on images from disk"),
  "export": (("onnx", "onnxruntime"), "export --format=onnx"),
  "loggers": (("wandb", "trackio"), "--config.records.loggers"),
  "sky": (("skypilot",), "jaxspeed.launch on clouds"),
}
# NVIDIA's packages with what JAX calls; a version of CUDA ends their names.
_NVIDIA = re.compile(
  r"nvidia-(cudnn|cublas|nccl|cuda-runtime|cuda-nvcc)(-cu1[23])?|jax-cuda1[23]-.*"
)


def installed() -> dict[str, str]:
  """Versions of the packages of the report, by name in lower case."""
  wanted = {*CORE, *(name for names, _ in EXTRAS.values() for name in names)}
  found: dict[str, str] = {}
  for each in importlib.metadata.distributions():
    about: Any = each.metadata or {}  # a damaged installation has no name
    name = re.sub(r"[-_.]+", "-", about.get("Name") or "").lower()
    if name and (name in wanted or _NVIDIA.fullmatch(name)):
      found.setdefault(name, each.version or "")
  return found


def requirements(name: str, requires: Callable = importlib.metadata.requires) -> dict[str, str]:
  """The versions that an installed package asks of NVIDIA's, by name, as in ">=9.8,<10"."""
  try:
    lines = requires(name) or []
  except importlib.metadata.PackageNotFoundError:
    return {}
  found = {}
  for line in lines:
    matched = re.match(r"\s*([\w.-]+)\s*\(?([^;)]*)\)?", line)
    if matched and _NVIDIA.fullmatch(matched[1].lower()) and matched[2].strip():
      found[matched[1].lower()] = matched[2].replace(" ", "")
  return found


def numbers(version: str) -> tuple[int, ...]:
  """The numbers at the beginning of a version: "9.10.2.21" as (9, 10, 2, 21)."""
  found = re.match(r"\d+(\.\d+)*", version)
  return tuple(map(int, found[0].split("."))) if found else ()


def satisfies(version: str, asked: str) -> bool:
  """Whether a version meets conditions such as ">=9.8,<10"; unknown ones count as met."""
  have = numbers(version)
  for condition in asked.split(","):
    found = re.fullmatch(r"(>=|<=|==|!=|>|<|~=)([\d.]+)(\.\*)?", condition)
    if not found:
      continue
    want = numbers(found[2])
    width = max(len(have), len(want))
    a, b = (each + (0,) * (width - len(each)) for each in (have, want))
    if found[3]:
      a, b = have[: len(want)], want
    met = {
      ">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, ">": a > b, "<": a < b,
      "~=": a >= b and have[: len(want) - 1] == want[:-1],
    }  # fmt: skip
    if not met[found[1]]:
      return False
  return True


def examine(
  packages: Mapping[str, str], *, streams: bool, python: str = platform.python_version()
) -> Part:
  """Versions, and missing packages with the line that installs them.

  Args:
    packages: the installed packages (`installed`).
    streams: whether images from disk are asked for, which need the extra imagenet.
    python: Python's version.
  """
  lines = [", ".join([f"Python {python}", *(_told(name, packages) for name in CORE)])]
  advice = [
    Advice(f"{name} is not installed.", f"pip install -U {name}")
    for name in CORE
    if name not in packages and name != "jaxspeed"
  ]
  missing = {}
  for extra, (names, purpose) in EXTRAS.items():
    lacking = [name for name in names if name not in packages]
    if not lacking:
      lines.append(f"{extra}: " + ", ".join(_told(name, packages) for name in names))
      continue
    missing[extra] = lacking
    needed = extra == "imagenet" and streams
    advice.append(
      Advice(
        f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed; {purpose} "
        f"needs {'it' if len(lacking) == 1 else 'them'}.",
        f"pip install 'jaxspeed[{extra}]'",
        mend=needed,
      )
    )
  facts = {"python": python, "packages": dict(sorted(packages.items())), "missing": missing}
  return Part("software", lines, facts, advice)


def _told(name: str, packages: Mapping[str, str]) -> str:
  return f"{name} {packages.get(name) or 'missing'}"
