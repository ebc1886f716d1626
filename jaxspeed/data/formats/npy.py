"""A reader of .npy files of numbers that checks the header against the file's size.

The format is that of NumPy's lib/format.py, versions 1 to 3: a magic string, the version in two
bytes, the header's length in two or four, the header, which is a Python literal of a dict, and the
data. `np.load` is not used because it raises many kinds of exceptions on a damaged header.
"""

import ast
import math
import os
import pathlib
import re
from typing import BinaryIO

import numpy as np

from jaxspeed.errors import UserError
from jaxspeed.files import open_regular

_MAGIC = b"\x93NUMPY"
# NumPy's own bound: longer literals may crash Python's parser.
_HEADER_BYTES = 10_000
_NUMBERS = re.compile(r"[<>|=]?[biufc]\d{1,2}")


class _Damaged(Exception):
  """Why a file is not a .npy file that can be read."""


def read_npy(path: pathlib.Path) -> np.ndarray:
  """Read a .npy file, in C order.

  Raises:
    UserError: it is missing, cannot be read, is damaged, or does not hold numbers.
  """
  try:
    with open_regular(path) as file:
      dtype, shape, fortran_order = _read_header(file)
      start, found = file.tell(), os.fstat(file.fileno()).st_size
      count = math.prod(shape)
      if found - start != count * dtype.itemsize:
        raise _Damaged(f"its header says {dtype} of shape {shape}, but its length differs")
      # Not mapped: copying a mapped file would hold it in memory twice.
      data = np.fromfile(file, dtype, count).reshape(shape, order="F" if fortran_order else "C")
      return np.asarray(data, order="C")
  except FileNotFoundError as error:
    raise UserError(f"{path} is missing: images.npy and labels.npy lie side by side.") from error
  # ValueError and OverflowError: one axis has length 0, and another is too large for NumPy.
  except (OSError, ValueError, OverflowError, _Damaged) as error:
    reason = getattr(error, "strerror", None) or error
    raise UserError(
      f"{path} is not a .npy file of numbers ({reason}): write it with np.save(FILE, ARRAY, "
      "allow_pickle=False)."
    ) from error


def _read_header(file: BinaryIO) -> tuple[np.dtype, tuple[int, ...], bool]:
  """Read the dtype, the shape and whether the order is Fortran's, up to the start of the data."""
  start = file.read(len(_MAGIC) + 2)
  if not start.startswith(_MAGIC) or len(start) < len(_MAGIC) + 2:
    raise _Damaged("it is an .npz archive" if start[:2] == b"PK" else "its first bytes are wrong")
  version = start[len(_MAGIC)]
  if version not in (1, 2, 3):
    raise _Damaged(f"its version is {version}, not 1 to 3")
  length = int.from_bytes(file.read(2 if version == 1 else 4), "little")
  if length > _HEADER_BYTES:
    raise _Damaged(f"its header has {length:,} bytes, more than {_HEADER_BYTES:,}")
  text = file.read(length)
  if len(text) < length:
    raise _Damaged("it is cut off in its header")
  try:
    header = ast.literal_eval(text.decode("utf-8" if version == 3 else "latin-1").strip())
  # Nested brackets raise MemoryError and RecursionError, too.
  except Exception as error:
    raise _Damaged("its header is not a Python literal") from error
  if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
    raise _Damaged("its header does not give dtype, order and shape")
  descr, fortran_order, shape = header["descr"], header["fortran_order"], header["shape"]
  if not isinstance(descr, str) or not isinstance(fortran_order, bool):
    raise _Damaged("its header does not describe numbers")
  if not _NUMBERS.fullmatch(descr):
    pickled = "; pickled objects are refused, because loading them runs the code in them"
    raise _Damaged(f"its dtype is {descr!r:.50}{pickled if 'O' in descr else ''}")
  # `type`, because a bool is also an instance of int.
  if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
    raise _Damaged(f"its shape is {shape!r:.100}")
  try:
    return np.dtype(descr), shape, fortran_order
  except TypeError as error:
    raise _Damaged(f"its dtype is {descr!r:.50}") from error
