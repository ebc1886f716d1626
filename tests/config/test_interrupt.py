"""Ctrl-C that falls into a callback of Python's."""

import gc
import signal
import subprocess
import sys
import threading

import pytest
from commands import ROOT, environment

from jaxspeed.config import flags, interrupt
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


# A finder that presses Ctrl-C when a module is looked for, as a user does in the middle of imports.
PRESS = """
import signal, sys

class Press:
  def find_spec(self, name, *_):
    if name == {module!r}:
      signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Press())
"""


@pytest.mark.parametrize("command", [("-m", "jaxspeed.train"), ("-m", "jaxspeed", "plan")])
@pytest.mark.parametrize("module", ["absl.flags", "jaxlib"])
def test_an_interrupt_while_a_command_imports_is_one_sentence(tmp_path, command, module):
  (tmp_path / "sitecustomize.py").write_text(PRESS.format(module=module))
  done = subprocess.run(
    [sys.executable, *command, "--config=configs/quickstart.py"],
    cwd=ROOT, env=environment() | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    capture_output=True, text=True, timeout=300,
  )  # fmt: skip
  assert (done.returncode, done.stdout) == (INTERRUPTED, "")
  assert done.stderr == "jaxspeed: stopped by Ctrl-C.\n"


@pytest.mark.parametrize(
  "words, is_command",
  [
    ("-m jaxspeed.train --config=a", True),
    ("-u -Im jaxspeed", True),
    ("-m pk.work jaxspeed", False),
    ("-m pk.work -m jaxspeed.x", False),
    ("-mjaxspeed_of_mine", False),
  ],
)
def test_a_command_is_the_module_that_python_runs(monkeypatch, words, is_command):
  monkeypatch.setattr(sys, "argv", ["-m"])
  monkeypatch.setattr(sys, "orig_argv", ["python", *words.split()])
  assert interrupt._is_command() is is_command


def test_a_library_keeps_its_interrupts():
  interrupt.raise_again()  # nothing to undo
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  interrupt.end_at_once()
  interrupt.raise_again()
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup leaves it
  interrupt.end_at_once()
  assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
