"""Signals that end a run early.

SIGTERM: save and end; the sender decides what follows. SIGUSR1: the same, with the exit code that
asks a scheduler to start the job again. SIGINT (Ctrl-C): the same, by hand; a second one ends the
run at once. Two within half a second are one, which a terminal and a launcher both pass on. Of
several processes, any one may get the signal (`run/control.py`).
"""

import contextlib
import enum
import signal
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping

from jaxspeed.cluster import processes
from jaxspeed.config.output import write_error
from jaxspeed.errors import DONE, INTERRUPTED, REQUEUE


class RunAction(enum.IntEnum):
  """What a process asks of all processes after a step; the largest request wins."""

  CONTINUE = 0
  SAVE = 1
  STOP = 2
  REQUEUE = 3
  INTERRUPT = 4

  @property
  def exit_code(self) -> int:
    return {RunAction.REQUEUE: REQUEUE, RunAction.INTERRUPT: INTERRUPTED}.get(self, DONE)


NOTHING_TO_SAVE = "ended before the first step of this start; what was saved before stays."
_ONE_PRESS = 0.5  # seconds
_ACTIONS = {signal.SIGTERM: RunAction.STOP, signal.SIGINT: RunAction.INTERRUPT}
if hasattr(signal, "SIGUSR1"):  # not on Windows
  _ACTIONS[signal.SIGUSR1] = RunAction.REQUEUE


class Stopped(Exception):  # noqa: N818  (like KeyboardInterrupt, not an error)
  """A signal ended the run early, with everything saved; it has the command's `exit_code`."""

  def __init__(self, message: str, exit_code: int) -> None:
    super().__init__(message)
    self.exit_code = exit_code


class Signals:
  """The requests of signals since `catch_signals` began."""

  def __init__(self) -> None:
    self.action = RunAction.CONTINUE  # the largest request
    self.begun = False  # before there is something to save, a single process ends at once
    self._interrupted = 0.0  # when the first Ctrl-C came

  def interrupt(self) -> bool:
    """Notes a Ctrl-C; whether it is a second one."""
    now = time.monotonic()
    if self.action is RunAction.INTERRUPT:
      return now >= self._interrupted + _ONE_PRESS
    self.action, self._interrupted = RunAction.INTERRUPT, now
    return False

  def handle(self, number: int) -> None:
    """Notes a signal, and prints on standard error what follows."""
    name = signal.Signals(number).name
    if number == signal.SIGINT and self.action is RunAction.INTERRUPT:
      if self.interrupt():
        write_error(f"{processes.whoami()} ended at once; the newest checkpoint stays.")
        processes.exit_now(INTERRUPTED)
      return
    action = _ACTIONS[signal.Signals(number)]
    if not (self.begun or processes.several()):
      write_error(f"{name}: {NOTHING_TO_SAVE}")
      processes.exit_now(action.exit_code)
    if number == signal.SIGINT:
      self.interrupt()
    self.action = max(self.action, action)
    twice = "; a second Ctrl-C ends it at once" if number == signal.SIGINT else ""
    write_error(f"{name}: the run saves after this step and ends{twice}.")


@contextlib.contextmanager
def _handled(handlers: Mapping[signal.Signals, Callable[..., None]]) -> Iterator[None]:
  """Sets handlers of signals in the block; does nothing outside the main thread."""
  in_main_thread = threading.current_thread() is threading.main_thread()
  # None: a handler that Python cannot put back, because C code set it.
  if not in_main_thread or None in map(signal.getsignal, handlers):
    yield
    return
  before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
  try:
    yield
  finally:
    for number, earlier in before.items():
      signal.signal(number, earlier)


@contextlib.contextmanager
def catch_interrupt() -> Iterator[Signals]:
  """Collects Ctrl-C in the block, for a call from Python; does nothing outside the main thread.

  The first one stops the run after its step. A second one, or one before there is anything to
  save, raises KeyboardInterrupt. Nothing is printed, the process does not end, and the handler from
  before comes back.
  """
  signals = Signals()

  def interrupt(number: int, frame: types.FrameType | None) -> None:
    if not signals.begun or signals.action is RunAction.STOP or signals.interrupt():
      raise KeyboardInterrupt

  with _handled({signal.SIGINT: interrupt}):
    yield signals


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
  """Lets SIGTERM leave the block with SystemExit, so that its temporary files are removed."""

  def leave(number: int, frame: types.FrameType | None) -> None:
    raise SystemExit(128 + number)

  with _handled({signal.SIGTERM: leave}):
    yield


@contextlib.contextmanager
def catch_signals() -> Iterator[Signals]:
  """Collects the signals above in the block; does nothing outside the main thread.

  A separate thread handles them. Python's handlers would wait while the main thread is in XLA: for
  minutes in a compilation, for ever in a collective with a process that hangs.
  """
  signals = Signals()
  if threading.current_thread() is not threading.main_thread():
    yield signals
    return
  reader, writer = socket.socketpair()
  writer.setblocking(False)

  def handle_all() -> None:
    while number := reader.recv(1):
      if number[0] in _ACTIONS:
        signals.handle(number[0])

  thread = threading.Thread(target=handle_all, name="signals", daemon=True)
  thread.start()
  with contextlib.ExitStack() as stack:
    for end in (reader.close, thread.join, writer.close):  # the last one first
      stack.callback(end)
    # These handlers do nothing, but with SIG_DFL or SIG_IGN nothing would be written to the socket.
    stack.enter_context(_handled(dict.fromkeys(_ACTIONS, lambda *_: None)))
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    stack.callback(signal.set_wakeup_fd, before)
    yield signals
