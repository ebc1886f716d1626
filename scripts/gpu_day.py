"""Measures what a GPU has to tell, most valuable first, within some minutes: `gpu_parts.py`.

    bash scripts/gpu_day.sh --minutes=10 --data=cifar-10-binary.tar.gz --peer=cifar10-airbench

Each part is a script of its own, in a process of its own. When it ends, its figures are in
results/gpu_day/PART.json, with the GPU, its driver and clocks, versions and commit, and its output
is in PART.log. What was not measured, and why, is in results/gpu_day.json and in the printed table.

A second call resumes: first with parts that were not begun, then with those that failed or were cut
off, which then have all the time that is left. A part that is done is left alone, unless it can say
more now (data instead of noise, a new peer, PyTorch), or --again is given. Ctrl-C and SIGTERM end
the part under way and keep its figures. Without gpu_day.json, the parts' files count as before.

Without --data the runs train on noise: their seconds count, their accuracies are left out. Nothing
is downloaded. JAX and jaxspeed's own packages are needed, but no TensorFlow; without PyTorch there
is nothing to compare with, and the table says so.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gpu_flags
import gpu_machine
import gpu_parts
import gpu_summary
import gpu_tables
from gpu_machine import ROOT, Machine, Mistake, Stopped
from gpu_parts import Part

_STARTED = time.monotonic()
# Kept of --minutes, so that a part that is cut off can end.
_CLOSING_S = 12.0
_FAULT, _MISTAKE = 1, 2
_DATA = "--config.data.path=DATA"


def write_noise(folder: pathlib.Path, *, toy: bool) -> pathlib.Path:
  """Writes noise in the shapes of CIFAR-10, or of a toy, as arrays that any recipe reads."""
  import numpy as np

  rng, side = np.random.default_rng(0), 8 if toy else 32
  for split, n in (("train", 40 if toy else 50_000), ("val", 20 if toy else 10_000)):
    (folder / split).mkdir(parents=True)
    images = rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    np.save(folder / split / "images.npy", images)
    np.save(folder / split / "labels.npy", (np.arange(n) % 10).astype(np.int32))
  return folder


def arguments_of(part: Part, flags: argparse.Namespace, machine: Machine) -> list[str]:
  """The arguments of a part's script, with DATA for the data set."""
  arguments = list(part.toy or () if flags.dry_run else part.arguments)
  if part.trains:
    arguments.append(_DATA)
    # A dry run takes any script for a peer; on a GPU they are PyTorch's.
    peers = flags.peer if flags.dry_run or not machine.torch else []
    arguments += [f"--peer={path}" for path in peers]
  if part.torch and machine.torch:
    arguments.append("--frameworks=jaxspeed")
  return arguments


def how_of(part: Part, flags: argparse.Namespace, machine: Machine) -> dict[str, Any]:
  """What a part's figures depend on besides its arguments."""
  how: dict[str, Any] = {}
  if part.trains:
    how["data"] = "given" if flags.data else "noise"
    how["peers"] = [path.name for path in flags.peer]
  if machine.torch and (part.torch or (part.trains and flags.peer)):
    how["no_comparison"] = machine.torch
  return how


def has_more(how: dict[str, Any], before: dict[str, Any]) -> bool:
  """Whether a part measured as `how` says more than as `before`; noise does not replace data."""
  if before.get("data") == "given" and how["data"] == "noise":
    return False
  new_data = how.get("data") == "given" and before.get("data") == "noise"
  new_peers = set(how.get("peers", ())) - set(before.get("peers", ()))
  return bool(new_data or new_peers or ("no_comparison" in before and "no_comparison" not in how))


