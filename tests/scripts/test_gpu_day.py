"""A day on a GPU: what is measured first, what is kept of it, and what is said of the rest."""

import dataclasses
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from commands import ROOT, environment
from peer_script import PEER

sys.path.insert(0, str(ROOT / "scripts"))
gpu_day = importlib.import_module("gpu_day")
gpu_flags = importlib.import_module("gpu_flags")
gpu_machine = importlib.import_module("gpu_machine")
gpu_parts = importlib.import_module("gpu_parts")
gpu_summary = importlib.import_module("gpu_summary")
gpu_tables = importlib.import_module("gpu_tables")

H100 = gpu_machine.Machine("1 x NVIDIA H100 80GB HBM3", 1, "")
# A script that writes what it was called with, then does what its first argument says.
SCRIPT = """
import json, os, pathlib, sys, time
*arguments, out = sys.argv[1:]
report = {"what": "Fake.", "devices": 1, "rows": [], "arguments": arguments}
report |= {"accuracy": 0.1, "pid": os.getpid()}
pathlib.Path(out.removeprefix("--out=")).write_text(json.dumps(report))
print("one", "two", sep="\\n")
if arguments[0] == "fail": sys.exit("no kernel image is available")
if arguments[0] == "hang": time.sleep(60)
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
  """Sets the parts: their names, each with what it does and other fields."""
  script = tmp_path / "bench_allreduce.py"
  script.write_text(SCRIPT)
  monkeypatch.setattr(gpu_machine, "probe", lambda dry_run: H100)
  # The clock of a script starts when it is imported: here perhaps long before this test.
  monkeypatch.setattr(gpu_day, "_STARTED", time.monotonic())

  def set_parts(**does):
    made = [
      gpu_parts.Part(name, f"part {name}", str(script), (first,), **{"least": 0, "most": 1} | more)
      for name, (first, more) in does.items()
    ]
    monkeypatch.setattr(gpu_parts, "PARTS", tuple(made))

  return set_parts


@pytest.fixture
def call(tmp_path, capsys, monkeypatch):
  """Calls it; returns the exit code, the states, and both outputs."""

  def call(*arguments):
    monkeypatch.setattr(gpu_day, "_STARTED", time.monotonic())
    code = gpu_day.main([*arguments, f"--out={tmp_path / 'out'}"])
    entries = gpu_summary.read(tmp_path / "out").get("parts", {})
    out, err = capsys.readouterr()
    return code, {name: entry["state"] for name, entry in entries.items()}, out, err

  return call


def kept(tmp_path, name):
  return json.loads((tmp_path / "out" / "gpu_day" / f"{name}.json").read_text())


def test_what_is_done_is_kept_and_what_failed_comes_last(parts, call, tmp_path):
  parts(a=("fail", {}), b=("go", {}), c=("go", {"devices": 2}), d=("go", {"least": 99}))
  code, states, out, _ = call()
  assert code == 1
  assert states == {"a": "failed", "b": "done", "c": "not run", "d": "not run"}
  assert "- a, part a: failed: code 1: no kernel image is available, `gpu_day/a.log`" in out
  assert "- c, part c: not run: it needs 2 devices and there is 1" in out
  assert "- d, part d: not run: it needs 99 min and 9.8 of --minutes are left" in out
  told = kept(tmp_path, "b")["gpu_day"]
  assert told["state"] == "done" and told["machine"]["device"] == H100.device
  assert told["machine"]["versions"]["jax"] and "commit" in told["machine"]
  entry = gpu_summary.read(tmp_path / "out")["parts"]["a"]
  assert entry["last_lines"] == ["one", "two", "no kernel image is available"]
  # Mended, and with more time: parts that were not begun come first, and b stays as it is.
  before = (tmp_path / "out" / "gpu_day" / "b.json").stat().st_mtime_ns
  parts(a=("go", {}), b=("fail", {}), d=("go", {}))
  code, states, out, _ = call()
  assert (code, states) == (0, {"a": "done", "b": "done", "d": "done"})
  assert out.index("[1/2] d:") < out.index("[2/2] a:")
  assert (tmp_path / "out" / "gpu_day" / "b.json").stat().st_mtime_ns == before
  assert call("--again", "--parts=b")[1]["b"] == "failed"
  assert not list((tmp_path / "out").rglob("*unfinished*"))


def test_a_part_is_cut_off_at_its_limit_and_keeps_what_it_wrote(parts, call, tmp_path):
  parts(a=("hang", {"most": 0.05}), b=("go", {}))
  code, states, out, _ = call()
  assert (code, states) == (0, {"a": "cut off", "b": "done"})
  assert kept(tmp_path, "a")["gpu_day"]["reason"] == "after 0.1 min"
  assert "part a: cut off" in out


def test_nothing_begins_when_the_time_is_over(parts, call):
  parts(a=("go", {"least": 0.5}))
  assert call("--minutes=0.3")[1] == {"a": "not run"}


def test_noise_has_no_accuracy_and_other_data_are_measured_anew(parts, call, tmp_path, monkeypatch):
  monkeypatch.setattr(gpu_day, "write_noise", lambda folder, toy: folder)
  parts(a=("go", {"trains": True}))
  _, _, out, _ = call()
  arguments = kept(tmp_path, "a")["arguments"]
  assert arguments[1].startswith("--config.data.path=") and arguments[1].endswith("/noise")
  assert kept(tmp_path, "a")["gpu_day"]["how"] == {"data": "noise", "peers": []}
  assert "accuracy" not in kept(tmp_path, "a")
  data, peer = tmp_path / "set", tmp_path / "peer.py"
  data.mkdir()
  peer.write_text("")
  _, states, out, _ = call(f"--data={data}", f"--peer={peer}")
  assert "[1/1] a" in out
  report = kept(tmp_path, "a")
  assert report["arguments"][1:] == [f"--config.data.path={data}", f"--peer={peer}"]
  assert report["accuracy"] == 0.1
  # What can be committed has no path of this machine.
  assert report["gpu_day"]["arguments"] == ["go", "--config.data.path=DATA", "--peer=peer.py"]
  assert str(tmp_path) not in (tmp_path / "out" / "gpu_day.json").read_text()
  # Noise, or fewer peers, do not replace it.
  for fewer in ([f"--data={data}", f"--peer={peer}"], [f"--peer={peer}"], []):
    assert "[1/1] a" not in call(*fewer)[2]


def test_accuracies_of_noise_are_left_out():
  spread = {"mean": 2.0, "ci95": None, "n": 1}
  side = {"seconds": spread, "accuracy": spread, "runs": [{"seconds": 2.0, "accuracy": 0.1}]}
  starts = {"process_s": {"first": 60.0, "cached": [9.0], "to_target": [None], "accuracy": [0.1]}}
  report = {"config": "c", "target": 0.94, "starts": starts, "jaxspeed": side, "peers": {}}
  stripped = gpu_tables.without_accuracies(report)
  assert "accuracy" not in json.dumps(stripped) and "target" not in json.dumps(stripped)
  assert list(gpu_tables._of_runs(stripped)) == [
    ("`c`, start of the process to the result", "60.0 s with an empty cache, 9.0 s with it"),
    ("`c`, seconds of a run", "2.000 s (n = 1), on noise: no accuracy"),
  ]
  assert "to the target not reached s" in list(gpu_tables._of_runs(report))[0][1]


def test_noise_has_the_shapes_of_cifar10(tmp_path, monkeypatch):
  made = {}

  class Rng:
    def integers(self, low, high, shape, dtype):
      return np.broadcast_to(np.uint8(0), shape)

  monkeypatch.setattr(np.random, "default_rng", lambda seed: Rng())
  monkeypatch.setattr(np, "save", lambda path, array: made.update({path: array}))
  gpu_day.write_noise(tmp_path, toy=False)
  shapes = {str(path.relative_to(tmp_path)): array.shape for path, array in made.items()}
  assert shapes["train/images.npy"] == (50_000, 32, 32, 3) and shapes["val/labels.npy"] == (10_000,)


def test_without_pytorch_only_ours_is_measured(parts, call, tmp_path, monkeypatch):
  alone = dataclasses.replace(H100, torch="PyTorch sees no GPU")
  monkeypatch.setattr(gpu_machine, "probe", lambda dry_run: alone)
  parts(a=("go", {"torch": True}))
  out = call()[2]
  assert kept(tmp_path, "a")["arguments"] == ["go", "--frameworks=jaxspeed"]
  assert "- a: no comparison with PyTorch: PyTorch sees no GPU" in out
  assert "[1/1] a" not in call()[2]
  monkeypatch.setattr(gpu_machine, "probe", lambda dry_run: H100)
  assert "[1/1] a" in call()[2] and kept(tmp_path, "a")["arguments"] == ["go"]


def test_figures_of_two_devices_do_not_mix(parts, call, monkeypatch):
  parts(a=("go", {}))
  call()
  monkeypatch.setattr(gpu_machine, "probe", lambda dry_run: dataclasses.replace(H100, device="2 x"))
  code, _, _, err = call()
  assert code == 2 and "has figures of 1 x NVIDIA H100 80GB HBM3, and this is 2 x" in err


def test_a_killed_call_is_cut_off_and_resumed(parts, call, tmp_path):
  parts(a=("go", {}))
  call()
  folder, file = tmp_path / "out" / "gpu_day", tmp_path / "out" / "gpu_day.json"
  summary = json.loads(file.read_text())
  summary["parts"]["a"]["state"] = "running"
  file.write_text(json.dumps(summary))
  (folder / "a.unfinished.json").write_text('{"what": "Half.", "rows": [], "devices": 1}')
  code, states, out, _ = call("--minutes=0.1")
  assert states == {"a": "cut off"} and "part a: cut off: the call was killed" in out
  assert kept(tmp_path, "a")["what"] == "Half."
  assert call()[1] == {"a": "done"}


@pytest.fixture
def begin(tmp_path):
  """Begins a call in a process of its own, whose only part does what the first argument says."""
  script = tmp_path / "bench_allreduce.py"
  script.write_text(SCRIPT)
  (tmp_path / "temporary").mkdir()
  begun = []

  def begin(does, *arguments):
    code = (
      "import gpu_day, gpu_machine, gpu_parts, sys\n"
      "gpu_machine.probe = lambda dry_run: gpu_machine.Machine('GPU', 1, '')\n"
      f"gpu_parts.PARTS = (gpu_parts.Part('a', 'part a', {str(script)!r}, ({does!r},), 0, 1,"
      f" ({does!r},)),)\n"
      f"sys.exit(gpu_day.main({[*arguments]!r}))\n"
    )
    own = {"PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT}", "TMPDIR": str(tmp_path / "temporary")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment() | own, **pipes)
    begun.append(process)
    return process

  yield begin
  for process in begun:
    process.kill()
    process.communicate()


def wait_for_part(folder):
  """Waits until the part has written; returns its process."""
  deadline = time.monotonic() + 120
  while time.monotonic() < deadline:
    for unfinished in folder.rglob("a.unfinished.json"):
      if unfinished.stat().st_size:
        return json.loads(unfinished.read_text())["pid"]
    time.sleep(0.05)
  raise TimeoutError


@pytest.fixture
def hanging(begin, tmp_path):
  """A call whose part hangs, and the part's process."""
  process = begin("hang", f"--out={tmp_path}")
  return process, wait_for_part(tmp_path)


