"""Signals that end a run early, and a watchdog over one that stands still.

SIGTERM: save and end; whoever sends it sees to what follows. SIGUSR1: the same, with the exit code
that asks a scheduler to start the job again. SIGINT (Ctrl-C): the same by hand, and twice: at once.
In a run of several processes any one of them may get the signal (`agreement.py`).
"""

import contextlib
import enum
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

from jaxspeed.cluster import processes as distributed
from jaxspeed.errors import DONE, LOST_PEER, REQUEUE

INTERRUPTED = 128 + signal.SIGINT  # what shells expect after Ctrl-C


class Wish(enum.IntEnum):
  """What a process wants of the others after a step; the largest counts."""

  GO_ON = 0
  SAVE = 1
  STOP = 2
  REQUEUE = 3
  INTERRUPT = 4

  @property
  def exit_code(self) -> int:
    return {Wish.REQUEUE: REQUEUE, Wish.INTERRUPT: INTERRUPTED}.get(self, DONE)


_WISHES = {signal.SIGTERM: Wish.STOP, signal.SIGINT: Wish.INTERRUPT}
if hasattr(signal, "SIGUSR1"):  # not on Windows
  _WISHES[signal.SIGUSR1] = Wish.REQUEUE


class Stopped(Exception):  # noqa: N818  (as KeyboardInterrupt: no error)
  """A run ended early on a signal, with everything saved.

  Attributes:
    exit_code: of the command.
  """

  def __init__(self, message: str, exit_code: int) -> None:
    super().__init__(message)
    self.exit_code = exit_code


class Signals:
  """What signals have asked for since `catch_signals` began.

  Attributes:
    wish: what they ask for, in all.
    begun: whether there is something to save; before, a process on its own ends at once.
  """

  def __init__(self) -> None:
    self.wish = Wish.GO_ON
    self.begun = False

  def handle(self, number: int) -> None:
    """Notes a signal, and says on the standard error what follows."""
    name = signal.Signals(number).name
    if number == signal.SIGINT and self.wish is Wish.INTERRUPT:
      _say(f"{distributed.whoami()} ended at once; the newest checkpoint stays.")
      distributed.leave(INTERRUPTED)
    wish = _WISHES[signal.Signals(number)]
    if not (self.begun or distributed.several()):
      _say(f"{name}: ended before the first step of this start; what was saved before stays.")
      distributed.leave(wish.exit_code)
    self.wish = max(self.wish, wish)
    twice = ", and a second Ctrl-C ends at once" if number == signal.SIGINT else ""
    _say(f"{name}: saves after this step and ends{twice}.")


def _say(sentence: str) -> None:
  # No print: the line that the screen is writing has a lock.
  os.write(2, f"jaxspeed: {sentence}\n".encode())


@contextlib.contextmanager
def catch_signals() -> Iterator[Signals]:
  """Collects the signals above in the block; in other threads than the main one they act as ever.

  A thread of its own handles them: Python's handlers wait while the main thread is in XLA, for
  minutes where it compiles, for ever in a collective with a process that hangs.
  """
  signals = Signals()
  if threading.current_thread() is not threading.main_thread():
    yield signals
    return
  reader, writer = socket.socketpair()
  writer.setblocking(False)

  def handle_all() -> None:
    while number := reader.recv(1):
      if number[0] in _WISHES:
        signals.handle(number[0])

  thread = threading.Thread(target=handle_all, name="signals", daemon=True)
  thread.start()
  # These do nothing themselves, but with SIG_DFL or SIG_IGN nothing would be written.
  before = {number: signal.signal(number, lambda *_: None) for number in _WISHES}
  descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
  try:
    yield signals
  finally:
    signal.set_wakeup_fd(descriptor)
    for number, handler in before.items():
      signal.signal(number, handler)
    writer.close()
    thread.join()
    reader.close()


class _Pulse:
  """When the run last got on; None: nothing is expected of it."""

  last: float | None = None


def beat() -> None:
  """Tells the watchdog that the run gets on."""
  if _Pulse.last is not None:
    _Pulse.last = time.monotonic()


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[None]:
  """Ends the process with LOST_PEER where nothing has called `beat` for some seconds (0: never).

  A collective with a process that hangs never returns and raises nothing (jax issue 38503).
  """
  if seconds <= 0:
    yield
    return
  done = threading.Event()
  tick = min(1.0, seconds / 4)

  def watch() -> None:
    # Counted in ticks of its own: a process that was stopped and goes on has not stood still.
    stood, seen = 0, _Pulse.last
    while not done.wait(tick):
      stood = stood + 1 if seen is not None and _Pulse.last == seen else 0
      seen = _Pulse.last
      if stood * tick > seconds:
        faulthandler.dump_traceback(sys.stderr)
        _say(
          f"{distributed.whoami()} has stood still for {seconds:g} s (--config.watchdog_seconds), "
          "where, its threads above say: another process hangs perhaps; the same command goes on "
          "from the newest checkpoint."
        )
        distributed.leave(LOST_PEER)

  _Pulse.last = time.monotonic()
  thread = threading.Thread(target=watch, name="watchdog", daemon=True)
  thread.start()
  try:
    yield
  finally:
    _Pulse.last = None
    done.set()
    thread.join()


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
  """A block that may take any time."""
  watched, _Pulse.last = _Pulse.last is not None, None
  try:
    yield
  finally:
    _Pulse.last = time.monotonic() if watched else None
