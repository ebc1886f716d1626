"""read_npy: what np.save writes, and headers that np.load would trip over or wait for."""

import os
import signal
import struct

import numpy as np
import pytest

from jaxspeed.data.formats.npy import read_npy
from jaxspeed.errors import UserError


def npy(header, data=b"", version=1):
  length = struct.pack("<H" if version == 1 else "<I", len(header))
  return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def header(shape, descr="|u1", order=False):
  return f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()


@pytest.fixture
def alarm():
  """A wait that does not end becomes an error."""

  def stop(*_):
    raise TimeoutError("the file was waited for")

  before = signal.signal(signal.SIGALRM, stop)
  signal.alarm(30)
  yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", "?"])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 3), ()])
def test_what_numpy_writes_is_read(tmp_path, dtype, shape):
  array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
  for order in ("C", "F"):
    np.save(tmp_path / "a.npy", np.asarray(array, order=order))
    found = read_npy(tmp_path / "a.npy")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions(tmp_path, version):
  with open(tmp_path / "a.npy", "wb") as file:
    np.lib.format.write_array(file, np.arange(6), version=version)
  np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), np.arange(6))


DAMAGED = {
  "negative": npy(header("(-4, 3)"), bytes(12)),
  "minus one": npy(header("(-1,)"), bytes(12)),
  "large": npy(header(f"({10**12},)"), bytes(12)),
  "larger than a word": npy(header(f"({10**30}, 10)"), bytes(12)),
  "large beside nothing": npy(header(f"(0, {10**30})")),
  "very many axes": npy(header("(" + "1," * 100 + ")"), bytes(1)),
  "short": npy(header("(12,)"), bytes(11)),
  "long": npy(header("(12,)"), bytes(13)),
  "booleans": npy(header("(True, 3)"), bytes(3)),
  "floats": npy(header("(2.0, 3)"), bytes(6)),
  "list": npy(header("[2, 3]"), bytes(6)),
  "junk dtype": npy(header("(3,)", "junk"), bytes(3)),
  "syntax in dtype": npy(header("(3,)", "u1,("), bytes(3)),
  "unknown dtype": npy(header("(3,)", "<f99"), bytes(297)),
  "records": npy(header("(3,)").replace(b"'|u1'", b"[('a', '|u1')]"), bytes(3)),
  "order": npy(header("(3,)", order=2), bytes(3)),
  "brackets": npy(b"(" * 9_000, bytes(3)),
  "open bracket": npy(b"{'descr': (", bytes(3)),
  "minus signs": npy(b"-" * 9_000 + b"1", bytes(3)),
  "no dict": npy(b"3", bytes(3)),
  "a call": npy(b"{'descr': __import__('os').getcwd()}", bytes(3)),
  "no UTF-8": npy(b"\xff\xfe{}", bytes(3), version=3),
  "long header": npy(b" " * 20_000 + header("(3,)"), bytes(3)),
  "longer header than file": npy(header("(3,)"))[:20],
  "version 9": npy(header("(3,)"), bytes(3), version=9),
  "another file": b"PK\3\4 and so on",
  "empty": b"",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_headers_are_one_sentence(tmp_path, name):
  (tmp_path / "a.npy").write_bytes(DAMAGED[name])
  with pytest.raises(UserError, match=r"a.npy is not a .npy file of numbers \(") as error:
    read_npy(tmp_path / "a.npy")
  assert len(str(error.value)) < 500 and str(error.value).isprintable()


def test_a_header_of_ten_gigabytes_is_not_allocated(tmp_path):
  with open(tmp_path / "a.npy", "wb") as file:
    file.write(npy(header("(3,)"), version=2)[:8] + struct.pack("<I", 2**32 - 1))
  with pytest.raises(UserError, match="its header has 4,294,967,295 bytes"):
    read_npy(tmp_path / "a.npy")


def test_pipes_and_devices_are_not_waited_for(tmp_path, alarm):
  os.mkfifo(tmp_path / "a.npy")
  for path in (tmp_path / "a.npy", tmp_path):
    with pytest.raises(UserError, match=r"\(it is no regular file\)"):
      read_npy(path)
  (tmp_path / "b.npy").symlink_to("/dev/zero")
  with pytest.raises(UserError, match=r"\(it is no regular file\)"):
    read_npy(tmp_path / "b.npy")
  with pytest.raises(UserError, match="c.npy is missing"):
    read_npy(tmp_path / "c.npy")
