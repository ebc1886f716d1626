"""Runs the commands as a user does: another process, one device, an own cache."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def environment() -> dict[str, str]:
  """This process's environment without the eight virtual devices of the tests."""
  names = ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")
  return {k: v for k, v in os.environ.items() if k not in names}


def start(module: str, *arguments: str, **options) -> subprocess.Popen[str]:
  """`python -m jaxspeed.MODULE` in the checkout's folder."""
  return subprocess.Popen(
    [sys.executable, "-m", f"jaxspeed.{module}", *arguments],
    cwd=ROOT,
    env=environment(),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **options,
  )


def run(module: str, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
  """The same, to its end."""
  process = start(module, *arguments)
  out, err = process.communicate(timeout=timeout)
  return subprocess.CompletedProcess(process.args, process.returncode, out, err)
