"""The machine of a day on a GPU (`gpu_day.py`): packages, devices, clocks, and a part's process.

This file imports the standard library alone, so that it can name the packages that are missing.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
import tomllib
import types
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
_POLL_S, _CLOCK_S = 0.1, 5.0
CLOCKS = ("sm_mhz", "memory_mhz", "watts", "degrees_c")
# Of jaxspeed's dependencies, those that no part of the day needs.
_NOT_NEEDED = {"clu", "scikit-learn", "tensorboardX"}
# pip takes the tags that it is told and no older ones; those are of JAX's and NVIDIA's wheels.
_TAGS = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 24, 25, 26, 27, 28)))
_JAX = """
import jax, json
d = jax.devices()
print(json.dumps([d[0].platform, d[0].device_kind, len(d)]))
"""
_TORCH = "import torch; print(torch.cuda.is_available())"


class Mistake(Exception):
  """What the user can mend, in one sentence."""


class Stopped(BaseException):  # like KeyboardInterrupt, not an error
  """A signal asks the call to end.

  Attributes:
    code: the exit code, 128 and the signal's number, as shells expect.
  """

  def __init__(self, number: int) -> None:
    super().__init__("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)
    self.code = 128 + number


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
  """Lets Ctrl-C and SIGTERM raise `Stopped` in the block, the first one only."""

  def stop_once(number: int, _: types.FrameType | None) -> None:
    # A second one would leave children behind.
    for each in before:
      signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)

  before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
  for each in before:
    signal.signal(each, stop_once)
  try:
    yield
  finally:
    for each, handler in before.items():
      signal.signal(each, handler)


@dataclasses.dataclass(frozen=True)
class Machine:
  """The devices that JAX sees.

  Attributes:
    device: their number and kind, or "CPU".
    devices: their number.
    torch: why there is no comparison with PyTorch; "": there is one.
  """

  device: str
  devices: int
  torch: str


def check_packages(*, dry_run: bool) -> None:
  """Raises a Mistake that names the packages that are missing and how to bring them.

  Args:
    dry_run: whether the CPU is enough, which needs no packages of NVIDIA's.
  """
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  listed = project["dependencies"] + ([] if dry_run else project["optional-dependencies"]["cuda13"])
  # By name, so that jax[cuda13] takes jax's place.
  needed = {re.split(r"[\[<>=]", requirement)[0]: requirement for requirement in listed}
  missing = [name for name in needed if name not in _NOT_NEEDED and not _is_installed(name)]
  if not missing:
    return
  python = shlex.quote(sys.executable)
  if dry_run:
    raise Mistake(f"{', '.join(missing)} missing: run `{python} -m pip install -e {ROOT}`.")
  packages = shlex.join([needed[name] for name in missing])
  platforms = " ".join(f"--platform={tag}_x86_64" for tag in _TAGS)
  version = f"{sys.version_info.major}.{sys.version_info.minor}"
  raise Mistake(
    f"{', '.join(missing)} missing: run `{python} -m pip install {packages}`; or, without a "
    f"network here, `pip download -d wheels --only-binary=:all: --python-version={version} "
    f"{platforms} {packages}` elsewhere, carry the folder, and run "
    f"`{python} -m pip install --no-index --find-links=wheels {packages}`."
  )


def _is_installed(name: str) -> bool:
  try:
    return bool(importlib.metadata.version(name))
  except importlib.metadata.PackageNotFoundError:
    return False


def probe(dry_run: bool) -> Machine:
  """The machine, asked in processes that end, so that none keeps the GPU's memory.

  Raises:
    Mistake: JAX has no GPU, and this is no dry run.
  """
  if dry_run:
    has_torch = importlib.util.find_spec("torch") is not None
    return Machine("CPU", 2, "" if has_torch else "PyTorch is not installed")
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
  asked = [subprocess.Popen([sys.executable, "-c", code], **pipes) for code in (_JAX, _TORCH)]
  (jax_said, jax_error), (torch_said, torch_error) = (each.communicate() for each in asked)
  if asked[0].returncode:
    raise Mistake(f"JAX does not start: {last(jax_error, 1) or 'it said nothing'}.")
  platform, kind, devices = json.loads(jax_said.splitlines()[-1])
  if platform == "cpu":
    raise Mistake("JAX sees no GPU: install jaxspeed[cuda13], or try --dry_run on this CPU.")
  torch = ""
  if asked[1].returncode:
    torch = f"PyTorch does not start ({last(torch_error, 1)})"
  elif "True" not in torch_said:
    torch = "PyTorch sees no GPU"
  return Machine(f"{devices} x {kind}", devices, torch)


def describe(machine: Machine, commit: str) -> dict[str, Any]:
  """The machine, the driver, versions and the commit, for the summary."""
  import benchmarking

  found = {"device": machine.device, "devices": machine.devices} | benchmarking.environment()
  return found | ({"commit": commit} if commit else {})


def sample_clocks() -> list[float] | None:
  """`CLOCKS` of the first GPU now; None where they are unknown."""
  query = "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu"
  command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
  try:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5)
    return [float(cell) for cell in done.stdout.splitlines()[0].split(",")]
  except (OSError, subprocess.SubprocessError, ValueError, IndexError):
    return None


def summarize(samples: list[list[float]]) -> dict[str, Any]:
  """The least, the median and the greatest of each of `CLOCKS`; {} without samples."""
  return {
    kind: {"min": min(each), "median": statistics.median(each), "max": max(each)}
    for kind, *each in zip(CLOCKS, *samples, strict=True)
    if each
  }


def stop(process: subprocess.Popen[Any]) -> None:
  """Ends a process and its children: by Ctrl-C, so that they tidy up, then by force."""
  # Force is for its children too, when it has ended before them.
  for number, seconds in ((signal.SIGINT, 8), (signal.SIGKILL, 5)):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(seconds)


def run(
  command: list[str], *, log: pathlib.Path, environment: dict[str, str], seconds: float, lock: int
) -> tuple[str, str, list[list[float]]]:
  """Runs a part's command, its output in a file.

  Args:
    lock: a descriptor that the process inherits, so that the folder stays locked while it runs.

  Returns:
    "done", "cut off" or "failed"; why; and samples of the clocks.
  """
  clocks: list[list[float]] = []
  deadline, next_sample = time.monotonic() + seconds, time.monotonic() + _CLOCK_S
  with log.open("w") as output:
    process = subprocess.Popen(
      command,
      cwd=ROOT,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      start_new_session=True,
      pass_fds=(lock,),
    )
    try:
      while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        if time.monotonic() > next_sample:
          next_sample += _CLOCK_S
          clocks += [sample] if (sample := sample_clocks()) else []
      ended = process.poll()
    finally:
      stop(process)
  if ended is None:
    return "cut off", f"after {seconds / 60:.1f} min", clocks
  if ended:
    return "failed", f"code {ended}: {last(log.read_text(errors='replace'), 1)}", clocks
  return "done", "", clocks


def last(text: str, lines: int) -> str:
  return "\n".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])
