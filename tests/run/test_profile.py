"""Which steps are traced, and what is said when none are."""

import types

import jax
import pytest
from in_process import command, mistake

from jaxspeed.errors import UserError
from jaxspeed.run.profile import Profile, check_steps, parse_steps


class Recorder:
  """Steps of epochs of three, with JAX's profiler replaced by a list of what it saw."""

  def __init__(self, monkeypatch):
    self.seen, self.said, self.on = [], [], False
    monkeypatch.setattr(jax.profiler, "start_trace", self.start)
    monkeypatch.setattr(jax.profiler, "stop_trace", self.stop)

  def start(self, *_, **__):
    self.on = True

  def stop(self):
    self.on = False

  def feed(self, step, end, whole):
    while step < end:
      first, step = step + 1, end if whole else step + 1
      if self.on:
        self.seen += range(first, step + 1)
      yield types.SimpleNamespace(step=step, carry=None)

  def run(self, profile, *, step=0, end=9, whole=False):
    with profile.open():
      while step < end:
        until = 3 * (step // 3 + 1)
        for output in profile.traced(self.feed(step, until, whole), None, step, until):
          step = output.step
    assert not self.on
    return self.seen


def profile_of(steps, folder, say, whole=False):
  hooks, feed = types.SimpleNamespace(profile=steps), types.SimpleNamespace(whole_epochs=whole)
  screen = types.SimpleNamespace(line=say)
  return Profile(types.SimpleNamespace(hooks=hooks, folder=folder, feed=feed, screen=screen))


@pytest.fixture
def recorder(monkeypatch):
  return Recorder(monkeypatch)


@pytest.mark.parametrize(
  "steps, start, whole, traced, said",
  [
    ((1, 1), 0, False, [1], "trace of steps 1 to 1 is in"),
    ((2, 5), 0, False, [2, 3, 4, 5], "trace of steps 2 to 5 is in"),
    ((9, 9), 0, False, [9], "trace of steps 9 to 9 is in"),
    ((2, 5), 4, False, [5], "trace of steps 5 to 5 is in"),
    ((2, 5), 5, False, [], "took none of the steps 2 to 5"),
    ((3, 4), 0, True, [1, 2, 3, 4, 5, 6], "trace of steps 1 to 6 is in"),
    ((4, 6), 0, True, [4, 5, 6], "trace of steps 4 to 6 is in"),
    (None, 0, False, [], ""),
  ],
)
def test_the_steps_that_are_traced(recorder, tmp_path, steps, start, whole, traced, said):
  profile = profile_of(steps, tmp_path, recorder.said.append, whole)
  assert recorder.run(profile, step=start, whole=whole) == traced
  assert (said in "\n".join(recorder.said)) and len(recorder.said) == (steps is not None)


def test_a_run_that_ends_early_writes_what_it_has(recorder, tmp_path):
  assert recorder.run(profile_of((5, 8), tmp_path, recorder.said.append), end=6) == [5, 6]
  assert "a trace of steps 5 to 6 is in" in recorder.said[-1]
  recorder.run(profile_of((8, 9), tmp_path, recorder.said.append), end=6)
  assert recorder.said[-1] == "no trace is written: this start took none of the steps 8 to 9"


@pytest.mark.parametrize(
  "text", ["5:3", "0:2", "-1:3", "a:b", "7", ":", "3:", "1:2:3", "1:٣", "1.5:2"]
)
def test_words_that_name_no_steps_are_a_mistake(text, tmp_path):
  assert parse_steps("3:7") == (3, 7)
  with pytest.raises(UserError, match="name the first and the last step to trace, counted from 1"):
    parse_steps(text)


def test_a_mistake_comes_before_anything_is_written(tmp_path):
  train = ("train", "--config=quickstart", f"--workdir={tmp_path / 'a'}")
  assert mistake(*train, "--profile=9:3").startswith("--profile=9:3: name the first")
  assert not (tmp_path / "a").exists()
  check_steps((1, 9), 9)
  check_steps(None, 9)
  with pytest.raises(UserError, match="steps 3 to 10 cannot be traced .* the run has 9 steps"):
    check_steps((3, 10), 9)
  assert "--profile: FIRST:LAST" in command("train", "--help").stdout
