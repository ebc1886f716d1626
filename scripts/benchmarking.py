"""The frame of the benchmarks: turns, means with intervals, what they ran on, and their report.

A benchmark defines its flags, times its sides in `turns`, and writes its report after each row, so
that one that is cut off keeps what it has.
"""

import importlib.metadata
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from absl import flags

from jaxspeed.cluster.signals import exit_on_sigterm
from jaxspeed.config import flags as command_line
from jaxspeed.files import to_json, write_atomically
from jaxspeed.records import provenance
from jaxspeed.records.statistics import interval as student_interval
from jaxspeed.run.folder import check_output

# Packages whose versions decide speed.
_PACKAGES = re.compile(
  "ml_collections|numpy|pillow|tensorflow|torch(vision)?|libtpu|triton|(jax|nvidia)-.*cu.*"
)

Interval = dict[str, Any]
Report = dict[str, Any]
Side = TypeVar("Side")


def run(bench: Callable[[pathlib.Path], None]) -> None:
  """Parses the flags and calls a benchmark with an empty folder, which is removed at its end.

  A file of --out that cannot be written is a mistake before anything is measured.
  """

  def main(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    if flags.FLAGS.out:
      check_output(pathlib.Path(flags.FLAGS.out))
    with exit_on_sigterm(), tempfile.TemporaryDirectory(prefix="jaxspeed-") as scratch:
      bench(pathlib.Path(scratch).resolve())

  command_line.run(main)


def turns(sides: Sequence[Side], rounds: int) -> Iterator[tuple[int, Side]]:
  """The number of each round with each side in turn; every other round goes backwards."""
  for number in range(rounds):
    for side in sides[:: -1 if number % 2 else 1]:
      yield number, side


def interval(values: Sequence[float]) -> Interval:
  """mean, sd, min and n of values; ci95: half the width of the mean's 95 % interval.

  By Student's t; sd and ci95 are None for one value.
  """
  n = len(values)
  _, sd, ci95 = student_interval(values) if n > 1 else (None, None, None)
  return {"mean": statistics.fmean(values), "sd": sd, "ci95": ci95, "min": min(values), "n": n}


def ratio_of_rounds(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
  """`interval` of the ratios of each round; rounds that only one side has do not count."""
  return interval([a / b for a, b in zip(numerators, denominators, strict=False)])


def show(value: Interval, spec: str, factor: float = 1.0) -> str:
  """The mean ± half the width of its 95 % interval, each times `factor` in the format `spec`."""
  half = "" if value["ci95"] is None else f" ± {factor * value['ci95']:{spec}}"
  return f"{factor * value['mean']:{spec}}{half}"


def matrix_product_tflops(precision: str) -> float:
  """10^12 operations per second of a product of square matrices: the ceiling of a step.

  It is measured in the same call as the steps, because a GPU's clock depends on its power and
  temperature, so that a data sheet's figure may not be reached at the time.
  """
  import jax

  from jaxspeed.doctor import ceilings

  return ceilings.measure(jax.devices()[0], precision)["tflops"]


def environment() -> dict[str, Any]:
  """The GPU and its driver, versions and the commit; this does not initialise a device."""
  installed = {each.name: each.version for each in importlib.metadata.distributions()}
  found = {name: installed[name] for name in sorted(installed) if _PACKAGES.fullmatch(name)}
  versions = provenance.versions() | found
  return {"gpu": _describe_gpu(), "versions": versions, "commit": provenance.commit()}


def _describe_gpu() -> str | None:
  """Name, driver and memory of the NVIDIA GPUs from nvidia-smi; None without a GPU."""
  query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
  try:
    done = subprocess.run(query, check=True, capture_output=True, text=True, timeout=20)
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip().replace("\n", "; ")


def define_out() -> flags.FlagHolder[str]:
  """Defines --out, the file that `write_report` writes."""
  return flags.DEFINE_string("out", "", "A JSON file for the figures.")


def define_choices(
  name: str, choices: Sequence[str], default: Sequence[str], help_text: str
) -> flags.FlagHolder[list[str]]:
  """Defines a flag of some of `choices`, separated by commas."""
  listed = f"{help_text} Of {', '.join(choices)}."
  holder = flags.DEFINE_list(name, list(default), listed)
  flags.register_validator(
    holder,
    lambda given: set(given) <= set(choices),
    f"choose from {', '.join(choices)}, with commas between them",
  )
  return holder


def last(text: str) -> str:
  """The last line of a text that is not blank."""
  found = [line.strip() for line in text.splitlines() if line.strip()]
  return found[-1] if found else "it said nothing"


def say(report: Report, what: str, figure: str) -> None:
  """Prints what was measured and its figure, and adds them to the report, for tables."""
  report.setdefault("said", []).append([what, figure])
  print(f"{what}: {figure}", flush=True)


def write_report(out: str | pathlib.Path, report: Report) -> None:
  """Writes a report to the file of --out, if one is given: atomically, as it is written often."""
  if out:
    text = json.dumps(to_json(report), indent=2, allow_nan=False)
    write_atomically(pathlib.Path(out), text + "\n")
