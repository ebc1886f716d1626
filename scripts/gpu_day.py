"""Measures what a GPU has to tell, most valuable first, within some minutes: `gpu_parts.py`.

    bash scripts/gpu_day.sh --minutes=16 --data=cifar-10-binary.tar.gz --peer=cifar10-airbench

Each part is a script of its own, in a process of its own. When it ends, its figures are in
results/gpu_day/PART.json, with the GPU, its driver and clocks, versions and commit, and its output
is in PART.log. The printed table says what was not measured, and why.

A second call resumes: first with parts that have no file, then with those that failed or were cut
off, which then have all the time that is left. A part that is done is left alone, unless other data
than noise, other peers or PyTorch are there now, or --again is given. Ctrl-C and SIGTERM end the
part under way and keep its figures.

Without --data the runs train on noise: their seconds count, their accuracies are left out. Nothing
is downloaded. JAX and jaxspeed's own packages are needed, but no TensorFlow; without PyTorch there
is nothing to compare with, and the table says so.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import benchmarking
import gpu_parts
import gpu_process
import gpu_tables
import numpy as np
from absl import flags
from gpu_parts import Part
from gpu_process import ROOT

from jaxspeed.cluster.signals import exit_on_sigterm
from jaxspeed.config import flags as command_line
from jaxspeed.errors import UserError
from jaxspeed.files import expanded, open_locked

# Kept of --minutes, so that a part that is cut off can end.
_CLOSING_S = 12.0
_JAX = """
import jax, json
d = jax.devices()
print(json.dumps([d[0].platform, d[0].device_kind, len(d)]))
"""
_TORCH = "import torch; print(torch.cuda.is_available())"


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


def probe(dry_run: bool) -> Machine:
  """The machine, asked in processes that end, so that none keeps the GPU's memory.

  Raises:
    UserError: JAX has no GPU, and this is no dry run.
  """
  if dry_run:
    has_torch = importlib.util.find_spec("torch") is not None
    return Machine("CPU", 2, "" if has_torch else "PyTorch is not installed")
  jax, torch = (
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    for code in (_JAX, _TORCH)
  )
  if jax.returncode:
    raise UserError(f"JAX does not start: {benchmarking.last(jax.stderr)}.")
  platform, kind, devices = json.loads(jax.stdout.splitlines()[-1])
  if platform == "cpu":
    raise UserError("JAX sees no GPU: install jaxspeed[cuda13], or try --dry_run on this CPU.")
  why = "" if "True" in torch.stdout else "PyTorch sees no GPU"
  if torch.returncode:
    why = f"PyTorch does not start ({benchmarking.last(torch.stderr)})"
  return Machine(f"{devices} x {kind}", devices, why)


def write_noise(folder: pathlib.Path, *, toy: bool) -> pathlib.Path:
  """Writes noise in the shapes of CIFAR-10, or of a toy, as arrays that any recipe reads."""
  rng, side = np.random.default_rng(0), 8 if toy else 32
  for split, n in (("train", 40 if toy else 50_000), ("val", 20 if toy else 10_000)):
    (folder / split).mkdir(parents=True)
    images = rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    np.save(folder / split / "images.npy", images)
    np.save(folder / split / "labels.npy", (np.arange(n) % 10).astype(np.int32))
  return folder


class Day:
  """The parts of a call.

  Args:
    given: the values of the flags.
    out: the folder of the figures.
    machine: what there is.
    scratch: an empty folder that is gone at the end.
    lock: an open file that keeps the folder locked; a part's process inherits it.

  Attributes:
    skipped: why parts were not run, by name.

  Raises:
    UserError: the folder has the figures of another device or of another size.
  """

  def __init__(
    self, given: Any, out: pathlib.Path, machine: Machine, scratch: pathlib.Path, lock: int
  ) -> None:
    self._given, self._out, self._machine = given, out, machine
    self._scratch, self._lock, self._started = scratch, lock, time.monotonic()
    described = {"device": machine.device, "devices": machine.devices} | benchmarking.environment()
    self._described = described | ({"commit": given.commit} if given.commit else {})
    self._peers = [expanded(peer, "--peer").resolve() for peer in given.peer]
    reports, _ = gpu_tables.read(out)
    self._before = {name: report["gpu_day"] for name, report in reports.items()}
    self.skipped: dict[str, str] = {}
    for name, entry in self._before.items():
      device = entry["machine"]["device"]
      if (entry["toy"], device) != (given.dry_run, machine.device):
        size = "toy" if entry["toy"] else "full"
        raise UserError(
          f"{gpu_tables.file_of(out, name)} has figures of {device} at {size} size, and this "
          f"call's are of {machine.device}: name another folder with --out."
        )

  def measure(self) -> bool:
    """Measures part after part until the time is over; returns whether none failed."""
    todo, whole = self._todo(), True
    for number, part in enumerate(todo, 1):
      left = self._given.minutes - (time.monotonic() - self._started + _CLOSING_S) / 60
      count = f"[{number}/{len(todo)}] {part.name}"
      least = 0 if self._given.dry_run else part.least
      if self._machine.devices < part.devices:
        reason = f"it needs {part.devices} devices and there is {self._machine.devices}"
      elif left < least:
        reason = f"it needs {part.least:g} min and {max(0.0, left):.1f} of --minutes are left"
      else:
        whole &= self._measure(part, left, count) != "failed"
        continue
      print(f"{count}: not run, {reason}", flush=True)
      self.skipped[part.name] = reason
    return whole

  def _todo(self) -> list[Part]:
    """Parts in order of value; those that failed or were cut off come last."""
    new, tried = [], []
    for part in gpu_parts.PARTS:
      if (self._given.dry_run and part.toy is None) or part.name not in self._given.parts:
        continue
      before, how = self._before.get(part.name), self._how(part)
      if before is None or self._given.again:
        new.append(part)
      elif before["state"] != "done":
        tried.append(part)
      elif how != before["how"] and how.get("data") != "noise" and "no_comparison" not in how:
        new.append(part)
    return new + tried

  def _how(self, part: Part) -> dict[str, Any]:
    """What a part's figures depend on besides its arguments."""
    how: dict[str, Any] = {}
    if part.trains:
      how["data"] = "given" if self._given.data else "noise"
      how["peers"] = [path.name for path in self._peers]
    if self._machine.torch and (part.torch or (part.trains and self._peers)):
      how["no_comparison"] = self._machine.torch
    return how

  def _arguments(self, part: Part, data: str, peers: Iterable[object]) -> list[str]:
    """The arguments of a part's script, for a data set and peers."""
    arguments = list(part.toy or () if self._given.dry_run else part.arguments)
    if part.trains:
      arguments.append(f"--config.data.path={data}")
      # A dry run takes any script for a peer; on a GPU they are PyTorch's.
      if self._given.dry_run or not self._machine.torch:
        arguments += [f"--peer={path}" for path in peers]
    if part.torch and self._machine.torch:
      arguments.append("--frameworks=jaxspeed")
    return arguments

  def _measure(self, part: Part, left: float, count: str) -> str:
    """Runs a part and keeps what it wrote, also if it is cut off or fails; returns its state."""
    before = self._before.get(part.name, {"state": ""})["state"]
    again = before in ("failed", "cut off") or self._given.dry_run
    minutes = left if again else min(left, part.most)
    file = gpu_tables.file_of(self._out, part.name)
    log, raw = file.with_suffix(".log"), file.with_suffix(".unfinished.json")
    raw.unlink(missing_ok=True)
    entry: dict[str, Any] = {
      "toy": self._given.dry_run,
      "title": part.title,
      "script": part.script.rpartition("/")[2],
      # Without this machine's paths, so that it can be committed.
      "arguments": self._arguments(part, "DATA", [path.name for path in self._peers]),
      "how": self._how(part),
      "machine": self._described,
      "state": "cut off",
      "reason": "the call was stopped",
    }
    arguments = self._arguments(part, str(self._data()) if part.trains else "", self._peers)
    command = [sys.executable, str(ROOT / "scripts" / part.script), *arguments, f"--out={raw}"]
    print(f"{count}: {part.title}, at most {minutes:.1f} min", flush=True)
    start = time.monotonic()
    run = gpu_process.PartProcess(command, log, self._environment(part), self._lock)
    try:
      entry["state"], entry["reason"] = run.wait(60 * minutes)
    finally:
      run.stop()
      entry["minutes"] = round((time.monotonic() - start) / 60, 3)
      entry["clocks"] = run.clocks()
      if entry["state"] == "failed":
        lines = benchmarking.last(log.read_text(errors="replace"), 5)
        entry["last_lines"] = lines.replace(str(ROOT), ".").splitlines()
      # What is done stays where a second measurement does not come to its end.
      if entry["state"] == "done" or before != "done":
        gpu_tables.write(file, entry, raw)
      raw.unlink(missing_ok=True)
      why = f", {entry['reason']}" if entry["reason"] else ""
      print(f"  {entry['state']}{why} ({entry['minutes']:.1f} min)", flush=True)
    return entry["state"]

  def _environment(self, part: Part) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {"PYTHONPATH": paths, "TMPDIR": str(self._scratch), "PYTHONUNBUFFERED": "1"}
    if self._given.dry_run:
      own |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
      own |= {"JAX_NUM_CPU_DEVICES": str(part.devices)}
    return os.environ | own

  def _data(self) -> pathlib.Path:
    if self._given.data:
      return expanded(self._given.data, "--data").resolve()
    noise = self._scratch / "noise"
    return noise if noise.exists() else write_noise(noise, toy=self._given.dry_run)


