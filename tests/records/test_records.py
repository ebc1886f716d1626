import json
import math
import os
import struct
import time

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from jaxspeed.errors import UserError
from jaxspeed.files import write_atomically
from jaxspeed.records import loggers
from jaxspeed.records.results import mean_pace
from jaxspeed.records.tensorboard import TENSORBOARD_TAGS, TensorBoardLogger
from jaxspeed.records.writer import open_records, read_metrics


def epoch_row(epoch, **fields):
  return {
    "epoch": epoch,
    "step": 10 * epoch,
    "examples": 1000 * epoch,
    "learning_rate": 0.5,
    "image_size": 32,
    "batch_size": 100,
    "world": 4,
    "momentum": 0.875,
    "train_loss": 2.0 / epoch,
    "train_top1": min(0.25 * epoch, 1.0),
    "train_top5": min(0.375 * epoch, 1.0),
    "images_per_second": 5000.0,
    "images_per_second_per_device": 1250.0,
    "step_seconds": 0.25,
    "data_wait": 0.125 * epoch,
    "train_seconds": 0.5 * epoch,
    "dawn_seconds": 0.25 * epoch,
  } | fields


def write_epochs(workdir, rows, resume_step=None):
  with open_records(
    workdir,
    resume_step=resume_step,
    total_epochs=4,
    console=Console(quiet=True),
    loggers=[TensorBoardLogger()],
  ) as records:
    for row in rows:
      records.epoch(row)
  return records


def read_events(workdir):
  """Every event of every file in TensorBoard's order, read record by record."""
  event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
  for path in sorted((workdir / "tensorboard").iterdir()):
    data = path.read_bytes()
    while data:
      # TFRecord: length (8 bytes), its checksum (4), the event, its checksum (4).
      (length,) = struct.unpack("<Q", data[:8])
      yield event_pb2.Event.FromString(data[12 : 12 + length])
      data = data[12 + length + 4 :]


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


# Files


def test_atomic_write_replaces_all_or_nothing(tmp_path, monkeypatch):
  path = tmp_path / "result.json"
  write_atomically(path, "old")
  write_atomically(path, "new")
  assert path.read_text() == "new"

  def fail(descriptor):
    raise OSError("No space left on device")

  monkeypatch.setattr(os, "fsync", fail)
  with pytest.raises(OSError, match="No space"):
    write_atomically(path, "newer")
  assert path.read_text() == "new"
  assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


# metrics.jsonl


def test_metrics_hold_one_line_an_epoch_at_once(tmp_path):
  rows = [epoch_row(1), epoch_row(2, eval_loss=1.5, eval_top1=0.5, eval_top5=0.75)]
  console = Console(quiet=True)
  with open_records(tmp_path, resume_step=None, total_epochs=2, console=console) as records:
    for number, row in enumerate(rows, start=1):
      records.epoch(row)
      # Read while the run goes on: a kill here must lose nothing.
      assert read_metrics(tmp_path) == rows[:number]
    assert records.rows == rows
  assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 2


def test_metrics_are_valid_json_whatever_the_numbers(tmp_path):
  row = epoch_row(
    1,
    train_loss=math.nan,
    eval_loss=-math.inf,
    eval_top1=np.float32(0.5),
    eval_top5=jnp.float32(0.75),
    learning_rate=jnp.bfloat16(0.25),
    step=np.int64(10),
  )
  write_epochs(tmp_path, [row])

  def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")

  read = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
  assert read == epoch_row(
    1,
    train_loss=None,
    eval_loss=None,
    eval_top1=0.5,
    eval_top5=0.75,
    learning_rate=0.25,
    step=10,
  )


def test_resume_drops_what_will_be_done_again(tmp_path):
  write_epochs(tmp_path, [epoch_row(1), epoch_row(2), epoch_row(3)])
  records = write_epochs(tmp_path, [epoch_row(3, train_loss=9.0)], resume_step=20)
  expected = [epoch_row(1), epoch_row(2), epoch_row(3, train_loss=9.0)]
  assert read_metrics(tmp_path) == records.rows == expected


def test_resume_within_an_epoch_keeps_only_whole_epochs(tmp_path):
  write_epochs(tmp_path, [epoch_row(1), epoch_row(2)])
  write_epochs(tmp_path, [], resume_step=19)
  assert read_metrics(tmp_path) == [epoch_row(1)]


@pytest.mark.parametrize("cut", ['{"epoch": 2, "st', "\0\0\0\0", '{"epoch": "\udcff'])
def test_resume_forgets_a_line_that_a_kill_cut_off(tmp_path, cut):
  write_epochs(tmp_path, [epoch_row(1)])
  with open(tmp_path / "metrics.jsonl", "a", errors="surrogateescape") as file:
    file.write(cut)
  write_epochs(tmp_path, [epoch_row(2)], resume_step=10)
  assert read_metrics(tmp_path) == [epoch_row(1), epoch_row(2)]


