"""Arrays of one step in a compressed .npz file: written atomically, checked when they are read."""

import dataclasses
import io
import pathlib
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int, jaxtyped

from jaxspeed.errors import UserError
from jaxspeed.files import read_bytes, write_atomically

_Parsed = TypeVar("_Parsed")


def types_of(kind: Any, **stored: Any) -> dict[str, Any]:
  """The jaxtyping types of the arrays of a dataclass with a `step`; `stored` has other ones."""
  types = {field.name: field.type for field in dataclasses.fields(kind)}
  return types | {"step": Int[np.ndarray, ""]} | stored


def write_arrays(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray | int], *, sync: bool = True
) -> None:
  """Writes arrays, one of them their step; `sync` as in `write_atomically`.

  Raises:
    OSError: the file cannot be written.
  """
  content, named = io.BytesIO(), dict[str, Any](arrays)
  np.savez_compressed(content, **named)
  write_atomically(path, content.getvalue(), sync=sync)


def read_arrays(
  path: pathlib.Path,
  types: Mapping[str, Any],
  parse: Callable[..., _Parsed],
  *,
  most_bytes: int,
  advice: str,
) -> _Parsed | None:
  """What `parse` makes of the arrays in a file of `write_arrays`; None if it does not exist.

  Args:
    path: the file.
    types: the jaxtyping type of each array that it must have; axes of one name have one size.
    parse: takes the step, and the arrays by name; raises a ValueError if they are not right.
    most_bytes: the most that all arrays may take once they are unpacked.
    advice: what to do about a damaged file, as the end of a sentence.

  Raises:
    UserError: the file cannot be read, is damaged, or holds something else.
  """
  try:
    content = io.BytesIO(read_bytes(path))
    with zipfile.ZipFile(content) as archive:
      if sum(member.file_size for member in archive.infolist()) > most_bytes:
        raise ValueError("its arrays are too large")
    content.seek(0)
    with np.load(content, allow_pickle=False) as file, jaxtyped("context"):
      arrays = {name: file[name] for name in types}
      for name, array in arrays.items():
        if not isinstance(array, types[name]):
          raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
    require("step", arrays["step"] >= 1)
    return parse(int(arrays.pop("step")), **arrays)
  except FileNotFoundError:
    return None
  # NumPy and zipfile raise errors of many kinds on damage.
  except Exception as error:
    reason = str(error).partition("\n")[0][:200] or type(error).__name__
    raise UserError(f"{path} cannot be used ({reason}): {advice}.") from None


def require(name: str, right: Any) -> None:
  """Raises a ValueError unless all of `right` are true: the values of an array are possible."""
  if not np.all(right):
    raise ValueError(f"{name} has values that no run gives")
