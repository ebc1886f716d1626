import json
import math
import os
import pathlib
import shlex
import struct
import subprocess
import sys
import time
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from jaxspeed.errors import UserError
from jaxspeed.files import write_atomically
from jaxspeed.records import loggers
from jaxspeed.records.clock import Clock
from jaxspeed.records.result_lines import format_result
from jaxspeed.records.results import mean_pace, read_result, result_row, write_result
from jaxspeed.records.statistics import RESULT_KEYS, p_value_of_at_most
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


# result.json


def one_result(top1, **fields):
  return {
    "config": {
      "seed": 1,
      "runs": 1,
      "target": 0.93,
      "target_metric": "top1",
      "phases": ({"epochs": 8, "rate": 0.5},),
    },
    "evaluated_on": "test",
    "evaluated_weights": "average",
    "top1": top1,
    "top5": 0.75,
    "seconds": {
      "train": 2.0,
      "dawn": 1.5,
      "compile": {"cold": 30.0, "cached": None},
      "process": 40.0,
      "to_target": None,
    },
    "device": "1 x NVIDIA H100 80GB HBM3",
    "versions": {"python": "3.11.2", "jax": "0.10.2"},
    "seed": 1,
    "commit": "0" * 40,
    "command": "python -m jaxspeed.train",
  } | fields


def test_result_of_one_run(tmp_path):
  row = one_result(np.float32(0.5), config={"phases": (1, 2), "limit": math.inf})
  returned = write_result(tmp_path, [row])
  expected = one_result(0.5, config={"phases": [1, 2], "limit": None})
  assert returned == json.loads((tmp_path / "result.json").read_text()) == expected
  assert tuple(returned) == RESULT_KEYS
  assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_result_of_three_runs(tmp_path):
  rows = [
    one_result(0.92, seed=1, top5=0.5),
    one_result(0.94, seed=2, top5=0.75),
    one_result(0.96, seed=3, top5=1.0),
  ]
  # Only the first run of a process compiles; the first does not reach the target.
  for row, train, to_target in zip(rows, (2.0, 3.0, 7.0), (None, 1.25, 2.25), strict=True):
    row["config"] = row["config"] | {"seed": row["seed"]}
    row["seconds"] = row["seconds"] | {
      "train": train,
      "compile": {"cold": 30.0 if row["seed"] == 1 else None, "cached": None},
      "to_target": to_target,
    }
  result = write_result(tmp_path, rows)
  added = {"n", "mean", "sd", "ci95", "target", "p_value", "reached", "seconds_min", "runs"}
  assert set(result) == {*RESULT_KEYS, *added}
  assert result["n"] == 3
  assert result["top1"] == result["mean"] == pytest.approx((0.92 + 0.94 + 0.96) / 3)
  # Deviations -0.02, 0, 0.02 over n - 1 = 2; t(0.975, 2) = 4.302653 of any table.
  assert result["sd"] == pytest.approx(math.sqrt((0.02**2 + 0.02**2) / 2))
  assert result["ci95"] == pytest.approx(4.302653 * 0.02 / math.sqrt(3), rel=1e-6)
  assert result["top5"] == 0.75
  assert result["seconds"] == {
    "train": (2.0 + 3.0 + 7.0) / 3,
    "dawn": 1.5,
    "compile": {"cold": 30.0, "cached": None},
    "process": 40.0,
    "to_target": (1.25 + 2.25) / 2,
  }
  assert result["seconds_min"] == result["seconds"] | {"train": 2.0, "to_target": 1.25}
  assert (result["target"], result["reached"]) == (0.93, 2)
  # t = (0.94 - 0.93) / (0.02 / sqrt(3)) = sqrt(3) / 2; Student's t of 2 degrees of freedom has the
  # distribution function 1/2 + t / (2 sqrt(2 + t^2)).
  t = math.sqrt(3) / 2
  assert result["p_value"] == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t**2)), rel=1e-9)
  assert result["seed"] == 1
  # The config is that of the group, as its folder holds it.
  assert result["config"] == {
    "seed": 1,
    "runs": 3,
    "target": 0.93,
    "target_metric": "top1",
    "phases": [{"epochs": 8, "rate": 0.5}],
  }
  # What all runs share stands once, at the top.
  assert result["runs"] == [
    {key: row[key] for key in ("top1", "top5", "seconds", "seed")} for row in rows
  ]
  assert result == json.loads((tmp_path / "result.json").read_text())


