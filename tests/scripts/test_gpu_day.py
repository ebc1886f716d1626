"""A day on a GPU: what is measured first, what is kept of it, and what is said of the rest."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import gpu_day
import gpu_parts
import pytest
from commands import ROOT, environment
from fake_gpu_day import H100, PEER, SCRIPT, kept
from local_cluster import wait_until


def test_what_is_done_is_kept_and_what_failed_comes_last(parts, call, tmp_path):
  parts(a=("fail", {}), b=("go", {}), c=("go", {"devices": 2}), d=("go", {"most": 198}))
  code, states, out, _ = call()
  assert code == 1
  assert states == {"a": "failed", "b": "done"}
  assert "- a: failed: code 1: no kernel image is available, `gpu_day/a.log`" in out
  assert "- c: not run: it needs 2 devices and there is 1" in out
  assert "- d: not run: it needs 99 min and 15.8 of --minutes are left" in out
  told = kept(tmp_path, "b")["gpu_day"]
  assert told["state"] == "done" and told["machine"]["device"] == H100.device
  assert told["machine"]["versions"]["jax"] and "commit" in told["machine"]
  # Mended, and with more time: parts that were not begun come first, and b stays as it is.
  before = (tmp_path / "out" / "gpu_day" / "b.json").stat().st_mtime_ns
  parts(a=("go", {}), b=("fail", {}), d=("go", {}))
  code, states, out, _ = call()
  assert (code, states) == (0, {"a": "done", "b": "done", "d": "done"})
  assert out.index("[1/2] d:") < out.index("[2/2] a:")
  assert (tmp_path / "out" / "gpu_day" / "b.json").stat().st_mtime_ns == before
  # What is done stays where a second measurement fails.
  code, states, out, _ = call("--again", "--parts=b")
  assert (code, states["b"]) == (1, "done") and "failed, code 1: no kernel image" in out
  assert not list((tmp_path / "out").rglob("*unfinished*"))


def test_a_part_is_cut_off_at_its_limit_and_keeps_what_it_wrote(parts, call, tmp_path):
  parts(a=("hang", {"most": 0.05}), b=("go", {}))
  code, states, out, _ = call()
  assert (code, states) == (0, {"a": "cut off", "b": "done"})
  assert kept(tmp_path, "a")["gpu_day"]["reason"] == "after 0.1 min"
  assert "- a: cut off: after 0.1 min" in out


def test_runs_need_data_and_peers_get_them(parts, call, tmp_path, monkeypatch):
  parts(a=("go", {"trains": True}), b=("go", {"trains": True, "peers": True}))
  data, peer = tmp_path / "set", tmp_path / "peer.py"
  data.mkdir()
  peer.write_text("")
  code, states, out, _ = call(f"--peer={peer}")
  assert (code, states) == (0, {}) and "- a: not run: it needs --data=CIFAR-10" in out
  code, states, out, _ = call(f"--data={data}")
  assert (code, states) == (0, {"a": "done"}) and "b: not run: it needs --peer" in out
  assert call(f"--data={data}", f"--peer={peer}")[1] == {"a": "done", "b": "done"}
  assert kept(tmp_path, "a")["arguments"][1:] == [f"--config.data.path={data}"]
  report = kept(tmp_path, "b")
  assert report["arguments"][1:] == [f"--config.data.path={data}", f"--peer={peer}"]
  # What can be committed has no path of this machine.
  assert report["gpu_day"]["command"].endswith("go --config.data.path=DATA --peer=peer.py")
  assert f"{data}" not in json.dumps(report["gpu_day"])


def test_without_pytorch_only_ours_is_measured(parts, call, tmp_path, monkeypatch):
  alone = dataclasses.replace(H100, torch="PyTorch sees no GPU")
  monkeypatch.setattr(gpu_day, "probe", lambda dry_run: alone)
  parts(a=("go", {"torch": True}), b=("go", {"peers": True}))
  out = call(f"--peer={ROOT / 'README.md'}")[2]
  assert kept(tmp_path, "a")["arguments"] == ["go", "--frameworks=jaxspeed"]
  assert "- a: no comparison with PyTorch: PyTorch sees no GPU" in out
  assert "- b: not run: PyTorch sees no GPU" in out
  monkeypatch.setattr(gpu_day, "probe", lambda dry_run: H100)
  call("--again")
  assert kept(tmp_path, "a")["arguments"] == ["go"]


def test_figures_of_two_devices_have_tables_of_their_own(parts, call, tmp_path, monkeypatch):
  parts(a=("go", {}), b=("go", {}))
  folder = tmp_path / "out" / "gpu_day"
  folder.mkdir(parents=True)
  (folder / "a.unfinished.json").write_text('{"what": "Of a call that was killed."}')
  call("--parts=a", "--commit=abc123")
  report = kept(tmp_path, "a")
  assert report["commit"] == report["gpu_day"]["machine"]["commit"] == "abc123"
  assert report["what"] == "Fake."
  monkeypatch.setattr(gpu_day, "probe", lambda dry_run: dataclasses.replace(H100, device="2 x"))
  out = call()[2]
  first, second = out.index("1 x NVIDIA H100 80GB HBM3; "), out.index("\n2 x; ")
  assert first < out.index("`gpu_day/a.json`") < second < out.index("`gpu_day/b.json`")


@pytest.fixture
def begin(tmp_path):
  """Begins a call in a process of its own, whose only part does what the first argument says."""
  script = tmp_path / "bench_fake.py"
  script.write_text(SCRIPT)
  (tmp_path / "temporary").mkdir()
  begun = []

  def begin(does, *arguments):
    code = (
      "import gpu_day, gpu_parts, sys\n"
      "gpu_day.probe = lambda dry_run: gpu_day.Machine('GPU', 1, '')\n"
      f"gpu_parts.PARTS = (gpu_parts.Part('a', 1, {f'{script} {does}'!r}),)\n"
      f"sys.argv[1:] = {[*arguments]!r}\n"
      "gpu_day.main()\n"
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_children_and_says_where_it_stands(number, begin, tmp_path):
  process = begin("hang", f"--out={tmp_path}")
  unfinished = tmp_path / "gpu_day" / "a.unfinished.json"
  wait_until(lambda: unfinished.exists() and unfinished.stat().st_size, 120, "the part")
  child = json.loads(unfinished.read_text())["pid"]
  process.send_signal(number)
  out, err = process.communicate(timeout=120)
  assert process.returncode == 128 + number and "Traceback" not in err
  assert "- a: cut off: the call was stopped, `gpu_day/a.log`" in out
  assert json.loads((tmp_path / "gpu_day" / "a.json").read_text())["what"] == "Fake."
  assert "KeyboardInterrupt" in (tmp_path / "gpu_day" / "a.log").read_text()
  with pytest.raises(ProcessLookupError):
    os.kill(child, 0)


def test_scripts_and_recipes_of_the_parts_are_there():
  from recipes import get_config

  assert len({part.name for part in gpu_parts.PARTS}) == len(gpu_parts.PARTS)
  # Our own figures come first, and the peers after them.
  names = [part.name for part in gpu_parts.PARTS]
  assert names[:3] == [part.name for part in gpu_parts.PARTS if part.trains and not part.peers]
  assert names.index("profile_resnet50") < names.index("cifar10_peers")
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
MISSING = (
  "clu",
  "sklearn",
  "tensorboard",
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
  data = gpu_day.write_toy(folder / "set")
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
  reports = gpu_parts.read(dry[0])
  states = {name: report["gpu_day"]["state"] for name, report in reports.items()}
  assert states == {part.name: "done" for part in gpu_parts.in_a_dry_run()}
  assert "TOY SIZE, NO MEASUREMENT: CPU; " in dry[1]
  for entry in states:
    assert f"| `gpu_day/{entry}.json` |" in dry[1]
  rows = {row["option"]: row for row in report_of(dry, "buffers_cifar10")["rows"]}
  for option in ("xla_gpu_enable_command_buffer=", "config.deterministic=True"):
    assert rows[option]["ratio"]["n"] == 2 and rows[option]["ratio"]["mean"] > 0
  assert "xla_no_such" in rows["xla_no_such=1"]["failed"] and "XLA as it is" in rows


@pytest.mark.campaign
def test_toy_runs_are_timed_and_those_of_a_peer(dry):
  report = report_of(dry, "cifar10")
  seconds = [run["seconds"] for run in report["jaxspeed"]["runs"]]
  assert len(seconds) == report["n"] == 2 and min(seconds) > 0
  first, second = report["starts"]
  assert first["compile_s"]["cold"] > 0 and second["compile_s"]["cached"] > 0
  assert "s (1 of 1)" in dry[1]  # the target is 0
  assert 0 < report["share_of_ceiling"] < 1 and report["memory_gb"] is None  # a CPU does not tell
  report = report_of(dry, "cifar10_peers")
  assert "starts" not in report and len(report["jaxspeed"]["runs"]) == 2
  assert [run["seconds"] for run in report["peers"]["peer"]["runs"]] == [0.5, 1.5]
  assert "peer, seconds of a run: 1.000" in dry[2]["cifar10_peers"]


@pytest.mark.campaign
def test_a_toy_is_timed_beside_pytorch(dry):
  pytest.importorskip("torch")
  report = report_of(dry, "resnet50_224")
  rows = {row["framework"]: row for row in report["rows"]}
  ours, theirs = rows["jaxspeed"], rows["torch"]
  assert ours["parameters"] == theirs["parameters"]
  for row in rows.values():
    # Of 1,000 classes, before anything is learned: ln 1000 = 6.9.
    assert row["loss"] == pytest.approx(6.9, abs=1) and row["images_per_s"]["n"] == 2
  assert ours["times_torch"]["n"] == 2 and "times_torch" not in theirs
  assert f"{ours['times_torch']['mean']:.3f}" in dry[2]["resnet50_224"]


@pytest.mark.campaign
def test_a_toy_step_is_profiled(dry):
  report = report_of(dry, "profile_cifar10")
  assert (report["batch_size"], report["devices"], report["image_size"]) == (16, 1, 8)
  classes = report["classes"]
  assert {"convolution forward", "convolution weight gradient", "norm", "gaps"} <= set(classes)
  assert sum(row["kernels"] for row in classes.values()) == pytest.approx(report["kernels"])
  assert report["kernels"] > 50 and all(row["milliseconds"] > 0 for row in classes.values())
  assert 0 < report["milliseconds"] <= 1.01 * report["wall_milliseconds"]
  assert len(report["heaviest"]) == 3 and "convolution weight" in dry[2]["profile_cifar10"]
