"""Data sheets of GPUs by the name that JAX gives them: dense half precision and memory."""

from typing import NamedTuple

from jaxspeed.scaling.hardware import DEVICES


class Sheet(NamedTuple):
  """A data sheet.

  Attributes:
    kind: the kind in `scaling.hardware.DEVICES` with the same chip; "" for none.
    tflops: matrix products in half precision with sums in float32, dense, 1e12 operations/s.
    gb_s: memory bandwidth.
  """

  kind: str
  tflops: float
  gb_s: float


# The first name that is found counts. Source: NVIDIA's data sheets.
_SHEETS = {
  "H100 PCIe": Sheet("h100", 756, 2039),
  "H100 NVL": Sheet("h100", 835, 3938),
  "H200": Sheet("h100", 989, 4800),
  "A100-SXM4-40GB": Sheet("a100", 312, 1555),
  "A100-PCIE-40GB": Sheet("a100", 312, 1555),
  "A100 80GB PCIe": Sheet("a100", 312, 1935),
  "V100-PCIE": Sheet("v100", 112, 900),
  "V100S": Sheet("v100", 130, 1134),
  "L40S": Sheet("", 362, 864),
  "L4": Sheet("", 121, 300),
  "A10G": Sheet("", 70, 600),
  "T4": Sheet("", 65, 320),
} | {
  name: Sheet(kind, DEVICES[kind].tflops, DEVICES[kind].memory_gb_s)
  for name, kind in zip(("H100", "A100", "V100"), ("h100", "a100", "v100"), strict=True)
}


def sheet_of(name: str) -> Sheet | None:
  """The data sheet of a GPU by its name; None for a device without one here, such as a CPU."""
  return next((each for key, each in _SHEETS.items() if key in name), None)