def measure(given: Any, out: pathlib.Path) -> None:
  """Measures the parts and prints the table.

  Raises:
    UserError: a flag is wrong, or another call measures into the folder.
    SystemExit: a part failed.
  """
  for flag, path in [("data", given.data), *(("peer", peer) for peer in given.peer)]:
    if path and not os.path.exists(path):
      raise UserError(f"--{flag}={path}: there is no such file or folder.")
  machine, folder = probe(given.dry_run), out / "gpu_day"
  try:
    folder.mkdir(parents=True, exist_ok=True)
    lock = open_locked(folder / "lock")
  except OSError as error:
    raise UserError(f"--out={out}: {error.strerror or error}: name a folder to write to.") from None
  if lock is None:  # another call, or a part that outlived one, holds it
    raise UserError(f"another call measures into {folder}: wait for it, or end it.")
  with contextlib.ExitStack() as stack:
    stack.callback(os.close, lock)
    stack.enter_context(exit_on_sigterm())
    scratch = stack.enter_context(tempfile.TemporaryDirectory())
    day = Day(given, out, machine, pathlib.Path(scratch).resolve(), lock)
    print(f"{given.minutes:g} min on {machine.device}; figures go to {folder}\n")
    try:
      whole = day.measure()
    finally:
      print("\n" + gpu_tables.markdown(out, day.skipped), flush=True)
  if not whole:
    raise SystemExit(1)


