"""Runs of jaxspeed.train for real faults, and what has to come of them (tests/campaign)."""

import contextlib
import functools
import json
import pathlib
import re
import time
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import toy_stream_config
from local_cluster import Processes, processes, wait_until
from toy_images import write_folder

from jaxspeed.errors import DONE
from jaxspeed.run.checkpoint import MANIFEST

WITHIN = 60  # seconds in which the others of a lost process have to end
START = 400  # seconds in which a process has to come to its first steps on a busy machine
INTERVAL = 0.3  # seconds of training between two checkpoints
HEARTBEAT = 10  # seconds
STEPS = {"resident": 15 * 40, "stream": 10 * 6}

_KEPT = ("step", "examples", "train_loss", "train_top1", "eval_loss", "eval_top1")


# All arrays that the last checkpoint of a run holds, by name, and its epochs' rows without times.
Finished = tuple[dict[str, bytes], list[dict[str, float]]]


class Lab:
  """Where runs are made, and those that nothing happened to."""

  def __init__(self, folder: pathlib.Path) -> None:
    self.folder = folder
    self._undisturbed: dict[tuple, Finished] = {}
    self._made = 0

  def new_run(self, feed: str = "resident", *flags: str, name: str = "") -> "FaultyRun":
    self._made += 1
    return FaultyRun(self, feed, self.folder / f"{self._made}{name}", flags)

  def arguments(self, feed: str) -> list[str]:
    if feed == "stream":
      images = self.folder / "images"
      if not images.exists():
        write_folder(images, train=toy_stream_config.TRAIN, held_out=toy_stream_config.HELD_OUT)
      recipe = [f"--config=tests/toy_stream_config.py:{self.folder}"]
    else:
      recipe = ["--config=configs/quickstart.py", "--config.model.width=4", "--config.epochs=40"]
    often = f"--config.checkpoint.every_seconds={INTERVAL}"
    return [*recipe, often, f"--config.heartbeat_seconds={HEARTBEAT}"]

  def undisturbed(
    self, feed: str = "resident", count: int = 1, devices: int = 1, *flags: str
  ) -> Finished:
    """What a run ends with that nothing happens to; it is made once."""
    key = feed, count, devices, flags
    if key not in self._undisturbed:
      run = self.new_run(feed, *flags, name="-undisturbed")
      with run.started(count, devices=devices) as group:
        assert [e.code for e in group.wait(START)] == [DONE] * count, group[0].err
      self._undisturbed[key] = run.finished()
    return self._undisturbed[key]


class FaultyRun:
  """One run's folder, and the processes that are started for it."""

  def __init__(self, lab: Lab, feed: str, workdir: pathlib.Path, flags: Sequence[str]) -> None:
    self.lab, self.feed, self.workdir, self.flags = lab, feed, workdir, flags

  def started(
    self, count: int = 2, *flags: str, **how: Any
  ) -> contextlib.AbstractContextManager[Processes]:
    """`count` processes of the run; `how` as in `local_cluster.processes`."""
    fixed = [*self.lab.arguments(self.feed), f"--workdir={self.workdir}", *self.flags]
    return processes(*fixed, *flags, count=count, **how)

  def saved(self) -> int:
    return newest_in(self.workdir)

  def is_saving(self) -> bool:
    return any(self.workdir.glob("checkpoints/.part-*"))

  def is_done(self) -> bool:
    return (self.workdir / "result.json").exists()

  def wait_for_save(self, group: Processes, seconds: float = START) -> int:
    """Until there is a newer checkpoint than now."""
    before = self.saved()
    wait_until(lambda: self.saved() > before or not group[0].running(), seconds, "a checkpoint")
    assert self.saved() > before, group[0].err
    return self.saved()

  def whole(self) -> int:
    """The step of the newest checkpoint, which has to be whole in every byte; 0 without one."""
    step = self.saved()
    if step:
      path = self.workdir / "checkpoints" / str(step)
      stored = json.loads((path / MANIFEST).read_text())["arrays"]
      for name, content in arrays_of(path).items():
        assert stored[name][1] == zlib.crc32(content)
    return step

  def finish(self, count: int = 2, devices: int = 1) -> str:
    """Goes on to the end; returns what was printed."""
    with self.started(count, devices=devices) as group:
      ended = group.wait(START)
      assert [e.code for e in ended] == [DONE] * count, ended[0].err + ended[-1].err
    return ended[0].out

  def finished(self) -> Finished:
    rows = [json.loads(line) for line in (self.workdir / "metrics.jsonl").read_text().splitlines()]
    path = self.workdir / "checkpoints" / str(STEPS[self.feed])
    return arrays_of(path), [{name: row[name] for name in _KEPT} for row in rows]

  def assert_as_undisturbed(self, count: int = 2, devices: int = 1) -> None:
    mine, other = self.finished(), self.lab.undisturbed(self.feed, count, devices)
    assert mine[1] == other[1] and len(mine[0]) > 20 and mine[0] == other[0]


def newest_in(workdir: pathlib.Path) -> int:
  """The step of the newest checkpoint; 0 without one."""
  names = [path.parent.name for path in workdir.glob(f"checkpoints/*/{MANIFEST}")]
  return max((int(name) for name in names if name.isdecimal()), default=0)


def arrays_of(path: pathlib.Path) -> dict[str, bytes]:
  with ocp.StandardCheckpointer() as checkpointer:
    tree = checkpointer.restore(path.absolute())
  named = jax.tree_util.tree_leaves_with_path({"state": tree["state"]})
  name_of = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
  return {name_of(keys): np.asarray(value).tobytes() for keys, value in named}


def came_to(begun: float, printed: str) -> str:
  """What a fault came to: the seconds since it, and what a process printed about it."""
  return f"{time.monotonic() - begun:.1f} s: {printed}"


def sentence(text: str, part: str) -> str:
  """The line of an output that holds `part`; it has to be one of ours and not in a traceback."""
  assert "Traceback" not in text, text
  lines = [line.strip() for line in text.splitlines() if part in line]
  assert lines, f"no line with {part!r} in:\n{text}"
  return re.sub(r"\s+", " ", lines[0])


def resumed_from(out: str) -> int:
  found = re.search(r"resumes from the checkpoint of step (\d+)", out)
  return int(found.group(1)) if found else 0
