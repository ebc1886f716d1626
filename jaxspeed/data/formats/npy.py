"""Reads .npy files of numbers, and believes nothing that the file's own size contradicts.

The format is that of NumPy's lib/format.py, versions 1 to 3: a magic string, the version in two
bytes, the header's length in two or four, the header, which is a Python literal of a dict, and the
data. `np.load` raises many kinds of exceptions where a header is nonsense.
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
  """Why a file is no .npy file that is read here."""


def read_npy(path: pathlib.Path) -> np.ndarray:
  """Reads a .npy file, in rows of C's order.

  Raises:
    UserError: it is missing, cannot be read, is damaged, or does not hold numbers.
  """
  try:
    with open_regular(path) as file:
      dtype, shape, fortran_order = _read_header(file)
      start, found = file.tell(), os.fstat(file.fileno()).st_size
      count = math.prod(shape)
      if found - start != count * dtype.itemsize:
        raise _Damaged(f"its header says {dtype} of shape {shape}, and it is of another length")
      # Not mapped: who copies a mapped file has it in memory twice.
      data = np.fromfile(file, dtype, count).reshape(shape, order="F" if fortran_order else "C")
      return np.asarray(data, order="C")
  except FileNotFoundError as error:
    raise UserError(f"{path} is missing: images.npy and labels.npy lie side by side.") from error
  # ValueError and OverflowError: of axes that NumPy does not count, beside one of length 0.
  except (OSError, ValueError, OverflowError, _Damaged) as error:
    reason = getattr(error, "strerror", None) or error
    raise UserError(
      f"{path} is no .npy file of numbers ({reason}): write it with np.save(FILE, ARRAY, "
      "allow_pickle=False)."
    ) from error


def _read_header(file: BinaryIO) -> tuple[np.dtype, tuple[int, ...], bool]:
  """dtype, shape and whether the first axis varies fastest; the file is then at the data."""
  start = file.read(len(_MAGIC) + 2)
  if not start.startswith(_MAGIC) or len(start) < len(_MAGIC) + 2:
    raise _Damaged("it is an .npz archive" if start[:2] == b"PK" else "it does not begin as one")
  version = start[len(_MAGIC)]
  if version not in (1, 2, 3):
    raise _Damaged(f"it is of version {version}, and 1 to 3 are read")
  length = int.from_bytes(file.read(2 if version == 1 else 4), "little")
  if length > _HEADER_BYTES:
    raise _Damaged(f"its header is of {length:,} bytes, and at most {_HEADER_BYTES:,} are read")
  text = file.read(length)
  if len(text) < length:
    raise _Damaged("it is cut off in its header")
  try:
    header = ast.literal_eval(text.decode("utf-8" if version == 3 else "latin-1").strip())
  # Also MemoryError and RecursionError, of brackets in brackets.
  except Exception as error:
    raise _Damaged("its header is no Python literal") from error
  if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
    raise _Damaged("its header names no dtype, order and shape")
  descr, fortran_order, shape = header["descr"], header["fortran_order"], header["shape"]
  if not isinstance(descr, str) or not isinstance(fortran_order, bool):
    raise _Damaged("its header is no header of numbers")
  if not _NUMBERS.fullmatch(descr):
    pickled = "; pickled objects are refused, because loading them runs the code in them"
    raise _Damaged(f"its dtype is {descr!r:.50}{pickled if 'O' in descr else ''}")
  # A bool is an int, too.
  if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
    raise _Damaged(f"its shape is {shape!r:.100}")
  try:
    return np.dtype(descr), shape, fortran_order
  except TypeError as error:
    raise _Damaged(f"its dtype is {descr!r:.50}") from error
