"""TensorBoard's tags, and its event files, written without TensorFlow."""

import logging
import pathlib
import time
from collections.abc import Mapping
from typing import Any

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


def open_tensorboard(folder: pathlib.Path, purge_from: int) -> Any:
  try:
    import tensorboardX
  except ImportError:  # a machine for timings, with few packages
    _log.warning("tensorboardX is not installed: nothing is written for TensorBoard")
    return None
  # File names have whole seconds: without the suffix a quick resume would overwrite a file.
  return tensorboardX.SummaryWriter(
    str(folder), purge_step=purge_from, flush_secs=1, filename_suffix=f".{time.time_ns()}"
  )
