"""Mistakes in a call of the GPU day, and damage in its folder, are told in a sentence."""

import json
import os
import subprocess
import sys

import gpu_day
import pytest
from commands import ROOT, environment

from jaxspeed.errors import UserError


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--parts=cifar11"], "choose from cifar10, cifar10_muon,"),
    (["--minutes=0"], "--minutes"),
    (["--data=nowhere"], "--data=nowhere: there is no such file or folder"),
    (["--peer=nowhere"], "--peer=nowhere: there is no such file or folder"),
    (["more"], "more"),
  ],
)
def test_mistakes_are_told_in_a_sentence(arguments, message, call, tmp_path):
  code, _, out, err = call(*arguments)
  assert (code, out) == (2, "") and not (tmp_path / "out").exists()
  assert err.startswith("jaxspeed: ") and message in err and err.count("\n") == 1


def test_a_folder_that_cannot_be_used_is_told_in_a_sentence(parts, call, tmp_path):
  parts(a=("done", {}))
  (tmp_path / "file").touch()
  code, _, _, err = call(f"--out={tmp_path / 'file'}")
  assert code == 2 and err.startswith(f"jaxspeed: --out={tmp_path / 'file'}: ")
  assert "name a folder" in err


@pytest.mark.parametrize("content", ["", '{"rows": [', "null", "{}"])
def test_a_part_whose_file_cannot_be_read_is_measured_anew(content, parts, call, tmp_path):
  parts(a=("go", {}), b=("go", {}))
  call()
  folder = tmp_path / "out" / "gpu_day"
  row = ["all-reduce of 1 MB over 1 devices", "2.000 ms, 3.0 GB/s"]
  report = json.loads((folder / "b.json").read_text())
  (folder / "b.json").write_text(json.dumps(report | {"said": [row]}))
  (folder / "a.json").write_text(content)
  code, _, out, _ = call("--table")
  assert code == 0 and "| all-reduce of 1 MB over 1 devices | 2.000 ms, 3.0 GB/s |" in out
  assert "- a: not run: no call has come to it" in out
  assert call()[:2] == (0, {"a": "done", "b": "done"})


def test_missing_packages_are_a_sentence(tmp_path):
  (tmp_path / "jax.py").write_text("import a_module_that_nobody_has")
  done = subprocess.run(
    ["bash", str(ROOT / "scripts/gpu_day.sh"), "--table"],
    env=environment() | {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)},
    capture_output=True,
    text=True,
  )
  # The checkout comes first on the path, but has no jax.
  assert done.returncode == 2 and "a_module_that_nobody_has" in done.stderr
  assert "[cuda13]" in done.stderr and done.stderr.count("\n") == 1


def test_a_cpu_is_refused(monkeypatch):
  code = 'print(\'["cpu", "cpu", 1]\')'
  monkeypatch.setattr(gpu_day, "_JAX", code)
  monkeypatch.setattr(gpu_day, "_TORCH", "print(False)")
  with pytest.raises(UserError, match="JAX sees no GPU: install .* or try --dry_run"):
    gpu_day.probe(False)
  monkeypatch.setattr(gpu_day, "_JAX", "raise SystemExit('no CUDA')")
  with pytest.raises(UserError, match="JAX does not start: no CUDA"):
    gpu_day.probe(False)
  monkeypatch.setattr(gpu_day, "_JAX", code.replace('"cpu", "cpu", 1', '"gpu", "A100", 8'))
  assert gpu_day.probe(False) == gpu_day.Machine("8 x A100", 8, "PyTorch sees no GPU")


def test_clocks_are_read_where_there_are_any(tmp_path, monkeypatch):
  tool = tmp_path / "nvidia-smi"
  tool.write_text("#!/bin/sh\necho '1980, 2619, 612.3, 58'\necho '345, 2619, 70.1, 31'\n")
  tool.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
  assert gpu_day.sample_clocks() == [1980.0, 2619.0, 612.3, 58.0]
  tool.write_text("#!/bin/sh\necho '[N/A], [N/A], [N/A], [N/A]'\n")
  assert gpu_day.sample_clocks() == []
