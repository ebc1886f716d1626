"""Signals at any moment of a run, and a watchdog over one that stands still."""

import functools
import os
import signal
import textwrap
import time

import pytest
from commands import start
from toy import digits

from jaxspeed.cluster.signals import RunAction, Stopped, catch_signals
from jaxspeed.errors import DONE, INTERRUPTED, LOST_PEER, REQUEUE
from jaxspeed.feeds import resident
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.records.writer import read_metrics
from jaxspeed.run import checkpoint, session


def rows_of(folder):
  kept = ("step", "train_loss", "eval_loss", "eval_top1")
  return [tuple(row[name] for name in kept) for row in read_metrics(folder)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  folder = tmp_path_factory.mktemp("undisturbed")
  session.train(digits(), str(folder))
  return rows_of(folder)


def once(number):
  """Sends a signal to this process the first time it is called, and waits until it is noted."""
  sent = []

  def send():
    if not sent:
      sent.append(os.kill(os.getpid(), number))
      time.sleep(0.3)

  return send


def during(where, name):
  def patch(monkeypatch, send):
    original = getattr(where, name)

    def call(*arguments, **named):
      send()
      return original(*arguments, **named)

    monkeypatch.setattr(where, name, call)

  return patch


def at_step(step):
  def patch(monkeypatch, send):
    original = ResidentFeed.train

    def train(self, *arguments):
      for steps in original(self, *arguments):
        if steps.step == step:
          send()
        yield steps

    monkeypatch.setattr(ResidentFeed, "train", train)

  return patch


@pytest.mark.parametrize(
  "number, code, moment, saved",
  [
    (signal.SIGTERM, DONE, during(ResidentFeed, "evaluate"), 9),
    (signal.SIGUSR1, REQUEUE, at_step(3), 3),
    (signal.SIGTERM, DONE, at_step(9), 9),  # an epoch's last
    (signal.SIGINT, INTERRUPTED, at_step(18), 18),  # the run's last, before its evaluation
  ],
)
def test_a_signal_at_any_moment_saves_and_the_run_goes_on_with_the_same_bits(
  undisturbed, tmp_path, monkeypatch, number, code, moment, saved
):
  before = signal.getsignal(number)
  with monkeypatch.context() as patched:
    moment(patched, once(number))
    expected = rf"saved step {saved} of 18 in .* resumes the run"
    with pytest.raises(Stopped, match=expected) as stopped:
      session.train(digits(), str(tmp_path))
  assert stopped.value.exit_code == code
  assert signal.getsignal(number) is before
  assert checkpoint.steps_of(tmp_path)[-1] == saved
  result = session.train(digits(), str(tmp_path))
  assert rows_of(tmp_path) == undisturbed
  # The row of an epoch that an earlier start has trained to its end has no pace.
  assert session.train(digits(), str(tmp_path)) == result


def test_a_signal_is_heard_between_the_calls_of_a_long_epoch(tmp_path, monkeypatch):
  whole = functools.partial(resident.compile_programs, whole_epochs=True)  # as on accelerators
  monkeypatch.setattr(resident, "compile_programs", whole)
  monkeypatch.setattr(resident, "_SECONDS", 0.0)
  monkeypatch.setattr(ResidentFeed, "_steps_per_call", 2)
  at_step(3)(monkeypatch, once(signal.SIGTERM))
  with pytest.raises(Stopped, match="saved step 3 of 9 in .* resumes the run"):
    session.train(digits(epochs=1.0), str(tmp_path))


def test_a_signal_during_the_last_save_changes_nothing(undisturbed, tmp_path, monkeypatch):
  during(checkpoint, "save")(monkeypatch, once(signal.SIGTERM))
  session.train(digits(), str(tmp_path))
  assert rows_of(tmp_path) == undisturbed


def test_signals_are_noted_while_the_block_lasts(capfd, monkeypatch):
  with catch_signals() as signals:
    signals.begun = True
    assert signals.action is RunAction.CONTINUE
    for number, action in ((signal.SIGTERM, RunAction.STOP), (signal.SIGUSR1, RunAction.REQUEUE)):
      os.kill(os.getpid(), number)
      deadline = time.monotonic() + 60
      while signals.action is not action and time.monotonic() < deadline:
        time.sleep(0.01)
      assert signals.action is action
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    assert signals.action is RunAction.REQUEUE  # a weaker one takes nothing back
  said = capfd.readouterr().err.splitlines()
  assert said[:2] == [
    "jaxspeed: SIGTERM: the run saves after this step and ends.",
    "jaxspeed: SIGUSR1: the run saves after this step and ends.",
  ]


def started(code):
  """A process that runs `code` behind the imports it needs."""
  imports = "import os, signal, sys, time\nfrom jaxspeed.cluster import signals, watchdog\n"
  return start("-c", imports + textwrap.dedent(code))


def ready(code):
  """`started`, once it has printed that it is ready."""
  process = started(code)
  assert process.stdout.readline() == "ready\n"
  return process


# A lock that is taken twice: no signal gets out of it, like a collective with a process that hangs.
STUCK = """
  import ctypes
  with signals.catch_signals() as signals:
    signals.begun = {begun}
    print("ready", flush=True)
    mutex = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def test_a_second_interrupt_ends_also_a_run_that_is_stuck():
  process = ready(STUCK.format(begun=True))
  process.send_signal(signal.SIGINT)
  assert "a second Ctrl-C ends it at once" in process.stderr.readline()
  process.send_signal(signal.SIGINT)  # within half a second: the same one, from a launcher
  time.sleep(0.7)
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  out, err = process.communicate(timeout=120)
  assert process.returncode == INTERRUPTED and "ended at once; the newest checkpoint stays" in err


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, DONE), (signal.SIGUSR1, REQUEUE)])
def test_with_nothing_to_save_a_signal_ends_at_once(number, code):
  process = ready(STUCK.format(begun=False))
  process.send_signal(number)
  out, err = process.communicate(timeout=120)
  assert process.returncode == code and "ended before the first step of this start" in err


WATCHED = """
  with watchdog.watchdog(0.8):
    {block}
    print("alive", flush=True)
"""


@pytest.mark.parametrize(
  "block, code",
  [
    ("time.sleep(30)", LOST_PEER),
    ("[(time.sleep(0.1), watchdog.heartbeat()) for _ in range(20)]", DONE),
    ("with watchdog.watchdog_paused(): time.sleep(2)", DONE),
  ],
)
def test_the_watchdog_ends_what_stands_still(block, code):
  process = started(WATCHED.format(block=block))
  out, err = process.communicate(timeout=120)
  assert process.returncode == code, err
  assert ("alive" in out) == (code == DONE)
  if code == LOST_PEER:
    assert "made no progress for 0.8 s" in err and 'File "<string>", line' in err
    assert "another process" not in err and "perhaps a device or the disk does not answer" in err


def test_a_process_that_was_stopped_has_not_stood_still():
  # Ctrl-Z and fg, scontrol suspend and resume.
  block = "print('ready', flush=True); [(time.sleep(0.1), watchdog.heartbeat()) for _ in range(15)]"
  process = ready(WATCHED.format(block=block))
  process.send_signal(signal.SIGSTOP)
  time.sleep(2.5)
  process.send_signal(signal.SIGCONT)
  out, err = process.communicate(timeout=120)
  assert process.returncode == DONE and "alive" in out, err
