"""Mistakes in a call of the GPU day, and damage in its folder, are told in a sentence."""

import importlib.metadata
import json
import os
import subprocess
import sys

import gpu_day
import gpu_machine
import pytest
from commands import ROOT, environment


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--parts=cifar11"], "--parts=cifar11: there are cifar10, cifar10_muon,"),
    (["--minutes=0"], "--minutes=0: give a number above 0, and at most 10000."),
    (["--minutes=1e30"], "--minutes=1e+30: give a number above 0, and at most 10000."),
    (["--minutes=nan"], "--minutes=nan: give a number above 0, and at most 10000."),
    (["--minutes=ten"], "argument --minutes: invalid float value: 'ten'; see --help"),
    (["--data=nowhere"], "--data=nowhere: there is no such file or folder"),
    ([f"--data={'a' * 5000}"], ": there is no such file or folder"),
    (["--colour"], "unrecognized arguments: --colour"),
  ],
)
def test_mistakes_are_told_in_a_sentence(arguments, message, call, tmp_path):
  code, _, out, err = call(*arguments)
  assert (code, out) == (2, "") and not (tmp_path / "out").exists()
  assert err.startswith("jaxspeed: ") and message in err and err.count("\n") == 1


def test_a_folder_that_cannot_be_used_is_told_in_a_sentence(parts, capsys, tmp_path):
  parts(a=("done", {}))
  (tmp_path / "file").touch()
  assert gpu_day.main([f"--out={tmp_path / 'file'}"]) == 2
  err = capsys.readouterr().err
  assert err.startswith(f"jaxspeed: --out={tmp_path / 'file'}: ") and "name a folder" in err


MACHINE = {"device": "", "gpu": "", "versions": {}, "commit": ""}
ENTRY = {"toy": False, "title": "", "script": "bench_allreduce.py", "how": {}, "state": "done"}
WHOLE = {"gpu_day": ENTRY | {"reason": "", "machine": MACHINE}}


@pytest.mark.parametrize(
  "content",
  [
    b"",
    b'{"rows": [',
    b"\xff",
    b"[" * 100_000,
    b"null",
    {},
    {"gpu_day": ENTRY},
    WHOLE | {"what": "", "rows": [{"size": 1}]},
    {"gpu_day": WHOLE["gpu_day"] | {"script": "os.py"}, "what": ""},
  ],
)
def test_a_damaged_file_of_a_part_is_told_and_measured_anew(content, parts, call, tmp_path):
  parts(a=("go", {}), b=("go", {}))
  call()
  folder = tmp_path / "out" / "gpu_day"
  row = {"megabytes": 1, "milliseconds": {"mean": 2.0, "ci95": None}, "gigabytes_per_s": 3.0}
  report = json.loads((folder / "b.json").read_text())
  (folder / "b.json").write_text(json.dumps(report | {"rows": [row]}))
  data = content if isinstance(content, bytes) else json.dumps(content).encode()
  (folder / "a.json").write_bytes(data)
  code, _, out, _ = call("--table")
  assert code == 1 and "| all-reduce of 1 MB over 1 devices | 2.000 ms, 3.0 GB/s |" in out
  assert "- a: gpu_day/a.json cannot be read (it is damaged): the next call measures" in out
  assert call()[:2] == (0, {"a": "done", "b": "done"}) and call("--table")[0] == 0


def test_a_failed_part_of_a_dry_run_says_where_its_log_is(parts, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(gpu_day.tempfile, "tempdir", str(tmp_path))
  monkeypatch.setattr(gpu_day, "_STARTED", gpu_day.time.monotonic())
  parts(a=("fail", {"toy": ("fail",)}))
  assert gpu_day.main(["--dry_run"]) == 1
  (log,) = tmp_path.rglob("a.log")
  assert "no kernel image" in log.read_text() and str(log.parent) in capsys.readouterr().out


def test_a_full_standard_output_is_a_sentence(tmp_path):
  script = [sys.executable, str(ROOT / "scripts/gpu_day.py"), "--table", f"--out={tmp_path}"]
  with open("/dev/full", "w") as full:
    done = subprocess.run(
      [*script, "--dry_run"], stdout=full, stderr=subprocess.PIPE, text=True,
      env=environment() | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
  assert done.returncode == 2
  assert done.stderr.startswith("jaxspeed: [Errno 28] ") and done.stderr.count("\n") == 1


def test_missing_packages_are_named_with_the_lines_that_bring_them(call, monkeypatch):
  version = importlib.metadata.version

  def without(name):
    if name in ("pydantic", "google-crc32c", "jax", "clu"):  # the last is not needed
      raise importlib.metadata.PackageNotFoundError
    return version(name)

  monkeypatch.setattr(importlib.metadata, "version", without)
  code, _, out, err = call("--dry_run")  # on a CPU, for which NVIDIA's packages are of no use
  assert (code, out) == (2, "") and "cuda" not in err and "wheels" not in err
  assert err.startswith("jaxspeed: jax, google-crc32c, pydantic missing: run `")
  assert err.endswith(f" -m pip install -e {gpu_machine.ROOT}`.\n")
  code, _, out, err = call()
  # With the least versions, and every tag that JAX's and NVIDIA's wheels have.
  needed = "'jax[cuda13]>=0.10.2' 'google-crc32c>=1.6' 'pydantic>=2.10'"
  assert (code, out) == (2, "") and err.count(needed) == 3
  assert "`pip download -d wheels --only-binary=:all:" in err
  for tag in ("manylinux2014", "manylinux_2_25", "manylinux_2_27", "manylinux_2_28"):
    assert f"--platform={tag}_x86_64" in err
  assert f"--no-index --find-links=wheels {needed}`." in err


def test_a_cpu_is_refused(monkeypatch):
  code = 'print(\'["cpu", "cpu", 1]\')'
  monkeypatch.setattr(gpu_machine, "_JAX", code)
  monkeypatch.setattr(gpu_machine, "_TORCH", "print(False)")
  with pytest.raises(gpu_machine.Mistake, match="JAX sees no GPU: install .* or try --dry_run"):
    gpu_machine.probe(False)
  monkeypatch.setattr(gpu_machine, "_JAX", "raise SystemExit('no CUDA')")
  with pytest.raises(gpu_machine.Mistake, match="JAX does not start: no CUDA"):
    gpu_machine.probe(False)
  monkeypatch.setattr(gpu_machine, "_JAX", code.replace('"cpu", "cpu", 1', '"gpu", "A100", 8'))
  assert gpu_machine.probe(False) == gpu_machine.Machine("8 x A100", 8, "PyTorch sees no GPU")


def test_clocks_are_read_where_there_are_any(tmp_path, monkeypatch):
  tool = tmp_path / "nvidia-smi"
  tool.write_text("#!/bin/sh\necho '1980, 2619, 612.3, 58'\necho '345, 2619, 70.1, 31'\n")
  tool.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
  assert gpu_machine.sample_clocks() == [1980.0, 2619.0, 612.3, 58.0]
  tool.write_text("#!/bin/sh\necho '[N/A], [N/A], [N/A], [N/A]'\n")
  assert gpu_machine.sample_clocks() is None