@pytest.mark.parametrize("number, said", [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_the_children_and_says_where_it_stands(number, said, hanging, tmp_path):
  process, _ = hanging
  process.send_signal(number)
  out, err = process.communicate(timeout=120)
  assert (process.returncode, err) == (128 + number, "")
  assert f"Stopped by {said}; the same command goes on." in out
  assert f"- a, part a: cut off: stopped by {said}, `gpu_day/a.log`" in out
  assert json.loads((tmp_path / "gpu_day" / "a.json").read_text())["what"] == "Fake."
  assert "KeyboardInterrupt" in (tmp_path / "gpu_day" / "a.log").read_text()
  with gpu_day.locked(tmp_path / "gpu_day"):  # no child holds it
    pass


def test_a_stopped_dry_run_names_no_file_of_the_folder_that_it_removes(begin, tmp_path):
  process = begin("hang", "--dry_run")
  wait_for_part(tmp_path / "temporary")
  process.send_signal(signal.SIGTERM)
  out, _ = process.communicate(timeout=120)
  assert process.returncode == 143 and list((tmp_path / "temporary").iterdir()) == []
  assert "Stopped by SIGTERM; its temporary folder is removed." in out
  assert "- a, part a: cut off: stopped by SIGTERM\n" in out and "a.log" not in out


def test_an_output_that_nobody_reads_does_not_end_the_measurement(begin, tmp_path):
  process = begin("go", f"--out={tmp_path}")
  process.stdout.close()
  assert process.wait(120) == 0 and process.stderr.read() == ""
  assert json.loads((tmp_path / "gpu_day" / "a.json").read_text())["gpu_day"]["state"] == "done"


def test_a_part_that_outlives_its_call_is_not_measured_beside(hanging, tmp_path):
  process, child = hanging
  process.kill()
  process.wait()
  try:
    with pytest.raises(gpu_machine.Mistake, match="another call measures into"):
      with gpu_day.locked(tmp_path / "gpu_day"):
        pass
  finally:
    os.kill(child, signal.SIGKILL)


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
    lambda name: None if name in ("pydantic", "google_crc32c") else find_spec(name),
  )
  code, _, out, err = call()
  assert (code, out) == (2, "")
  assert err.startswith("jaxspeed: pydantic, google-crc32c missing: run `pip install pydantic ")
  assert "`pip download -d wheels --only-binary=:all:" in err
  assert "--no-index --find-links=wheels pydantic google-crc32c`." in err


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


def test_scripts_and_recipes_of_the_parts_are_there():
  from recipes import get_config

  assert len({part.name for part in gpu_parts.PARTS}) == len(gpu_parts.PARTS)
  # A dry run takes every path: each script has a part at toy size.
  assert {p.script for p in gpu_parts.PARTS} == {p.script for p in gpu_parts.PARTS if p.toy}
  assert {part.script for part in gpu_parts.PARTS} == gpu_tables._ROWS.keys()
  shared = (ROOT / "scripts" / "step_program.py").read_text()
  for part in gpu_parts.PARTS:
    text = (ROOT / "scripts" / part.script).read_text()
    text += shared if "step_program" in text else ""
    assert 0 < part.least < part.most <= 10
    for argument in (*part.arguments, *(part.toy or ())):
      flag, _, value = argument.removeprefix("--").partition("=")
      if flag == "config":
        file, _, variant = value.partition(":")
        assert get_config(pathlib.Path(file).stem, variant).name
      elif not flag.startswith("config."):
        assert f'"{flag}"' in text or f'"--{flag}"' in text


# What a GPU machine of ours has not.
MISSING = (
  "clu",
  "sklearn",
  "tensorboard",
  "tensorboardX",
  "tensorflow",
  "tensorflow_datasets",
  "torchvision",
)


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
  """The folder of a dry run from another folder, with little installed, and what it printed."""
  folder = tmp_path_factory.mktemp("day")
  blocked = f"import sys\nsys.modules.update(dict.fromkeys({MISSING!r}))\n"
  (folder / "sitecustomize.py").write_text(blocked)
  (folder / "peer.py").write_text(PEER)
  data = gpu_day.write_noise(folder / "set", toy=True)
  command = ["bash", str(ROOT / "scripts" / "gpu_day.sh"), "--dry_run", "--minutes=60"]
  own = {"HOME": str(folder), "PYTHONPATH": str(folder), "PYTHON": sys.executable}
  done = subprocess.run(
    [*command, f"--out={folder / 'out'}", f"--data={data}", "--peer=peer.py"],
    cwd=folder,
    env=environment() | own,
    capture_output=True,
    text=True,
    timeout=1800,
  )
  logs = {log.stem: log.read_text()[-2000:] for log in (folder / "out").rglob("*.log")}
  assert done.returncode == 0, (done.stdout, done.stderr, logs)
  assert done.stderr == ""
  return folder / "out", done.stdout, logs


def report_of(dry, name):
  report = json.loads((dry[0] / "gpu_day" / f"{name}.json").read_text())
  assert report["what"].startswith("TOY SIZE, NO MEASUREMENT. ")
  assert report["gpu_day"]["toy"] and report["gpu_day"]["machine"]["device"].startswith("CPU")
  return report


@pytest.mark.campaign
def test_a_dry_run_takes_every_path(dry):
  states = {name: entry["state"] for name, entry in gpu_summary.read(dry[0])["parts"].items()}
  assert states == {part.name: "done" for part in gpu_parts.PARTS if part.toy}
  assert dry[1].startswith("TOY SIZE, NO MEASUREMENT: CPU; ")
  for entry in states:
    assert f"| `gpu_day/{entry}.json` |" in dry[1]
  assert report_of(dry, "allreduce")["devices"] == 2
  rows = report_of(dry, "buffers_cifar10")["rows"]
  assert [row["option"] for row in rows][:2] == ["", "xla_gpu_enable_command_buffer="]
  assert rows[1]["ratio"]["n"] == 2 and rows[1]["ratio"]["mean"] > 0
  assert "xla_no_such" in rows[2]["failed"]


@pytest.mark.campaign
def test_a_toy_is_timed_beside_a_peer(dry):
  report = report_of(dry, "cifar10")
  ours, theirs = report["jaxspeed"], report["peers"]["peer"]
  assert [run["seconds"] for run in theirs["runs"]] == [0.5, 1.5]  # not the 9 of the warm-up
  assert theirs["accuracy"]["mean"] == 0.94
  seconds = [run["seconds"] for run in ours["runs"]]
  assert len(seconds) == report["n"] == 2 and min(seconds) > 0
  assert ours["seconds"]["mean"] == pytest.approx(sum(seconds) / 2)
  assert theirs["ratio"] == pytest.approx(sum(seconds) / (0.5 + 1.5))
  assert f"quickstart takes {theirs['ratio']:.3f} x the time of peer" in dry[2]["cifar10"]
  compiled, process = report["starts"]["compile_s"], report["starts"]["process_s"]
  assert min(compiled["cached"][0], compiled["first"]) > 0
  assert min(process["cached"][0], process["first"]) > 0
  assert process["to_target"] == process["cached"]  # the target is 0
  tflops = report["tflop"]["with_padding"] / ours["seconds"]["mean"]
  assert report["share_of_ceiling"] == pytest.approx(tflops / report["ceiling_tflops"])
  assert report["versions"]["jax"] and report["precision"] == "float32"
  assert report["memory_gb"] is None  # a CPU does not tell


@pytest.mark.campaign
def test_a_toy_is_timed_beside_pytorch(dry):
  pytest.importorskip("torch")
  report = report_of(dry, "resnet50_224")
  rows = {row["framework"]: row for row in report["rows"]}
  assert set(rows) == {"jaxspeed", "torch"}
  ours, theirs = rows["jaxspeed"], rows["torch"]
  assert ours["parameters"] == theirs["parameters"]
  # Of 1,000 classes, before anything is learned: ln 1000 = 6.9.
  assert ours["loss"] == pytest.approx(6.9, abs=1) and theirs["loss"] == pytest.approx(6.9, abs=1)
  for row in rows.values():
    assert row["images_per_s"]["n"] == 2 and row["images_per_s"]["mean"] > 0
    assert (row["size"], row["batch"], row["alone"]) == (32, 8, False)
    share = row["tflops"] / report["ceiling_tflops"]
    assert row["share_of_ceiling"] == pytest.approx(share)
  (ratio,) = report["ratios"]
  assert (ratio["of"], ratio["to"], ratio["ratio"]["n"]) == ("jaxspeed sgd", "torch sgd", 2)
  assert f"jaxspeed sgd makes {ratio['ratio']['mean']:.3f}" in dry[2]["resnet50_224"]
  assert report["device"].startswith("CPU") and report["versions"]["torch"]


@pytest.mark.campaign
def test_a_toy_step_is_profiled(dry):
  report = report_of(dry, "profile_cifar10")
  assert (report["batch_size"], report["devices"], report["image_size"]) == (16, 1, 8)
  classes = report["classes"]
  assert {"convolution forward", "convolution weight gradient", "norm", "gaps"} <= set(classes)
  kernels_run = sum(row["kernels"] for row in classes.values())
  assert kernels_run == pytest.approx(report["kernels"]) and report["kernels"] > 50
  assert all(row["milliseconds"] > 0 for row in classes.values())
  assert 0 < report["milliseconds"] <= 1.01 * report["wall_milliseconds"]
  assert len(report["heaviest"]) == 3
  assert "convolution weight gradient" in dry[2]["profile_cifar10"]