@pytest.mark.parametrize(("degrees", "t"), [(1, 12.706205), (9, 2.262157), (199, 1.971957)])
def test_interval_uses_students_t(tmp_path, degrees, t):
  rows = [one_result(0.9 + 0.01 * (index % 2)) for index in range(degrees + 1)]
  result = write_result(tmp_path, rows)
  assert result["ci95"] == pytest.approx(t * result["sd"] / math.sqrt(degrees + 1), rel=1e-6)


@pytest.mark.parametrize("bound", [0.9385, 0.94, 0.9401, 0.945])
def test_p_value_is_that_of_scipys_t_test(bound):
  stats = pytest.importorskip("scipy.stats")
  # As many runs, as high and as wide as airbench94's 94.01 % with 0.14 %.
  values = list(np.random.default_rng(0).normal(0.9401, 0.0014, size=200))
  expected = stats.ttest_1samp(values, bound, alternative="greater").pvalue
  assert p_value_of_at_most(values, bound) == pytest.approx(expected, rel=1e-6)


def test_p_value_is_small_only_for_a_mean_above_the_bound():
  assert p_value_of_at_most([0.95, 0.951, 0.949], 0.94) < 0.01
  assert p_value_of_at_most([0.93, 0.931, 0.929], 0.94) > 0.99
  assert p_value_of_at_most([0.93, 0.95], 0.94) == pytest.approx(0.5)


def test_equal_runs_leave_no_doubt_and_warn_of_nothing(tmp_path):
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    above = write_result(tmp_path, [one_result(0.94)] * 3)
    at = write_result(tmp_path, [one_result(0.93)] * 3)
    below = write_result(tmp_path, [one_result(0.1)] * 3)
  assert [result["p_value"] for result in (above, at, below)] == [0.0, 1.0, 1.0]
  assert [result["sd"] for result in (above, at, below)] == [0.0, 0.0, 0.0]
  assert above["ci95"] == 0.0 and above["reached"] == 0
  # A row says what its run came to, also where all came to the same.
  own = ("top1", "top5", "seconds", "seed")
  assert above["runs"] == [{key: one_result(0.94)[key] for key in own}] * 3


def test_figures_by_class_of_several_runs_are_means(tmp_path):
  def row(macro, ece, cat, **fields):
    per_class = {"cat": {"top1": cat, "images": 3}, "dog": {"top1": None, "images": 0}}
    matrix = [[3, 0], [0, 0]]
    figures = dict(macro_top1=macro, ece=ece, per_class=per_class, confusion=matrix)
    return one_result(0.5, **figures, **fields)

  figures = ("macro_top1", "ece", "per_class", "confusion")
  rows = [row(0.25, 0.5, 1 / 4, seed=1), row(0.75, 0.25, 3 / 4, seed=2)]
  result = write_result(tmp_path, rows)
  assert (result["macro_top1"], result["ece"]) == (0.5, 0.375)
  assert result["per_class"]["cat"] == {"top1": 0.5, "images": 3}
  assert result["per_class"]["dog"] == {"top1": None, "images": 0}
  # The matrices lie in the folders of the runs.
  assert "confusion" not in result
  own = [(run["macro_top1"], run["ece"]) for run in result["runs"]]
  assert own == [(0.25, 0.5), (0.75, 0.25)]
  assert not any("per_class" in run or "confusion" in run for run in result["runs"])
  assert read_result(tmp_path, several=True) == result
  write_result(tmp_path, rows[:1])
  text = (tmp_path / "result.json").read_text()
  # A line for each class.
  assert '\n  "confusion": [\n    [3, 0],\n    [0, 0]\n  ]' in text
  assert {key: read_result(tmp_path)[key] for key in figures} == {k: rows[0][k] for k in figures}
  # Runs of an earlier version have none of these.
  older = write_result(tmp_path, [rows[0], one_result(0.5, seed=2)])
  assert not {"macro_top1", "per_class"} & set(older)


def test_one_run_has_neither_interval_nor_p(tmp_path):
  result = write_result(tmp_path, [one_result(0.94)])
  assert not {"n", "sd", "ci95", "p_value", "seconds_min", "runs"} & set(result)


def test_one_run_does_not_pay_for_scipy(tmp_path):
  code = (
    "import pathlib, sys\n"
    "from jaxspeed.records.results import write_result\n"
    "from jaxspeed.records.statistics import RESULT_KEYS\n"
    "row = dict.fromkeys(RESULT_KEYS, 0.5)\n"
    "write_result(pathlib.Path(sys.argv[1]), [row])\n"
    "print([name for name in sys.modules if name.startswith('scipy')])"
  )
  command = [sys.executable, "-c", code, str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60)
  assert (done.stdout, done.stderr) == ("[]\n", "")