class Day:
  """The parts of a call, and what is kept of them in `summary`.

  Args:
    flags: the command line's.
    machine: what there is.
    scratch: an empty folder that is gone at the end.
    lock: as for `gpu_machine.run`.

  Raises:
    Mistake: the folder has the figures of another device, or something in it cannot be read or
      replaced.
  """

  def __init__(
    self, flags: argparse.Namespace, machine: Machine, scratch: pathlib.Path, lock: int
  ) -> None:
    self._flags, self._machine, self._scratch, self._lock = flags, machine, scratch, lock
    self._folder = flags.out / "gpu_day"
    path = flags.out / "gpu_day.json"
    self.summary = gpu_summary.read(flags.out)
    self._check_device(path)
    self._entries: dict[str, Any] = self.summary.get("parts", {})
    self._check_files()
    if self._entries and not path.exists():
      print(f"{path} is missing: it is made of the files of {', '.join(self._entries)}.")
    self._described = gpu_machine.describe(machine, flags.commit)
    for name, entry in self._entries.items():
      if entry["state"] == "running":
        entry |= {"state": "cut off", "reason": "the call was killed"}
        self._keep(name, entry, [])
    self._save()

  def _check_device(self, path: pathlib.Path) -> None:
    before = self.summary.get("machine", {}).get("device", self._machine.device)
    if before != self._machine.device:
      raise Mistake(
        f"{path if path.exists() else self._folder} has figures of {before}, and this is "
        f"{self._machine.device}: name another folder with --out."
      )
    if self.summary.get("toy", self._flags.dry_run) != self._flags.dry_run:
      raise Mistake(
        f"{self._flags.out} has figures of {'toy' if self.summary['toy'] else 'full'} size, and "
        "these are others: name another folder with --out."
      )

  def _check_files(self) -> None:
    """Refuses what a part could not replace, before any part is measured."""
    for part in self._todo():
      for path in (self._log(part.name), self._unfinished(part.name), self._file(part.name)):
        if path.exists() and not path.is_file():
          raise Mistake(f"{path} is no regular file: move it away, or name another --out.")

  def measure(self) -> bool:
    """Measures part after part until the time is over.

    Returns:
      Whether none failed, and each part that is done has a file that can be read.
    """
    todo = self._todo()
    for number, part in enumerate(todo, 1):
      left = self._flags.minutes - (time.monotonic() - _STARTED + _CLOSING_S) / 60
      count = f"[{number}/{len(todo)}] {part.name}"
      if reason := self._hindrance(part, left):
        print(f"{count}: not run, {reason}", flush=True)
        if self._state(part) in ("", "not run"):
          self._entries[part.name] = self._entry(part) | {"state": "not run", "reason": reason}
        self._save()
      else:
        self._measure(part, left, count)
    whole = can_be_read(self._flags.out, self._entries, self._flags.parts)
    return whole and all(self._state(part) != "failed" for part in todo)

  def _state(self, part: Part) -> str:
    return self._entries.get(part.name, {}).get("state", "")

  def _todo(self) -> list[Part]:
    """Parts in order of value; those that failed or were cut off come last."""
    new, tried = [], []
    for part in gpu_parts.PARTS:
      if (self._flags.dry_run and part.toy is None) or part.name not in self._flags.parts:
        continue
      state, how = self._state(part), how_of(part, self._flags, self._machine)
      more = state == "done" and has_more(how, self._entries[part.name]["how"])
      if self._flags.again or state in ("", "not run") or more:
        new.append(part)
      elif state != "done":
        tried.append(part)
    return new + tried

  def _hindrance(self, part: Part, left: float) -> str:
    """Why a part cannot be run; "" if it can."""
    if self._machine.devices < part.devices:
      return f"it needs {part.devices} devices and there is {self._machine.devices}"
    if left < (0 if self._flags.dry_run else part.least):
      return f"it needs {part.least:g} min and {max(0.0, left):.1f} of --minutes are left"
    return ""

  def _entry(self, part: Part) -> dict[str, Any]:
    # Without this machine's paths, so that it can be committed.
    names = {f"--peer={path}": f"--peer={path.name}" for path in self._flags.peer}
    arguments = arguments_of(part, self._flags, self._machine)
    return {
      "title": part.title,
      "script": part.script.rpartition("/")[2],
      "arguments": [names.get(argument, argument) for argument in arguments],
      "how": how_of(part, self._flags, self._machine),
    }

  def _measure(self, part: Part, left: float, count: str) -> None:
    """Runs a part and keeps what it wrote, also if it is cut off or fails."""
    again = self._state(part) in ("failed", "cut off")
    minutes = left if again or self._flags.dry_run else min(left, part.most)
    log, raw = self._log(part.name), self._unfinished(part.name)
    raw.unlink(missing_ok=True)
    arguments = arguments_of(part, self._flags, self._machine)
    if part.trains:
      arguments[arguments.index(_DATA)] = f"--config.data.path={self._data()}"
    entry = self._entry(part) | {"state": "running", "reason": "", "log": f"gpu_day/{log.name}"}
    self._entries[part.name] = entry
    self._save()
    print(f"{count}: {part.title}, at most {minutes:.1f} min", flush=True)
    start, clocks = time.monotonic(), []
    entry |= {"state": "cut off", "reason": "an error ended the call"}
    try:
      entry["state"], entry["reason"], clocks = gpu_machine.run(
        [sys.executable, str(ROOT / "scripts" / part.script), *arguments, f"--out={raw}"],
        log=log,
        environment=self._environment(part),
        seconds=60 * minutes,
        lock=self._lock,
      )
    except Stopped as stopped:
      entry["reason"] = f"stopped by {stopped}"
      raise
    finally:
      entry["minutes"] = round((time.monotonic() - start) / 60, 3)
      if entry["state"] == "failed":
        lines = gpu_machine.last(log.read_text(errors="replace"), 5)
        entry["last_lines"] = lines.replace(str(ROOT), ".").splitlines()
      self._keep(part.name, entry, clocks)
      self._save()
      why = f", {entry['reason']}" if entry["reason"] else ""
      print(f"  {entry['state']}{why} ({entry['minutes']:.1f} min)", flush=True)

  def _data(self) -> pathlib.Path:
    noise = self._scratch / "noise"
    if self._flags.data or noise.exists():
      return self._flags.data or noise
    return write_noise(noise, toy=self._flags.dry_run)

  def _environment(self, part: Part) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {"PYTHONPATH": paths, "TMPDIR": str(self._scratch), "PYTHONUNBUFFERED": "1"}
    if self._flags.dry_run:
      own |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
      own |= {"JAX_NUM_CPU_DEVICES": str(part.devices)}
    return os.environ | own

  def _file(self, name: str) -> pathlib.Path:
    return self._folder / f"{name}.json"

  def _log(self, name: str) -> pathlib.Path:
    return self._folder / f"{name}.log"

  def _unfinished(self, name: str) -> pathlib.Path:
    return self._folder / f"{name}.unfinished.json"

  def _keep(self, name: str, entry: dict[str, Any], clocks: list[list[float]]) -> None:
    """Makes a part's file of what its script wrote, if it wrote anything."""
    raw = self._unfinished(name)
    try:
      report = json.loads(raw.read_text())
    except (OSError, ValueError):
      raw.unlink(missing_ok=True)
      return
    if entry["how"].get("data") == "noise":
      report = gpu_tables.without_accuracies(report)
    if self._flags.dry_run:
      report["what"] = f"{gpu_tables.TOY}. {report['what']}"
    entry["clocks"] = {
      kind: {"min": min(each), "median": statistics.median(each), "max": max(each)}
      for kind, *each in zip(gpu_machine.CLOCKS, *clocks, strict=True)
      if each
    }
    entry["file"] = f"gpu_day/{name}.json"
    told = {"toy": self._flags.dry_run} | entry | {"machine": self._described}
    gpu_summary.write(self._file(name), {"gpu_day": told} | report)
    raw.unlink()

  def _save(self) -> None:
    order = [part.name for part in gpu_parts.PARTS if part.name in self._entries]
    self.summary = {
      "what": gpu_summary.WHAT,
      "toy": self._flags.dry_run,
      "machine": self._described,
      "parts": {name: self._entries[name] for name in order},
    }
    gpu_summary.write(self._flags.out / "gpu_day.json", self.summary)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[int]:
  """Locks a folder, and yields the descriptor that holds the lock.

  Raises:
    Mistake: another call, or a part that outlived one, holds it.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
  except OSError as error:
    reason = error.strerror or error
    raise Mistake(f"--out={folder.parent}: {reason}: name a folder to write to.") from None
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    os.close(descriptor)
    raise Mistake(f"another call measures into {folder}: wait for it, or end it.") from None
  try:
    yield descriptor
  finally:
    os.close(descriptor)


def can_be_read(out: pathlib.Path, entries: Mapping[str, Any], parts: Sequence[str]) -> bool:
  """Whether each file that these parts have can be read."""
  return not any(gpu_tables.damage(out, entries[name]) for name in parts if name in entries)


def print_table(out: pathlib.Path, parts: Sequence[str]) -> int:
  """Prints the table of what was measured; returns the exit code, which tells of `parts`."""
  summary = gpu_summary.read(out)
  try:
    print(gpu_tables.markdown(out, summary), flush=True)
  except BrokenPipeError:  # by a reader such as `head`, which has what it wants
    _drop_output()
  return 0 if can_be_read(out, summary.get("parts", {}), parts) else _FAULT


def _drop_output() -> None:
  """Drops what standard output still holds: its next write would fail again."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def measure_all(flags: argparse.Namespace) -> int:
  """Measures the parts and prints the table; returns the exit code.

  Raises:
    Stopped: before the first part.
  """
  gpu_machine.check_packages(dry_run=flags.dry_run)
  from jaxspeed.config import output

  output.guard()  # a closed or full output does not end the measurement
  machine = gpu_machine.probe(flags.dry_run)
  code, temporary = 0, flags.out is None

  def remove_own() -> None:
    if code != _FAULT:  # else its logs say why
      shutil.rmtree(flags.out)

  with contextlib.ExitStack() as stack:
    if temporary:
      flags.out = pathlib.Path(tempfile.mkdtemp(prefix="jaxspeed-gpu-day-")).resolve()
      stack.callback(remove_own)
    scratch = stack.enter_context(tempfile.TemporaryDirectory())
    lock = stack.enter_context(locked(flags.out / "gpu_day"))
    day = Day(flags, machine, pathlib.Path(scratch).resolve(), lock)
    print(gpu_tables.heading(day.summary), flush=True)
    print(f"{flags.minutes:g} min; figures go to {flags.out / 'gpu_day'}\n", flush=True)
    try:
      code = 0 if day.measure() else _FAULT
    except Stopped as stopped:
      code = stopped.code
      then = "; its temporary folder is removed" if temporary else "; the same command goes on"
      print(f"\nStopped by {stopped}{then}.", flush=True)
    names_files = not temporary or code == _FAULT
    print("\n" + gpu_tables.markdown(flags.out, day.summary, names_files=names_files))
  if lost := output.lost():
    output.say(f"standard output could not be written ({lost}); the work itself is done.")
  return code


def main(argv: Sequence[str] | None = None) -> int:
  """Measures, or prints the table of what there is, and returns the exit code."""
  try:
    with gpu_machine.stopped_by_signals():
      flags = gpu_flags.parse_flags(argv, __doc__.split("\n\n")[0])
      return print_table(flags.out, flags.parts) if flags.table else measure_all(flags)
  except Mistake as mistake:
    print(f"jaxspeed: {mistake}", file=sys.stderr)
    return _MISTAKE
  except OSError as error:
    # A disk is full, or standard output is.
    _drop_output()
    print(f"jaxspeed: {error}: mend it; the same command goes on.", file=sys.stderr)
    return _MISTAKE
  except Stopped as stopped:
    print(f"jaxspeed: stopped by {stopped}, before the first part.", file=sys.stderr)
    return stopped.code


if __name__ == "__main__":
  sys.path.insert(0, str(ROOT))
  sys.exit(main())
