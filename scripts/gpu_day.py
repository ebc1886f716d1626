"""Measures what a GPU has to tell, most valuable first, within some minutes: `gpu_parts.py`.

    bash scripts/gpu_day.sh --minutes=16 --data=cifar-10-binary.tar.gz --peer=cifar10-airbench

Each part is a script of its own, in a process of its own. When it ends, its figures are in
results/gpu_day/PART.json, with the GPU, its driver, versions and commit, and its output is in
PART.log. The printed table says what was not measured, and why.

A second call resumes: first with parts that have no file, then with those that failed or were cut
off, which then have all the time that is left. A part that is done is left alone, unless --again is
given. Ctrl-C and SIGTERM end the part under way and keep its figures.

Nothing is downloaded: runs need --data. JAX and jaxspeed's own packages are needed, but no
TensorFlow; without PyTorch there is nothing to compare with, and the table says so.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import benchmarking
import gpu_parts
import numpy as np
from absl import flags
from gpu_parts import Part

from jaxspeed.cluster.signals import exit_on_sigterm
from jaxspeed.config import flags as command_line
from jaxspeed.errors import UserError
from jaxspeed.files import expanded, write_atomically

ROOT = pathlib.Path(__file__).resolve().parents[1]
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
    return Machine("CPU", 1, "" if has_torch else "PyTorch is not installed")
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


def write_toy(folder: pathlib.Path) -> pathlib.Path:
  """Writes a data set of noise for a dry run, as arrays that any recipe reads."""
  rng = np.random.default_rng(0)
  for split, n in (("train", 40), ("val", 20)):
    (folder / split).mkdir(parents=True)
    np.save(folder / split / "images.npy", rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8))
    np.save(folder / split / "labels.npy", (np.arange(n) % 10).astype(np.int32))
  return folder


def stop(process: subprocess.Popen[Any]) -> None:
  """Ends a process and its children: by Ctrl-C, so that they tidy up, then by force."""
  # Force is for its children too, when it has ended before them.
  for number, seconds in ((signal.SIGINT, 8), (signal.SIGKILL, 5)):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(seconds)


class Day:
  """The parts of a call.

  Args:
    given: the values of the flags.
    out: the folder of the figures.
    machine: what there is.
    scratch: an empty folder that is gone at the end.

  Attributes:
    skipped: why parts were not run, by name.
  """

  def __init__(
    self, given: Any, out: pathlib.Path, machine: Machine, scratch: pathlib.Path
  ) -> None:
    self._given, self._out, self._machine = given, out, machine
    self._scratch, self._started = scratch, time.monotonic()
    described = {"device": machine.device, "devices": machine.devices} | benchmarking.environment()
    self._described = described | ({"commit": given.commit} if given.commit else {})
    self._peers = [expanded(peer, "--peer").resolve() for peer in given.peer]
    self._data = expanded(given.data, "--data").resolve() if given.data else None
    if given.dry_run and not self._data:
      self._data = write_toy(scratch / "toy")
    reports = gpu_parts.read(out)
    self._states = {name: report["gpu_day"]["state"] for name, report in reports.items()}
    self.skipped: dict[str, str] = {}

  def measure(self) -> bool:
    """Measures part after part until the time is over; returns whether none failed."""
    todo, whole = self._todo(), True
    for number, part in enumerate(todo, 1):
      left = self._given.minutes - (time.monotonic() - self._started + _CLOSING_S) / 60
      count = f"[{number}/{len(todo)}] {part.name}"
      if reason := self._why_not(part, left):
        print(f"{count}: not run, {reason}", flush=True)
        self.skipped[part.name] = reason
      else:
        whole &= self._measure(part, left, count) != "failed"
    return whole

  def _todo(self) -> list[Part]:
    """Parts in order of value; those that failed or were cut off come last."""
    given, states = self._given, self._states
    parts = gpu_parts.in_a_dry_run() if given.dry_run else gpu_parts.PARTS
    asked = [part for part in parts if part.name in given.parts]
    new = [part for part in asked if given.again or part.name not in states]
    return new + [p for p in asked if p not in new and states[p.name] != "done"]

  def _why_not(self, part: Part, left: float) -> str:
    """Why a part is not run with so many minutes left; '': it is."""
    if self._machine.devices < part.devices:
      return f"it needs {part.devices} devices and there is {self._machine.devices}"
    if part.trains and not self._data:
      return "it needs --data=CIFAR-10"
    if part.peers and not self._peers:
      return "it needs --peer=SCRIPT"
    if part.peers and self._machine.torch and not self._given.dry_run:
      return self._machine.torch
    if left < part.most / 2 and not self._given.dry_run:
      return f"it needs {part.most / 2:g} min and {max(0.0, left):.1f} of --minutes are left"
    return ""

  def _words(self, part: Part, data: object, peers: Iterable[object]) -> list[str]:
    """A part's script and its arguments, for a data set and peers."""
    words = part.command.split()
    if self._given.dry_run:
      # Options of XLA add up, so the part's own ones go.
      words = [word for word in words if not word.startswith("--option")]
      words += gpu_parts.TOYS[words[0]].split()
    words += [f"--config.data.path={data}"] * part.trains
    words += [f"--peer={path}" for path in peers if part.peers]
    if part.torch and self._machine.torch:
      words.append("--frameworks=jaxspeed")
    return words

  def _measure(self, part: Part, left: float, count: str) -> str:
    """Runs a part and keeps what it wrote, also if it is cut off or fails; returns its state."""
    before = self._states.get(part.name, "")
    again = before in ("failed", "cut off") or self._given.dry_run
    minutes = left if again else min(left, part.most)
    file = gpu_parts.file_of(self._out, part.name)
    log, raw = file.with_suffix(".log"), file.with_suffix(".unfinished.json")
    raw.unlink(missing_ok=True)
    entry: dict[str, Any] = {
      "toy": self._given.dry_run,
      # Without this machine's paths, so that it can be committed.
      "command": " ".join(self._words(part, "DATA", [path.name for path in self._peers])),
      "no_comparison": self._machine.torch if part.torch else "",
      "machine": self._described,
      "state": "cut off",
      "reason": "the call was stopped",
    }
    script, *arguments = self._words(part, self._data, self._peers)
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments, f"--out={raw}"]
    print(f"{count}: {entry['command']}, at most {minutes:.1f} min", flush=True)
    start = time.monotonic()
    with log.open("w") as output:
      process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=self._environment(part),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )
    try:
      if code := process.wait(60 * minutes):
        said = benchmarking.last(log.read_text(errors="replace"))
        entry |= {"state": "failed", "reason": f"code {code}: {said}"}
      else:
        entry |= {"state": "done", "reason": ""}
    except subprocess.TimeoutExpired:
      entry["reason"] = f"after {minutes:.1f} min"
    finally:
      stop(process)
      entry["minutes"] = round((time.monotonic() - start) / 60, 3)
      # What is done stays where a second measurement does not come to its end.
      if entry["state"] == "done" or before != "done":
        write(file, entry, raw)
      raw.unlink(missing_ok=True)
      why = f", {entry['reason']}" if entry["reason"] else ""
      print(f"  {entry['state']}{why} ({entry['minutes']:.1f} min)", flush=True)
    return entry["state"]

  def _environment(self, part: Part) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {"PYTHONPATH": paths, "TMPDIR": str(self._scratch), "PYTHONUNBUFFERED": "1"}
    if self._given.dry_run:
      own |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return os.environ | own


