"""Traces of JAX's profiler with lines of other names than those of today's version."""

import dataclasses
from typing import Any

import pytest
import traces

from jaxspeed.errors import UserError


@dataclasses.dataclass
class Event:
  name: str
  start_ns: float
  duration_ns: float
  stats: list[tuple[str, Any]]


@dataclasses.dataclass
class Line:
  name: str
  events: list[Event]


@dataclasses.dataclass
class Plane:
  name: str
  lines: list[Line]


def kernel(op: str, start: float, end: float, **stats: Any) -> Event:
  """A kernel's event, as CUPTI has it: named by its function, with the operation as a stat."""
  return Event("void f<4>()", start, end - start, [("hlo_op", op), *stats.items()])


def streams(**stats: Any) -> list[list[Event]]:
  """Two streams: a convolution of two kernels and a fusion, beside them an all-reduce."""
  return [
    [kernel("conv", 0, 4, **stats), kernel("conv", 4, 6, **stats), kernel("add", 6, 8, **stats)],
    [kernel("sum", 5, 9, **stats)],
  ]


SUMMARY = [kernel("conv", 0, 6), kernel("add", 6, 8), kernel("sum", 5, 9)]
EXPECTED = [("conv", 0, 4), ("conv", 4, 6), ("sum", 5, 9), ("add", 6, 8)]


def read(*lines: Line, plane: str = "/device:GPU:0") -> list[tuple[str, float, float]]:
  other = Line("Stream #7", [kernel("conv", 0, 99, hlo_module="jit_step")])
  planes = [Plane("/device:GPU:1", [other]), Plane(plane, list(lines)), Plane("/host:CPU", [])]
  runs = traces.runs_of(planes, "jit_step", {"conv", "add", "sum"}, platform="gpu")
  return [(run.name, run.start, run.end) for run in runs]


@pytest.mark.parametrize("names", [("Stream #13(Compute)", "Stream #20"), ("queue a", "queue b")])
@pytest.mark.parametrize("module", ["jit_step", "jit_step(7)"])
def test_kernels_are_found_on_streams_of_any_name(names, module):
  main, side = streams(hlo_module=module, correlation_id=3)
  summary = [dataclasses.replace(e, stats=[*e.stats, ("hlo_module", module)]) for e in SUMMARY]
  others = [kernel("conv", 20, 30, hlo_module="jit_other", correlation_id=4)]
  lines = [Line("XLA Ops", summary), Line(names[0], main + others), Line(names[1], side)]
  assert read(*lines) == EXPECTED
  assert read(*reversed(lines)) == EXPECTED


def test_without_a_module_the_names_of_operations_tell():
  main, side = streams(correlation_id=1)
  foreign = [kernel("transpose.9", 30, 40, correlation_id=2)]
  assert read(Line("0", main + foreign), Line("1", side)) == EXPECTED
  # And without the stat of the operation, the event's own name.
  plain = [Event(e.stats[0][1], e.start_ns, e.duration_ns, []) for e in main + side]
  assert read(Line("0", plain[:3]), Line("1", plain[3:])) == EXPECTED


def test_threads_of_a_cpu_share_an_operation_and_all_count():
  main, _ = streams(hlo_module="jit_step")
  planes = [Plane("/host:CPU", [Line("thread/1", main), Line("thread/2", main)])]
  assert len(traces.runs_of(planes, "jit_step", set(), platform="cpu")) == 6
  assert traces.busy(traces.runs_of(planes, "jit_step", set())) == 8


def test_what_a_trace_lacks_is_told():
  host = Plane("/host:CPU", [Line("thread", streams(hlo_module="jit_step")[0])])
  with pytest.raises(UserError, match="nothing of a GPU, only /host:CPU: .* CUPTI"):
    traces.runs_of([host], "jit_step", {"conv"}, platform="gpu")
  gpu = Plane("/device:GPU:0", [Line("Stream #1", [kernel("other", 0, 1)])])
  with pytest.raises(UserError, match="no kernels of jit_step: it has /device:GPU:0, and no event"):
    traces.runs_of([gpu], "jit_step", {"conv"}, platform="gpu")
  with pytest.raises(UserError, match="it has nothing, and"):
    traces.runs_of([], "jit_step", {"conv"}, platform="cpu")
