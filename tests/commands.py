"""Runs the commands as a user does: another process, one device, an own cache."""

import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
  """This process's environment without the eight virtual devices of the tests, and with `more`."""
  names = ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")
  return {k: v for k, v in os.environ.items() if k not in names} | more


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
  """This Python: `-m jaxspeed.MODULE ...` or `-c CODE ...`, in the checkout's folder."""
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
  own = {"cwd": ROOT, "env": environment()} | pipes
  return subprocess.Popen([sys.executable, *arguments], **own | options)


def run(*command: str, code: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
  """A command to its end, by default in the checkout's folder; it must end with `code`, or any."""
  fixed = {"cwd": ROOT, "env": environment(), "timeout": 300}
  done = subprocess.run(command, capture_output=True, text=True, **fixed | options)
  assert code in (None, done.returncode), (done.returncode, done.stdout, done.stderr[-3000:])
  return done


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
  """`start`, to its end, as `run` does it."""
  return run(sys.executable, *arguments, **options)
