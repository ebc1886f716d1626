import io
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from rich.console import Console

from jaxspeed.records import console as screen_lib
from jaxspeed.records.console import JsonScreen, Screen
from jaxspeed.records.result_lines import format_result
from jaxspeed.records.row_lines import COLUMNS, epoch_titles, format_epoch, format_phase

ROW = {
  "epoch": 2,
  "step": 98,
  "examples": 100352,
  "learning_rate": 0.0014649,
  "image_size": 224,
  "batch_size": 81920,
  "train_loss": 1.23456,
  "train_top1": 0.51678,
  "images_per_second": 61234.5,
  "train_seconds": 74.749,
}
VALIDATED = ROW | {"epoch": 9.9, "eval_loss": 0.5, "eval_top1": 0.94014, "eval_top5": 1.0}

RESULT = {
  "top1": 0.9401,
  "top5": 0.9981,
  "seconds": {
    "train": 2.594,
    "dawn": 2.5,
    "compile": {"wall": 7.5, "cold": 12.1, "cached": None},
    "process": 20.0,
    "to_target": 2.25,
  },
  "evaluated_on": "test",
  "device": "1 x NVIDIA H100 80GB HBM3",
}


def run_row(seed, top1, train, to_target):
  return {"seed": seed, "top1": top1, "seconds": {"train": train, "to_target": to_target}}


SEVERAL = RESULT | {
  "top5": None,
  "n": 3,
  "mean": 0.9401,
  "sd": 0.00131,
  "ci95": 0.00018,
  "target": 0.94,
  "p_value": 0.000123,
  "reached": 2,
  "seconds_min": RESULT["seconds"] | {"train": 2.5512},
  "runs": [
    run_row(8, 0.9410, 2.594, 2.25),
    run_row(9, 0.94, 2.5512, 2.25),
    run_row(10, 0.9393, 12.0, None),
  ],
}


@pytest.fixture
def terminal(monkeypatch):
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.delenv("TTY_INTERACTIVE", raising=False)
  return Console(force_terminal=True, file=io.StringIO(), width=100)


@pytest.fixture
def pipe(monkeypatch):
  for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    monkeypatch.delenv(name, raising=False)
  return Console(file=io.StringIO(), width=20)


def run(screen):
  screen.header(
    {"device": "CPU: AMD EPYC (2 cores)", "data": "/data/[red]cifar :smile:" + 60 * "x"}
  )
  screen.progress(epoch=1, step=3, steps=49, loss=1.25, images_per_second=61234.5)
  screen.epoch(ROW)
  screen.progress(epoch=2, step=3, steps=49, loss=1.125, images_per_second=61234.5)
  screen.epoch(VALIDATED)
  screen.result(RESULT)


def test_pipe_gets_plain_lines_only(pipe):
  run(Screen(pipe, total_epochs=9.9))
  lines = pipe.file.getvalue().splitlines()
  assert lines == [
    "device  CPU: AMD EPYC (2 cores)",
    "data    /data/[red]cifar :smile:" + 60 * "x",
    *epoch_titles(),
    format_epoch(ROW),
    format_epoch(VALIDATED),
    *format_result(RESULT),
  ]
  assert all(character.isprintable() for line in lines for character in line)


def test_terminal_gets_a_live_line_and_the_same_rows(terminal):
  run(Screen(terminal, total_epochs=9.9))
  text = terminal.file.getvalue()
  assert "epoch 1/9.9  step 3/49  loss 1.2500  61,234 img/s" in text
  assert "epoch 2/9.9  step 3/49  loss 1.1250  61,234 img/s" in text
  assert "\x1b[" in text
  assert 100 == terminal.width
  for line in (*epoch_titles(), format_epoch(ROW), format_epoch(VALIDATED), *format_result(RESULT)):
    assert text.count(line) == 1
  # The cursor is shown again, and nothing is drawn after the result.
  assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
  assert text.endswith(format_result(RESULT)[-1] + "\n")


