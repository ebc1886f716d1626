"""A reader of the official binary version of CIFAR-10 and CIFAR-100, from a folder or an archive.

A file is a sequence of records: one label byte (CIFAR-100: the coarse and the fine label), then
3072 bytes: 32 x 32 of red, green and blue each (https://www.cs.toronto.edu/~kriz/cifar.html).
The pickled "python version" is refused, because unpickling a file runs the code in it.
"""

import dataclasses
import pathlib
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO

import numpy as np
from jaxtyping import Int32, UInt8

from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.errors import UserError, printable

_IMAGE_BYTES = 3 * 32 * 32
# fine_label_names.txt has 1.2 kB.
_NAMES_BYTES = 1 << 16
_CHUNK = 1 << 20
_PICKLED = {"cifar-10-batches-py", "cifar-100-python", "data_batch_1"}


@dataclasses.dataclass(frozen=True)
class Layout:
  """A data set's files: numbers of records, the test set's last, and of values of label bytes."""

  name: str
  title: str
  folder: str
  records: Mapping[str, int]
  labels: tuple[int, ...]
  names_file: str

  def size(self, file: str) -> int:
    """Return the size of a file of records, in bytes."""
    return self.records[file] * (len(self.labels) + _IMAGE_BYTES)


CIFAR10 = Layout(
  name="cifar10",
  title="CIFAR-10",
  folder="cifar-10-batches-bin",
  records={f"data_batch_{i}.bin": 10_000 for i in range(1, 6)} | {"test_batch.bin": 10_000},
  labels=(10,),
  names_file="batches.meta.txt",
)
CIFAR100 = Layout(
  name="cifar100",
  title="CIFAR-100",
  folder="cifar-100-binary",
  records={"train.bin": 50_000, "test.bin": 10_000},
  labels=(20, 100),
  names_file="fine_label_names.txt",
)
LAYOUTS = (CIFAR10, CIFAR100)


def find_cifar(path: pathlib.Path, name: str) -> tuple[pathlib.Path, Layout] | None:
  """Find CIFAR in `path` or its official folder below; of CIFAR-10 and 100, prefer `name`."""
  layouts = sorted(LAYOUTS, key=lambda layout: layout.name != name)
  for folder, layout in [(path, each) for each in layouts] + [
    (path / each.folder, each) for each in layouts
  ]:
    if any((folder / file).is_file() for file in layout.records):
      return folder, layout
  return None


def refuse_pickled(path: pathlib.Path, names: Iterable[str]) -> None:
  """Raise a UserError if `path` is the "python version", by names of files and folders in it."""
  if _PICKLED & set(names):
    raise UserError(
      f"{path} is the pickled Python version of CIFAR, which is not read because unpickling a file "
      "runs the code in it: use the binary version (cifar-10-binary.tar.gz or "
      "cifar-100-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html) or TFDS."
    )


def read_cifar(path: pathlib.Path, *layouts: Layout) -> Arrays:
  """Read the binary files of a folder, or of the official .tar.gz, which is not extracted.

  Args:
    path: the folder or archive.
    layouts: the data sets that it may hold; none: any.

  Raises:
    UserError: a file is missing, has the wrong size, or holds a label out of range; or it is not an
      archive, or is cut off.
  """
  contents: dict[str, bytes] = {}
  layouts = layouts or LAYOUTS
  known = {file: each for each in layouts for file in (*each.records, each.names_file)}
  try:
    for file, size, stream in _folder(path, known) if path.is_dir() else _archive(path):
      if (layout := known.get(file)) is None:
        continue
      if file in layout.records and size != layout.size(file):
        raise UserError(
          f"{file} of {path} has {size:,} bytes, not the {layout.size(file):,} of the binary "
          f"version of {layout.title}: it was cut off or is another file; download the archive "
          "again."
        )
      contents[file] = stream.read(size if file in layout.records else _NAMES_BYTES)
  except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
    if path.is_dir():
      raise
    raise UserError(
      f"{path} cannot be read as an archive ({str(error) or type(error).__name__}): it was cut "
      "off, or is not a .tar.gz; config.data.path names a folder or cifar-10-binary.tar.gz."
    ) from error
  # Where there is neither, the message on the first file that is missing.
  layout = max(layouts, key=lambda each: len(each.records.keys() & contents.keys()))
  if missing := [file for file in layout.records if file not in contents]:
    raise UserError(
      f"{path} has no {missing[0]}, which the binary version of {layout.title} needs: download "
      "its archive again, and name that, or unpack all of it."
    )
  *train, test = [_records(layout, contents[file], f"{file} of {path}") for file in layout.records]
  images, labels = (np.concatenate(each) for each in zip(*train, strict=True))
  return Arrays(
    *(images, labels, *test),
    class_names=tuple(contents.get(layout.names_file, b"").decode("utf-8", "replace").split()),
    source=f"{layout.title}, binary version in {printable(path.name)}",
    is_own=False,
  )


def _folder(path: pathlib.Path, known: Iterable[str]) -> Iterator[tuple[str, int, IO[bytes]]]:
  """Yield the name, size and content of each file of a folder that is known."""
  for each in (path / file for file in known):
    if each.is_file():
      with each.open("rb") as stream:
        yield each.name, each.stat().st_size, stream


def _archive(path: pathlib.Path) -> Iterator[tuple[str, int, IO[bytes]]]:
  """Yield the name, size and content of each file of an archive."""
  with tarfile.open(path) as archive:
    for member in archive:
      refuse_pickled(path, member.name.split("/"))
      if member.isfile() and (stream := archive.extractfile(member)):
        yield member.name.rpartition("/")[2], member.size, stream
    while archive.fileobj and archive.fileobj.read(_CHUNK):
      pass  # gzip's checksum of all the data comes last


def _records(
  layout: Layout, content: bytes, where: str
) -> tuple[UInt8[np.ndarray, "n 32 32 3"], Int32[np.ndarray, "n"]]:
  """Return the images (colour planes moved to channels last) and fine labels of one file."""
  label_bytes = len(layout.labels)
  rows = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + _IMAGE_BYTES)
  for byte, classes in enumerate(layout.labels):
    wrong = np.flatnonzero(rows[:, byte] >= classes)
    if wrong.size:
      raise UserError(
        f"record {wrong[0]} of {where} has the label {rows[wrong[0], byte]}, but {layout.title} "
        f"has labels up to {classes - 1}: the file is damaged; download the archive again."
      )
  images = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
  return np.ascontiguousarray(images), rows[:, label_bytes - 1].astype(np.int32)
