"""Where the time from the start of the process to the first step goes, cold and warm.

    python scripts/bench_startup.py configs/quickstart.py --out=startup.json
    python scripts/bench_startup.py configs/cifar10.py --data=DIR --out=startup.json

Each start is a process of `jaxspeed.train` that ends before its first step. The first one has an
empty cache of programs, the others read it. The parts are those of the line "starting" (`Clock`),
in seconds; `cpu_seconds` are those of all threads of the process, which other work on the machine
does not lengthen. On a GPU the same command measures a GPU's parts.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from typing import Any

import benchmarking
from absl import flags

from jaxspeed.cluster.signals import exit_on_sigterm
from jaxspeed.config import flags as command_line
from jaxspeed.errors import INTERRUPTED, UserError
from jaxspeed.files import expanded
from jaxspeed.records import provenance
from jaxspeed.run.folder import check_output

_PART = re.compile(r"(?:: |, )([a-z][a-z ]*) (\d+\.\d)")
_TRACING = re.compile(r"\(tracing (\d+\.\d) in its threads\)")


def parts_of(line: str) -> dict[str, float]:
  """The seconds of the line "starting", by part; `total`; `tracing`, a part of compiling."""
  parts = {"total": float(line.split()[0])}
  if found := _TRACING.search(line):
    parts["tracing"] = float(found[1])
  return parts | {name: float(seconds) for name, seconds in _PART.findall(line)}


def start(config: str, workdir: str, options: list[str]) -> dict[str, Any]:
  """The parts of one start, which is ended before its first step.

  Its standard error is printed when it has ended: a Ctrl-C reaches it too, wherever it is, and its
  traceback would say nothing.

  Raises:
    SystemExit: it ended by itself; with its code, as its own message is on standard error.
  """
  command = [sys.executable, "-m", "jaxspeed.train", f"--config={config}", "--json", *options]
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  with tempfile.TemporaryFile("w+", errors="replace") as said:
    with subprocess.Popen(
      [*command, f"--workdir={workdir}"], stdout=subprocess.PIPE, stderr=said, text=True
    ) as run:
      assert run.stdout is not None
      try:
        line = next((e["starting"] for e in map(json.loads, run.stdout) if "starting" in e), None)
        code = run.wait() if line is None else 0
      finally:
        run.kill()
    if code in (-signal.SIGINT, INTERRUPTED):  # by the same Ctrl-C, which is on its way here
      raise KeyboardInterrupt
    said.seek(0)
    print(said.read(), end="", file=sys.stderr, flush=True)
  if line is None:
    raise SystemExit(code or f"{' '.join(command)} ended before its first step.")
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  return parts_of(line) | {"cpu_seconds": cpu, "load_average": os.getloadavg()[0]}


def table(cold: dict[str, float], warm: list[dict[str, float]]) -> str:
  """The seconds of each part: of the cold start, and the warm ones' mean with its interval."""
  lines = [f"{'seconds':<24}{'cold':>8}    warm, n = {len(warm)}"]
  for name in dict.fromkeys(name for row in (cold, *warm) for name in row):
    first = f"{cold[name]:.1f}" if name in cold else "-"
    values = [row[name] for row in warm if name in row]
    mean = benchmarking.show(benchmarking.interval(values), ".1f") if values else "-"
    lines.append(f"{name.replace('_', ' '):<24}{first:>8}    {mean}")
  return "\n".join(lines)


def main() -> None:
  data = flags.DEFINE_string("data", "", "config.data.path.")
  warm_starts = flags.DEFINE_integer(
    "warm", 3, "Starts that read the cache.", lower_bound=0, upper_bound=1000
  )
  out = benchmarking.define_out()

  def run(arguments: list[str]) -> None:
    if not arguments:
      raise UserError("name a recipe, as in bench_startup.py configs/quickstart.py.")
    recipe, *rest = arguments
    command_line.nothing_left(rest)
    path = expanded(out.value, "--out") if out.value else None
    if path is not None:
      check_output(path)
    with exit_on_sigterm(), tempfile.TemporaryDirectory(prefix="jaxspeed-startup-") as folder:
      options = [f"--config.compile_cache={folder}/programs"]
      options += [f"--config.data.path={data.value}"] if data.value else []
      starts = [
        start(recipe, f"{folder}/run_{number}", options) for number in range(warm_starts.value + 1)
      ]
    cold, *warm = starts
    report = {
      "what": f"scripts/bench_startup.py {recipe}: {__doc__.splitlines()[0]}",
      "device": provenance.describe_device(),
      "versions": provenance.versions(),
      "commit": provenance.commit(),
      "cores": os.cpu_count(),
      "cold": cold,
      "warm": warm,
    }
    benchmarking.write_report(path, report)
    print(table(cold, warm))

  command_line.run(run)


if __name__ == "__main__":
  main()