def test_time_left_follows_the_pace(terminal, monkeypatch):
  seconds = [1000.0]
  start = screen_lib._start_progress

  def start_with_fake_time(console, total_epochs):
    progress = start(console, total_epochs)
    progress.get_time = lambda: seconds[0]
    for task in progress.tasks:
      task._get_time = progress.get_time
      task.start_time = seconds[0]
    return progress

  monkeypatch.setattr(screen_lib, "_start_progress", start_with_fake_time)
  # TimeRemainingColumn repeats its text for half a second of real time.
  monkeypatch.setattr(screen_lib.TimeRemainingColumn, "max_refresh", None)
  screen = Screen(terminal, total_epochs=10)
  for step in range(1, 6):
    seconds[0] += 60.0
    screen.progress(epoch=1, step=step, steps=10, loss=1.0, images_per_second=1.0)
  screen.close()
  # A tenth of an epoch a minute, 9.5 epochs to go: 95 minutes.
  assert "1:35:00" in terminal.file.getvalue()


def test_last_fractional_epoch_does_not_pass_the_end(terminal):
  screen = Screen(terminal, total_epochs=9.9)
  screen.progress(epoch=10, step=49, steps=49, loss=1.0, images_per_second=1.0)
  assert screen._progress.tasks[0].completed == 9.9
  screen.close()


def test_progress_is_due_now_and_then_on_a_terminal(terminal, monkeypatch):
  now = [50.0]
  monkeypatch.setattr(screen_lib.time, "monotonic", lambda: now[0])
  screen = Screen(terminal, total_epochs=2)
  assert screen.progress_due()
  screen.progress(epoch=1, step=1, steps=9, loss=1.0, images_per_second=1.0)
  assert not screen.progress_due()
  now[0] += 0.2
  assert not screen.progress_due()
  now[0] += 0.1
  assert screen.progress_due()
  screen.close()


def test_a_file_gets_a_line_of_progress_a_minute_with_rate_and_time_left(pipe, monkeypatch):
  now = [1000.0]
  monkeypatch.setattr(screen_lib.time, "monotonic", lambda: now[0])
  screen = Screen(pipe, total_epochs=9.9)
  now[0] += 500.0  # compiling
  screen.begin(2.0)  # after a resume
  for seconds in range(0, 181, 10):
    now[0] = 1500.0 + seconds
    if seconds == 130:
      screen.epoch(ROW)
    # A step of 1 / 100 epoch in ten seconds.
    step = 1 + seconds // 10
    due = screen.progress_due()
    screen.progress(epoch=3, step=step, steps=100, loss=1.25, images_per_second=61234.5)
    assert due == (seconds in (60, 120))
  lines = pipe.file.getvalue().splitlines()
  # 7.83 epochs at 0.07 a minute, 7.77 at 0.13 in two.
  assert lines == [
    "epoch 3/9.9  step 7/100  loss 1.2500  61,234 img/s  1:51:51 left",
    "epoch 3/9.9  step 13/100  loss 1.2500  61,234 img/s  1:59:32 left",
    *epoch_titles(),
    format_epoch(ROW),
  ]


def test_processes_that_print_nothing_look_at_no_progress(monkeypatch):
  now = [1000.0]
  monkeypatch.setattr(screen_lib.time, "monotonic", lambda: now[0])
  screen = Screen(screen_lib.silent_console(), total_epochs=2)
  now[0] += 100.0
  assert not screen.progress_due()


def test_columns_stand_under_their_titles():
  groups, titles = epoch_titles()
  assert groups == 39 * " " + "training" + 20 * " " + "evaluation"
  assert titles == (
    "epoch       lr   px batch train loss train top1 eval loss eval top1 eval top5   img/s "
    "total train s"
  )
  assert format_epoch(ROW) == (
    "    2  0.00146  224 81920     1.2346     51.68%         -         -         -   61234 "
    "        74.75"
  )
  assert format_epoch(VALIDATED) == (
    "  9.9  0.00146  224 81920     1.2346     51.68%    0.5000    94.01%   100.00%   61234 "
    "        74.75"
  )
  assert format_epoch(VALIDATED | {"train_loss": float("nan")}).split()[4] == "nan"
  assert len(titles) == 99
  # The longest values of each.
  most = {"epoch": 23.8979, "learning_rate": 0.000146, "train_top1": 1.0, "train_seconds": 1e8}
  for row in (most, most | {"learning_rate": 1.46e-12, "epoch": 12345}):
    assert len(format_epoch(VALIDATED | row)) == 99
  # Each column has a name of its own.
  assert len({name for name, *_ in COLUMNS}) == len(COLUMNS)


