"""Exports that SIGTERM ends."""

import os
import signal

import pytest
from in_process import command
from toy import toy_config

from jaxspeed.files import write_atomically
from jaxspeed.run import evaluation, restore
from jaxspeed.run import export as export_lib


@pytest.fixture
def half_export(monkeypatch):
  """An export that gets SIGTERM after half of its file."""

  def half(folder, path, **_):
    def content():
      yield b"half"
      signal.raise_signal(signal.SIGTERM)

    write_atomically(path, content())

  monkeypatch.setattr(export_lib, "export", half)


def check_nothing_left(done, folder):
  assert done.returncode == 143
  assert os.listdir(folder) == []
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_removes_the_half_file(half_export, tmp_path):
  done = command("export", "run", "--format=onnx", f"--out={tmp_path / 'a.onnx'}")
  check_nothing_left(done, tmp_path)


def test_sigterm_removes_the_half_file_of_an_evaluation(half_export, tmp_path, monkeypatch):
  monkeypatch.setattr(restore, "load_config", lambda folder: toy_config())
  monkeypatch.setattr(evaluation, "evaluate", lambda folder, **_: [])
  monkeypatch.setattr(export_lib, "check_export", lambda folder, path: None)
  done = command("evaluate", "--workdir=run", "--step=1", f"--export={tmp_path / 'a.safetensors'}")
  check_nothing_left(done, tmp_path)
