"""Reading ahead: order, how many at a time, how far, large parts of shards, and what fails."""

import os
import threading

import numpy as np
import pytest
from image_files import (
  assert_equal,
  in_shards,
  joined,
  needs_tensorflow,
  steps_of,
  train,
  write_split,
)

from jaxspeed.data.disk import reading, streams
from jaxspeed.data.disk.reading import _TOGETHER, ReadAhead, chunks_of, window_of
from jaxspeed.data.table import Table
from jaxspeed.errors import UserError

PARTS = [(i // 16, np.arange(i, min(i + 8, 50))) for i in range(0, 50, 8)]


@pytest.fixture
def table(tmp_path):
  """50 files that hold their numbers, of different lengths."""
  return write_split(tmp_path, {f"{n:02}.jpg": b"%d" % n * (n + 1) for n in range(50)})


def test_parts_come_in_order_however_long_each_takes(table, monkeypatch):
  later = threading.Event()

  def read(self, number, real=Table.read):
    if number == 1:
      assert later.wait(60)  # the first part ends after the whole next window
    if number == 31:
      later.set()
    return real(self, number)

  monkeypatch.setattr(Table, "read", read)
  reader = ReadAhead(table, threads=20)
  expected = [(part, [b"%d" % n * (n + 1) for n in part[1]]) for part in PARTS]
  assert list(reader.in_order(iter(PARTS))) == expected
  reader.close()


def test_as_many_images_are_read_at_once_as_there_are_threads(table, monkeypatch):
  together, number = threading.Barrier(70), 70 * _TOGETHER
  monkeypatch.setattr(Table, "read", lambda *_: b"%d" % together.wait(60))
  reader = ReadAhead(table, threads=70)
  ((_, images),) = reader.in_order(iter([(0, np.arange(number) % 50)]))
  assert len(images) == number
  reader.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_it_reads_a_window_ahead_and_no_farther(table, threads):
  asked, window = [], window_of(table, threads)
  assert window == threads * _TOGETHER

  def parts():
    for number in range(1000):
      asked.append(number)
      yield (number // window, np.array([number % 50]))

  delivered = ReadAhead(table, threads=threads).in_order(parts())
  for number in range(3 * window):
    next(delivered)
    # The first part of the window after the next tells that the next one is whole.
    assert len(asked) == (number // window + 2) * window + 1


def test_an_error_comes_at_its_turn(table, tmp_path):
  shards = in_shards(table, tmp_path / "shards")
  (tmp_path / "shards" / "1.bin").unlink()
  delivered = ReadAhead(shards, threads=4).in_order(iter(PARTS))
  assert [len(next(delivered)[1]) for _ in range(3)] == [8, 8, 8]
  with pytest.raises(UserError, match=r"1.bin cannot be read \(No such file"):
    next(delivered)


@pytest.fixture
def shards(tmp_path, monkeypatch):
  """1,000 images of 1 to 100 bytes in five files, chunks of about 500 bytes, windows of 100."""
  monkeypatch.setattr(reading, "_CHUNK_BYTES", 512)
  monkeypatch.setattr(reading, "_GAP_BYTES", 50)
  files = {f"{n:03}.jpg": b"%03d" % n * (1 + n % 33) for n in range(1000)}
  whole = write_split(tmp_path, files)
  monkeypatch.setattr(reading, "_WINDOW_BYTES", int(100 * whole.length.mean()) + 1)
  return in_shards(whole, tmp_path / "shards", 5)


def order_of(table, epoch, seed=3):
  index = streams.epoch_order(seed, epoch, len(table))
  return streams.by_chunk(index, chunks_of(table), window_of(table, 1), seed, epoch)


def test_an_epoch_of_shards_reads_each_chunk_in_one_part(shards, monkeypatch):
  reads = []

  def pread(descriptor, size, at, real=os.pread):
    reads.append(size)
    return real(descriptor, size, at)

  order = order_of(shards, 0)
  parts = iter([(at // 100, order[at : at + 7]) for at in range(0, 1000, 7)])
  monkeypatch.setattr(os, "pread", pread)
  read = ReadAhead(shards, threads=4).in_order(parts)
  assert [image for _, images in read for image in images] == [
    b"%03d" % n * (1 + n % 33) for n in order
  ]
  chunks = int(chunks_of(shards).max()) + 1
  # A chunk that a window cuts is read in two parts, and the images of a part at its end alone.
  assert chunks <= len(reads) < 3 * chunks and sum(reads) < 1.1 * shards.length.sum()


def test_the_order_of_shards_mixes_chunks_and_the_images_in_a_window(shards):
  chunk = chunks_of(shards)
  orders = [order_of(shards, epoch) for epoch in range(2)]
  for order in orders:
    assert sorted(order) == list(range(1000))
    for first in range(0, 1000, 100):
      window = order[first : first + 100]
      assert len(set(chunk[window])) < 20  # of 100 chunks
      assert len(set(shards.file[window])) > 2
      assert abs(np.corrcoef(chunk[window], np.arange(100))[0, 1]) < 0.5
  assert (order_of(shards, 0) == orders[0]).all() and (orders[0] != orders[1]).any()
  assert (order_of(shards, 0, seed=4) != orders[0]).any()
  whole = streams.by_chunk(orders[0], chunk, 1000, 3, 0)
  np.testing.assert_array_equal(whole, orders[0])  # one window


@needs_tensorflow
def test_a_stream_of_shards_resumes_at_any_step_in_any_number_of_processes(
  noise, tmp_path, monkeypatch
):
  monkeypatch.setattr(reading, "_CHUNK_BYTES", int(2 * noise.length.mean()))
  monkeypatch.setattr(reading, "_WINDOW_BYTES", int(6 * noise.length.mean()))
  split, steps = in_shards(noise, tmp_path / "shards"), steps_of(2, 3)
  whole, _ = train(split, steps=steps)
  for epoch in range(2):
    found = np.concatenate([batch.index for batch in whole[3 * epoch : 3 * epoch + 3]])[:22]
    assert sorted(found) == list(range(22))
    assert (found != streams.epoch_order(7, epoch, 22)).any()
  parts = [train(split, steps=steps, process=process, processes=2)[0] for process in range(2)]
  assert_equal(joined(parts), joined([whole]))
  for first in (1, 4):
    assert_equal(joined([train(split, steps=steps[first:])[0]]), joined([whole[first:]]))
