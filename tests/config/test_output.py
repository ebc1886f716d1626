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
  if name == "leave": sys.exit("enough of this")
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


UNFORESEEN = "jaxspeed: an unexpected error ended this command, KeyError ('unforeseen')"


@pytest.mark.parametrize(
  "name, code, sentence",
  [
    ("mistake", MISTAKE, r"jaxspeed: a mistake\x1b[2J with\nlines."),
    ("fault", FAULT, UNFORESEEN + ": the traceback is in {path}."),
    ("interrupt", INTERRUPTED, "jaxspeed: stopped by Ctrl-C."),
    ("leave", 1, "enough of this"),
  ],
)
def test_an_end_is_one_line_without_control_characters(name, code, sentence, tmp_path):
  found, _, errors = shell(">/dev/null", name, TMPDIR=str(tmp_path))
  (path,) = [*tmp_path.iterdir()] or [None]
  assert (found, errors) == (code, ["to the end", sentence.replace("{path}", str(path))])
  if path:
    assert path.read_text().rstrip().endswith("KeyError: 'unforeseen'")


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


def test_a_fault_names_ones_own_line_and_a_traceback_where_there_is_room(
  tmp_path, capsys, monkeypatch
):
  (tmp_path / "mine.py").write_text("def broken():\n  raise KeyError('unforeseen')\n")
  with pytest.raises(KeyError) as caught:
    runpy.run_path(str(tmp_path / "mine.py"))["broken"]()
  monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path))
  place = f"{UNFORESEEN}, in {tmp_path}/mine.py, line 2"
  for file, where in (
    (tmp_path / "traceback_3.txt", f"the traceback is in {tmp_path}/traceback_3.txt."),
    (tmp_path / "absent" / "a.txt", f"the traceback is in {tmp_path}/jaxspeed_{os.getpid()}.txt."),
  ):
    output.report(caught.value, file)
    assert capsys.readouterr().err == f"{place}: {where}\n"
  assert (tmp_path / "traceback_3.txt").read_text().endswith("KeyError: 'unforeseen'\n")
  monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path / "absent"))
  output.report(ValueError("first\nsecond"), tmp_path / "absent" / "a.txt")
  said = "ended this command, ValueError (first): there is no room for the traceback.\n"
  assert capsys.readouterr().err.endswith(said)


def test_what_a_library_says_is_held(capfd):
  with pytest.raises(UserError), output.held():
    os.write(2, b"noise\n")
    raise UserError("failed")
  output.write_error("after")
  assert capfd.readouterr().err == "jaxspeed: after\n"
