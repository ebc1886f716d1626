"""The time in which the devices wait for input."""

import threading
import time
import types

import pytest
from toy_images import toy_stream

from jaxspeed.feeds import train_streams
from jaxspeed.feeds.input_wait import InputWait
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.session import train

pytest.importorskip("tensorflow")


class Clock:
  """Seconds that pass when the test says so; threads wait for a second of it."""

  def __init__(self):
    self.now, self._passed = 0.0, threading.Condition()

  def sleep(self, seconds):
    with self._passed:
      self.now += seconds
      self._passed.notify_all()

  def wait_for(self, second):
    with self._passed:
      assert self._passed.wait_for(lambda: self.now >= second, timeout=60)


@pytest.mark.parametrize(
  ("batch_seconds", "step_seconds", "idle"),
  # Of a batch every 180 ms, steps of 30 leave the devices idle for 150.
  [(180.0, 30.0, 150.0), (180.0, 9.0, 171.0), (30.0, 30.0, 0.0), (10.0, 30.0, 0.0)],
)
def test_waiting_is_measured_from_the_end_of_the_step(batch_seconds, step_seconds, idle):
  clock = Clock()

  class Loss:
    def __init__(self, end):
      self.end = end

    def is_ready(self):
      return clock.now >= self.end

  def end_of(loss):
    clock.wait_for(loss.end)
    return loss.end

  wait = InputWait(end_of, lambda: clock.now)
  wait.take(lambda: clock.sleep(batch_seconds))
  assert wait.take_seconds() == batch_seconds  # nothing was under way
  end = clock.now
  for _ in range(5):
    end = max(end, clock.now) + step_seconds
    wait.dispatched(Loss(end))
    wait.take(lambda: clock.sleep(batch_seconds))
  assert wait.take_seconds() == 5 * idle
  assert wait.take_seconds() == 0.0
  clock.sleep(1e9)
  wait.close()


def test_what_passes_before_a_batch_is_asked_for_is_no_wait_for_it():
  clock = Clock()
  wait = InputWait(lambda _: 1.0, lambda: clock.now)
  wait.dispatched(types.SimpleNamespace(is_ready=lambda: True))
  clock.sleep(5.0)
  wait.take(lambda: clock.sleep(2.0))
  assert wait.take_seconds() == 2.0
  wait.close()


def test_a_step_that_fails_leaves_the_error_to_the_loop():
  wait = InputWait()

  def fail():
    raise RuntimeError("a device is gone")

  wait.dispatched(types.SimpleNamespace(is_ready=lambda: True, block_until_ready=fail))
  assert wait.take(lambda: "batch") == "batch"
  assert wait.take_seconds() == 0.0
  wait.close()


class SlowNoise(train_streams.TrainStream):
  """Half a second a batch, far more than a step takes."""

  def __next__(self):
    time.sleep(0.5)
    return super().__next__()


def test_waiting_for_input_is_measured_and_told_once_a_phase(places, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(train_streams, "TrainStream", SlowNoise)
  fields = {"data.path": "", "data.synthetic": True, "epochs": 3.0, "phases.first_epoch": (0, 2)}
  train(toy_stream(*places, **fields), str(tmp_path / "noise"))
  rows = read_metrics(tmp_path / "noise")
  assert all(0.1 < row["data_wait"] <= 1 and row["step_seconds"] >= 0.5 for row in rows), rows
  printed = capsys.readouterr().out.splitlines()
  hints = [line for line in printed if "python -m jaxspeed.prepare resize" in line]
  assert len(hints) == 2
  assert all(line.startswith("the devices waited for input ") for line in hints)
