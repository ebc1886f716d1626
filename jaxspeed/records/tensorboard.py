"""TensorBoard's event files, written without TensorFlow; `rows.Row` has the tags.

The messages are those of TensorFlow's core/util/event.proto and core/framework/summary.proto.
"""

import contextlib
import struct
import time
from collections.abc import Iterator, Mapping

from jaxspeed.data.formats.protobuf import field, make_frames, varint
from jaxspeed.records.loggers import Log, LoggedRun
from jaxspeed.records.rows import scalars_of

_VERSION = field(3, b"brain.Event:2")
_START = field(7, b"\x08\x01")  # SessionLog with status START


@contextlib.contextmanager
def tensorboard(run: LoggedRun) -> Iterator[Log]:
  """Writes the rows of a run to an event file in its folder tensorboard/."""
  folder = run.folder / "tensorboard"
  folder.mkdir(exist_ok=True)
  now = time.time_ns()
  # TensorBoard reads files in the order of their names, which begin with whole seconds.
  path = folder / f"events.out.tfevents.{now // 10**9:010d}.{now}"
  with open(path, "xb", buffering=0) as file:
    # TensorBoard hides entries of earlier processes of this run from this x on.
    purged = run.rows[-1]["examples"] + 1 if run.rows else 0
    file.write(make_frames([_event(_VERSION), _event(_START, purged)]))
    if not run.rows:  # tools read from it when the run began
      file.write(make_frames([_event(_summary({"first": time.time()}))]))
    yield lambda row: file.write(make_frames([_event(_summary(scalars_of(row)), row["examples"])]))


def _event(content: bytes, step: int = 0) -> bytes:
  """An Event of this moment with one of its fields."""
  return b"\x09" + struct.pack("<d", time.time()) + b"\x10" + varint(step) + content


def _summary(values: Mapping[str, float]) -> bytes:
  """A Summary of scalars by their tags, as a field of an Event."""
  scalars = (
    field(1, tag.encode()) + b"\x15" + struct.pack("<f", value) for tag, value in values.items()
  )
  return field(5, b"".join(field(1, scalar) for scalar in scalars))
