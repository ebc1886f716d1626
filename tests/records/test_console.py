"""What a run prints: in a pipe (printed_run.txt), on a terminal, as JSON."""

import io
import json
import pathlib

import numpy as np
import pytest
from made_rows import one_result
from rich.console import Console

from jaxspeed.records import console as screen_lib
from jaxspeed.records.console import Screen, format_result
from jaxspeed.records.results import result_of

PRINTED = pathlib.Path(__file__).with_name("printed_run.txt").read_text()
ROW = {"epoch": 2, "step": 98, "examples": 100352, "learning_rate": 0.0014649, "image_size": 224}
ROW |= {"batch_size": 81920, "train_loss": 1.23456, "train_top1": 0.51678, "train_seconds": 74.749}
ROW |= {"images_per_second": 61234.5}
VALIDATED = ROW | {"epoch": 9.9, "eval_loss": 0.5, "eval_top1": 0.94014, "eval_top5": 1.0}
BROKEN = {"eval_images": 9, "eval_images_skipped": 1, "train_images_broken": 2}
NOW = {"epoch": 1, "step": 3, "steps": 49, "loss": 1.25, "images_per_second": 61234.5}


def made(seed, top1, train=2.594, to_target=2.25, wall=7.5):
  compiled = {"wall": wall, "cold": wall, "cached": None}
  seconds = {"train": train, "dawn": 2.5, "compile": compiled, "process": 20.0}
  seconds["to_target"] = to_target
  return one_result(top1, seed=seed, top5=None, seconds=seconds, eval_images=10_000)


RESULT = result_of([made(8, 0.9401) | {"top5": 0.9981}])
SEVERAL = result_of(
  [made(8, 0.9410), made(9, 0.94, 2.5512, wall=None), made(10, 0.9393, 12.0, None, None)]
)


@pytest.fixture
def terminal(monkeypatch):
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.delenv("TTY_INTERACTIVE", raising=False)
  return Console(force_terminal=True, file=io.StringIO(), width=120)


@pytest.fixture
def pipe(monkeypatch):
  for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    monkeypatch.delenv(name, raising=False)
  return Console(file=io.StringIO(), width=20)


@pytest.fixture
def clock(monkeypatch):
  """The seconds of the screen, which pass only when told to."""
  now = [1000.0]
  monkeypatch.setattr(screen_lib.time, "monotonic", lambda: now[0])
  return now


def run(screen, clock):
  device = "CPU: AMD EPYC (2 cores)"
  screen.header({"device": device, "data": "/data/[red]cifar :smile:" + 60 * "x"})
  screen.begin(0.0, 9.9)
  screen.progress(**NOW)
  screen.line("a note\x1b[2J")
  screen.epoch(ROW)
  clock[0] += 60.0
  screen.progress(**NOW | {"epoch": 2})
  screen.epoch(VALIDATED | BROKEN)
  screen.result(RESULT)
  screen.result(SEVERAL, finished_in="runs/a")
  screen.close()


def test_a_pipe_gets_plain_lines(pipe, clock):
  run(Screen(pipe), clock)
  assert pipe.file.getvalue() == PRINTED
  assert all(line.isprintable() for line in PRINTED.splitlines())


def test_a_terminal_gets_a_live_line_and_the_same_rows(terminal, clock):
  run(Screen(terminal), clock)
  text = terminal.file.getvalue()
  assert "epoch 1/9.9  step 3/49  loss 1.2500  61,234 img/s  0:00:00 left" in text
  for line in PRINTED.splitlines():
    assert line in text or line.startswith("data"), line
  # The cursor is shown again, and nothing is drawn after the result.
  assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
  assert text.endswith(PRINTED.splitlines()[-1] + "\n")


