"""How `prepare` made the files of a folder, and from what.

FOLDER/.jaxspeed/prepared.json says so. Folders without it were not written by `prepare` and are not
checked.
"""

import dataclasses
import os
import pathlib
import shlex
import stat
import urllib.parse
from hashlib import sha256
from typing import Literal

import pydantic

from jaxspeed.data.formats.npz import make_folder
from jaxspeed.data.table import Names
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, read_json, write_atomically

# The version folder that TFDS's layout needs; `prepare shards` writes no other.
VERSION = "1.0.0"


@dataclasses.dataclass(frozen=True)
class Prepared:
  """How the files of a folder are made.

  Attributes:
    kind: the command.
    uri: the folder of the originals; a URI, because its name need not be UTF-8.
    flags: the command's flags that decide what the files hold.
    originals: number of the originals.
    digest: digest of their names, `digest_of`.
    newest: their latest modification time, in ns.
    images: number of images that are written, for training and for evaluation; () until all are.
  """

  kind: Literal["resize", "shards"]
  uri: str
  flags: tuple[str, ...]
  originals: int
  digest: str
  newest: int = 0
  images: tuple[int, ...] = ()

  @property
  def source(self) -> str:
    return os.fsdecode(urllib.parse.unquote_to_bytes(self.uri.removeprefix("file://")))


def digest_of(names: Names) -> str:
  return sha256(names.text.data).hexdigest()


def _file_of(folder: pathlib.Path) -> pathlib.Path:
  return folder / ".jaxspeed" / "prepared.json"


def read_prepared(folder: pathlib.Path) -> Prepared | None:
  """Return how a folder is made, or None where `prepare` did not write it.

  Raises:
    UserError: the file that says so is damaged.
  """
  if not folder.is_dir():
    return None
  stored = read_json(_file_of(folder), Prepared, f"remove {folder} and make it again")
  return None if stored is None else pydantic.TypeAdapter(Prepared).validate_python(stored)


def write_prepared(folder: pathlib.Path, made: Prepared) -> None:
  """Store how the files of a folder are made.

  Raises:
    OSError: it cannot be written.
  """
  path = _file_of(folder)
  make_folder(path.parent)
  write_atomically(path, dump_json(dataclasses.asdict(made)), sync=False)


def time_of(path: str) -> int:
  """Return the modification time of a file in ns; 0 where it is missing."""
  try:
    return os.stat(path).st_mtime_ns
  except FileNotFoundError:
    return 0


def is_current(path: str, original: int) -> bool:
  """Return whether a file is there, no link, and not before `original`, a time in ns."""
  try:
    found = os.lstat(path)
  except FileNotFoundError:
    return False
  # Archives keep whole seconds.
  return stat.S_ISREG(found.st_mode) and found.st_mtime_ns // 10**9 >= original // 10**9


def mending(folder: pathlib.Path, made: Prepared) -> str:
  """Return the command that updates a folder: that of one size, or NAME/VERSION of shards."""
  destination = folder.parents[1 if made.kind == "shards" else 0]
  words = (made.kind, made.source, str(destination), *made.flags)
  return f"python -m jaxspeed.prepare {shlex.join(words)}"


def refuse_half_made(root: pathlib.Path) -> None:
  """Refuse a folder of copies, or a folder with shards, to which files are still to be written.

  Raises:
    UserError: there are such files; the message has the command that makes them.
  """
  for folder in (root, root / VERSION, *sorted(root.glob(f"*/{VERSION}"))):
    made = read_prepared(folder)
    if made is not None and not made.images:
      raise UserError(
        f"{folder} holds {'resized copies' if made.kind == 'resize' else 'shards'} that are not "
        f"complete: run {mending(folder, made)}, which resumes where it was."
      )
