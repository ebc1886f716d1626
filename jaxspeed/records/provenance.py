"""Provenance of a result: device, versions, commit and command."""

import functools
import importlib.metadata
import pathlib
import platform
import shlex
import subprocess
import sys
from typing import Any

from jaxspeed.devices.host import usable_cpus


def of_this_process(command: str | None = None) -> dict[str, Any]:
  """The device, versions, commit and command of a result; `command` None: the command line."""
  return {
    "device": describe_device(),
    "versions": versions(),
    "commit": commit(),
    "command": command or _command_line(),
  }


def _command_line() -> str:
  """The command line of this process, without the folders of Python and of `jaxspeed`."""
  words = sys.orig_argv
  if pathlib.Path((*words, "")[1]).name == "jaxspeed":  # Python runs the console script
    words = words[1:]
  return shlex.join([pathlib.Path(words[0]).name, *words[1:]])


def describe_device() -> str:
  """The devices of all processes, as "2 x NVIDIA H100 80GB HBM3" or "CPU: AMD EPYC (2 cores)"."""
  import jax

  devices = jax.devices()
  if devices[0].platform != "cpu":
    return f"{len(devices)} x {devices[0].device_kind}"
  virtual = f", {len(devices)} devices" if len(devices) > 1 else ""
  cores = usable_cpus()
  return f"CPU: {cpu_name()} ({cores} core{'s' * (cores > 1)}{virtual})"


def cpu_name(cpuinfo: str = "/proc/cpuinfo") -> str:
  try:
    for line in pathlib.Path(cpuinfo).read_text().splitlines():
      if line.startswith("model name"):
        return line.partition(":")[2].strip()
  except OSError:
    pass
  # macOS has no /proc, and ARM no model name.
  return platform.processor() or platform.machine()


def version_of(name: str) -> str | None:
  """The version of an installed package; None if it is not installed, or damaged."""
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None


def versions() -> dict[str, str | None]:
  """Versions of Python and of the packages that affect speed and results."""
  names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "jaxspeed")
  return {"python": platform.python_version()} | {name: version_of(name) for name in names}


@functools.cache
def commit(checkout: pathlib.Path = pathlib.Path(__file__).parents[2]) -> str | None:
  """The commit of a checkout, with "-dirty" if tracked files have changed since; asked once.

  It is None without git, outside a checkout, and for a package installed in somebody else's.
  """
  if not (checkout / ".git").exists():
    return None
  # Without the index's lock, which would disturb a concurrent commit; and without tags.
  command = ["git", "--no-optional-locks", "-C", str(checkout), "describe"]
  command += ["--always", "--dirty", "--abbrev=40", "--exclude=*"]
  try:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5)
  except (OSError, subprocess.SubprocessError):  # such as of a repository without a commit
    return None
  return done.stdout.strip()
