"""TensorBoard's tags, and its event files, written without TensorFlow."""

import contextlib
import logging
import pathlib
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspeed.records.loggers import LateLogger, LoggedRun, Row

_log = logging.getLogger("jaxspeed")


# Keys of a row, with their tag and factor. Tags, units and x axis (examples seen) are imagenet18's
# (cybertronai/imagenet18_old, training/logger.py), to compare with its published event files:
# accuracies in percent, steps in milliseconds, the batch of one device in sizes/batch. Differences:
# a value belongs to an epoch, not a step, and epochs count from 1, not from 0.
TENSORBOARD_TAGS = {
  "epoch": ("epoch", 1),
  "world": ("sizes/world", 1),
  "device_batch_size": ("sizes/batch", 1),
  "batch_size": ("sizes/batch_total", 1),
  "image_size": ("sizes/image", 1),
  "learning_rate": ("sizes/lr", 1),
  "momentum": ("sizes/momentum", 1),
  "train_loss": ("losses/xent", 1),
  "train_top1": ("losses/train_1", 100),
  "train_top5": ("losses/train_5", 100),
  "eval_top1": ("losses/test_1", 100),
  "eval_top5": ("losses/test_5", 100),
  "step_seconds": ("times/step", 1000),
  "data_seconds": ("times/data", 1000),
  "images_per_second_per_device": ("times/1gpu_images_per_sec", 1),
  "eval_seconds": ("times/eval_sec", 1),
  "memory_gb": ("memory/max_allocated_gb", 1),
  "net_recv_gbit": ("net/recv_gbit", 1),
  "net_transmit_gbit": ("net/transmit_gbit", 1),
  # Not in imagenet18, where times/8gpu_images_per_sec is always eight times the value of one GPU.
  "eval_loss": ("losses/test_xent", 1),
  "eval_macro_top1": ("losses/test_macro_1", 100),
  "eval_ece": ("losses/test_ece", 1),
  "skipped_steps": ("losses/skipped_steps", 1),
  "images_per_second": ("times/images_per_sec", 1),
  "data_wait": ("times/data_wait", 1),
  "train_seconds": ("times/train_seconds", 1),
  "dawn_seconds": ("times/dawn_seconds", 1),
}
# A tag for the start of the run: its value and its wall time.
FIRST_TAG = "first"
ROOM_FOR_TENSORBOARD = 2**20  # bytes


def scalars_of(row: Mapping[str, Any]) -> dict[str, float]:
  """The values by tag of a row of `Records.epoch`, in the units of `TENSORBOARD_TAGS`."""
  values = dict(row)
  if "data_wait" in row:
    values["data_seconds"] = row["data_wait"] * row["step_seconds"]
  if "world" in row:
    values["device_batch_size"] = row["batch_size"] / row["world"]
  return {
    tag: factor * values[key]
    for key, (tag, factor) in TENSORBOARD_TAGS.items()
    if values.get(key) is not None
  }


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
    if shutil.disk_usage(self.run.folder).free < ROOM_FOR_TENSORBOARD:
      return False
    if self._writer is None:
      self._writer = _open_writer(self.run.folder / "tensorboard", self._purge_from)
    if self._writer is None:
      return True
    if self._first is not None:
      self._writer.add_scalar(FIRST_TAG, self._first, 0, walltime=self._first)
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


def _open_writer(folder: pathlib.Path, purge_from: int) -> Any:
  try:
    import tensorboardX
  except ImportError:  # a machine for timings, with few packages
    _log.warning("tensorboardX is not installed: nothing is written for TensorBoard")
    return None
  # File names have whole seconds: without the suffix a quick resume would overwrite a file.
  return tensorboardX.SummaryWriter(
    str(folder), purge_step=purge_from, flush_secs=1, filename_suffix=f".{time.time_ns()}"
  )
