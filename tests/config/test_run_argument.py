"""A run's folder as the first argument of a command, or in --workdir."""

import os

import pytest

from jaxspeed.config.flags import positionals
from jaxspeed.config.run_argument import take_run
from jaxspeed.errors import UserError


@pytest.mark.parametrize(
  "words, arguments",
  [
    ("runs/a --config.epochs=3", ["runs/a"]),
    ("--noconfig.nesterov runs/a b", ["runs/a", "b"]),
    ("--config.data.path elsewhere runs/a", ["runs/a"]),
    ("runs/a -- --b", ["runs/a", "--b"]),
  ],
)
def test_the_values_of_overrides_are_not_arguments(words, arguments):
  assert [*positionals(["evaluate", *words.split()])] == arguments


def test_a_run_is_the_first_argument_or_the_workdir(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ("a", "b", "lr=1"):
    os.mkdir(name)
    (tmp_path / name / "config.json").touch()
    (tmp_path / name / "owner.json").touch()
  os.mkdir("photos")
  (tmp_path / "photos/config.json").touch()  # another program's
  assert take_run("a", ["photos"]) == ("a", ["photos"])
  assert take_run(None, ["a", "b"]) == ("a", ["b"])
  assert take_run(None, ["lr=1"]) == ("lr=1", [])
  assert take_run(None, ["none"]) == ("none", [])
  assert take_run(None, ["epochs=1"]) == (None, ["epochs=1"])
  assert take_run("a", ["photo.png"]) == ("a", ["photo.png"])
  assert take_run("a", [str(tmp_path / "a"), "b"]) == ("a", ["b"])
  assert take_run("a", []) == ("a", [])
  with pytest.raises(UserError, match="^--workdir=a and b are two runs: name one of them.$"):
    take_run("a", ["b"])