def test_a_phase_is_one_line_with_its_pace():
  row = {"image_size": 128, "batch_size": 4096}
  pace = {
    "images_per_second": 12345.6,
    "images_per_second_per_device": 1543.2,
    "data_wait": 0.0123,
  }
  assert format_phase(1, row, pace, epochs=10) == (
    "phase 1: 128 px, batch 4,096: 10 epochs, 12,346 images/s, 1,543 per device, "
    "waited for input 1.2% of the time"
  )
  assert format_phase(2, row, pace, epochs=1).startswith("phase 2: 128 px, batch 4,096: 1 epoch, ")
  assert ": 0.9 epochs, " in format_phase(2, row, pace, epochs=0.9)


@pytest.mark.parametrize(
  ("dawn", "to_target", "text"),
  [
    (1234.5, 7.4136, "1,234.50, 7.41 to target"),
    (0.00217, 0.0019876, "0.0022, 0.002 to target"),
    (7.4136, None, "7.41"),
  ],
)
def test_result_tells_its_cost_where_an_hours_is_stated(dawn, to_target, text):
  costs = {"cost_usd": {"dawn": dawn, "to_target": to_target}}
  titles, values, *_ = format_result(RESULT | costs)
  assert titles.endswith("cost $") and values.split("20.00")[1].strip() == text
  assert len(titles) == len(values) <= 100
  assert "cost" not in format_result(RESULT)[0]


def test_result_of_one_run():
  assert format_result(RESULT) == [
    "   top1     top5  target s  train s  dawn s  compile s  process s",
    "94.010%  99.810%      2.25     2.59    2.50       7.50      20.00",
    "evaluated  test images",
    "compiled   12.10 s cold, summed over threads",
    "device     1 x NVIDIA H100 80GB HBM3",
  ]


def test_an_accuracy_has_the_interval_of_its_number_of_images():
  lines = format_result(RESULT | {"top1": 19 / 36, "eval_images": 36})
  assert "95 % CI    top1 37.0% to 68.0%, by the number of images" in lines


def test_the_weights_that_are_evaluated_are_named():
  groups, titles = epoch_titles("average")
  assert groups == epoch_titles()[0][:47] + 11 * " " + "evaluation: average"
  assert titles == epoch_titles()[1] and len(groups) == len(epoch_titles()[0])
  for weights in ("live", "average"):
    lines = format_result(RESULT | {"evaluated_weights": weights, "eval_images": 10_000})
    assert lines[2] == f"evaluated  10,000 test images, weights: {weights}"
  # Of a result that an earlier version wrote.
  assert format_result(RESULT | {"evaluated_weights": None}) == format_result(RESULT)


def test_result_on_held_out_images_says_so():
  for result in (RESULT, SEVERAL):
    assert "test images" in " ".join(format_result(result))
    for evaluated_on in ("validation", "held-out"):
      printed = " ".join(format_result(result | {"evaluated_on": evaluated_on}))
      assert "held-out images" in printed and "test images" not in printed


def test_result_of_several_runs_is_a_table_the_interval_and_the_test():
  *table, titles, values, evaluated, programs, device, seconds, target, test = format_result(
    SEVERAL
  )
  assert max(map(len, (titles, values, seconds, target))) <= 100
  assert table == [
    "seed     top1  train s  target s",
    "   8  94.100%     2.59      2.25",
    "   9  94.000%     2.55      2.25",
    "  10  93.930%    12.00         -",
  ]
  assert titles.startswith("   top1   95 % CI      sd  runs  top5  train s")
  assert values.startswith("94.010%  +-0.018%  0.131%     3     -     2.59")
  assert seconds == "train s: mean 2.594, min 2.551"
  assert target == "target: 94.000%, reached by 2 of 3 runs, after 2.25 s on average"
  assert test == (
    'p = 0.00012 for "the true mean is at most 94.000%" (one-sided t-test): a small p says that it '
    "is above"
  )


def test_a_mean_over_fewer_runs_says_over_how_many():
  compiles = (
    {"wall": 9.0, "cold": 12.1, "cached": 0.5},
    {"wall": 6.0, "cold": None, "cached": 0.5},
    {"wall": None, "cold": None, "cached": 0.5},
  )
  runs = [
    run | {"seconds": run["seconds"] | {"compile": own}}
    for run, own in zip(SEVERAL["runs"], compiles, strict=True)
  ]
  lines = format_result(SEVERAL | {"runs": runs})
  assert "means      over all 3 runs, but compile s over 2, cold over 1" in lines
  assert max(map(len, lines[:-1])) <= 100
  assert not any(line.startswith("means") for line in format_result(SEVERAL))


