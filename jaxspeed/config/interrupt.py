"""Ctrl-C that Python does not lose, and that ends a command at once while it imports.

`jaxspeed/__init__.py` imports this first: from then on Ctrl-C ends a command with one sentence.
"""

import _thread
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from jaxspeed.errors import INTERRUPTED

# Seconds after which a lost Ctrl-C is repeated: the callback that lost it has ended by then.
_SOON = 0.02


def end_at_once() -> None:
  """Lets Ctrl-C end a process that only imports and reads flags; `raise_again` undoes it.

  Nothing is there to be saved. In the middle of an import an exception is a traceback, or becomes
  another library's error: jaxlib makes an ImportError of it.
  """
  try:
    # A process in the background ignores Ctrl-C, and others have handlers of their own.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
      signal.signal(signal.SIGINT, _end)
  except ValueError:
    pass  # not the main thread


def raise_again() -> None:
  """Lets Ctrl-C raise KeyboardInterrupt again after `end_at_once`."""
  if signal.getsignal(signal.SIGINT) is _end:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: Any) -> None:
  with contextlib.suppress(OSError):
    os.write(2, b"jaxspeed: stopped by Ctrl-C.\n")
  os._exit(INTERRUPTED)


@contextlib.contextmanager
def repeat_lost() -> Iterator[None]:
  """Repeats a Ctrl-C of the block that fell into a callback, from which Python cannot raise.

  Python calls the garbage collector's callbacks (JAX has one), those of weak references, and
  `__del__` between any two lines; an exception of theirs is printed as ignored, and the program
  goes on as if nobody had pressed a key.
  """
  before = sys.unraisablehook

  def hook(ignored: Any, /) -> None:
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
      before(ignored)
      return
    again = threading.Timer(_SOON, _interrupt)
    again.daemon = True
    again.start()

  sys.unraisablehook = hook
  try:
    yield
  finally:
    sys.unraisablehook = before


def _interrupt() -> None:
  if os.name == "posix":
    os.kill(os.getpid(), signal.SIGINT)  # also ends a wait of the main thread
  else:
    _thread.interrupt_main()


def _is_command() -> bool:
  """Whether this process was started as a command: `jaxspeed`, or `python -m jaxspeed.COMMAND`."""
  program = "".join(getattr(sys, "argv", ())[:1])
  if program != "-m":  # which Python puts there until it has found the module
    return os.path.basename(program) == "jaxspeed"
  # The word after -m, which may stand at the end of others, as in -Im.
  words = iter(sys.orig_argv[1:])
  found = next((each for each in words if re.fullmatch("-[A-Za-z]*m", each)), None)
  return found is not None and next(words, "").partition(".")[0] == "jaxspeed"


if _is_command():
  end_at_once()
