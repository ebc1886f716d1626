"""Asks the driver and JAX, and measures the devices; the doctor runs it as a process of its own.

A driver can hang in the kernel, a plugin can crash, XLA ends a process for a flag that it does not
know: all of that stays in here. After each stage it prints facts (`rules.Facts`) as a JSON object.
"""

import logging
import logging.handlers
import os
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import pynvml as nvml

from jaxspeed.errors import UserError
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


def in_words(error: BaseException) -> str:
  """An exception's type, the first line of its message, and where it arose."""
  if isinstance(error, UserError):
    return str(error)
  first = next(iter(str(error).strip().splitlines()), "")[:200]
  frames = traceback.extract_tb(error.__traceback__)
  return f"{type(error).__name__}: {first}" + (f" ({frames[-1].filename})" if frames else "")


def _complaints(records: Iterable[logging.LogRecord]) -> Iterator[str]:
  """What JAX logs of its plugins, but for its hint on a GPU, which is a rule of the doctor's."""
  for record in records:
    # JAX logs one message without its argument.
    text = record.getMessage() if record.args else str(record.msg)
    error = record.exc_info[1] if record.exc_info else None
    if record.levelno >= logging.WARNING and "may be present" not in text:
      yield text.rstrip(".: ") + (f": {in_words(error)}" if error else "")


def find_devices() -> dict[str, Any]:
  """JAX's platform and kinds of devices, or the problem; what it complains of its plugins."""
  log, logger = logging.handlers.BufferingHandler(1000), logging.getLogger("jax._src.xla_bridge")
  logger.addHandler(log)
  logger.propagate = False
  found: dict[str, Any] = {}
  try:
    import jax

    from jaxspeed.devices import mesh

    kinds = [str(device.device_kind) for device in mesh.find_devices()]
    found |= {"platform": jax.default_backend(), "kinds": kinds}
  except (Exception, SystemExit) as error:  # a broken installation raises anything
    found["problem"] = in_words(error)
    cause = error.__cause__ or error
    if any("jax_plugins" in frame.filename for frame in traceback.extract_tb(cause.__traceback__)):
      return found | {"complaints": [*_complaints(log.buffer), in_words(cause)]}
  return found | {"complaints": [*_complaints(log.buffer)]}


def main() -> None:
  """Prints what it finds."""
  # gloo writes to descriptor 1.
  out = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)

  def tell(**facts: Any) -> None:
    print(dump_json(to_json(facts)), file=out, flush=True)

  tell(**ask_driver())
  seen = find_devices()
  tell(**seen)
  if "problem" in seen:
    return
  import jax

  from jaxspeed.doctor import ceilings

  devices = jax.devices()
  kinds = {device.device_kind: device for device in reversed(devices)}
  measured = map(ceilings.measure, kinds.values())
  tell(ceilings=sorted(measured, key=lambda each: -each["tflops"]))
  reduced = ceilings.all_reduce(devices) if len(devices) > 1 else None
  tell(all_reduce=reduced, environment=jax.print_environment_info(return_string=True))


if __name__ == "__main__":
  main()
