"""Measures what a GPU has to tell, most valuable first, within some minutes: `gpu_parts.py`.

    bash scripts/gpu_day.sh --minutes=16 --data=cifar-10-binary.tar.gz --peer=cifar10-airbench

Each part is a script of its own, in a process of its own. When it ends, its figures are in
results/gpu_day/PART.json, with the GPU, its driver and clocks, versions and commit, and its output
is in PART.log. The printed table says what was not measured, and why.

A second call resumes: first with parts that have no file, then with those that failed or were cut
off, which then have all the time that is left. A part that is done is left alone, unless it can say
more now (data instead of noise, a new peer, PyTorch), or --again is given. Ctrl-C and SIGTERM end
the part under way and keep its figures.

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
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gpu_machine
import gpu_parts
import gpu_tables
from gpu_machine import ROOT, Machine, Mistake, Stopped
from gpu_parts import Part

_STARTED = time.monotonic()
# Kept of --minutes, so that a part that is cut off can end.
_CLOSING_S = 12.0
_FAULT, _MISTAKE = 1, 2
_DATA = "--config.data.path=DATA"
_MOST_MINUTES = 10_000  # a week


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
  """The parts of a call.

  Args:
    flags: the command line's.
    machine: what there is.
    scratch: an empty folder that is gone at the end.
    lock: as for `gpu_machine.run`.

  Attributes:
    skipped: why parts were not run, by name.

  Raises:
    Mistake: the folder has the figures of another device or of another size.
  """

  def __init__(
    self, flags: argparse.Namespace, machine: Machine, scratch: pathlib.Path, lock: int
  ) -> None:
    self._flags, self._machine, self._scratch, self._lock = flags, machine, scratch, lock
    self._described = gpu_machine.describe(machine, flags.commit)
    reports, _ = gpu_tables.read(flags.out)
    self._before = {name: report["gpu_day"] for name, report in reports.items()}
    self.skipped: dict[str, str] = {}
    for name, entry in self._before.items():
      file, device = gpu_tables.file_of(flags.out, name), entry["machine"]["device"]
      if (entry["toy"], device) != (flags.dry_run, machine.device):
        size = "toy" if entry["toy"] else "full"
        raise Mistake(
          f"{file} has figures of {device} at {size} size, and this call's are of "
          f"{machine.device}: name another folder with --out."
        )

  def measure(self) -> bool:
    """Measures part after part until the time is over; returns whether none failed."""
    todo, whole = self._todo(), True
    for number, part in enumerate(todo, 1):
      left = self._flags.minutes - (time.monotonic() - _STARTED + _CLOSING_S) / 60
      count = f"[{number}/{len(todo)}] {part.name}"
      if reason := self._hindrance(part, left):
        print(f"{count}: not run, {reason}", flush=True)
        self.skipped[part.name] = reason
      else:
        whole &= self._measure(part, left, count) != "failed"
    return whole

  def _todo(self) -> list[Part]:
    """Parts in order of value; those that failed or were cut off come last."""
    new, tried = [], []
    for part in gpu_parts.PARTS:
      if (self._flags.dry_run and part.toy is None) or part.name not in self._flags.parts:
        continue
      before = self._before.get(part.name)
      done = before is not None and before["state"] == "done"
      how = how_of(part, self._flags, self._machine)
      if before is None or self._flags.again or (done and has_more(how, before["how"])):
        new.append(part)
      elif not done:
        tried.append(part)
    return new + tried

  def _hindrance(self, part: Part, left: float) -> str:
    """Why a part cannot be run; "" if it can."""
    if self._machine.devices < part.devices:
      return f"it needs {part.devices} devices and there is {self._machine.devices}"
    if left < (0 if self._flags.dry_run else part.least):
      return f"it needs {part.least:g} min and {max(0.0, left):.1f} of --minutes are left"
    return ""

  def _measure(self, part: Part, left: float, count: str) -> str:
    """Runs a part and keeps what it wrote, also if it is cut off or fails; returns its state."""
    before = self._before.get(part.name, {"state": ""})
    again = before["state"] in ("failed", "cut off")
    minutes = left if again or self._flags.dry_run else min(left, part.most)
    file = gpu_tables.file_of(self._flags.out, part.name)
    log, raw = file.with_suffix(".log"), file.with_suffix(".unfinished.json")
    raw.unlink(missing_ok=True)
    arguments = arguments_of(part, self._flags, self._machine)
    entry = self._entry(part, arguments)
    if part.trains:
      arguments[arguments.index(_DATA)] = f"--config.data.path={self._data()}"
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
      # What is done stays where a second measurement does not come to its end.
      if entry["state"] == "done" or before["state"] != "done":
        self._write(file, entry | {"clocks": gpu_machine.summarize(clocks)}, raw)
      raw.unlink(missing_ok=True)
      why = f", {entry['reason']}" if entry["reason"] else ""
      print(f"  {entry['state']}{why} ({entry['minutes']:.1f} min)", flush=True)
    return entry["state"]

  def _entry(self, part: Part, arguments: list[str]) -> dict[str, Any]:
    # Without this machine's paths, so that it can be committed.
    names = {f"--peer={path}": f"--peer={path.name}" for path in self._flags.peer}
    return {
      "toy": self._flags.dry_run,
      "title": part.title,
      "script": part.script.rpartition("/")[2],
      "arguments": [names.get(argument, argument) for argument in arguments],
      "how": how_of(part, self._flags, self._machine),
      "machine": self._described,
    }

  def _write(self, file: pathlib.Path, entry: dict[str, Any], raw: pathlib.Path) -> None:
    """Makes a part's file of its entry and of what its script wrote, if it wrote anything."""
    from jaxspeed.files import write_atomically

    try:
      report = json.loads(raw.read_text())
    except (OSError, ValueError):
      report = {}
    if entry["how"].get("data") == "noise":
      report = gpu_tables.without_accuracies(report)
    if report and self._flags.dry_run:
      report["what"] = f"{gpu_tables.TOY}. {report['what']}"
    write_atomically(file, json.dumps({"gpu_day": entry} | report, indent=1) + "\n")

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
    raise Mistake(f"--out={folder.parent}: {error}: name a folder to write to.") from None
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield descriptor
  except BlockingIOError:
    raise Mistake(f"another call measures into {folder}: wait for it, or end it.") from None
  finally:
    os.close(descriptor)


