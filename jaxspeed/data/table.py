"""Encoded images on disk, of any number: a table of their files, classes and sizes."""

import dataclasses
import functools
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Int8, Int32, Int64, UInt8

from jaxspeed.data import remote
from jaxspeed.errors import UserError, printable
from jaxspeed.files import open_regular

# Bytes of names that are searched at once.
_PART = 1 << 24


class Names:
  """Names of files as one string of bytes, with a zero byte after each.

  14 million names of 30 bytes take 0.5 GB; as Python's strings they would take 1.2.

  Args:
    text: the string.
  """

  def __init__(self, text: UInt8[np.ndarray, "bytes"]) -> None:
    self.text, self._view = text, text.data
    parts = range(0, len(text), _PART)
    ends = (np.flatnonzero(text[at : at + _PART] == 0) + (at + 1) for at in parts)
    dtype = np.min_scalar_type(len(text))  # 4 bytes up to 4 GB
    self._starts = np.concatenate([[0], *ends], dtype=dtype, casting="unsafe").data

  @classmethod
  def of(cls, names: Iterable[str]) -> "Names":
    # The last, empty name is for the zero byte at the end.
    return cls(np.frombuffer(os.fsencode("\0".join((*names, ""))), np.uint8))

  def __len__(self) -> int:
    return len(self._starts) - 1

  def __getitem__(self, number: int) -> bytes:
    return bytes(self._view[self._starts[number] : self._starts[number + 1] - 1])

  def first(self, count: int) -> UInt8[np.ndarray, "bytes"]:
    """Return the text of the first `count` names."""
    return self.text[: self._starts[count]]

  def lists(self, size: int) -> Iterator[list[str]]:
    """Yield the names in lists of at most `size`."""
    for begin in range(0, len(self), size):
      yield [os.fsdecode(self[i]) for i in range(begin, min(begin + size, len(self)))]

  def decoded(self) -> list[str]:
    return os.fsdecode(self.text.tobytes()).split("\0")[:-1]


def _column(dtype: type[np.signedinteger]) -> Any:
  """Return a field for a column that is empty until the index has filled it."""
  return dataclasses.field(default_factory=functools.partial(np.zeros, 0, dtype))


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
  """Images of a data set, numbered 0 ... n - 1: those for training come first.

  A source (`disk/sources.py`) makes it without opening a file; the index (`disk/index.py`) adds
  what headers say, and of shards the labels, offsets and digests.

  Attributes:
    root: the folder that names of files are relative to; it may be an address (`remote`).
    names: the names of the files: one for each image, or of shards; () for noise.
    file: the number in `names` of the file that holds the image.
    label: class number from 0.
    class_names: the names of the classes, by label.
    source: what the data set is and where it was found.
    notes: lines about files that were left out.
    place: the folder or file of the data set on this machine.
    train: the number of images of the data set for training; None: it has no splits.
    keys: the names of the features in shards that hold an image and its label; () for files.
    length: size of the encoded image, in bytes.
    width: width in pixels as the image is shown, from its header; 0 without a readable header.
    height: as `width`.
    decoder: what decodes the image in training, `pixels.JPEG`, `TENSORFLOW` or `PILLOW`.
    offset: place of the encoded image's first byte in its shard; None where each file is an image.
    digest: `name_digest` of each image's file name in its shard, 0 without a name, or
      `path_digests` of the names in a CSV file; None in folders of classes.
    index: the file that stores the sizes; '' where they are not stored.
  """

  root: str
  names: Names
  file: Int32[np.ndarray, "n"]
  label: Int32[np.ndarray, "n"]
  class_names: tuple[str, ...] = ()
  source: str = ""
  notes: tuple[str, ...] = ()
  place: pathlib.Path = pathlib.Path()
  train: int | None = None
  keys: tuple[str, ...] = ()
  length: Int32[np.ndarray, "n"] = _column(np.int32)
  width: Int32[np.ndarray, "n"] = _column(np.int32)
  height: Int32[np.ndarray, "n"] = _column(np.int32)
  decoder: Int8[np.ndarray, "n"] = _column(np.int8)
  offset: Int64[np.ndarray, "n"] | None = None
  digest: Int64[np.ndarray, "n"] | None = None
  index: str = ""

  def __len__(self) -> int:
    return len(self.label)

  @property
  def counts(self) -> tuple[int, int]:
    """Numbers of images for training, or all without splits, and for evaluation."""
    train = len(self) if self.train is None else self.train
    return train, len(self) - train

  @property
  def is_noise(self) -> bool:
    """Whether the images have no files (`noise_table`)."""
    return not len(self.names)

  def take(self, rows: Int64[np.ndarray, "m"] | slice) -> "Table":
    """Return a table of these images only, in this order; a slice copies nothing."""
    columns = vars(self).items()
    taken: dict[str, Any] = {k: each[rows] for k, each in columns if isinstance(each, np.ndarray)}
    return dataclasses.replace(self, **taken)

  def split(
    self, first: Int64[np.ndarray, "m"], second: Int64[np.ndarray, "k"]
  ) -> tuple["Table", "Table"]:
    """Return two parts of the table, which share its columns: these are sorted in place.

    Copies of the columns of 14 million images would take 0.3 GB more.
    """
    for column in vars(self).values():
      if isinstance(column, np.ndarray):
        column[:] = np.concatenate([column[first], column[second]])
    return self.take(slice(len(first))), self.take(slice(len(first), None))

  def path(self, number: int) -> str:
    """Return the path below `root` of the file that holds an image."""
    return os.fsdecode(self.names[self.file[number]])

  def full_path(self, number: int) -> str:
    return os.path.join(self.root, self.path(number))

  def paths(self) -> list[str]:
    """Return each image's path below `root`, in a shard with its first byte; [] for noise."""
    return [] if self.is_noise else [self._place(number) for number in range(len(self))]

  def name(self, number: int) -> str:
    """Return an image's name for messages."""
    return printable(self._place(number))

  def _place(self, number: int) -> str:
    path = self.path(number)
    return path if self.offset is None else f"{path}, byte {self.offset[number]}"

  def read(self, number: int) -> bytes:
    """Read an encoded image.

    Raises:
      OSError: its file cannot be read.
      UserError: as in `remote.read`.
    """
    if self.offset is None:
      with open_regular(self.full_path(number)) as file:
        return file.read()
    begin = int(self.offset[number])
    return self.read_part(number, begin, begin + int(self.length[number]))

  def read_part(self, number: int, begin: int, end: int) -> bytes:
    """Read the bytes from `begin` up to `end` of an image's shard; raises as `read` does."""
    path = self.full_path(number)
    if remote.is_remote(path):
      return remote.read(path, begin, end)
    with open_regular(path) as file:
      return os.pread(file.fileno(), end - begin, begin)

  def digests(self) -> Iterator[bytes]:
    """Yield eight bytes for each image, the same for its copies in every folder and shard.

    They decide the images that are held out (`hold_out.py`).

    Raises:
      UserError: an image has no name.
    """
    names = self.digest
    if names is not None and (nameless := int((names == 0).sum())):
      raise UserError(
        f"{nameless:,} of {len(names):,} images in the shards of {self.root} have no file_name, "
        "which decides the images to hold out: evaluate on the data set's own split "
        "(--config.tune_on=test), or make shards with names (python -m jaxspeed.prepare shards)."
      )
    classes = [hashlib.blake2b(os.fsencode(name), digest_size=8) for name in self.class_names]
    # Memoryviews yield one of Python's integers at a time; a list of 14 million takes 0.5 GB.
    files = (name_digest(self.names[number]) for number in self.file.data)
    for label, name in zip(self.label.data, files if names is None else names.data, strict=True):
      found = classes[label].copy()
      found.update(name.to_bytes(8, "little", signed=True))
      yield found.digest()


