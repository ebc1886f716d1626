"""TensorBoard's event files, written without TensorFlow; `rows.Row` has the tags."""

import contextlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

from jaxspeed.records.loggers import LateLogger, LoggedRun, Row
from jaxspeed.records.rows import scalars_of

# A tag for the start of the run: its value and its wall time.
_FIRST_TAG = "first"
_ROOM = 2**20  # bytes


class TensorBoardLogger(LateLogger):
  """Writes a run's rows to event files in its folder tensorboard/.

  Rows wait while the disk has no room: tensorboardX's thread would die with a traceback.
  """

  def init(self, run: LoggedRun) -> None:
    super().init(run)
    self._writer: Any = None
    # Tools read the times from the files.
    self._first = None if run.rows else time.time()
    # TensorBoard hides entries of earlier processes of this run from this x on.
    self._purge_from = run.rows[-1]["examples"] + 1 if run.rows else 0

  def write(self, rows: Sequence[tuple[float, Row]]) -> bool:
    if shutil.disk_usage(self.run.folder).free < _ROOM:
      return False
    if self._writer is None:
      import tensorboardX

      # File names have whole seconds: without the suffix a quick resume would overwrite a file.
      self._writer = tensorboardX.SummaryWriter(
        str(self.run.folder / "tensorboard"),
        purge_step=self._purge_from,
        flush_secs=1,
        filename_suffix=f".{time.time_ns()}",
      )
    if self._first is not None:
      self._writer.add_scalar(_FIRST_TAG, self._first, 0, walltime=self._first)
      self._first = None
    for wall_time, row in rows:
      for tag, value in scalars_of(row).items():
        self._writer.add_scalar(tag, value, row["examples"], walltime=wall_time)
    return True

  def finish(self) -> None:
    super().finish()
    if self._writer is not None:
      # On a full disk its buffer is lost; metrics.jsonl has the same values.
      with contextlib.suppress(OSError):
        self._writer.close()
