"""The time in which the devices wait for input."""

import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from toy_images import toy_stream

from jaxspeed.feeds import stream
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.session import train

pytest.importorskip("tensorflow")


# A batch is asked for after 10 s and comes after 190; before it, the step ends or does not.
@pytest.mark.parametrize(("step_ends", "waited"), [(4.0, 180.0), (40.0, 150.0), (None, 0.0)])
def test_a_wait_begins_with_the_request_or_the_end_of_the_step(monkeypatch, step_ends, waited):
  clock, feed, ended = (
    types.SimpleNamespace(now=0.0),
    object.__new__(stream.StreamFeed),
    threading.Event(),
  )
  monkeypatch.setattr(stream, "time", types.SimpleNamespace(monotonic=lambda: clock.now))

  def pass_until(second):
    if step_ends is not None and clock.now < step_ends <= second:
      clock.now = step_ends
      ended.set()
      feed._step_end.result()
    clock.now = second

  def batches():
    yield pass_until(190.0)

  with ThreadPoolExecutor(1) as pool:
    loss = types.SimpleNamespace(block_until_ready=ended.wait)
    feed._step_end, feed._batches = pool.submit(stream._end_of, loss), batches()
    pass_until(10.0)
    feed._next_batch()
    ended.set()
  assert feed.waited_seconds == waited


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
