"""Asks the driver and JAX, and measures the devices; the doctor runs it as a process of its own.

A driver can hang in the kernel, a plugin can crash, XLA ends a process for a flag that it does not
know: all of that stays in here. After each stage it prints facts (`rules.Facts`) as a JSON object.
What goes wrong ends it as it ends any program: `devices.probe` reads its last words.
"""

from collections.abc import Iterator
from typing import Any

import pynvml as nvml

from jaxspeed.files import dump_json, to_json


def ask_driver() -> dict[str, Any]:
  """The version of NVIDIA's driver, '' where none answers, and its GPUs."""
  gpus = []
  try:
    nvml.nvmlInit()
    for number in range(nvml.nvmlDeviceGetCount()):
      handle = nvml.nvmlDeviceGetHandleByIndex(number)
      memory = nvml.nvmlDeviceGetMemoryInfo(handle)
      gpu = {"memory": memory.total, "used": memory.used, "name": nvml.nvmlDeviceGetName(handle)}
      gpus.append(gpu | {"capability": nvml.nvmlDeviceGetCudaComputeCapability(handle)})
    return {"driver": nvml.nvmlSystemGetDriverVersion(), "gpus": gpus}
  except nvml.NVMLError:
    return {"driver": ""}


def stages() -> Iterator[dict[str, Any]]:
  """The facts of each stage."""
  yield ask_driver()
  import jax

  from jaxspeed.devices import mesh
  from jaxspeed.doctor import ceilings

  devices = mesh.find_devices()
  kinds = {str(device.device_kind): device for device in reversed(devices)}
  yield {"platform": jax.default_backend(), "kinds": [str(each.device_kind) for each in devices]}
  measured = map(ceilings.measure, kinds.values())
  yield {"ceilings": sorted(measured, key=lambda each: -each["tflops"])}
  reduced = ceilings.all_reduce(devices) if len(devices) > 1 else None
  yield {"all_reduce": reduced, "environment": jax.print_environment_info(return_string=True)}


if __name__ == "__main__":
  for facts in stages():
    print(dump_json(to_json(facts)), flush=True)
