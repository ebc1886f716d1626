"""Mistakes in a call of the GPU day, and damage in its folder, are told in a sentence."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys

import pytest
from commands import ROOT, environment
from fake_gpu_day import H100

sys.path.insert(0, str(ROOT / "scripts"))
gpu_day = importlib.import_module("gpu_day")
gpu_flags = importlib.import_module("gpu_flags")
gpu_machine = importlib.import_module("gpu_machine")
gpu_parts = importlib.import_module("gpu_parts")
gpu_summary = importlib.import_module("gpu_summary")


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--parts=cifar11"], "--parts=cifar11: there are cifar10, resnet50_224,"),
    (["--minutes=0"], "--minutes=0: give a number above 0, and at most 10000."),
    (["--minutes=1e30"], "--minutes=1e+30: give a number above 0, and at most 10000."),
    (["--minutes=nan"], "--minutes=nan: give a number above 0, and at most 10000."),
    (["--minutes=ten"], "argument --minutes: invalid float value: 'ten'; see --help"),
    (["--data=nowhere"], "--data=nowhere: there is no such file or folder"),
    ([f"--data={'a' * 5000}"], ": there is no such file or folder"),
    (["--parts=,"], "--parts names no part: there are cifar10, resnet50_224,"),
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
  assert capsys.readouterr().err == (
    f"jaxspeed: --out={tmp_path / 'file'}: Not a directory: name a folder to write to.\n"
  )


MACHINE = {"device": "", "gpu": "", "versions": {}, "commit": ""}
ENTRY = {"title": "", "script": "", "arguments": [], "how": {}, "state": "done", "reason": ""}


@pytest.mark.parametrize(
  "content, lack",
  [
    ("", "it is empty"),
    ('{"toy": false,\n "mach', "it is no JSON from line 2, column 2"),
    ("\udcff", "it is no text in UTF-8"),
    ("[" * 100_000, "it is nested too deeply"),
    ("null", "it is no JSON object"),
    ({}, "toy is missing"),
    ({"toy": False, "machine": 3, "parts": {}}, "machine has another type than gpu_day.py writes"),
    ({"toy": False, "machine": {}, "parts": {}}, "machine.device is missing"),
    ({"toy": False, "machine": MACHINE, "parts": {"a": None}}, "parts.a is no JSON object"),
    (
      {"toy": False, "machine": MACHINE, "parts": {"a": {"title": ""}}},
      "parts.a.script is missing",
    ),
    (
      {"toy": False, "machine": MACHINE, "parts": {"a": ENTRY | {"how": {"peers": [[]]}}}},
      "parts.a.how.peers is no list of names",
    ),
  ],
)
def test_a_summary_that_cannot_be_read_says_what_it_lacks(content, lack, parts, capsys, tmp_path):
  parts(a=("done", {}))
  text = content if isinstance(content, str) else json.dumps(content)
  (tmp_path / "gpu_day.json").write_bytes(text.encode(errors="surrogateescape"))
  for flags in (["--table"], []):
    assert gpu_day.main([*flags, f"--out={tmp_path}"]) == 2
    assert capsys.readouterr().err == (
      f"jaxspeed: {tmp_path / 'gpu_day.json'} cannot be read ({lack}): delete it, and the next "
      "call makes it of the parts' files; or name another --out.\n"
    )


def test_without_a_summary_the_files_of_parts_count_as_done(parts, call, tmp_path):
  parts(a=("go", {}), b=("go", {}), c=("hang", {"most": 0.05}))
  call()
  folder = tmp_path / "out" / "gpu_day"
  (tmp_path / "out" / "gpu_day.json").unlink()
  (folder / "b.json").write_text('{"gpu_day": {"machine": ')
  before = (folder / "a.json").read_text()
  code, _, out, _ = call("--table")
  assert code == 0 and "- c, part c: cut off: after 0.1 min" in out
  assert not (tmp_path / "out" / "gpu_day.json").exists()
  parts(a=("fail", {}), b=("go", {}), c=("go", {}))
  code, states, out, _ = call()
  assert (code, states) == (0, {"a": "done", "b": "done", "c": "done"})
  assert "gpu_day.json is missing: it is made of the files of a, c." in out
  assert out.index("[1/2] b:") < out.index("[2/2] c:")
  assert (folder / "a.json").read_text() == before
  (tmp_path / "out" / "gpu_day.json").unlink()
  assert call("--again", "--parts=a")[1] == {"a": "failed", "b": "done", "c": "done"}


def test_files_of_parts_of_another_machine_or_size_are_refused(parts, call, tmp_path, monkeypatch):
  parts(a=("go", {}), b=("go", {}))
  call()
  summary, file = tmp_path / "out" / "gpu_day.json", tmp_path / "out" / "gpu_day" / "b.json"
  summary.unlink()
  other = dataclasses.replace(H100, device="2 x")
  monkeypatch.setattr(gpu_machine, "probe", lambda dry_run: other)
  code, _, _, err = call()
  assert code == 2 and "gpu_day has figures of 1 x NVIDIA H100 80GB HBM3, and this is 2 x" in err
  monkeypatch.setattr(gpu_machine, "probe", lambda dry_run: H100)
  code, _, _, err = call("--dry_run")
  assert code == 2 and "has figures of full size, and these are others: name another folder" in err
  report = json.loads(file.read_text())
  report["gpu_day"]["machine"]["device"] = "2 x"
  file.write_text(json.dumps(report))
  with pytest.raises(gpu_machine.Mistake, match="a.json has figures of 1 x .*b.json of 2 x: move"):
    gpu_summary.read(tmp_path / "out")
  file.unlink()
  assert call("--parts=a")[:2] == (0, {"a": "done"})


@pytest.mark.parametrize("name", ["a.json", "a.log", "a.unfinished.json"])
def test_a_folder_in_the_place_of_a_file_is_told_before_a_part_is_measured(
  name, parts, call, tmp_path
):
  parts(a=("go", {}))
  folder = tmp_path / "out" / "gpu_day"
  (folder / name).mkdir(parents=True)
  code, states, out, err = call("--again")
  assert (code, states, out) == (2, {}, "")
  assert err == (
    f"jaxspeed: {folder / name} is no regular file: move it away, or name another --out.\n"
  )
  assert [path.name for path in folder.iterdir()] == [name]


def test_help_breaks_no_name_of_a_part(capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", "44")
  with pytest.raises(SystemExit):
    gpu_flags.parse_flags(["--help"], "What it does.")
  words = capsys.readouterr().out.replace(",", " ").split()
  assert {part.name for part in gpu_parts.PARTS} <= set(words)


@pytest.mark.parametrize("content", [None, '{"rows": [', "[]", "{}", '{"rows": [{"size": 1}]}'])
def test_a_damaged_file_of_a_part_is_told_in_the_table(content, parts, call, tmp_path):
  parts(a=("go", {}), b=("go", {}))
  call()
  for name in "ab":
    file = tmp_path / "out" / "gpu_day" / f"{name}.json"
    report = json.loads(file.read_text())
    row = {"megabytes": 1, "milliseconds": {"mean": 2.0, "ci95": None}, "gigabytes_per_s": 3.0}
    file.write_text(json.dumps(report | {"rows": [row]}))
  damaged = tmp_path / "out" / "gpu_day" / "a.json"
  damaged.unlink() if content is None else damaged.write_text(content)
  code, _, out, _ = call("--table")
  assert code == 1 and "| all-reduce of 1 MB over 1 devices | 2.000 ms, 3.0 GB/s |" in out
  why = "No such file or directory" if content is None else "it is damaged"
  line = f"- a: gpu_day/a.json cannot be read ({why}): measure it again with --parts=a --again"
  assert line in out and "`gpu_day/a.json`" not in out
  # A call that leaves it alone says so, too; for the other part all is well.
  assert [call(f"--parts={name}")[0] for name in "ab"] == [1, 0]
  assert call("--table", "--parts=b")[0] == 0
  assert call("--parts=a", "--again")[0] == 0


def test_a_dry_run_leaves_a_folder_of_its_own_only_if_a_part_failed(parts, tmp_path, monkeypatch):
  monkeypatch.setattr(gpu_day.tempfile, "tempdir", str(tmp_path / "temporary"))
  (tmp_path / "temporary").mkdir()
  parts(a=("go", {"toy": ("go",)}))
  assert gpu_day.main(["--dry_run"]) == 0
  assert list((tmp_path / "temporary").iterdir()) == []
  parts(a=("fail", {"toy": ("fail",)}))
  assert gpu_day.main(["--dry_run"]) == 1
  (folder,) = (tmp_path / "temporary").iterdir()
  assert "no kernel image" in (folder / "gpu_day" / "a.log").read_text()


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
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(
    gpu_machine.importlib.util,
    "find_spec",
    lambda name: None if name in ("pydantic", "google_crc32c", "jax") else find_spec(name),
  )
  code, _, out, err = call("--dry_run")  # on a CPU, for which NVIDIA's packages are of no use
  assert (code, out) == (2, "") and "cuda" not in err and "wheels" not in err
  assert err.startswith(f"jaxspeed: jax, pydantic, google-crc32c missing: run `{sys.executable} -m")
  assert err.endswith(f" -m pip install -e {gpu_machine.ROOT}`.\n")
  code, _, out, err = call()
  assert (code, out) == (2, "")
  assert err.startswith("jaxspeed: jax[cuda13], pydantic, google-crc32c missing: run `pip install ")
  assert "`pip download -d wheels --only-binary=:all:" in err
  assert "--no-index --find-links=wheels 'jax[cuda13]' pydantic google-crc32c`." in err


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
