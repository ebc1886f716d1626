"""One's own arrays: files that are read or refused, and the memory that they take."""

import os
import struct

import numpy as np
import pytest

from jaxspeed.data.memory.own import channel_statistics, read_npy
from jaxspeed.errors import UserError


def test_statistics_are_exact():
  images = np.random.default_rng(0).integers(0, 256, (1_500, 9, 9, 3), np.uint8)
  images[..., 2] = 7
  mean, std = channel_statistics(images)
  pixels = images.reshape(-1, 3).astype(np.float64)
  np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=1e-12)
  np.testing.assert_allclose(std[:2], pixels.std(axis=0)[:2], rtol=1e-12)
  assert (mean[2], std[2]) == (7.0, 1.0)


def npy(header, data=b"", version=1):
  length = struct.pack("<H" if version == 1 else "<I", len(header))
  return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def header(shape, descr="|u1", order=False):
  return f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()


DAMAGED = {
  "negative": npy(header("(-4, 3)"), bytes(12)),
  "large": npy(header(f"({10**12},)"), bytes(12)),
  "short": npy(header("(12,)"), bytes(11)),
  "objects": npy(header("(3,)", "|O"), bytes(30)),
  "brackets": npy(b"(" * 9_000, bytes(3)),
  "a call": npy(b"{'descr': __import__('os').getcwd()}", bytes(3)),
  "another file": b"PK\3\4 and so on",
  "empty": b"",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_one_sentence(tmp_path, name):
  (tmp_path / "a.npy").write_bytes(DAMAGED[name])
  with pytest.raises(UserError, match=r"a.npy is not a .npy file of numbers \(") as error:
    read_npy(tmp_path / "a.npy")
  assert len(str(error.value)) < 500 and str(error.value).isprintable()


def test_pipes_and_devices_are_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "a.npy")
  (tmp_path / "b.npy").symlink_to("/dev/zero")
  for path in (tmp_path / "a.npy", tmp_path / "b.npy", tmp_path):
    with pytest.raises(UserError, match=r"\(it is no regular file\)"):
      read_npy(path)
  with pytest.raises(UserError, match="c.npy is missing"):
    read_npy(tmp_path / "c.npy")
