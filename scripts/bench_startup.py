"""Where the time from the start of the process to the first step goes, cold and warm.

    python scripts/bench_startup.py --config=configs/quickstart.py --out=startup.json
    python scripts/bench_startup.py --config=configs/cifar10.py --config.data.path=DATA

Each start is a process of `jaxspeed.train` that ends before its first step. The first one has an
empty cache of programs, the others read it. The parts are those of the line "starting" (`Clock`),
in seconds; `cpu_seconds` are those of all threads of the process, which other work on the machine
does not lengthen. On a GPU the same command measures a GPU's parts.
"""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys
from typing import Any

import benchmarking
from absl import flags

from jaxspeed.config import flags as command_line
from jaxspeed.config.checks import to_flags
from jaxspeed.errors import UserError
from jaxspeed.records import provenance

_PART = re.compile(r"(?:: |, )([a-z][a-z ]*) (\d+\.\d)")
_TRACING = re.compile(r"\(tracing (\d+\.\d) in its threads\)")


def parts_of(line: str) -> dict[str, float]:
  """The seconds of the line "starting", by part; `total`; `tracing`, a part of compiling."""
  parts = {"total": float(line.split()[0])}
  if found := _TRACING.search(line):
    parts["tracing"] = float(found[1])
  return parts | {name: float(seconds) for name, seconds in _PART.findall(line)}


def start(config: str, workdir: pathlib.Path, options: list[str]) -> dict[str, Any]:
  """The parts of one start, which is ended before its first step.

  Raises:
    SystemExit: it failed; with its code, as its own message is on standard error.
    UserError: it ended before its first step.
  """
  command = [sys.executable, "-m", "jaxspeed.train", f"--config={config}", "--json", *options]
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  with subprocess.Popen([*command, f"--workdir={workdir}"], stdout=subprocess.PIPE) as run:
    assert run.stdout is not None
    try:
      line = next((e["starting"] for e in map(json.loads, run.stdout) if "starting" in e), None)
      if line is None:
        if code := run.wait():
          raise SystemExit(code)
        raise UserError(f"{' '.join(command)} ended before its first step.")
    finally:
      run.kill()
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  return parts_of(line) | {"cpu_seconds": cpu, "load_average": os.getloadavg()[0]}


def main() -> None:
  config_flag = command_line.define_config_flag()
  warm_starts = flags.DEFINE_integer("warm", 3, "Starts that read the cache.", 0, 1000)
  out = benchmarking.define_out()

  def bench(scratch: pathlib.Path) -> None:
    recipe = command_line.required("config", flags.FLAGS["config"].value)
    os.environ["JAXSPEED_COMPILE_CACHE"] = str(scratch / "programs")
    options = to_flags(config_flag.overrides)
    numbers = range(warm_starts.value + 1)
    cold, *warm = [start(recipe, scratch / f"run_{number}", options) for number in numbers]
    report = {
      "what": f"scripts/bench_startup.py {recipe}: {__doc__.splitlines()[0]}",
      "device": provenance.describe_device(),
      **benchmarking.environment(),
      "cores": os.cpu_count(),
      "cold": cold,
      "warm": warm,
    }
    for name in dict.fromkeys(name for row in (cold, *warm) for name in row):
      means = [row[name] for row in warm if name in row]
      figure = f"{cold[name]:.1f} cold" if name in cold else "- cold"
      if means:
        figure += f", {benchmarking.show(benchmarking.interval(means), '.1f')} warm"
      benchmarking.say(report, f"{name.replace('_', ' ')}, s", figure)
    benchmarking.write_report(out.value, report)

  benchmarking.run(bench)


if __name__ == "__main__":
  main()
