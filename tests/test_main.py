"""`jaxspeed COMMAND`: the commands, their help, and a sentence for one that there is not."""

import contextlib
import io
import sys

import pytest
from in_process import fresh_flags

from jaxspeed.__main__ import commands, main


def jaxspeed(monkeypatch, *arguments):
  """Exit code, standard output and standard error of `jaxspeed ARGUMENTS`."""
  out, err, code = io.StringIO(), io.StringIO(), 0
  monkeypatch.setattr(sys, "argv", ["jaxspeed", *arguments])
  with fresh_flags(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      main()
    except SystemExit as error:
      code = error.code or 0
  return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_commands(arguments, monkeypatch):
  found = commands()
  assert {"train", "evaluate", "predict", "prepare", "plan", "scaling"} <= set(found)
  assert not {"errors", "files", "__main__", "run", "library"} & set(found)
  code, out, err = jaxspeed(monkeypatch, *arguments)
  assert (code, err) == (0, "") and out.startswith("usage: jaxspeed COMMAND")
  for name, does in found.items():
    assert f"{name} " in out and does in out and does.endswith(".") and len(does) < 120


def test_a_command_gets_its_flags(monkeypatch):
  code, out, err = jaxspeed(monkeypatch, "plan", "--config=quickstart", "--config.epochs=2")
  assert (code, err) == (0, "") and "quickstart: 30 steps" in out
  code, out, _ = jaxspeed(monkeypatch, "plan", "--help")
  assert code == 0 and out.startswith("Prints the plan of a config") and "--parameters" in out


def test_an_unknown_command_is_one_sentence(monkeypatch):
  sentence = "jaxspeed: there is no command 'trian': did you mean train?\n"
  assert jaxspeed(monkeypatch, "trian") == (2, "", sentence)
  code, out, err = jaxspeed(monkeypatch, "zzz")
  assert (code, out, err.count("\n")) == (2, "", 1) and "choose one of doctor, evaluate, " in err
