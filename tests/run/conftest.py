"""A finished run on digits, for all tests of runs."""

import pytest
from toy import digits

from jaxspeed.run.session import train


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
  """A finished run's folder and what `train` returned."""
  folder = tmp_path_factory.mktemp("runs") / "a"
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAXSPEED_COMPILE_CACHE", str(folder.with_name("programs")))  # it compiles all
    return folder, train(digits(), str(folder))
