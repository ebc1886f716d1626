"""Streams of images from disk: their order, their parts for processes, their threads."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from image_files import (
  assert_equal,
  encode,
  joined,
  needs_tensorflow,
  ramp,
  steps_of,
  train,
)

from jaxspeed.data import batch as batch_lib
from jaxspeed.data.batch import epoch_flips
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.disk.streams import EvalStream, TrainStream, epoch_order
from jaxspeed.errors import UserError


def test_the_order_is_frozen():
  np.testing.assert_array_equal(
    epoch_order(1, 2, 6), np.random.RandomState([1, 2, batch_lib.ORDER]).permutation(6)
  )
  assert epoch_order(0, 0, 5).tolist() == [0, 2, 4, 1, 3]
  assert epoch_order(0, 0, 5).dtype == np.int64
  assert sorted(epoch_order(3, 1, 1000)) == list(range(1000))
  assert (epoch_order(3, 1, 1000) != epoch_order(3, 2, 1000)).any()
  assert (epoch_order(3, 1, 1000) != epoch_order(4, 1, 1000)).any()
  epoch_order(-1, 0, 5)


def test_mirrored_images():
  def bits(epoch, flip):
    return epoch_flips(5, epoch, 1000, flip=flip)

  assert not bits(0, "none").any()
  np.testing.assert_array_equal(bits(0, "alternating"), ~bits(1, "alternating"))
  np.testing.assert_array_equal(bits(0, "alternating"), bits(2, "alternating"))
  for flip in ("random", "alternating"):
    assert abs(bits(0, flip).sum() - 500) < 4 * np.sqrt(1000 / 4)
  agreeing = (bits(0, "random") == bits(1, "random")).sum()
  assert abs(agreeing - 500) < 4 * np.sqrt(1000 / 4)


@needs_tensorflow
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_one_order(noise, processes):
  steps = steps_of(3, 3)
  whole, _ = train(noise, steps=steps)
  parts = [
    train(noise, steps=steps, process=process, processes=processes)[0]
    for process in range(processes)
  ]
  assert_equal(joined(parts), joined([whole]))
  for epoch in range(3):
    batches = whole[3 * epoch : 3 * epoch + 3]
    counted = np.concatenate([batch.index[batch.mask] for batch in batches])
    np.testing.assert_array_equal(counted, epoch_order(7, epoch, 22))
    assert [batch.mask.sum() for batch in batches] == [8, 8, 6]
    np.testing.assert_array_equal(batches[2].index[6:], epoch_order(7, epoch, 22)[:2])
  for batch in whole:
    np.testing.assert_array_equal(batch.label, 100 + batch.index)


@needs_tensorflow
@pytest.mark.parametrize("first", [1, 2, 3, 5, 8])
def test_a_stream_starts_at_any_step(noise, first):
  whole, _ = train(noise, steps=steps_of(3, 3))
  resumed, _ = train(noise, steps=iter(steps_of(3, 3, first)))
  assert_equal(joined([resumed]), joined([whole[first:]]))


@needs_tensorflow
def test_seed_and_flip_reach_the_batches(noise):
  (batch, *_), _ = train(noise, flip="alternating")
  flip = epoch_flips(7, 0, 22, flip="alternating")
  np.testing.assert_array_equal(batch.flip, flip[batch.index])
  (other, *_), _ = train(noise, seed=8)
  assert (other.index != batch.index).any()


@needs_tensorflow
def test_no_steps_no_batches(noise):
  assert train(noise, steps=[])[0] == []
  assert list(EvalStream(noise, [], resize=16)) == []


@needs_tensorflow
def test_processes_share_the_shapes_of_evaluation(noise):
  batches = [
    EvalBatch((16, 24), np.arange(8), np.ones(8, bool)),
    EvalBatch((24, 16), np.arange(8, 16), np.arange(8) < 5),
  ]
  whole = list(EvalStream(noise, batches, resize=20))
  parts = [list(EvalStream(noise, batches, resize=20, process=p, processes=2)) for p in range(2)]
  assert_equal(joined(parts), joined([whole]))
  assert [batch.image.shape for batch in parts[1]] == [(4, 16, 24, 3), (4, 24, 16, 3)]


@needs_tensorflow
def test_tensorflow_says_nothing_when_imported_and_of_broken_images(tmp_path):
  # Two to five lines on a machine without CUDA, which no level of its log keeps back, and two on
  # each broken image: the level that JAX sets for itself lets them through.
  (tmp_path / "cut.jpg").write_bytes(encode(ramp())[:-100])
  code = (
    "import sys, jax\n"
    "from jaxspeed.data.disk.images import import_tensorflow\n"
    "tf = import_tensorflow()\n"
    "try:\n"
    "  tf.io.decode_jpeg(tf.io.read_file(sys.argv[1]))\n"
    "except tf.errors.InvalidArgumentError:\n"
    "  print('broken')\n"
  )
  command = [sys.executable, "-c", code, str(tmp_path / "cut.jpg")]
  environment = {name: value for name, value in os.environ.items() if name[:7] != "TF_CPP_"}
  done = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert (done.returncode, done.stdout, done.stderr) == (0, "broken\n", "")


@needs_tensorflow
def test_decoding_begins_at_once_and_close_ends_it(noise):
  def threads():
    return len(os.listdir("/proc/self/task"))

  options = {"seed": 0, "image_size": 16, "batch_size": 2, "min_scale": 0.5, "flip": "none"}
  options["read_threads"] = 1
  TrainStream(noise, steps=steps_of(1, 1), **options).close()  # makes the threads that all share
  before = threads()
  stream = TrainStream(noise, steps=steps_of(1000, 11), **options)
  deadline = time.monotonic() + 120
  while not stream._pending and time.monotonic() < deadline:
    time.sleep(0.01)
  assert stream._pending, "no batch was asked for before the first next()"
  next(stream)
  asked = len(stream._pending)
  assert asked < 12, "batches are decoded without bound"
  stream.close()
  while threads() > before and time.monotonic() < deadline:
    time.sleep(0.01)
  assert threads() <= before
  with pytest.raises(StopIteration):
    next(stream)


def test_streams_say_what_to_install_without_tensorflow(noise, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow", None)
  with pytest.raises(UserError, match=r"pip install 'jaxspeed\[images\]'"):
    train(noise)