def test_last_row_without_its_newline_is_kept(tmp_path):
  (tmp_path / "metrics.jsonl").write_text(json.dumps(epoch_row(1)))
  write_epochs(tmp_path, [epoch_row(2)], resume_step=10)
  assert read_metrics(tmp_path) == [epoch_row(1), epoch_row(2)]


def test_damage_elsewhere_is_a_users_error_that_names_the_line(tmp_path):
  write_epochs(tmp_path, [epoch_row(1), epoch_row(2)])
  text = (tmp_path / "metrics.jsonl").read_text()
  (tmp_path / "metrics.jsonl").write_text("{half\n" + text)
  with pytest.raises(UserError, match=r"metrics\.jsonl, line 1, is no row of a run .it is no JSON"):
    open_records(tmp_path, resume_step=20, total_epochs=4)
  assert (tmp_path / "metrics.jsonl").read_text() == "{half\n" + text


def test_new_run_starts_without_earlier_rows(tmp_path):
  write_epochs(tmp_path, [epoch_row(1), epoch_row(2)])
  write_epochs(tmp_path, [epoch_row(1, train_loss=7.0)])
  assert read_metrics(tmp_path) == [epoch_row(1, train_loss=7.0)]


def test_resume_without_metrics_starts_them(tmp_path):
  assert read_metrics(tmp_path) == []
  with pytest.warns(UserWarning, match=r"metrics\.jsonl is missing.*step 10"):
    write_epochs(tmp_path, [epoch_row(2)], resume_step=10)
  assert read_metrics(tmp_path) == [epoch_row(2)]


def test_all_processes_but_the_first_write_and_print_nothing(tmp_path, capsys):
  with open_records(tmp_path, resume_step=None, total_epochs=2, primary=False) as records:
    records.screen.header({"device": "CPU"})
    assert not records.screen.progress_due()
    records.epoch(epoch_row(1))
    assert records.rows == [epoch_row(1)]
  assert list(tmp_path.iterdir()) == []
  assert capsys.readouterr().out == ""


# TensorBoard


def test_tensorboard_holds_each_scalar_over_examples_seen(tmp_path):
  validated = epoch_row(
    2,
    eval_loss=1.5,
    eval_top1=0.5,
    eval_top5=0.75,
    eval_macro_top1=0.25,
    eval_ece=0.125,
    eval_seconds=3.5,
    skipped_steps=4,
    memory_gb=6.5,
    net_recv_gbit=0.5,
    net_transmit_gbit=0.25,
  )
  write_epochs(tmp_path, [epoch_row(1), validated])
  shown = scalars(tmp_path)
  assert set(shown) == {tag for tag, _ in TENSORBOARD_TAGS.values()} | {"first"}
  # Percent, as imagenet18 has them; metrics.jsonl keeps fractions.
  assert shown["losses/train_1"] == {1000: 25.0, 2000: 50.0}
  assert shown["losses/train_5"] == {1000: 37.5, 2000: 75.0}
  assert shown["losses/test_1"] == {2000: 50.0}
  assert shown["losses/test_5"] == {2000: 75.0}
  assert read_metrics(tmp_path)[1]["eval_top1"] == 0.5
  assert shown["losses/xent"] == {1000: 2.0, 2000: 1.0}
  assert shown["losses/test_xent"] == {2000: 1.5}
  assert shown["losses/skipped_steps"] == {2000: 4}
  assert shown["sizes/world"] == {1000: 4, 2000: 4}
  # Of one device, and of all.
  assert shown["sizes/batch"] == {1000: 25, 2000: 25}
  assert shown["sizes/batch_total"] == {1000: 100, 2000: 100}
  assert shown["sizes/image"] == {1000: 32, 2000: 32}
  assert shown["sizes/lr"] == {1000: 0.5, 2000: 0.5}
  assert shown["sizes/momentum"] == {1000: 0.875, 2000: 0.875}
  # Milliseconds; an eighth and a quarter of 250 are waited for.
  assert shown["times/step"] == {1000: 250, 2000: 250}
  assert shown["times/data"] == {1000: 31.25, 2000: 62.5}
  assert shown["times/data_wait"] == {1000: 0.125, 2000: 0.25}
  assert shown["times/images_per_sec"] == {1000: 5000, 2000: 5000}
  assert shown["times/1gpu_images_per_sec"] == {1000: 1250, 2000: 1250}
  assert shown["times/eval_sec"] == {2000: 3.5}
  assert shown["times/train_seconds"] == {1000: 0.5, 2000: 1.0}
  assert shown["times/dawn_seconds"] == {1000: 0.25, 2000: 0.5}
  assert shown["memory/max_allocated_gb"] == {2000: 6.5}
  assert shown["net/recv_gbit"] == {2000: 0.5}
  assert shown["net/transmit_gbit"] == {2000: 0.25}
  assert shown["epoch"] == {1000: 1, 2000: 2}