def name_digest(name: bytes) -> int:
  """Return a signed 64-bit digest of a file's name without its folders; 0 for an empty name."""
  base = name.rpartition(b"/")[2]
  digest = hashlib.blake2b(base, digest_size=8).digest()
  return int.from_bytes(digest, "little", signed=True) if base else 0


def path_digests(names: Names) -> Int64[np.ndarray, "n"]:
  """Return a digest of each whole name: images of a CSV in two folders may share a file name."""
  each = names.text.tobytes().split(b"\0")[:-1]
  found = [hashlib.blake2b(name, digest_size=8).digest() for name in each]
  # The lowest bit is set, because 0 stands for no name.
  return np.frombuffer(b"".join(found), "<i8") | 1


def fingerprint(train: Table, evaluation: Table) -> str:
  """Return the kind and the CRC-32 of names and labels, in two words; a run knows its images by it.

  Names are without their ending, so that a moved data set and its resized copies have the same.
  Contents do not count. The kind is "files", "csv", "shards" or "noise"; checksums of two kinds
  cannot be compared.
  """
  if train.is_noise:
    return "noise 0"
  kind = "shards" if train.offset is not None else "files" if train.digest is None else "csv"
  checksum = 0
  for table in (train, evaluation):
    if table.digest is None:
      for row, number in enumerate(table.file.data):
        stem = os.path.splitext(table.names[number])[0]
        checksum = zlib.crc32(b"\0/" + stem if row else b"/" + stem, checksum)
    else:
      checksum = zlib.crc32(table.digest.data, checksum)
    checksum = zlib.crc32(table.label.data, checksum)
  return f"{kind} {checksum:08x}"


def noise_table(n: int, classes: int) -> Table:
  """Return a table without files, with sizes distributed as in ImageNet (data.synthetic)."""
  rng = np.random.RandomState(n % 2**32)
  # Ratios at the percentiles 1, 5, 25, 50, 75, 95 and 99 of 1,000 images of ImageNet.
  ratio = np.interp(
    rng.random_sample(n),
    [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99],
    [0.592, 0.666, 0.962, 1.333, 1.471, 1.511, 2.0],
  )
  return Table(
    root="",
    names=Names.of([]),
    file=np.zeros(n, np.int32),
    label=rng.randint(classes, size=n).astype(np.int32),
    class_names=tuple(f"class {i}" for i in range(classes)),
    source="noise, data.synthetic",
    width=np.round(400 * np.sqrt(ratio)).astype(np.int32),
    height=np.round(400 / np.sqrt(ratio)).astype(np.int32),
    decoder=np.zeros(n, np.int8),
  )
