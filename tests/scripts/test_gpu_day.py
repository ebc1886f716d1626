"""A day on a GPU: what is measured first and what is said of the rest; mistakes of all scripts."""

import dataclasses
import json
import os
import pathlib
import signal
import sys

import gpu_day
import gpu_parts
import pytest
from commands import ROOT, environment, run, start
from fake_gpu_day import H100, PEER, SCRIPT, kept
from local_cluster import wait_until
from recipes import get_config

from jaxspeed.errors import UserError


@pytest.fixture
def parts(tmp_path, monkeypatch):
  """Sets the parts: their names, each with what it does and other fields."""
  fake = tmp_path / "bench_fake.py"
  fake.write_text(SCRIPT)
  monkeypatch.setattr(gpu_day, "probe", lambda dry_run: H100)

  def set_parts(**does):
    made = [
      gpu_parts.Part(name, command=f"{fake} {first}", **{"most": 1} | more)
      for name, (first, more) in does.items()
    ]
    monkeypatch.setattr(gpu_parts, "PARTS", tuple(made))
    monkeypatch.setattr(gpu_parts, "TOYS", {str(fake): ""})

  return set_parts


@pytest.fixture
def day(tmp_path, script):
  """A day on a GPU: the exit code, the states of the parts' files, and both outputs."""

  def day(*words):
    done = script("gpu_day", f"--out={tmp_path}/out", *words)
    reports = gpu_parts.read(tmp_path / "out")
    states = {name: report["gpu_day"]["state"] for name, report in reports.items()}
    return done.returncode, states, done.stdout, done.stderr

  return day


def test_what_is_done_is_kept_and_what_failed_comes_last(parts, day, tmp_path):
  parts(a=("fail", {}), b=("go", {}), c=("go", {"devices": 2}), d=("go", {"most": 198}))
  code, states, out, _ = day()
  assert (code, states) == (1, {"a": "failed", "b": "done"})
  assert "- a: failed: code 1: no kernel image is available, `gpu_day/a.log`" in out
  assert "- c: not run: it needs 2 devices and there is 1" in out
  assert "- d: not run: it needs 99 min and 15.8 of --minutes are left" in out
  told = kept(tmp_path, "b")["gpu_day"]
  assert told["state"] == "done" and told["machine"]["device"] == H100.device
  assert told["machine"]["versions"]["jax"] and "commit" in told["machine"]
  # Mended, and with more time: parts that were not begun come first, and b stays as it is.
  before = (tmp_path / "out" / "gpu_day" / "b.json").stat().st_mtime_ns
  parts(a=("go", {}), b=("fail", {}), d=("go", {}))
  code, states, out, _ = day()
  assert (code, states) == (0, {"a": "done", "b": "done", "d": "done"})
  assert out.index("[1/2] d:") < out.index("[2/2] a:")
  assert (tmp_path / "out" / "gpu_day" / "b.json").stat().st_mtime_ns == before
  # What is done stays where a second measurement fails.
  code, states, out, _ = day("--again", "--parts=b")
  assert (code, states["b"]) == (1, "done") and "failed, code 1: no kernel image" in out
  assert not list((tmp_path / "out").rglob("*unfinished*"))


def test_a_part_is_cut_off_at_its_limit_and_keeps_what_it_wrote(parts, day, tmp_path):
  parts(a=("hang", {"most": 0.05}), b=("go", {}))
  code, states, out, _ = day("--commit=abc123")
  assert (code, states) == (0, {"a": "cut off", "b": "done"})
  report = kept(tmp_path, "a")
  assert report["what"] == "Fake." and report["gpu_day"]["reason"] == "after 0.1 min"
  assert report["commit"] == report["gpu_day"]["machine"]["commit"] == "abc123"
  assert "- a: cut off: after 0.1 min" in out


