"""What a caller wants of a run: a command owns its process, a function does not."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from jaxspeed.cluster.folder_lock import end_superseded, raise_superseded
from jaxspeed.cluster.signals import Signals, catch_interrupt, catch_signals
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import Screen, silent_console
from jaxspeed.records.loggers import Logger

# Gets the row of each epoch; True ends the run after it.
OnEpoch = Callable[[dict[str, Any]], bool | None]


@dataclasses.dataclass(frozen=True)
class Hooks:
  """What a run may do to the process of its caller; the defaults are a command's.

  Attributes:
    command: the words of result.json; None: those of the command line.
    make_screen: makes the screen that the runs print on.
    make_clock: makes the run's clock.
    signals: the block that collects the signals that end the run.
    superseded: as in `FolderLock`.
    watched: whether a watchdog ends the process if the run makes no progress.
    on_epoch: called with each epoch's row, in the caller's thread; True ends the run.
    profile: the first and the last step to trace (`run.profile`); None: none.
    loggers: objects that follow the run, besides those of `config.records.loggers`.
  """

  command: str | None = None
  make_screen: Callable[[], Screen] = Screen
  make_clock: Callable[[], Clock] = Clock
  signals: Callable[[], contextlib.AbstractContextManager[Signals]] = catch_signals
  superseded: Callable[[str], None] = end_superseded
  watched: bool = True
  on_epoch: OnEpoch | None = None
  profile: tuple[int, int] | None = None
  loggers: tuple[Logger, ...] = ()


COMMAND = Hooks()


def python_hooks(
  command: str,
  *,
  progress: bool,
  on_epoch: OnEpoch | None,
  profile: tuple[int, int] | None = None,
  loggers: tuple[Logger, ...] = (),
) -> Hooks:
  """Those of a caller in Python, whose process, screen and signal handlers are not the run's."""
  return Hooks(
    command=command,
    make_screen=Screen if progress else lambda: Screen(silent_console()),
    make_clock=lambda: Clock(later=True),
    signals=catch_interrupt,
    superseded=raise_superseded,
    watched=False,
    on_epoch=on_epoch,
    profile=profile,
    loggers=loggers,
  )