def test_tensorboard_has_imagenet18s_tags():
  # Of training/logger.py and training/train_imagenet_nv.py; caches are PyTorch's allocator's.
  expected = {
    *(f"sizes/{name}" for name in ("world", "batch", "batch_total", "image", "lr", "momentum")),
    *(f"losses/{name}" for name in ("xent", "train_1", "train_5", "test_1", "test_5")),
    *(f"times/{name}" for name in ("step", "data", "1gpu_images_per_sec", "eval_sec")),
    *(f"net/{name}" for name in ("recv_gbit", "transmit_gbit")),
    "memory/max_allocated_gb",
    "epoch",
  }
  assert expected <= {tag for tag, _ in TENSORBOARD_TAGS.values()}


def test_tensorboard_has_the_time_of_each_row_however_late_it_is_written(tmp_path, monkeypatch):
  now = [1.5e9]
  monkeypatch.setattr(loggers.time, "time", lambda: now[0])
  console = Console(quiet=True)
  with open_records(
    tmp_path, resume_step=None, total_epochs=2, console=console, loggers=[TensorBoardLogger()]
  ) as records:
    for epoch in (1, 2):
      now[0] += 60.0
      records.epoch(epoch_row(epoch))
    now[0] += 1000.0
  times = {
    (value.tag, event.step): event.wall_time
    for event in read_events(tmp_path)
    for value in event.summary.value
  }
  assert times["first", 0] == 1.5e9
  assert times["epoch", 1000] == 1.5e9 + 60.0
  assert times["losses/xent", 2000] == 1.5e9 + 120.0
  assert scalars(tmp_path)["first"] == {0: pytest.approx(1.5e9, rel=1e-6)}


def test_first_is_the_start_of_the_first_process(tmp_path, monkeypatch):
  now = [1.5e9]
  monkeypatch.setattr(loggers.time, "time", lambda: now[0])
  write_epochs(tmp_path, [epoch_row(1)])
  now[0] += 1e6
  write_epochs(tmp_path, [epoch_row(2)], resume_step=10)
  assert scalars(tmp_path)["first"] == {0: pytest.approx(1.5e9, rel=1e-6)}
  assert scalars(tmp_path)["epoch"] == {1000: 1, 2000: 2}


def test_the_pace_of_several_epochs_weighs_them_by_their_seconds():
  # 1,000 images in 10 s on 2 devices, half of it waiting, then 1,000 in 2.5 s on 4 without.
  rows = [
    {"examples": 6000, "images_per_second": 100.0, "world": 2, "data_wait": 0.5},
    {"examples": 7000, "images_per_second": 400.0, "world": 4, "data_wait": 0.0},
  ]
  assert mean_pace(rows, examples=5000) == pytest.approx(
    {
      "images_per_second": 2000 / 12.5,
      "images_per_second_per_device": 2000 / (2 * 10 + 4 * 2.5),
      "data_wait": 5 / 12.5,
    }
  )
  # A row without a pace counts for nothing but where the next one begins.
  old = {"examples": 6000, "data_wait": 0.5}
  assert mean_pace([old], examples=5000) == {}
  assert mean_pace([old, rows[1]], examples=5000) == pytest.approx(
    {"images_per_second": 400.0, "images_per_second_per_device": 100.0, "data_wait": 0.0}
  )


def test_tensorboard_hides_what_a_resumed_run_does_again(tmp_path):
  write_epochs(tmp_path, [epoch_row(1), epoch_row(2), epoch_row(3)])
  # Within one second of the first: neither may overwrite the other's file.
  write_epochs(tmp_path, [epoch_row(2, train_loss=9.0)], resume_step=15)
  assert len(list((tmp_path / "tensorboard").iterdir())) == 2
  assert scalars(tmp_path)["losses/xent"] == {1000: 2.0, 2000: 9.0}


def test_tensorboard_hides_an_earlier_run_when_a_new_one_starts(tmp_path):
  write_epochs(tmp_path, [epoch_row(1), epoch_row(2)])
  write_epochs(tmp_path, [epoch_row(1, train_loss=9.0)])
  assert scalars(tmp_path)["losses/xent"] == {1000: 9.0}


def test_tensorboard_waits_in_a_short_run_and_not_in_a_long_one(tmp_path, monkeypatch):
  console = Console(quiet=True)
  with open_records(
    tmp_path, resume_step=None, total_epochs=3, console=console, loggers=[TensorBoardLogger()]
  ) as records:
    records.epoch(epoch_row(1))
    assert not (tmp_path / "tensorboard").exists()
    monkeypatch.setattr(loggers, "SECONDS_BEFORE_IMPORT", -1.0)
    records.epoch(epoch_row(2))
    deadline = time.monotonic() + 60
    # tensorboardX writes from a thread of its own.
    while scalars(tmp_path).get("epoch") != {1000: 1, 2000: 2} and time.monotonic() < deadline:
      time.sleep(0.01)
    assert scalars(tmp_path)["epoch"] == {1000: 1, 2000: 2}
    records.epoch(epoch_row(3))
  assert scalars(tmp_path)["epoch"] == {1000: 1, 2000: 2, 3000: 3}