def test_a_target_that_no_run_reached_has_no_seconds():
  none = SEVERAL | {"reached": 0, "seconds": SEVERAL["seconds"] | {"to_target": None}}
  assert "target: 94.000%, reached by 0 of 3 runs" in format_result(none)
  assert format_result(none | {"target": 0.0})[-1] == "train s: mean 2.594, min 2.551"


@pytest.mark.parametrize(
  ("cold", "cached", "text"),
  [
    (12.1, None, ["compiled   12.10 s cold, summed over threads"]),
    (None, 0.4, ["compiled   0.40 s from the cache, summed over threads"]),
    (12.1, 0.4, ["compiled   12.10 s cold, 0.40 s from the cache, summed over threads"]),
    (None, None, []),
  ],
)
def test_result_tells_cold_from_cached(cold, cached, text):
  seconds = RESULT["seconds"] | {"compile": {"wall": None, "cold": cold, "cached": cached}}
  _, values, _, *sums, _ = format_result(RESULT | {"seconds": seconds})
  assert sums == text
  assert values.split()[5] == "-"  # top1, top5, target, train, dawn, compile


@pytest.mark.parametrize("width", [60, 80, 98])
def test_a_narrow_terminal_gets_the_columns_that_fit(terminal, width):
  terminal.width = width
  screen = Screen(terminal, total_epochs=9.9, evaluated="average")
  screen.epoch(VALIDATED)
  groups, titles, row = terminal.file.getvalue().splitlines()
  assert len(groups) <= len(titles) == len(row) <= width
  assert {"epoch", "total", "top5"} < set(titles.split()) and "px" not in titles
  assert groups.index("evaluation: average") + 19 == titles.index("eval top5") + 9
  assert row.split()[0] == "9.9" and row.split()[-1] == "74.75"


def test_a_terminal_breaks_the_header_at_words_and_below_its_values(terminal):
  path = "/data/" + "x" * 40
  terminal.width = 40
  Screen(terminal, total_epochs=2).header({"a": "one two " * 6, "data": path + " and more"})
  one, two, *rest = terminal.file.getvalue().splitlines()
  assert one == "a     one two one two one two one two" and two == "      one two one two"
  assert rest == [f"data  {path}", "      and more"]


def test_colours_are_for_terminals_that_want_them(terminal, monkeypatch):
  monkeypatch.setenv("NO_COLOR", "1")
  plain = Console(force_terminal=True, file=io.StringIO(), width=100)
  colours = re.compile(r"\x1b\[[0-9;]*m")
  for console in (terminal, plain):
    run(Screen(console, total_epochs=9.9))
  assert any(found != "\x1b[0m" for found in colours.findall(terminal.file.getvalue()))
  assert {"\x1b[0m"} >= set(colours.findall(plain.file.getvalue()))


def test_a_quiet_screen_prints_the_result_alone(pipe, terminal):
  for console in (pipe, terminal):
    screen = Screen(console, total_epochs=9.9, quiet=True)
    assert screen.console.quiet and not screen.progress_due()
    screen.header({"data": "a"})
    screen.line("note")
    screen.epoch(VALIDATED)
    screen.result(RESULT)
    assert console.file.getvalue().splitlines() == format_result(RESULT)


def test_a_result_of_an_earlier_start_says_so_where_quiet_too(pipe):
  said = "runs/a holds this run, already finished:"
  for quiet in (False, True):
    Screen(pipe, total_epochs=9.9, quiet=quiet).result(RESULT, finished_in="runs/a")
    JsonScreen(pipe, total_epochs=9.9, quiet=quiet).result(RESULT, finished_in="runs/a")
  *lines, event = pipe.file.getvalue().splitlines()
  assert json.loads(event) == {"event": "result", "finished_in": "runs/a"} | RESULT
  assert lines == [said, *format_result(RESULT), event, said, *format_result(RESULT)]


