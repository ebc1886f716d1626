"""Arrays that a run leaves in a compressed .npz file of its folder."""

import dataclasses
import io
import os
import pathlib
import zipfile
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Int, UInt8, jaxtyped

from jaxspeed.errors import UserError
from jaxspeed.files import read_bytes, write_atomically

# ImageNet's 50,000 predictions with their paths take 4 MB before they are compressed.
_MOST_BYTES = 1 << 30
# The ends of names of arrays that hold classes.
_CLASSES = ("label", "predicted", "partner")
_STORED: dict[Any, Any] = {int: Int[np.ndarray, ""], tuple[str, ...]: UInt8[np.ndarray, "bytes"]}


@dataclasses.dataclass(frozen=True, eq=False)
class StoredArrays:
  """A dataclass that is written and read as a file of arrays.

  Its fields have types of jaxtyping. A field may be an int, or a tuple of names: it is stored as
  one array of bytes, in the file system's encoding, with a zero between two.
  """

  FILE: ClassVar[str]

  def write(self, folder: pathlib.Path) -> None:
    """Writes the file in a run's folder, atomically.

    Raises:
      OSError: the file cannot be written.
    """
    arrays = dict(vars(self))
    for name, value in arrays.items():
      if isinstance(value, tuple):
        arrays[name] = np.frombuffer(b"\0".join(map(os.fsencode, value)), np.uint8)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomically(folder / self.FILE, content.getvalue())

  @classmethod
  def read(cls, folder: pathlib.Path, classes: int) -> Self | None:
    """The content of the file in a run's folder; None if it does not exist.

    Args:
      folder: the folder.
      classes: the number of classes.

    Raises:
      UserError: the file cannot be read, is damaged, or holds something else.
    """
    path, found = folder / cls.FILE, dict[str, Any]()
    try:
      content = io.BytesIO(read_bytes(path))
      with zipfile.ZipFile(content) as archive:
        if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
          raise ValueError("its arrays are too large")
      content.seek(0)
      with np.load(content, allow_pickle=False) as file, jaxtyped("context"):
        for field in dataclasses.fields(cls):
          found[field.name] = _parsed(field, file[field.name], classes)
      return cls(**found)
    except FileNotFoundError:
      return None
    # NumPy and zipfile raise errors of many kinds on damage.
    except Exception as error:
      reason = str(error).partition("\n")[0][:200] or type(error).__name__
      raise UserError(
        f"{path} cannot be used ({reason}): restore the file, or remove it, and reports go without."
      ) from None


def _parsed(field: dataclasses.Field[Any], array: np.ndarray, classes: int) -> Any:
  """A field's value; raises a ValueError if its array has another type, or unknown classes."""
  if not isinstance(array, _STORED.get(field.type, field.type)):
    raise ValueError(f"{field.name} is {array.dtype} of shape {array.shape}")
  if field.name.endswith(_CLASSES) and not np.all((array >= -1) & (array < classes)):
    raise ValueError(f"{field.name} has others than the {classes} classes")
  if field.type is int:
    return int(array)
  if field.type in _STORED:
    return tuple(map(os.fsdecode, array.tobytes().split(b"\0"))) if array.size else ()
  return array
