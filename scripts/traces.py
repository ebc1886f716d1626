"""Traces of JAX's profiler: which kernel ran when, whatever a version of JAX calls its lines."""

import bisect
import collections
import dataclasses
import glob
from collections.abc import Collection, Iterable
from typing import Any

import jax

from jaxspeed.errors import UserError

_GPU = "/device:GPU:"


@dataclasses.dataclass(frozen=True)
class Run:
  """One run of a kernel, in nanoseconds of the profile's clock."""

  name: str
  start: float
  end: float


def read_profile(
  folder: str, module: str, names: Collection[str], *, platform: str = ""
) -> list[Run]:
  """What one program ran on the first device, including control flow.

  Args:
    folder: what `jax.profiler.trace` wrote.
    module: the program's name, as in its text.
    names: names of the program's operations, for events that do not name their program.
    platform: "gpu" if the program ran on one; the trace of its host is then no answer.

  Raises:
    UserError: the profile has nothing of that program.
  """
  paths = sorted(glob.glob(f"{folder}/**/*.xplane.pb", recursive=True))
  planes = [plane for path in paths for plane in jax.profiler.ProfileData.from_file(path).planes]
  return runs_of(planes, module, names, platform=platform)


def runs_of(
  planes: Iterable[Any], module: str, names: Collection[str], *, platform: str = ""
) -> list[Run]:
  """`read_profile` of planes that were read.

  Names of lines are not used: "Stream #13(Compute)" and "XLA Ops" are those of some versions. A
  kernel on a stream carries the correlation id of its launch. A line of summaries repeats what
  other lines have, so a run of an operation that overlaps another of the same operation counts
  once.
  """
  planes = list(planes)
  gpus = sorted({plane.name for plane in planes if plane.name.startswith(_GPU)})
  if platform == "gpu" and not gpus:
    raise UserError(
      f"the profile has nothing of a GPU, only {_listed(planes)}: the profiler needs NVIDIA's "
      "CUPTI (pip install nvidia-cuda-cupti) and the permission to count kernels."
    )
  chosen = [p for p in planes if p.name == gpus[0]] if gpus else planes
  lines = [list(line.events) for plane in chosen for line in plane.lines]
  lines = _matching(lines, module, ()) or _matching(lines, "", names)
  launched = [[e for e in line if e[1]] for line in lines]
  lines = launched if any(launched) else lines
  runs = _once(([run for run, _ in line] for line in lines), merge=bool(gpus))
  if not runs:
    raise UserError(
      f"the profile has no kernels of {module}: it has {_listed(planes)}, and no event there names "
      "this program or one of its operations."
    )
  return runs


def _listed(planes: Iterable[Any]) -> str:
  return ", ".join(plane.name for plane in planes) or "nothing"


def _matching(
  lines: Iterable[list[Any]], module: str, names: Collection[str]
) -> list[list[tuple[Run, bool]]]:
  """The program's events on each line that has any, each with whether it tells of its launch.

  Args:
    lines: the events of each line.
    module: the program that an event must name; "": events that name none.
    names: names of the operations; (): all.
  """
  found = []
  for line in lines:
    mine = []
    for event in line:
      stats = dict(event.stats)
      # Some versions add a number to the module: jit_step(7).
      told = str(stats.get("hlo_module", "")).partition("(")[0]
      name = str(stats.get("hlo_op", event.name))
      if told == module and (not names or name in names) and not stats.get("device_ordinal", 0):
        run = Run(name, event.start_ns, event.start_ns + event.duration_ns)
        mine.append((run, "correlation_id" in stats))
    found += [mine] if mine else []
  return found


def _once(lines: Iterable[list[Run]], *, merge: bool) -> list[Run]:
  """The runs of all lines; with `merge`, without those that repeat a run of a longer line.

  The threads of a CPU share an operation, so there every run counts.
  """
  taken: dict[str, list[Run]] = collections.defaultdict(list)
  for line in sorted(lines, key=len, reverse=True):
    before = {name: sorted(runs, key=lambda r: r.start) for name, runs in taken.items()}
    for run in line:
      if not (merge and _overlaps(run, before.get(run.name, []))):
        taken[run.name].append(run)
  return sorted((run for runs in taken.values() for run in runs), key=lambda r: r.start)


def _overlaps(run: Run, others: list[Run]) -> bool:
  """Whether a run overlaps one of others, which are sorted and do not overlap each other."""
  place = bisect.bisect_left(others, run.end, key=lambda r: r.start)
  return place > 0 and others[place - 1].end > run.start


def busy(runs: Iterable[Run]) -> float:
  """Nanoseconds in which at least one kernel ran."""
  total, until = 0.0, float("-inf")
  for run in sorted(runs, key=lambda r: r.start):
    total += max(0.0, run.end - max(run.start, until))
    until = max(until, run.end)
  return total
