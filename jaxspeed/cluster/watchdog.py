"""A watchdog over a run that stands still."""

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Iterator

from jaxspeed.cluster import processes
from jaxspeed.cluster.processes import say
from jaxspeed.errors import LOST_PEER


class _Pulse:
  """When the run last got on; None: nothing is expected of it."""

  last: float | None = None


def heartbeat() -> None:
  """Tells the watchdog that the run gets on."""
  if _Pulse.last is not None:
    _Pulse.last = time.monotonic()


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[None]:
  """Ends the process with LOST_PEER where no `heartbeat` came for some seconds (0: never).

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
        say(
          f"{processes.whoami()} has stood still for {seconds:g} s (--config.watchdog_seconds), "
          "where, its threads above say: another process hangs perhaps; the same command goes on "
          "from the newest checkpoint."
        )
        processes.exit_now(LOST_PEER)

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
def watchdog_paused() -> Iterator[None]:
  """A block that may take any time."""
  watched, _Pulse.last = _Pulse.last is not None, None
  try:
    yield
  finally:
    _Pulse.last = time.monotonic() if watched else None
