"""Files: atomic writes, locks, and JSON that is checked when it is read."""

import contextlib
import errno
import fcntl
import functools
import json
import math
import os
import pathlib
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import pydantic

from jaxspeed.errors import UserError

# Prefix of a file's or folder's name until it is complete. The name is short, in case the final one
# has the maximal length, and has 64 random bits, so that nobody can put a link there first.
TEMPORARY = ".jaxspeed-"
# The metrics.jsonl of 100,000 epochs is 60 MB.
_MOST_BYTES = 1 << 28
NOT_REGULAR = "it is no regular file"


def write_atomically(
  path: str | os.PathLike[str], content: str | bytes | Iterable[bytes], *, sync: bool = True
) -> None:
  """Writes a file so that a reader, even after a kill, finds either the old or the new content.

  Args:
    path: the file's path; the file gets the permissions of any new file (the process's umask).
    content: the file's content; text becomes UTF-8.
    sync: whether to wait until the content is on the disk, so that a power failure keeps it.

  Raises:
    OSError: the file cannot be written, and is unchanged; the error's filename is `path`.
  """
  if isinstance(content, str):
    content = content.encode()
  with new_file(path, sync=sync) as file:
    file.writelines([content] if isinstance(content, bytes) else content)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], *, sync: bool = False) -> Iterator[BinaryIO]:
  """Yields a file that becomes `path` if the block succeeds; arguments as in `write_atomically`.

  Raises:
    OSError: as `write_atomically`.
  """
  # Root could replace /dev/null, or the link /dev/stdout for every process.
  special = os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
  if special or os.path.realpath(os.path.dirname(path) or ".") == "/dev":
    raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
  temporary = pathlib.Path(os.path.dirname(path), f"{TEMPORARY}{secrets.token_hex(8)}")
  try:
    with open(temporary, "xb") as file:  # never an existing file, never through a link
      yield file
      if sync:
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
  except OSError as error:
    if error.filename not in (None, str(temporary)):
      raise  # the error is in a file that the block reads
    # The temporary name would mean nothing to the user.
    raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error
  finally:
    with contextlib.suppress(OSError):
      os.unlink(temporary)


def append_line(path: pathlib.Path, line: str, *, sync: bool = True) -> None:
  """Appends a line to a file; drops a cut-off line before it; `sync` as in `write_atomically`.

  Raises:
    OSError: the file cannot be written.
  """
  content = f"{line}\n".encode()
  descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
  try:
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
      os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)
    if os.write(descriptor, content) < len(content):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if sync:
      os.fsync(descriptor)
  finally:
    os.close(descriptor)


def expanded(path: str | os.PathLike[str], what: str) -> pathlib.Path:
  """A path with its ~ replaced by the home folder.

  Args:
    path: a path from the user.
    what: the name of the path in a message, such as `config.data.path`.

  Raises:
    UserError: there is no such home, as in ~nobody/x or for a container's user without a name.
  """
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError:
    raise UserError(
      f"{what}: {os.fspath(path)} begins with a home folder that nobody has: write the whole path."
    ) from None
  except TypeError:
    raise UserError(f"{what}={path!r}: it must be the path of a file or folder.") from None


def try_lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
  """Locks an open file until it is closed; False if another process has the lock.

  On a file system without locks it is always True.

  Args:
    descriptor: the file.
    shared: whether others may lock it so too.
    wait: whether to wait for the process that has the lock.
  """
  how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
  try:
    fcntl.flock(descriptor, how)  # noqa: TID251
  except BlockingIOError:
    return False
  except OSError:
    pass
  return True


@contextlib.contextmanager
def locked_folder(folder: pathlib.Path) -> Iterator[None]:
  """Makes and locks a folder, if it can be made, after waiting for who has the lock."""
  with contextlib.ExitStack() as stack:
    with contextlib.suppress(OSError):
      folder.mkdir(parents=True, exist_ok=True)
      descriptor = os.open(folder, os.O_RDONLY)
      stack.callback(os.close, descriptor)
      try_lock(descriptor, wait=True)
    yield


