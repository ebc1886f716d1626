"""A watchdog that ends a run which makes no progress."""

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Iterator

from jaxspeed.cluster import processes
from jaxspeed.config.output import write_error
from jaxspeed.errors import LOST_PEER


class _Pulse:
  last: float | None = None  # the time of the run's last progress; None: not watched


def heartbeat() -> None:
  """Reports progress to the watchdog."""
  if _Pulse.last is not None:
    _Pulse.last = time.monotonic()


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[None]:
  """Ends the process with LOST_PEER if no `heartbeat` comes for some seconds (0: never).

  A collective with a process that hangs neither returns nor raises (jax issue 38503).
  """
  if seconds <= 0:
    yield
    return
  done = threading.Event()
  _Pulse.last = time.monotonic()
  thread = threading.Thread(target=_watch, args=(seconds, done), name="watchdog", daemon=True)
  thread.start()
  try:
    yield
  finally:
    _Pulse.last = None
    done.set()
    thread.join()


def _watch(seconds: float, done: threading.Event) -> None:
  tick = min(1.0, seconds / 4)
  # Counts its own ticks, so that time in which this process was stopped does not count.
  idle, seen = 0, _Pulse.last
  while not done.wait(tick):
    idle = idle + 1 if seen is not None and _Pulse.last == seen else 0
    seen = _Pulse.last
    if idle * tick > seconds:
      faulthandler.dump_traceback(sys.stderr)
      alone = "a device or the disk does not answer"
      cause = "another process hangs" if processes.several() else alone
      write_error(
        f"{processes.whoami()} made no progress for {seconds:g} s (--config.watchdog_seconds; its "
        f"threads are above): perhaps {cause}; the same command resumes from the newest checkpoint."
      )
      processes.exit_now(LOST_PEER)


@contextlib.contextmanager
def watchdog_paused() -> Iterator[None]:
  """A block that the watchdog does not watch."""
  watched, _Pulse.last = _Pulse.last is not None, None
  try:
    yield
  finally:
    _Pulse.last = time.monotonic() if watched else None
