"""A finished run on digits, and its compiled programs, for all tests of runs."""

import pytest
from toy import digits

from jaxspeed.run.session import train


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
  return str(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def finished(cache, tmp_path_factory):
  """A finished run's folder and what `train` returned."""
  folder = tmp_path_factory.mktemp("runs") / "a"
  return folder, train(digits(cache), str(folder))
