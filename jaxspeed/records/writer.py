"""The records of a run: metrics.jsonl, TensorBoard's event files, and the run's screen.

prepare_workdir(workdir)
with open_records(workdir, resume_step=None, total_epochs=18) as records:
  records.screen.header({"device": describe_device(), ...})
  for ...:
    records.epoch({"epoch": 1, "step": 98, "examples": 100352, "train_loss": 1.2, ...})
  records.screen.result(write_result(workdir, [result_row(...)]))
"""

import contextlib
import json
import logging
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console

from jaxspeed.errors import UserError
from jaxspeed.files import plain, write_atomically
from jaxspeed.records.console import Screen, make_console, silent_console
from jaxspeed.records.tensorboard import (
  FIRST_TAG,
  ROOM_FOR_TENSORBOARD,
  open_tensorboard,
  scalars_of,
)

# tensorboardX imports torch where there is one: 1.1 s against 0.03 s without. A run that is over by
# then pays at its end, a longer one after its first epoch.
_SECONDS_BEFORE_TENSORBOARD = 10.0
_log = logging.getLogger("jaxspeed")


def prepare_workdir(path: str | os.PathLike[str]) -> pathlib.Path:
  """Creates a run's folder with its parents and makes sure that it can be written.

  Raises:
    UserError: the folder cannot be created or written.
  """
  if "://" in str(path):
    raise UserError(f"workdir {path} is no local folder: mount the bucket and name the folder")
  folder = pathlib.Path(path)
  try:
    os.path.abspath(folder).encode()
  except UnicodeEncodeError:
    # Orbax refuses such names when the first checkpoint is due.
    raise UserError(
      f"workdir {os.path.abspath(folder)} is no name in UTF-8: choose another --workdir"
    ) from None
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    raise UserError(
      f"workdir {path} cannot be created or written ({error.strerror}): choose another --workdir"
    ) from error
  return folder


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of metrics.jsonl, without a last line that a kill cut off; none without the file.

  Raises:
    UserError: another line is no JSON.
  """
  path = workdir / "metrics.jsonl"
  if not path.exists():
    return []
  lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
  rows = []
  for number, line in enumerate(lines, start=1):
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      if number < len(lines):
        raise UserError(f"{path}, line {number}, is no JSON: mend or delete the line") from None
  return rows


def open_records(
  workdir: pathlib.Path,
  *,
  resume_step: int | None,
  total_epochs: int | float,
  evaluated: str = "",
  console: Console | None = None,
  primary: bool = True,
) -> "Records":
  """Opens the records of a new run, or of one that goes on.

  Args:
    workdir: a folder that exists.
    resume_step: the step of the restored checkpoint: later rows are dropped, as their steps will
      be done again. None: a new run, without any earlier row.
    total_epochs: of the whole run; may be fractional.
    evaluated: as `Screen` takes it.
    console: instead of standard output.
    primary: False in all processes of a run but one: nothing is written or printed.

  Raises:
    UserError: metrics.jsonl of the run to resume is damaged.
  """
  if not primary:
    return Records(None, rows=[], screen=Screen(silent_console(), total_epochs=total_epochs))
  rows = []
  if resume_step is not None:
    rows = [row for row in read_metrics(workdir) if row["step"] <= resume_step]
  write_atomically(workdir / "metrics.jsonl", "".join(_json_line(row) for row in rows))
  screen = Screen(console or make_console(), total_epochs=total_epochs, evaluated=evaluated)
  return Records(workdir, rows=rows, screen=screen)


class Records:
  """Writes the epochs of one run; `open_records` makes it. Close it, or use `with`.

  Attributes:
    rows: every epoch of the run so far, those before a resume included.
    screen: where the run is printed.
  """

  def __init__(
    self, workdir: pathlib.Path | None, *, rows: list[dict[str, Any]], screen: Screen
  ) -> None:
    self.rows = rows
    self.screen = screen
    self._workdir = workdir
    self._metrics = open(workdir / "metrics.jsonl", "ab", buffering=0) if workdir else None
    self._unwritten = b""  # of metrics.jsonl, for want of room on the disk
    self._opened = time.monotonic()
    self._tensorboard: Any = None
    # x, Unix time and what to write there: the tools that read these files take times from them.
    self._waiting_for_tensorboard: list[tuple[int, float, dict[str, float]]] = []
    if not rows:
      self._waiting_for_tensorboard.append((0, time.time(), {FIRST_TAG: time.time()}))
    # TensorBoard hides what earlier processes of this run wrote from this x on.
    self._purge_from = rows[-1]["examples"] + 1 if rows else 0

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Records the end of an epoch in metrics.jsonl, on the screen and in TensorBoard.

    Args:
      row: epoch (from 1; fractional where training ends inside one), step and examples (since the
        start of the run), and any of
        world: devices; batch_size: of all of them; image_size; learning_rate and momentum: of the
          last step;
        train_loss, train_top1, train_top5 and, after a validation, eval_loss, eval_top1, eval_top5:
          accuracies as fractions;
        images_per_second, images_per_second_per_device, step_seconds: means of the training;
        data_wait: fraction of the training's seconds in which the devices waited for input;
        train_seconds, dawn_seconds: of the run; eval_seconds: of this validation;
        skipped_steps: of the run, those whose float16 gradients overflowed;
        memory_gb: most that a device has held; net_recv_gbit, net_transmit_gbit: a second.
        Other keys reach metrics.jsonl only.
    """
    self.rows.append(plain(row))
    if self._metrics is None:
      return
    self.screen.epoch(row)
    self._write_metrics(_json_line(self.rows[-1]).encode())
    self._waiting_for_tensorboard.append((row["examples"], time.time(), scalars_of(self.rows[-1])))
    if time.monotonic() - self._opened > _SECONDS_BEFORE_TENSORBOARD:
      self._write_tensorboard()

  def close(self) -> None:
    """Ends the live line and writes what is not yet on the disk."""
    self.screen.close()
    if self._metrics is not None:
      self._write_metrics()
      self._metrics.close()
    self._write_tensorboard()
    if self._tensorboard is not None:
      # On a full disk what it has buffered is lost, which metrics.jsonl holds as well.
      with contextlib.suppress(OSError):
        self._tensorboard.close()

  def __enter__(self) -> "Records":
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self.close()

  def _write_metrics(self, line: bytes = b"") -> None:
    """A line behind what a full disk has left unwritten; the run goes on without."""
    assert self._metrics is not None
    self._unwritten += line
    try:
      while self._unwritten:
        self._unwritten = self._unwritten[self._metrics.write(self._unwritten) :]
    except OSError as error:
      self.screen.line(
        f"{self._metrics.name} could not be written ({error.strerror}): it is tried again after "
        "the next epoch"
      )

  def _write_tensorboard(self) -> None:
    if not self._waiting_for_tensorboard or self._workdir is None:
      return
    # On a full disk tensorboardX's thread would die with a traceback: the rows wait.
    if shutil.disk_usage(self._workdir).free < ROOM_FOR_TENSORBOARD:
      return
    if self._tensorboard is None:
      self._tensorboard = open_tensorboard(self._workdir / "tensorboard", self._purge_from)
    if self._tensorboard is None:
      return
    for x, wall_time, scalars in self._waiting_for_tensorboard:
      for tag, value in scalars.items():
        self._tensorboard.add_scalar(tag, value, x, walltime=wall_time)
    self._waiting_for_tensorboard = []


def _json_line(row: Mapping[str, Any]) -> str:
  return json.dumps(row, allow_nan=False) + "\n"
