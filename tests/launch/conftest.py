"""Runs of jobs with an executor that remembers what it is asked."""

import signal

import pytest
from fake_jobs import QUICKSTART, fake_executor

from jaxspeed.launch import Run


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
  """The key that seals jobs is not that of who tests."""
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def signals():
  """Those of the tests, again: a supervisor takes signals until its process ends."""
  numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
  before = {number: signal.getsignal(number) for number in numbers}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.fixture
def fake():
  with fake_executor() as kind:
    yield kind


@pytest.fixture
def root(tmp_path):
  return tmp_path / "runs"


@pytest.fixture
def make(fake, root):
  """Makes a run of jobs with these names, which differ in their seeds."""

  def make(names="abc", executor=None, name="run", overrides=None, **values):
    run = Run(name, executor=executor or fake(), root=root, check_data=False, **values)
    for seed, each in enumerate(names):
      run.job(QUICKSTART, {"seed": seed} | (overrides or {}), name=each)
    return run

  return make
