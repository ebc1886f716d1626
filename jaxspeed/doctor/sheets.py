"""Data sheets of GPUs by the name that JAX gives them: dense half precision and memory."""

from jaxspeed.scaling.hardware import DEVICES

# TFLOP/s of matrix products in half precision with sums in float32, and GB/s of memory, by a part
# of the name; the first one that is found counts. Source: NVIDIA's data sheets.
_SHEETS: dict[str, tuple[float, float]] = {
  "H100 PCIe": (756, 2039),
  "H100 NVL": (835, 3938),
  "H200": (989, 4800),
  "A100-SXM4-40GB": (312, 1555),
  "A100-PCIE-40GB": (312, 1555),
  "A100 80GB PCIe": (312, 1935),
  "V100-PCIE": (112, 900),
  "V100S": (130, 1134),
  "L40S": (362, 864),
  "L4": (121, 300),
  "A10G": (70, 600),
  "T4": (65, 320),
  **{kind.upper(): (device.tflops, device.memory_gb_s) for kind, device in DEVICES.items()},
}


def sheet_of(name: str) -> tuple[float, float] | None:
  """TFLOP/s and GB/s of a GPU by its name; None for a device without a sheet, such as a CPU."""
  return next((sheet for key, sheet in _SHEETS.items() if key in name), None)