def main() -> None:
  """Measures, or prints the table of what there is."""
  names = [part.name for part in gpu_parts.PARTS]
  flags.DEFINE_float("minutes", 16.0, "For all parts together.", 0.01, 10_000)
  flags.DEFINE_string("data", "", "The CIFAR-10 to train on; without it, runs train on noise.")
  flags.DEFINE_multi_string(
    "peer", [], "A PyTorch script to time beside the runs, or a folder of them; repeatable."
  )
  benchmarking.define_choices("parts", names, names, "Which.")
  flags.DEFINE_bool("again", False, "Measures parts again that are done.")
  flags.DEFINE_string("out", "", "The folder for the figures; '': results/.")
  flags.DEFINE_string("commit", "", "The commit to note, if this copy has no .git.")
  flags.DEFINE_bool("table", False, "Prints the table of what was measured, and ends.")
  flags.DEFINE_bool("dry_run", False, "At toy size on the CPU, into a temporary folder.")

  def run(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    given = flags.FLAGS
    out = given.out or str(ROOT / "results")
    if given.dry_run and not (given.out or given.table):
      out = tempfile.mkdtemp(prefix="gpu-day-")
    folder = expanded(out, "--out").resolve()
    if not given.table:
      return measure(given, folder)
    print(gpu_tables.markdown(folder))
    if gpu_tables.read(folder)[1]:
      raise SystemExit(1)

  command_line.run(run, output_is_result=False)


if __name__ == "__main__":
  main()
