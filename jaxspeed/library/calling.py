"""What every call of the library does: errors in Python's words, and nothing on the screen."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from jaxspeed.errors import UserError

_FITTING = threading.Lock()


@contextlib.contextmanager
def library_call(*, quiet: bool = True) -> Iterator[None]:
  """A block of the library: its UserErrors name arguments, not flags.

  Args:
    quiet: whether warnings of the logger "jaxspeed" stay off the screen; handlers of the caller
      still get them.
  """
  silence, log = logging.NullHandler(), logging.getLogger("jaxspeed")
  if quiet:
    log.addHandler(silence)
  try:
    yield
  except UserError as error:
    # Without the dashes of flags, whose names arguments and fields have too.
    error.args = (str(error).replace(" --", " ").replace("(--", "(").removeprefix("--"),)
    raise
  finally:
    if quiet:
      log.removeHandler(silence)


@contextlib.contextmanager
def only_fit() -> Iterator[None]:
  """A block that one thread of the process can be in.

  Raises:
    UserError: another thread is, or the caller itself, as in `on_epoch`.
  """
  if not _FITTING.acquire(blocking=False):
    raise UserError(
      "another jaxspeed.fit is running in this process: wait for its end, or start another process."
    )
  try:
    yield
  finally:
    _FITTING.release()