def open_locked(path: pathlib.Path) -> int | None:
  """Opens and locks a file, created if needed; None if another process has the lock.

  Raises:
    OSError: the file cannot be opened.
  """
  while True:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    if not try_lock(descriptor):
      os.close(descriptor)
      return None
    # Another process may have removed or replaced the file since it was opened.
    with contextlib.suppress(FileNotFoundError):
      if os.path.samestat(os.fstat(descriptor), os.stat(path)):
        return descriptor
    os.close(descriptor)


def is_locked(path: pathlib.Path) -> bool:
  """Whether a process holds the lock of a file; False on a file system without locks."""
  try:
    with open_regular(path) as file:
      # Shared: two processes that ask at the same time do not take each other for an owner.
      return not try_lock(file.fileno(), shared=True)
  except OSError:
    return False


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
  """Opens a regular file to read it; refuses a pipe or a device instead of waiting for it.

  Raises:
    OSError: the file is missing, may not be read, or is not a regular file.
  """
  # Without O_NONBLOCK, opening a pipe would wait for a writer.
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  try:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
      raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
    return open(descriptor, "rb")
  except BaseException:
    os.close(descriptor)
    raise


def to_json(value: Any) -> Any:
  """`value` in JSON's types: scalars of NumPy and JAX as numbers, NaN and infinities as None."""
  if isinstance(value, Mapping):
    return {str(key): to_json(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [to_json(item) for item in value]
  if hasattr(value, "item"):
    value = value.item()
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def dump_json(value: Any, **options: Any) -> str:
  """`value` as strict JSON, with options of `json.dumps`.

  Raises:
    ValueError: `value` contains NaN or an infinity.
  """
  return json.dumps(value, allow_nan=False, **options)  # noqa: TID251


def parse_json(text: str | bytes, kind: Any = Any) -> Any:
  """The value of a text in strict JSON.

  Args:
    text: the text; bytes are UTF-8.
    kind: the type that the value must have, checked by pydantic in strict mode.

  Raises:
    ValueError: the text is not such a value; the message says why in a few words.
  """
  try:
    # Not by pydantic, which refuses the escapes of names that are not UTF-8.
    value = json.loads(text, parse_constant=_refuse)  # noqa: TID251
    if kind is not Any:
      # Strict: `True` is not a number, 3.0 not an integer; a list still passes for a tuple.
      _checker(kind).validate_json(text, strict=True)
    return value
  except pydantic.ValidationError as error:
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(ascii(part).strip("'")[:60] for part in first["loc"])
    raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
  except (ValueError, RecursionError) as error:
    raise ValueError(f"it is no JSON: {error}") from None


def _refuse(name: str) -> Any:
  raise ValueError(f"{name} is no number")


def read_bytes(path: pathlib.Path) -> bytes:
  """The content of a regular file.

  Raises:
    FileNotFoundError: the file does not exist.
    ValueError: it cannot be read, or has more than `_MOST_BYTES`.
  """
  try:
    with open_regular(path) as file:
      if (size := os.fstat(file.fileno()).st_size) > _MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes")
      return file.read()
  except FileNotFoundError:
    raise
  except OSError as error:
    raise ValueError(error.strerror or str(error)) from None


def read_json(path: pathlib.Path, kind: Any, advice: str) -> Any:
  """`parse_json` of a file; None if the file does not exist.

  Args:
    path: the file's path.
    kind: as in `parse_json`.
    advice: what to do about a damaged file, as the end of a sentence.

  Raises:
    UserError: the file cannot be read or parsed.
  """
  try:
    return parse_json(read_bytes(path), kind)
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise UserError(f"{path} cannot be used ({error}): {advice}.") from None


@functools.cache
def _checker(kind: Any) -> pydantic.TypeAdapter[Any]:
  return pydantic.TypeAdapter(kind)
