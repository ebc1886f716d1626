"""Ctrl-C that Python does not lose."""

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

# Seconds after which a lost Ctrl-C is repeated: the callback that lost it has ended by then.
_SOON = 0.02


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
