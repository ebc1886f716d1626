"""Runs of jobs with an executor that remembers what it is asked."""

import pytest
from fake_jobs import QUICKSTART, Fake

from jaxspeed.launch import Run


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
  """The key that seals jobs is not that of who tests."""
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture
def fake():
  """The fake executor with an empty memory."""
  Fake.asked, Fake.said, Fake.dies_after = [], {}, None
  return Fake


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