def write(file: pathlib.Path, entry: dict[str, Any], raw: pathlib.Path) -> None:
  """Makes a part's file of its entry and of what its script wrote, if it wrote anything."""
  try:
    report = json.loads(raw.read_text())
  except (OSError, ValueError):
    report = {}
  if report:
    report["commit"] = entry["machine"]["commit"]  # which --commit may have named
    report["what"] = f"{gpu_parts.TOY}. {report['what']}" if entry["toy"] else report["what"]
  write_atomically(file, json.dumps({"gpu_day": entry} | report, indent=1) + "\n")


def measure(given: Any, out: pathlib.Path) -> None:
  """Measures the parts and prints the table.

  Raises:
    UserError: a flag is wrong.
    SystemExit: a part failed.
  """
  for flag, path in [("data", given.data), *(("peer", peer) for peer in given.peer)]:
    if path and not os.path.exists(path):
      raise UserError(f"--{flag}={path}: there is no such file or folder.")
  machine, folder = probe(given.dry_run), out / "gpu_day"
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"--out={out}: {error.strerror}: name a folder to write to.") from None
  with exit_on_sigterm(), tempfile.TemporaryDirectory() as scratch:
    day = Day(given, out, machine, pathlib.Path(scratch).resolve())
    print(f"{given.minutes:g} min on {machine.device}; figures go to {folder}\n")
    try:
      whole = day.measure()
    finally:
      print("\n" + gpu_parts.markdown(out, day.skipped), flush=True)
  if not whole:
    raise SystemExit(1)


def main() -> None:
  """Measures, or prints the table of what there is."""
  names = [part.name for part in gpu_parts.PARTS]
  flags.DEFINE_float("minutes", 16.0, "For all parts together.", 0.01, 10_000)
  flags.DEFINE_string("data", "", "The CIFAR-10 to train on, which whole runs need.")
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
    print(gpu_parts.markdown(folder))

  command_line.run(run, output_is_result=False)


if __name__ == "__main__":
  main()