def test_runs_need_data_and_peers_pytorch(parts, day, tmp_path, monkeypatch):
  parts(
    a=("go", {"trains": True}), b=("go", {"trains": True, "peers": True}), c=("go", {"torch": True})
  )
  monkeypatch.setattr(gpu_day, "probe", lambda dry_run: dataclasses.replace(H100, torch="no torch"))
  data, peer = tmp_path / "set", tmp_path / "peer.py"
  data.mkdir()
  peer.write_text("")
  _, states, out, _ = day(f"--peer={peer}")
  assert states == {"c": "done"} and "- a: not run: it needs --data=CIFAR-10" in out
  assert "- c: no comparison with PyTorch: no torch" in out
  assert kept(tmp_path, "c")["arguments"] == ["go", "--frameworks=jaxspeed"]
  out = day(f"--data={data}")[2]
  assert kept(tmp_path, "a")["arguments"] == ["go", f"--config.data.path={data}"]
  assert "- b: not run: it needs --peer" in out
  assert "- b: not run: no torch" in day(f"--data={data}", f"--peer={peer}")[2]
  monkeypatch.setattr(gpu_day, "probe", lambda dry_run: H100)
  assert set(day(f"--data={data}", f"--peer={peer}", "--again")[1].values()) == {"done"}
  assert kept(tmp_path, "c")["arguments"] == ["go"]
  report = kept(tmp_path, "b")
  assert report["arguments"] == ["go", f"--config.data.path={data}", f"--peer={peer}"]
  # What can be committed has no path of this machine.
  assert report["gpu_day"]["command"].endswith("go --config.data.path=DATA --peer=peer.py")
  assert f"{data}" not in json.dumps(report["gpu_day"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_children_and_says_where_it_stands(number, tmp_path):
  script = tmp_path / "bench_fake.py"
  script.write_text(SCRIPT)
  code = (
    "import gpu_day, gpu_parts, sys\n"
    "gpu_day.probe = lambda dry_run: gpu_day.Machine('GPU', 1, '')\n"
    f"gpu_parts.PARTS = (gpu_parts.Part('a', 1, {f'{script} hang'!r}),)\n"
    "gpu_day.main()\n"
  )
  own = environment(PYTHONPATH=f"{ROOT / 'scripts'}:{ROOT}")
  process = start("-c", code, f"--out={tmp_path}", env=own)
  try:
    unfinished = tmp_path / "gpu_day" / "a.unfinished.json"
    wait_until(lambda: unfinished.exists() and unfinished.stat().st_size, 120, "the part")
    child = json.loads(unfinished.read_text())["pid"]
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
  finally:
    process.kill()
  assert process.returncode == 128 + number and "Traceback" not in err
  assert "- a: cut off: the call was stopped, `gpu_day/a.log`" in out
  assert json.loads((tmp_path / "gpu_day" / "a.json").read_text())["what"] == "Fake."
  assert "KeyboardInterrupt" in (tmp_path / "gpu_day" / "a.log").read_text()
  with pytest.raises(ProcessLookupError):
    os.kill(child, 0)


def test_scripts_and_recipes_of_the_parts_are_there():
  assert len({part.name for part in gpu_parts.PARTS}) == len(gpu_parts.PARTS)
  # Flags that the scripts share.
  shared = "".join(
    (ROOT / "scripts" / name).read_text() for name in ("step_program.py", "benchmarking.py")
  )
  for part in gpu_parts.PARTS:
    script, *arguments = part.command.split()
    text = (ROOT / "scripts" / script).read_text() + shared
    assert 0 < part.most <= 15
    for argument in (*arguments, *gpu_parts.TOYS[script].split()):
      flag, _, value = argument.removeprefix("--").partition("=")
      if flag == "config":
        file, _, variant = value.partition(":")
        assert get_config(pathlib.Path(file).stem, variant).name
      elif not flag.startswith("config."):
        assert f'"{flag}"' in text


# What a GPU machine of ours has not.
MISSING = ("clu", "sklearn", "tensorboard", "tensorflow", "tensorflow_datasets", "torchvision")


@pytest.mark.campaign
def test_a_dry_run_takes_every_path_in_another_folder_with_little_installed(tmp_path):
  blocked = f"import sys\nsys.modules.update(dict.fromkeys({MISSING!r}))\n"
  (tmp_path / "sitecustomize.py").write_text(blocked)
  (tmp_path / "peer.py").write_text(PEER)
  data = gpu_day.write_toy(tmp_path / "set")
  command = ["bash", str(ROOT / "scripts" / "gpu_day.sh"), "--dry_run", "--minutes=60"]
  command += [f"--out={tmp_path / 'out'}", f"--data={data}", "--peer=peer.py"]
  own = environment(HOME=str(tmp_path), PYTHONPATH=str(tmp_path), PYTHON=sys.executable)
  done = run(*command, cwd=tmp_path, env=own, timeout=1800, code=None)
  logs = {log.stem: log.read_text()[-2000:] for log in (tmp_path / "out").rglob("*.log")}
  assert done.returncode == 0, (done.stdout, done.stderr, logs)
  assert done.stderr == ""
  reports = gpu_parts.read(tmp_path / "out")
  states = {name: report["gpu_day"]["state"] for name, report in reports.items()}
  assert states == {part.name: "done" for part in gpu_parts.in_a_dry_run()}
  assert "TOY SIZE, NO MEASUREMENT: CPU; " in done.stdout
  for name, report in reports.items():
    assert f"| `gpu_day/{name}.json` |" in done.stdout
    assert report["what"].startswith("TOY SIZE, NO MEASUREMENT. ") and report["gpu_day"]["toy"]

  rows = {row["option"]: row for row in reports["buffers_cifar10"]["rows"]}
  for option in ("xla_gpu_enable_command_buffer=", "config.deterministic=True"):
    assert rows[option]["ratio"]["n"] == 2 and rows[option]["ratio"]["mean"] > 0
  assert "xla_no_such" in rows["xla_no_such=1"]["failed"] and "XLA as it is" in rows

  cifar10 = reports["cifar10"]
  assert len(cifar10["jaxspeed"]["runs"]) == cifar10["n"] == 2
  # Programs in the user's cache do not count: the first start compiles all of them.
  first, second = cifar10["starts"]
  assert first["compile_s"]["cold"] > 0 and not second["compile_s"]["cold"]
  assert 0 < cifar10["share_of_ceiling"] < 1 and cifar10["memory_gb"] is None  # of a CPU
  peers = reports["cifar10_peers"]
  assert "starts" not in peers and len(peers["jaxspeed"]["runs"]) == 2
  assert [run["seconds"] for run in peers["peers"]["peer"]["runs"]] == [0.5, 1.5]

  if (resnet := {row["framework"]: row for row in reports["resnet50_224"]["rows"]}).get("torch"):
    assert resnet["jaxspeed"]["parameters"] == resnet["torch"]["parameters"]
    assert resnet["jaxspeed"]["times_torch"]["n"] == 2
  for row in resnet.values():
    # Of 1,000 classes, before anything is learned: ln 1000 = 6.9.
    assert row["loss"] == pytest.approx(6.9, abs=1) and row["images_per_s"]["n"] == 2

  profile = reports["profile_cifar10"]
  assert [profile[name] for name in ("batch_size", "devices", "image_size")] == [16, 1, 8]
  classes = profile["classes"]
  assert {"convolution forward", "convolution weight gradient", "norm", "gaps"} <= set(classes)
  assert sum(row["kernels"] for row in classes.values()) == pytest.approx(profile["kernels"])
  assert profile["kernels"] > 50 and all(row["milliseconds"] > 0 for row in classes.values())
  assert 0 < profile["milliseconds"] <= 1.01 * profile["wall_milliseconds"]


# Mistakes: a sentence and exit code 2 before anything is measured


@pytest.mark.parametrize(
  "name, arguments, message",
  [
    ("bench_cifar", [], "--config=FILE.py names the recipe to time"),
    ("bench_cifar", ["--config=configs/imagenet18.py:1"], "config.data.feed='stream': only sets"),
    ("bench_resnet50", ["--frameworks=tensorflow"], "choose from jaxspeed, torch"),
    ("bench_resnet50", ["--depth=34"], "choose 18 or 50"),
    ("bench_startup", ["--config=quickstart", "--out=nowhere/a.json"], "nowhere/a.json cannot be"),
    ("profile_step", ["--config=configs/cifar10.py", "--for=h200"], "--for=h200"),
    ("profile_step", [], "--config is missing: name a recipe"),
    ("gpu_day", ["--parts=cifar11"], "choose from cifar10, cifar10_muon,"),
    ("gpu_day", ["--data=nowhere"], "--data=nowhere: there is no such file or folder"),
    ("gpu_day", ["more"], "more"),
    ("gpu_day", ["--dry_run", "--out=README.md"], "README.md: Not a directory: name a folder"),
  ],
)
def test_a_mistake_is_one_sentence(name, arguments, message, script):
  done = script(name, *arguments)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr.startswith("jaxspeed: ") and message in done.stderr
  assert done.stderr.count("\n") == 1


def test_missing_packages_are_a_sentence(tmp_path):
  (tmp_path / "jax.py").write_text("import a_module_that_nobody_has")
  own = environment(PYTHON=sys.executable, PYTHONPATH=str(tmp_path))
  # The checkout comes first on the path, but has no jax.
  done = run("bash", "scripts/gpu_day.sh", "--table", env=own, code=2)
  assert "a_module_that_nobody_has" in done.stderr
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