def test_progress_is_due_now_and_then_with_the_time_left_since_the_start_of_training(
  terminal, pipe, clock
):
  drawn, printed = Screen(terminal), Screen(pipe)
  clock[0] += 500.0  # compiling
  for screen in (drawn, printed):
    screen.begin(2.0, 9.9)  # after a resume
  due = []
  for seconds, step in ((0.0, 1), (0.2, 2), (0.1, 3), (59.7, 7), (59.9, 8), (0.1, 13)):
    clock[0] += seconds
    due.append((drawn.progress_due(), printed.progress_due()))
    for screen in (drawn, printed):
      screen.progress(**NOW | {"epoch": 3, "step": step, "steps": 100})
  shown = [(True, False), (False, False), (True, False), (True, True), (True, False), (False, True)]
  assert due == shown
  # 7.83 epochs at 0.07 a minute, 7.77 at 0.13 in two.
  left = [line.split("  ")[-1] for line in pipe.file.getvalue().splitlines()]
  assert left == ["1:51:51 left", "1:59:32 left"]
  printed.epoch(ROW)
  clock[0] += 59.0
  assert not printed.progress_due()
  drawn.close()


def test_a_narrow_terminal_gets_the_columns_that_fit(terminal):
  terminal.width = 60
  screen = Screen(terminal)
  screen.begin(0.0, 9.9)
  screen.epoch(VALIDATED | {"learning_rate": 1.46e-12, "train_loss": float("nan")})
  line, row = terminal.file.getvalue().splitlines()
  assert len(line) == len(row) <= 60
  assert {"epoch", "total", "top5"} < set(line.split()) and "px" not in line
  assert row.split()[0] == "9.9" and "74.75" in row.split()


@pytest.mark.parametrize(
  "result, fields, words",
  [
    (RESULT, {"cost_usd": {"dawn": 1234.5, "to_target": 0.00199}}, "1,234.50, 0.002 to target"),
    (RESULT, {"cost_usd": {"dawn": 7.4136, "to_target": None}}, " 7.41"),
    (RESULT, {"evaluated_weights": None}, "evaluated  10,000 test images\n"),  # an earlier version
    (RESULT, {"eval_images_skipped": 5}, "10,000 of 10,005 test images"),
    (SEVERAL, {"evaluated_on": "held-out"}, "10,000 held-out images"),
    (RESULT, {"config": {"compile": "quick"}}, "quick programs (config.compile), whose times"),
    (RESULT, {"skipped_steps": {"number": 2, "share": 0.05}}, "2 steps, 5.00%"),
    (SEVERAL, {"reached": 0}, "target: 93.000%, reached by 0 of 3 runs\n"),
  ],
)
def test_a_result_says(result, fields, words):
  lines = format_result(result | fields)
  assert words in "\n".join(lines) + "\n"
  assert max(map(len, lines[:-1])) <= 100
  assert words not in "\n".join(format_result(result)) + "\n"
  assert format_result(SEVERAL | {"target": 0.0})[-1].startswith("train s: mean ")


def test_a_quiet_screen_prints_the_result_alone(pipe, terminal, clock):
  for console in (pipe, terminal):
    screen = Screen(console, quiet=True)
    assert screen.console.quiet and not screen.progress_due()
    run(screen, clock)
    said = "runs/a holds this run, already finished:"
    lines = [*format_result(RESULT), said, *format_result(SEVERAL)]
    assert console.file.getvalue().splitlines() == lines


@pytest.mark.parametrize("quiet", [False, True])
def test_json_is_an_object_a_line(terminal, clock, quiet):
  screen = Screen(terminal, as_json=True, quiet=quiet)
  assert screen.console.quiet
  run(screen, clock)
  screen.epoch(ROW | {"train_loss": np.float32("nan")})
  found = [json.loads(line) for line in terminal.file.getvalue().splitlines()]
  again = {"event": "result", "finished_in": "runs/a"} | SEVERAL
  if quiet:
    assert found == [{"event": "result"} | RESULT, again]
    return
  left = (9.9 - 1 - 3 / 49) * 60 / (1 + 3 / 49)
  now = NOW | {"event": "progress", "epoch": 2, "epochs": 9.9, "seconds_left": pytest.approx(left)}
  assert found[0]["event"] == "header" and found[0]["data"].startswith("/data/[red]cifar :smile:")
  assert found[1:3] == [{"event": "note", "text": "a note\x1b[2J"}, {"event": "epoch"} | ROW]
  assert found[3:5] == [now, {"event": "epoch"} | VALIDATED | BROKEN]
  assert found[5:7] == [{"event": "result"} | RESULT, again] and found[7]["train_loss"] is None
