"""Ctrl-C that falls into a callback of Python's."""

import gc
import signal
import threading

import pytest

from jaxspeed.config import flags
from jaxspeed.errors import DONE, INTERRUPTED


@pytest.fixture(autouse=True)
def handler():
  """Python's own handler, which a test run in the background does not have."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


def exit_code(monkeypatch, main):
  monkeypatch.setattr(flags, "_parse", lambda argv, *_: argv)
  with pytest.raises(SystemExit) as ended:
    flags.run(main)
    raise SystemExit(DONE)
  return ended.value.code


def test_an_interrupt_in_a_callback_of_the_garbage_collector_is_not_lost(monkeypatch, capsys):
  def interrupt(phase, info):
    gc.callbacks.remove(interrupt)
    raise KeyboardInterrupt

  def main(_):
    gc.callbacks.append(interrupt)
    gc.collect()
    threading.Event().wait(60)

  assert exit_code(monkeypatch, main) == INTERRUPTED
  said = capsys.readouterr().err
  assert "stopped by Ctrl-C." in said and "Traceback" not in said


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_other_ignored_exceptions_stay_as_they_are(monkeypatch):
  class Odd:
    def __del__(self):
      raise ValueError("odd")

  def main(_):
    odd = Odd()
    del odd

  assert exit_code(monkeypatch, main) == DONE
