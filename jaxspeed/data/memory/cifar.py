"""A reader of the official binary version of CIFAR-10 and CIFAR-100, from a folder or an archive.

A file is a sequence of records: one label byte (CIFAR-100: the coarse and the fine label), then
3072 bytes: 32 x 32 of red, green and blue each (https://www.cs.toronto.edu/~kriz/cifar.html).
The pickled "python version" is refused, because unpickling a file runs the code in it.
"""

import dataclasses
import pathlib
import tarfile
import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.errors import UserError, printable

_IMAGE_BYTES = 3 * 32 * 32
# The largest file has 154 MB.
_MOST_BYTES = 1 << 28
_PICKLED = {"cifar-10-batches-py", "cifar-100-python", "data_batch_1"}


@dataclasses.dataclass(frozen=True)
class Layout:
  """A data set's files: numbers of records, the test set's last; a record's label bytes."""

  name: str
  title: str
  folder: str
  records: Mapping[str, int]
  label_bytes: int
  names_file: str


CIFAR10 = Layout(
  name="cifar10",
  title="CIFAR-10",
  folder="cifar-10-batches-bin",
  records={f"data_batch_{i}.bin": 10_000 for i in range(1, 6)} | {"test_batch.bin": 10_000},
  label_bytes=1,
  names_file="batches.meta.txt",
)
CIFAR100 = Layout(
  name="cifar100",
  title="CIFAR-100",
  folder="cifar-100-binary",
  records={"train.bin": 50_000, "test.bin": 10_000},
  label_bytes=2,
  names_file="fine_label_names.txt",
)
LAYOUTS = (CIFAR10, CIFAR100)


def refuse_pickled(path: pathlib.Path, names: Iterable[str]) -> None:
  """Raise a UserError if `path` is the "python version", by names of files and folders in it."""
  if _PICKLED & set(names):
    raise UserError(
      f"{path} is the pickled Python version of CIFAR, which is not read because unpickling a file "
      "runs the code in it: use the binary version (cifar-10-binary.tar.gz or "
      "cifar-100-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html) or TFDS."
    )


def find_files(path: pathlib.Path, name: str = "") -> dict[str, bytes]:
  """Return the content of CIFAR's files by name: of a folder, one below it, or a .tar.gz.

  Of CIFAR-10 and 100, prefer `name`; all files are of one folder.

  Raises:
    UserError: it is a file, but not an archive, or is cut off.
  """
  if path.is_file():
    return _from_archive(path)
  for layout in sorted(LAYOUTS, key=lambda each: each.name != name):
    for folder in (path, path / layout.folder):
      files = [folder / file for file in (*layout.records, layout.names_file)]
      files = [file for file in files if file.is_file() and file.stat().st_size <= _MOST_BYTES]
      if layout.records.keys() & {file.name for file in files}:
        return {file.name: file.read_bytes() for file in files}
  return {}


def arrays_of(contents: Mapping[str, bytes], path: pathlib.Path, name: str = "") -> Arrays:
  """Return the images and labels in the files found at `path`; of CIFAR-10 and 100, prefer `name`.

  Raises:
    UserError: a file is missing or has the wrong size.
  """
  # Where there is neither, the message on the first file of the one that is preferred.
  layouts = sorted(LAYOUTS, key=lambda each: each.name != name)
  layout = next((each for each in layouts if each.records.keys() & contents.keys()), layouts[0])
  parts = list[tuple[np.ndarray, np.ndarray]]()
  for file, records in layout.records.items():
    content, begin = contents.get(file, b""), layout.label_bytes
    if len(content) != (size := records * (begin + _IMAGE_BYTES)):
      raise UserError(
        f"{path} has {len(content):,} bytes of {file}, not the {size:,} of the binary version of "
        f"{layout.title}: download its archive again, and name that, or unpack all of it."
      )
    rows = np.frombuffer(content, np.uint8).reshape(records, -1)
    images = rows[:, begin:].reshape(records, 3, 32, 32).transpose(0, 2, 3, 1)
    parts.append((np.ascontiguousarray(images), rows[:, begin - 1].astype(np.int32)))
  *train, test = parts
  images, labels = (np.concatenate(each) for each in zip(*train, strict=True))
  return Arrays(
    *(images, labels, *test),
    class_names=tuple(contents.get(layout.names_file, b"").decode("utf-8", "replace").split()),
    source=f"{layout.title}, binary version in {printable(path.name)}",
  )


def _from_archive(path: pathlib.Path) -> dict[str, bytes]:
  """Return the content of each file of an archive that is known."""
  known = {file for each in LAYOUTS for file in (*each.records, each.names_file)}
  contents: dict[str, bytes] = {}
  try:
    with tarfile.open(path) as archive:
      for member in archive:
        folders = member.name.split("/")
        refuse_pickled(path, folders)
        if folders[-1] in known and member.isfile() and (file := archive.extractfile(member)):
          contents[folders[-1]] = file.read(_MOST_BYTES)
      while archive.fileobj and archive.fileobj.read(1 << 20):
        pass  # gzip's checksum of all the data comes last
  except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
    raise UserError(
      f"{path} cannot be read as an archive ({str(error) or type(error).__name__}): it was cut "
      "off, or is not a .tar.gz; config.data.path names a folder or cifar-10-binary.tar.gz."
    ) from error
  return contents
