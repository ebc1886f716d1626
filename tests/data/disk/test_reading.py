"""Reading ahead: order, how many at a time, how far, and what fails."""

import threading

import numpy as np
import pytest

from jaxspeed.data.disk.reading import _TOGETHER, ReadAhead

PARTS = [np.arange(i, min(i + 8, 50)) for i in range(0, 50, 8)]


def test_parts_come_in_order_however_long_each_takes():
  last_is_read = threading.Event()

  def read(number):
    if number == 1:
      assert last_is_read.wait(60)  # the first part ends after all the others
    if number == 49:
      last_is_read.set()
    return b"%d" % number

  reader = ReadAhead(read, threads=20)
  assert list(reader.in_parts(iter(PARTS))) == [[b"%d" % n for n in part] for part in PARTS]
  reader.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_it_reads_so_far_ahead_and_no_farther(threads):
  asked = []

  def parts():
    for number in range(1000):
      asked.append(number)
      yield np.array([number])

  reader = ReadAhead(lambda _: b"", threads=threads)
  delivered = reader.in_parts(parts())
  for number in range(5):
    next(delivered)
    assert len(asked) == number + 1 + threads * _TOGETHER
  reader.close()


def test_an_error_comes_at_its_turn():
  def read(number):
    if number == 9:
      raise ValueError("a shard is gone")
    return b""

  reader = ReadAhead(read, threads=4)
  delivered = reader.in_parts(iter(PARTS))
  assert len(next(delivered)) == 8
  with pytest.raises(ValueError, match="a shard is gone"):
    next(delivered)
  reader.close()
