"""Exports that SIGTERM ends."""

import os
import signal

from in_process import command

from jaxspeed.files import write_atomically
from jaxspeed.run import export as export_lib


def test_sigterm_removes_the_half_file(tmp_path, monkeypatch):
  def half(path, _):
    def content():
      yield b"half"
      signal.raise_signal(signal.SIGTERM)

    write_atomically(path, content())

  monkeypatch.setattr(export_lib, "check_place", half)
  done = command("export", "run", "--format=onnx", f"--out={tmp_path / 'a.onnx'}")
  assert done.returncode == 143
  assert os.listdir(tmp_path) == []
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
