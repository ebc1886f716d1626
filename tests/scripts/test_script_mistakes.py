"""Scripts refuse a mistake before they measure anything, with a sentence and exit code 2."""

import json
import subprocess
import sys

import gpu_day
import pytest
from commands import ROOT, environment

from jaxspeed.errors import UserError


@pytest.mark.parametrize(
  "script, arguments, message",
  [
    ("bench_cifar", [], "--config=FILE.py names the recipe to time"),
    ("bench_cifar", ["--config=configs/imagenet18.py:1"], "config.data.feed='stream': only sets"),
    ("bench_resnet50", ["--frameworks=tensorflow"], "choose from jaxspeed, torch"),
    ("bench_resnet50", ["--depth=34"], "choose 18 or 50"),
    ("bench_startup", ["--config=quickstart", "--out=nowhere/a.json"], "nowhere/a.json cannot be"),
    ("profile_step", ["--config=configs/cifar10.py", "--for=h200"], "--for=h200"),
    ("profile_step", [], "--config is missing: name a recipe"),
  ],
)
def test_a_mistake_is_refused(script, arguments, message):
  done = subprocess.run(
    [sys.executable, f"scripts/{script}.py", *arguments],
    cwd=ROOT,
    env=environment() | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 2, done.stderr
  assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--parts=cifar11"], "choose from cifar10, cifar10_muon,"),
    (["--data=nowhere"], "--data=nowhere: there is no such file or folder"),
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


@pytest.mark.parametrize("content", ['{"rows": [', "{}"])
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