def test_images_of_two_kinds_have_no_common_mean(tmp_path):
  rows = [one_result(0.9), one_result(0.9, evaluated_on="validation")]
  with pytest.raises(ValueError, match="test images and of validation images"):
    write_result(tmp_path, rows)
  with pytest.raises(ValueError, match="evaluated_on is 'train', not one of"):
    fields = dict(config={}, top1=0.5, top5=None, seconds={}, seed=0)
    result_row(evaluated_on="train", evaluated_weights="live", **fields)


def test_sets_of_few_classes_have_no_top5(tmp_path):
  assert write_result(tmp_path, [one_result(0.5, top5=None)])["top5"] is None
  assert write_result(tmp_path, [one_result(0.5, top5=None)] * 2)["top5"] is None


def test_cost_is_that_of_dawnbenchs_seconds(tmp_path):
  seconds = one_result(0.5)["seconds"] | {"dawn": 1800.0, "to_target": 900.0}
  result = write_result(tmp_path, [one_result(0.94, seconds=seconds)], cost_per_hour=24.48)
  assert result["cost_usd"] == pytest.approx({"dawn": 24.48 / 2, "to_target": 24.48 / 4})
  assert json.loads((tmp_path / "result.json").read_text()) == result
  missed = one_result(0.5, seconds=seconds | {"dawn": 5400.0, "to_target": None})
  assert write_result(tmp_path, [missed], cost_per_hour=2.0)["cost_usd"] == {
    "dawn": 3.0,
    "to_target": None,
  }
  # Of several runs the mean.
  several = write_result(tmp_path, [one_result(0.94, seconds=seconds), missed], cost_per_hour=2.0)
  assert several["cost_usd"] == {"dawn": (1.0 + 3.0) / 2, "to_target": 0.5}
  assert "cost_usd" not in write_result(tmp_path, [missed])


def test_skipped_steps_stand_in_the_result_and_on_the_screen(tmp_path):
  rows = [
    one_result(0.9, seed=seed, skipped_steps={"number": number, "share": number / 40})
    for seed, number in ((1, 2), (2, 4))
  ]
  one = write_result(tmp_path, rows[:1])
  assert one["skipped_steps"] == {"number": 2, "share": 0.05}
  assert read_result(tmp_path) == one
  assert "2 steps, 5.00%" in "\n".join(format_result(one))
  both = write_result(tmp_path, rows)
  assert both["skipped_steps"] == pytest.approx({"number": 3, "share": 0.075})
  assert [run["skipped_steps"]["number"] for run in both["runs"]] == [2, 4]
  assert read_result(tmp_path, several=True) == both
  assert "3 steps, 7.50%" in "\n".join(format_result(both))
  assert "skipped" not in "\n".join(format_result(write_result(tmp_path, [one_result(0.9)])))


def test_result_with_other_keys_is_refused(tmp_path):
  with pytest.raises(ValueError, match="a result row has"):
    write_result(tmp_path, [one_result(0.5) | {"accuracy": 0.5}])
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  "wrong", [{"eval_images": -5}, {"confusion": [[1, 2], [3]]}, {"confusion": [[1, -2], [3, 4]]}]
)
def test_a_result_that_no_run_writes_is_refused(wrong, tmp_path):
  result = write_result(tmp_path, [one_result(0.5)])
  (tmp_path / "result.json").write_text(json.dumps(result | wrong))
  with pytest.raises(UserError, match=f"result.json .*{next(iter(wrong))}"):
    read_result(tmp_path)


def test_result_row_makes_a_result(tmp_path):
  clock = Clock()
  clock.add("train", 2.5)
  row = result_row(
    config={"seed": 3},
    evaluated_on="validation",
    evaluated_weights="live",
    top1=0.5,
    top5=None,
    seconds=clock.summary(),
    seed=3,
  )
  result = write_result(tmp_path, [row])
  assert tuple(result) == RESULT_KEYS
  assert set(result["seconds"]) == {"train", "dawn", "compile", "process"}
  assert result["seconds"]["train"] == 2.5
  assert (result["evaluated_on"], result["evaluated_weights"]) == ("validation", "live")
  assert set(result["seconds"]["compile"]) == {"wall", "cold", "cached"}
  assert set(result["versions"]) == {
    "python",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "jaxspeed",
  }
  program, *arguments = shlex.split(result["command"])
  # Without the folder of Python, which is of no use on another machine.
  assert program == pathlib.Path(sys.orig_argv[0]).name and arguments == sys.orig_argv[1:]
  assert result["device"]