class _Parser(argparse.ArgumentParser):
  def error(self, message: str) -> Any:
    raise Mistake(f"{message}; see --help.")


def parse_flags(argv: Sequence[str] | None) -> argparse.Namespace:
  """The command line's flags, checked.

  Raises:
    Mistake: one of them is wrong.
  """
  names = [part.name for part in gpu_parts.PARTS]
  parser = _Parser(description=__doc__.split("\n\n")[0], prog="gpu_day.sh")
  add = parser.add_argument
  add("--minutes", type=float, default=16.0, help="for all parts together (16)")
  add("--data", type=pathlib.Path, help="the CIFAR-10 to train on; without it, runs train on noise")
  add(
    "--peer",
    type=pathlib.Path,
    action="append",
    default=[],
    help="a PyTorch script to time beside the runs, or a folder of them, as for bench_cifar.py; "
    "can be given several times",
  )
  add("--parts", default=",".join(names), help=f"which, with commas; all: {', '.join(names)}")
  add("--again", action="store_true", help="measures parts again that are done")
  add("--out", type=pathlib.Path, help="the folder for the figures (results/)")
  add("--commit", default="", help="the commit to note, if this copy has no .git")
  add("--table", action="store_true", help="prints the table of what was measured, and ends")
  add("--dry_run", action="store_true", help="at toy size on the CPU, into a temporary folder")
  flags = parser.parse_args(argv)
  flags.parts = flags.parts.split(",")
  if unknown := [name for name in flags.parts if name not in names]:
    raise Mistake(f"--parts={unknown[0]}: there are {', '.join(names)}.")
  if not 0 < flags.minutes <= _MOST_MINUTES:
    raise Mistake(
      f"--minutes={flags.minutes:g}: give a number above 0, and at most {_MOST_MINUTES}."
    )
  for flag, path in [("data", flags.data), *(("peer", peer) for peer in flags.peer)]:
    if path is not None and not os.path.exists(path):
      raise Mistake(f"--{flag}={path}: there is no such file or folder.")
  flags.data, flags.peer = flags.data and flags.data.resolve(), [p.resolve() for p in flags.peer]
  return flags


def measure_all(flags: argparse.Namespace) -> int:
  """Measures the parts and prints the table; returns the exit code.

  Raises:
    Stopped: before the first part.
  """
  gpu_machine.check_packages(dry_run=flags.dry_run)
  from jaxspeed.config import output

  output.guard()  # a closed or full output does not end the measurement
  machine = gpu_machine.probe(flags.dry_run)
  with contextlib.ExitStack() as stack:
    scratch = stack.enter_context(tempfile.TemporaryDirectory())
    lock = stack.enter_context(locked(flags.out / "gpu_day"))
    day = Day(flags, machine, pathlib.Path(scratch).resolve(), lock)
    print(f"{flags.minutes:g} min on {machine.device}; figures go to {flags.out / 'gpu_day'}\n")
    try:
      code = 0 if day.measure() else _FAULT
    except Stopped as stopped:
      code = stopped.code
      print(f"\nStopped by {stopped}; the same command goes on.", flush=True)
    print("\n" + gpu_tables.markdown(flags.out, day.skipped))
  if lost := output.lost():
    output.say(f"standard output could not be written ({lost}); the work itself is done.")
  return code


def print_table(out: pathlib.Path) -> int:
  """Prints the table of what was measured; returns the exit code."""
  print(gpu_tables.markdown(out), flush=True)
  return _FAULT if gpu_tables.read(out)[1] else 0


def main(argv: Sequence[str] | None = None) -> int:
  """Measures, or prints the table of what there is, and returns the exit code."""
  try:
    with gpu_machine.stopped_by_signals():
      flags = parse_flags(argv)
      if flags.out is None:
        dry = flags.dry_run and not flags.table
        flags.out = tempfile.mkdtemp(prefix="gpu-day-") if dry else ROOT / "results"
      flags.out = pathlib.Path(flags.out).resolve()
      return print_table(flags.out) if flags.table else measure_all(flags)
  except Mistake as mistake:
    print(f"jaxspeed: {mistake}", file=sys.stderr)
    return _MISTAKE
  except OSError as error:  # a disk is full, or standard output is; what it still holds is dropped
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):  # by a reader such as `head`, which has what it wants
      return 0
    print(f"jaxspeed: {error}: mend it; the same command goes on.", file=sys.stderr)
    return _MISTAKE
  except Stopped as stopped:
    print(f"jaxspeed: stopped by {stopped}, before the first part.", file=sys.stderr)
    return stopped.code


if __name__ == "__main__":
  sys.path.insert(0, str(ROOT))
  sys.exit(main())
