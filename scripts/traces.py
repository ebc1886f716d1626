"""Traces of JAX's profiler: which kernel ran when, whatever a version of JAX calls its lines."""

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

  On a GPU a kernel on a stream carries the correlation id of its launch, which tells it from the
  summaries on other lines, whatever these are called.
  """
  planes = list(planes)
  gpus = sorted({plane.name for plane in planes if plane.name.startswith(_GPU)})
  if platform == "gpu" and not gpus:
    raise UserError(
      f"the profile has nothing of a GPU, only {_listed(planes)}: the profiler needs NVIDIA's "
      "CUPTI (pip install nvidia-cuda-cupti) and the permission to count kernels."
    )
  chosen = [p for p in planes if p.name == gpus[0]] if gpus else planes
  events = [event for plane in chosen for line in plane.lines for event in line.events]
  runs = _matching(events, module, ()) or _matching(events, "", names)
  launched = [(run, True) for run, is_launched in runs if is_launched]
  if not runs:
    raise UserError(
      f"the profile has no kernels of {module}: it has {_listed(planes)}, and no event there names "
      "this program or one of its operations."
    )
  return sorted((run for run, _ in launched or runs), key=lambda run: run.start)


def _listed(planes: Iterable[Any]) -> str:
  return ", ".join(plane.name for plane in planes) or "nothing"


def _matching(events: Iterable[Any], module: str, names: Collection[str]) -> list[tuple[Run, bool]]:
  """The program's events, each with whether it tells of its launch.

  Args:
    events: all of them.
    module: the program that an event must name; "": events that name none.
    names: names of the operations; (): all.
  """
  found = []
  for event in events:
    stats = dict(event.stats)
    # Some versions add a number to the module: jit_step(7).
    told = str(stats.get("hlo_module", "")).partition("(")[0]
    name = str(stats.get("hlo_op", event.name))
    if told == module and (not names or name in names) and not stats.get("device_ordinal", 0):
      run = Run(name, event.start_ns, event.start_ns + event.duration_ns)
      found.append((run, "correlation_id" in stats))
  return found


def busy(runs: Iterable[Run]) -> float:
  """Nanoseconds in which at least one kernel ran."""
  total, until = 0.0, float("-inf")
  for run in sorted(runs, key=lambda r: r.start):
    total += max(0.0, run.end - max(run.start, until))
    until = max(until, run.end)
  return total