def test_json_is_an_object_a_line(pipe, terminal, monkeypatch):
  now = [1000.0]
  monkeypatch.setattr(screen_lib.time, "monotonic", lambda: now[0])
  for console in (pipe, terminal):
    screen = JsonScreen(console, total_epochs=9.9, evaluated="average")
    assert screen.console.quiet
    row = VALIDATED | {"train_loss": np.float32("nan"), "eval_images_skipped": 3}
    screen.header({"data": "[red]\n" + "x" * 200})
    screen.line("\x1b[2J")
    assert not screen.progress_due()
    now[0] += 60
    screen.progress(epoch=1, step=3, steps=49, loss=1.25, images_per_second=61234.5)
    assert not screen.progress_due()
    screen.epoch(row)
    screen.result(SEVERAL)
    screen.close()
    header, note, progress, epoch, result = map(json.loads, console.file.getvalue().splitlines())
    assert header == {"event": "header", "data": "[red]\n" + "x" * 200}
    assert note == {"event": "note", "text": "\x1b[2J"}
    assert progress == {
      "event": "progress",
      "epoch": 1,
      "step": 3,
      "steps": 49,
      "loss": 1.25,
      "images_per_second": 61234.5,
    }
    assert epoch == {"event": "epoch"} | row | {"train_loss": None}
    assert result == {"event": "result"} | SEVERAL
  screen = JsonScreen(pipe, total_epochs=9.9, quiet=True)
  before = pipe.file.getvalue()
  screen.header({"data": "a"})
  screen.line("note")
  screen.epoch(VALIDATED)
  screen.result(RESULT)
  assert json.loads(pipe.file.getvalue()[len(before) :])["event"] == "result"


class Cell:
  """The outputs of a notebook's cell, in order; `display` is IPython's."""

  def __init__(self):
    self.outputs, self.drawings = [], 0

  def write(self, text):
    self.outputs.append(text)

  def display(self, content, *, raw, display_id):
    assert raw and display_id and list(content) == ["text/plain"]
    place = len(self.outputs)
    self.outputs.append("")

    def update(content, *, raw):
      self.drawings += 1
      self.outputs[place] = content["text/plain"]

    update(content, raw=raw)
    return types.SimpleNamespace(update=update)


def test_a_notebook_gets_plain_rows_and_one_live_line(monkeypatch):
  now, cell = [1000.0], Cell()
  monkeypatch.setattr(screen_lib.time, "monotonic", lambda: now[0])
  stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
  stream.write = cell.write
  monkeypatch.setattr(sys, "stdout", stream)
  module = types.SimpleNamespace(display=cell.display)
  monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=module))
  monkeypatch.setitem(sys.modules, "IPython.display", module)
  # As in a notebook.
  monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
  screen = Screen(screen_lib.make_console(), total_epochs=2)
  screen.header({"data": "a"})
  for step in (1, 2):
    now[0] += 1.0
    assert screen.progress_due()
    screen.progress(epoch=1, step=step, steps=9, loss=12.5 / step, images_per_second=1.0)
    assert not screen.progress_due()
  live = "epoch 1/2  step 2/9  loss 6.2500  1 img/s  0:00:16 left"
  assert cell.outputs == ["data  a\n", live]
  screen.epoch(ROW)
  now[0] += 1.0
  screen.progress(epoch=2, step=1, steps=9, loss=1.0, images_per_second=1.0)
  rows = [f"{line}\n" for line in (*epoch_titles(), format_epoch(ROW))]
  assert cell.outputs[0] + "".join(cell.outputs[2:]) == "data  a\n" + "".join(rows)
  assert cell.outputs[1].startswith("epoch 2/2  step 1/9") and cell.drawings == 3
  screen.result(RESULT)
  screen.close()
  result = "".join(f"{line}\n" for line in format_result(RESULT))
  assert "".join(cell.outputs) == "data  a\n" + "".join(rows) + result
  assert cell.outputs[1] == "" and cell.drawings == 4


SCRIPT = """
from jaxspeed.records.console import Screen, make_console
screen = Screen(make_console(), total_epochs=2)
assert not screen.progress_due()
screen.progress(epoch=1, step=1, steps=2, loss=1.0, images_per_second=1.0)
screen.header({"data": "x" * 300})
"""


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"COLUMNS": "20"}])
def test_standard_output_in_a_pipe_is_plain(environment):
  done = subprocess.run(
    [sys.executable, "-c", SCRIPT],
    cwd=pathlib.Path(__file__).parents[2],
    env=os.environ | environment,
    capture_output=True,
    text=True,
  )
  assert (done.stdout, done.stderr) == ("data  " + "x" * 300 + "\n", "")
