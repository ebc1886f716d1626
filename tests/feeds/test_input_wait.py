"""The time in which the devices wait for input."""

import threading
import time

import pytest
from toy_images import toy_stream

from jaxspeed.feeds import stream
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.session import train

pytest.importorskip("tensorflow")


class Loss:
  """The loss of a step that ends at a second of a clock, or of one that fails."""

  def __init__(self, clock, end):
    self._clock, self._end = clock, end

  def is_ready(self):
    return self._end is None or self._clock.now >= self._end

  def block_until_ready(self):
    if self._end is None:
      raise RuntimeError("a device is gone")
    self._clock.wait_for(self._end)
    _ended.at = self._end


_ended = threading.local()


@pytest.fixture
def clock(monkeypatch):
  """Seconds that pass when the test says so; a thread that waited for a step sees its end."""

  class Clock:
    now, passed = 0.0, threading.Condition()

    def monotonic(self):
      return getattr(_ended, "at", self.now)

    def sleep(self, seconds):
      with self.passed:
        self.now += seconds
        self.passed.notify_all()

    def wait_for(self, second):
      with self.passed:
        assert self.passed.wait_for(lambda: self.now >= second, timeout=60)

    def batches(self, seconds):
      while True:
        yield self.sleep(seconds)

  clock = Clock()
  monkeypatch.setattr(stream, "time", clock)
  return clock


@pytest.mark.parametrize(
  ("batch_seconds", "step_seconds", "idle"),
  # Of a batch every 180 s, steps of 30 leave the devices idle for 150.
  [(180.0, 30.0, 150.0), (180.0, 9.0, 171.0), (30.0, 30.0, 0.0), (10.0, 30.0, 0.0)],
)
def test_waiting_is_measured_from_the_end_of_the_step(clock, batch_seconds, step_seconds, idle):
  wait, batches = stream.InputWait(), clock.batches(batch_seconds)
  wait.take(batches)
  assert wait.seconds == batch_seconds  # nothing was under way
  end = clock.now
  for _ in range(5):
    end = max(end, clock.now) + step_seconds
    wait.dispatched(Loss(clock, end))
    wait.take(batches)
  assert wait.seconds == batch_seconds + 5 * idle
  clock.sleep(1e9)
  wait.close()


@pytest.mark.parametrize(("end", "waited"), [(1.0, 2.0), (None, 0.0)])
def test_what_passes_before_a_request_and_after_a_failure_is_no_wait(clock, end, waited):
  wait = stream.InputWait()
  wait.dispatched(Loss(clock, end))
  clock.sleep(5.0)
  wait.take(clock.batches(2.0))
  assert wait.seconds == waited
  wait.close()


class SlowNoise(stream.TrainStream):
  """Half a second a batch, far more than a step takes."""

  def __next__(self):
    time.sleep(0.5)
    return super().__next__()


def test_waiting_for_input_is_measured_and_told_once_a_phase(places, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(stream, "TrainStream", SlowNoise)
  fields = {"data.path": "", "data.synthetic": True, "epochs": 3.0, "phases.first_epoch": (0, 2)}
  train(toy_stream(*places, **fields), str(tmp_path / "noise"))
  rows = read_metrics(tmp_path / "noise")
  assert all(0.1 < row["data_wait"] <= 1 and row["step_seconds"] >= 0.5 for row in rows), rows
  printed = capsys.readouterr().out.splitlines()
  hints = [line for line in printed if "python -m jaxspeed.prepare resize" in line]
  assert len(hints) == 2
  assert all(line.startswith("the devices waited for input ") for line in hints)
  (row,) = evaluate(tmp_path / "noise")
  assert row["images"] == 13
