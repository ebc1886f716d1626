"""Data sheets of GPUs by the name that JAX gives them: dense half precision and memory."""

import dataclasses
import re

from jaxspeed.scaling.hardware import DEVICES


@dataclasses.dataclass(frozen=True)
class Sheet:
  """A data sheet.

  Attributes:
    kind: the kind in `scaling.hardware.DEVICES` with the same chip; "" for none.
    tflops: matrix products in half precision with sums in float32, dense, 1e12 operations/s.
    gb_s: memory bandwidth.
  """

  kind: str
  tflops: float
  gb_s: float


def _known(kind: str) -> Sheet:
  return Sheet(kind, DEVICES[kind].tflops, DEVICES[kind].memory_gb_s)


# The first pattern that is found in the name counts. Source: NVIDIA's data sheets.
_SHEETS = (
  (r"H100 PCIe", Sheet("h100", 756, 2039)),
  (r"H100 NVL", Sheet("h100", 835, 3938)),
  (r"H100", _known("h100")),
  (r"H200", Sheet("h100", 989, 4800)),
  (r"A100-SXM4-40GB|A100-PCIE-40GB", Sheet("a100", 312, 1555)),
  (r"A100 80GB PCIe", Sheet("a100", 312, 1935)),
  (r"A100", _known("a100")),
  (r"V100-PCIE", Sheet("v100", 112, 900)),
  (r"V100S", Sheet("v100", 130, 1134)),
  (r"V100", _known("v100")),
  (r"TITAN RTX", _known("titan_rtx")),
  (r"P40\b", _known("p40")),
  (r"L40S", Sheet("", 362, 864)),
  (r"\bL4\b", Sheet("", 121, 300)),
  (r"A10G", Sheet("", 70, 600)),
  (r"A10\b", Sheet("", 125, 600)),
  (r"\bT4\b", Sheet("", 65, 320)),
)


def sheet_of(name: str) -> Sheet | None:
  """The data sheet of a GPU by its name; None for a device without one here, such as a CPU."""
  return next((sheet for pattern, sheet in _SHEETS if re.search(pattern, name)), None)
