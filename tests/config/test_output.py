"""A command's output that is closed, full, cut off or of few characters, and its unforeseen end."""

import os
import pathlib
import runpy
import subprocess
import sys

import pytest

from jaxspeed.config import output
from jaxspeed.errors import FAULT, INTERRUPTED, MISTAKE, UserError

# A command that prints more than a pipe or a buffer holds, and ends as its first argument says.
COMMAND = """
import sys
from jaxspeed.config import flags, output
from jaxspeed.errors import UserError
name, needed = sys.argv.pop(1), sys.argv.pop(1) == "needed"
def main(arguments):
  for _ in range(30_000):
    print("caf\\u00e9 \\udcff")
  print("to the end", file=sys.stderr)
  if name == "mistake": raise UserError("a mistake\\x1b[2J with\\nlines.")
  if name == "fault": raise KeyError("unforeseen")
  if name == "interrupt": raise KeyboardInterrupt
flags.run(main, output_is_result=needed)
"""
FULL = "jaxspeed: standard output could not be written (No space left on device)"
CLOSED = "jaxspeed: standard output could not be written (it is closed)"


def shell(redirection, name="done", needed="needed", **environment):
  command = f'{sys.executable} -c "$COMMAND" {name} {needed} {redirection}'
  done = subprocess.run(
    ["bash", "-o", "pipefail", "-c", command],
    cwd=pathlib.Path(__file__).parents[2],
    env=os.environ | {"COMMAND": COMMAND} | environment,
    capture_output=True,
    text=True,
    errors="replace",
  )
  return done.returncode, done.stdout, done.stderr.splitlines()


@pytest.mark.parametrize(
  "redirection, name, needed, code, said",
  [
    ("| head -1", "done", "needed", 0, []),
    (">/dev/full", "done", "needed", MISTAKE, [f"{FULL}: send it to another place."]),
    (">&-", "done", "not", 0, [f"{CLOSED}; the work itself is done."]),
    (">/dev/null <&-", "done", "needed", 0, []),
    ("2>&-", "mistake", "needed", MISTAKE, None),
    ("2>/dev/full", "fault", "needed", FAULT, None),
    ("2> >(true)", "interrupt", "needed", INTERRUPTED, None),
    (">&- 2>&- <&-", "mistake", "needed", MISTAKE, None),
  ],
)
def test_a_command_goes_on_where_its_output_is_taken_no_more(
  redirection, name, needed, code, said, tmp_path
):
  returned, _, errors = shell(redirection, name, needed, TMPDIR=str(tmp_path))
  assert returned == code and (said is None or errors == ["to the end", *said])


def test_characters_that_an_encoding_lacks_are_escaped():
  code, text, errors = shell("", LC_ALL="C", PYTHONIOENCODING="ascii")
  assert (code, text.splitlines()[0], errors) == (0, "caf\\xe9 \\udcff", ["to the end"])
  assert shell("", PYTHONIOENCODING="utf-8")[1].startswith("café \\udcff\n")


@pytest.mark.parametrize(
  "name, code, sentence",
  [
    ("mistake", MISTAKE, r"jaxspeed: a mistake\x1b[2J with\nlines."),
    (
      "fault",
      FAULT,
      "jaxspeed: an unexpected error ended this command, KeyError ('unforeseen'): the traceback is "
      "in {path}.",
    ),
    ("interrupt", INTERRUPTED, "jaxspeed: stopped by Ctrl-C."),
  ],
)
def test_an_end_is_one_line_without_control_characters(name, code, sentence, tmp_path):
  found, _, errors = shell(">/dev/null", name, TMPDIR=str(tmp_path))
  (path,) = [*tmp_path.iterdir()] or [None]
  assert (found, errors) == (code, ["to the end", sentence.replace("{path}", str(path))])
  if path:
    assert path.read_text().rstrip().endswith("KeyError: 'unforeseen'")


def test_an_unexpected_error_names_the_line_of_ones_own_file(tmp_path, monkeypatch, capsys):
  (tmp_path / "mine.py").write_text("def broken():\n  raise KeyError('unforeseen')\n")
  monkeypatch.chdir(tmp_path)
  with pytest.raises(KeyError) as caught:
    runpy.run_path("mine.py")["broken"]()
  output.report(caught.value, tmp_path / "traceback")
  assert "KeyError ('unforeseen'), in mine.py, line 2: the traceback" in capsys.readouterr().err


# A finder that presses Ctrl-C when jaxlib is looked for: jaxlib makes an ImportError of it.
PRESS = """
import signal, sys

class Press:
  def find_spec(self, name, *_):
    if name == "jaxlib":
      signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Press())
"""


def test_ctrl_c_while_jax_is_imported_is_a_sentence(tmp_path):
  (tmp_path / "sitecustomize.py").write_text(PRESS)
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(
    [sys.executable, "-m", "jaxspeed.train", "--config=quickstart"],
    env=os.environ | {"PYTHONPATH": f"{tmp_path}:{root}"},
    capture_output=True,
    text=True,
  )
  assert (done.returncode, done.stdout) == (INTERRUPTED, "")
  assert done.stderr == "jaxspeed: stopped by Ctrl-C.\n"


def test_the_traceback_goes_to_the_folder_or_where_there_is_room(tmp_path, capsys, monkeypatch):
  error = ValueError("first line\nsecond")
  output.report(error, tmp_path / "traceback_3.txt")
  said = capsys.readouterr().err
  assert said.endswith(f"(first line): the traceback is in {tmp_path / 'traceback_3.txt'}.\n")
  assert "ValueError: first line\nsecond" in (tmp_path / "traceback_3.txt").read_text()
  monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path))
  output.report(error, tmp_path / "absent" / "a.txt")
  assert f"the traceback is in {tmp_path}/jaxspeed_" in capsys.readouterr().err
  monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path / "absent"))
  output.report(error, tmp_path / "absent" / "a.txt")
  assert "there is no room for the traceback." in capsys.readouterr().err


def test_what_a_library_says_is_held(capfd):
  with pytest.raises(UserError), output.held():
    os.write(2, b"noise\n")
    raise UserError("failed")
  output.write_error("after")
  assert capfd.readouterr().err == "jaxspeed: after\n"
