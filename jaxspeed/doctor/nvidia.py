"""NVIDIA's GPUs and driver, from nvidia-smi, /proc and /dev; JAX is not asked."""

import csv
import dataclasses
import os
import pathlib
import re
import shutil
from collections.abc import Sequence

from jaxspeed.doctor import child
from jaxspeed.errors import printable

_FIELDS = (
  "index", "name", "compute_cap", "driver_version", "memory.total", "memory.used", "clocks.sm",
  "clocks.max.sm", "temperature.gpu", "power.draw", "power.limit",
)  # fmt: skip
# nvidia-smi takes 0.1 s, without a persistent driver up to 3 s.
_SECONDS = 4.0
# Bits of the reasons for lower clocks (nvml.h, nvmlClocksThrottleReason). Idle is no defect.
IDLE = 0x1
REASONS = {
  0x2: "clocks set by an application",
  0x4: "power limit",
  0x8: "hardware slowdown (heat or power)",
  0x10: "synchronised with another GPU",
  0x20: "software's thermal limit",
  0x40: "hardware's thermal limit",
  0x80: "power brake of the server",
  0x100: "clocks of the display",
}
# Heat and power that slow a GPU; its own power limit (0x4) is how it works under load.
SLOWING = 0x8 | 0x20 | 0x40 | 0x80


@dataclasses.dataclass(frozen=True)
class Gpu:
  """One GPU as nvidia-smi states it; a number that it does not state is None.

  Attributes:
    capability: its compute capability, as (7, 0); () if not stated.
    memory_mib: its memory in MiB.
    used_mib: how much of it is in use.
    clock_mhz: its clock now.
    most_mhz: its highest clock.
    celsius: its temperature.
    watts: its power now.
    most_watts: its power limit.
  """

  name: str
  capability: tuple[int, ...] = ()
  driver: str = ""
  memory_mib: float | None = None
  used_mib: float | None = None
  clock_mhz: float | None = None
  most_mhz: float | None = None
  celsius: float | None = None
  watts: float | None = None
  most_watts: float | None = None


@dataclasses.dataclass(frozen=True)
class Nvidia:
  """What is known of NVIDIA's GPUs without JAX.

  Attributes:
    smi: "" if nvidia-smi answered, else why not.
    gpus: the GPUs that it lists.
    driver: the driver's version; "" if unknown.
    nodes: the GPUs that /dev, /proc or, without a driver, /sys name.
  """

  smi: str
  gpus: tuple[Gpu, ...] = ()
  driver: str = ""
  nodes: tuple[str, ...] = ()

  @property
  def present(self) -> bool:
    """Whether there is a GPU, whatever JAX sees."""
    return bool(self.gpus or self.nodes)


def ask(arguments: Sequence[str], *, seconds: float = _SECONDS) -> tuple[str, str]:
  """What nvidia-smi prints, and "" or why there is nothing."""
  program = shutil.which("nvidia-smi")
  if program is None:
    return "", "nvidia-smi is not installed here, as in many containers"
  try:
    done = child.run([program, *arguments], seconds=seconds)
  except OSError as error:
    return "", f"nvidia-smi cannot be started ({error.strerror or error})"
  if done.code is None:
    return "", f"nvidia-smi did not answer in {seconds:g} s"
  text = done.out
  if done.code:
    last = (text + done.error).strip().splitlines()[-1:]
    return "", printable(
      f"nvidia-smi ended with code {done.code}{': ' + last[0][:120] if last else ''}"
    )
  return text, ""


def parse_gpus(text: str) -> tuple[Gpu, ...]:
  """The GPUs of nvidia-smi's CSV with `_FIELDS`; lines of another form are left out."""
  found = []
  for line in text.splitlines():
    # A longer line is garbage, and Python's reader refuses fields from 131,073 characters on.
    words = [word.strip() for row in csv.reader([line[:4096]]) for word in row]
    if len(words) == len(_FIELDS) and words[0].isdecimal():
      capability = re.fullmatch(r"(\d+)\.(\d+)", words[2])
      driver = words[3] if re.fullmatch(r"\d+(\.\d+)+", words[3]) else ""
      pair = (int(capability[1]), int(capability[2])) if capability else ()
      found.append(Gpu(printable(words[1][:80]), pair, driver, *map(_number, words[4:])))
  return tuple(found)


def _number(text: str) -> float | None:
  return float(text) if re.fullmatch(r"\d{1,9}(\.\d+)?", text) else None


def look(root: pathlib.Path = pathlib.Path("/")) -> Nvidia:
  """Asks nvidia-smi, and looks into /proc and /dev."""
  text, problem = ask([f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"])
  gpus = parse_gpus(text)
  if not problem and not gpus:
    problem = "nvidia-smi printed no GPU that can be read"
  driver = next((gpu.driver for gpu in gpus if gpu.driver), "") or _driver_of(root)
  return Nvidia(problem, gpus, driver, _nodes(root))


def _driver_of(root: pathlib.Path) -> str:
  """The driver's version in /proc/driver/nvidia/version; "" without one."""
  try:
    text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
  except OSError:
    return ""
  found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
  return found[1] if found else ""


def _nodes(root: pathlib.Path) -> tuple[str, ...]:
  """The files of GPUs in /dev, or their folders in /proc; Windows' Linux has /dev/dxg."""
  for folder, pattern in (
    ("dev", r"nvidia\d+"),
    ("proc/driver/nvidia/gpus", r".+"),
    ("dev", "dxg"),
  ):
    try:
      names = sorted(name for name in os.listdir(root / folder) if re.fullmatch(pattern, name))
    except OSError:
      continue
    if names:
      return tuple(f"/{folder}/{name}" for name in names)
  # Without a driver, the bus alone names a GPU: vendor 10de, class 03 (display).
  bus = sorted((root / "sys/bus/pci/devices").glob("*/vendor"))
  found = [vendor.parent for vendor in bus if _word(vendor) == "0x10de"]
  return tuple(
    "/" + str(each.relative_to(root)) for each in found if _word(each / "class")[:4] == "0x03"
  )


def _word(path: pathlib.Path) -> str:
  try:
    return path.read_text(errors="replace").strip()
  except OSError:
    return ""


def throttling() -> tuple[list[int], str]:
  """The bits of the reasons for lower clocks of each GPU now, and "" or why they are unknown."""
  problem = ""
  # Drivers since 535 call them events, earlier ones throttling.
  for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
    text, problem = ask([f"--query-gpu={name}.active", "--format=csv,noheader"])
    found = [re.fullmatch(r"0x([0-9a-fA-F]{1,16})", line.strip()) for line in text.splitlines()]
    if found and all(found):
      return [int(each[1], 16) for each in found if each], ""
    if "not answer" in problem or "not installed" in problem:
      break
  return [], problem or "nvidia-smi states no reasons"
