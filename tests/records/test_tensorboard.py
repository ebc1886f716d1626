"""TensorBoard's event files, read record by record."""

import numpy as np
import pytest
from made_rows import epoch_row
from test_records import write_epochs

from jaxspeed.data.formats.tfrecord import read_records
from jaxspeed.records.console import Screen, silent_console
from jaxspeed.records.rows import TAGS
from jaxspeed.records.tensorboard import tensorboard
from jaxspeed.records.writer import Records


def read_events(workdir):
  """Every event of every file in TensorBoard's order; the reader verifies checksums."""
  event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
  for path in sorted((workdir / "tensorboard").iterdir()):
    for record in read_records(np.fromfile(path, np.uint8), path):
      yield event_pb2.Event.FromString(bytes(record))


def scalars(workdir):
  """tag -> {x: value}, without what a later process has purged, as TensorBoard shows it."""
  shown = {}
  for event in read_events(workdir):
    if event.HasField("session_log"):
      for points in shown.values():
        for x in [x for x in points if x >= event.step]:
          del points[x]
    for value in event.summary.value:
      shown.setdefault(value.tag, {})[event.step] = value.simple_value
  return shown


def write(workdir, rows, resume_step=None):
  write_epochs(workdir, rows, resume_step, loggers=[tensorboard])


# What imagenet18's training/logger.py and training/train_imagenet_nv.py write, but for the caches
# of PyTorch's allocator; and, below, what it does not have.
SHOWN = {
  "sizes/world": 4,
  "sizes/batch": 25,  # of one device
  "sizes/batch_total": 100,
  "sizes/image": 32,
  "sizes/lr": 0.5,
  "sizes/momentum": 0.875,
  "losses/xent": 1.0,
  "losses/train_1": 50.0,  # percent; metrics.jsonl keeps fractions
  "losses/train_5": 75.0,
  "losses/test_1": 50.0,
  "losses/test_5": 75.0,
  "times/step": 250,  # milliseconds, a quarter of which is waited for
  "times/data": 62.5,
  "times/1gpu_images_per_sec": 1250,
  "times/eval_sec": 3.5,
  "net/recv_gbit": 0.5,
  "net/transmit_gbit": 0.25,
  "memory/max_allocated_gb": 6.5,
  "epoch": 2,
  "losses/test_xent": 1.5,
  "losses/test_macro_1": 25.0,
  "losses/test_ece": 0.125,
  "losses/skipped_steps": 4,
  "times/images_per_sec": 5000,
  "times/data_wait": 0.25,
  "times/train_seconds": 1.0,
  "times/dawn_seconds": 0.5,
}


def test_each_scalar_stands_over_the_examples_seen(tmp_path):
  figures = dict(loss=1.5, top1=0.5, top5=0.75, macro_top1=0.25, ece=0.125, seconds=3.5)
  more = {f"eval_{name}": value for name, value in figures.items()}
  more |= dict(skipped_steps=4, memory_gb=6.5, net_recv_gbit=0.5, net_transmit_gbit=0.25)
  write(tmp_path, [epoch_row(1), epoch_row(2, **more)])
  shown = scalars(tmp_path)
  assert {tag: points.get(2000) for tag, points in shown.items()} == SHOWN | {"first": None}
  assert shown["losses/xent"][1000] == 2.0 and 1000 not in shown["losses/test_1"]
  assert {tag.name for tag in TAGS.values()} <= set(SHOWN)


def test_each_row_is_there_at_once_with_its_time(tmp_path, monkeypatch):
  now = [1.5e9]
  monkeypatch.setattr("jaxspeed.records.tensorboard.time.time", lambda: now[0])
  how = dict(screen=Screen(silent_console()), loggers=[tensorboard])
  with Records(tmp_path, resume_step=None, **how) as records:
    for epoch in (1, 2):
      now[0] += 60.0
      records.epoch(epoch_row(epoch))
      assert len(scalars(tmp_path)["epoch"]) == epoch
  events = list(read_events(tmp_path))
  assert events[0].file_version == "brain.Event:2"
  times = {(v.tag, event.step): event.wall_time for event in events for v in event.summary.value}
  assert (times["first", 0], times["losses/xent", 2000]) == (1.5e9, 1.5e9 + 120.0)
  assert scalars(tmp_path)["first"] == {0: pytest.approx(1.5e9, rel=1e-6)}


def test_it_hides_what_a_resumed_run_does_again(tmp_path):
  write(tmp_path, [epoch_row(1), epoch_row(2), epoch_row(3)])
  # Within one second of the first: neither may overwrite the other's file.
  write(tmp_path, [epoch_row(2, train_loss=9.0)], resume_step=15)
  assert len(list((tmp_path / "tensorboard").iterdir())) == 2
  assert scalars(tmp_path)["losses/xent"] == {1000: 2.0, 2000: 9.0}
  write(tmp_path, [epoch_row(1, train_loss=8.0)])  # a new run
  assert scalars(tmp_path)["losses/xent"] == {1000: 8.0}
