"""Packages, the host, data sheets, decoding, and a recipe's predicted time."""

import dataclasses
import importlib.metadata
import shlex

import jax
import psutil
import pytest
import tiny_sets
from image_files import encode, write
from recipes import get_config

from jaxspeed.devices.host import has_tpu
from jaxspeed.doctor import ceilings, child, decode, devices, forecast, machine, rules
from jaxspeed.doctor.rules import Facts
from jaxspeed.errors import UserError
from jaxspeed.scaling.hardware import DEVICES, LAUNCH_S
from jaxspeed.scaling.work import PASSES, RESNET50, work_of


def test_requirements_that_are_not_met(monkeypatch):
  lines = ["numpy>=1", "jax<0.1", 'pillow>=999; extra == "x"', "no-such-package", "clu; extra=='y'"]
  monkeypatch.setattr(importlib.metadata, "requires", lambda _: lines)
  found = [(str(required), have) for required, have in rules.unmet("jaxspeed", "x")]
  assert found[0] == ("jax<0.1", jax.__version__) and found[1][1]
  assert found[2] == ("no-such-package", None) and len(found) == 3
  (_, mended, missing) = rules.check_software()
  assert mended.advice == "pip install 'jax<0.1'" and missing.level == "mend"


def test_a_container_s_limits_count_and_a_busy_machine_and_a_full_disk(tmp_path, monkeypatch):
  memory = psutil.virtual_memory()._replace(total=64 * 10**9, available=60 * 10**9)
  monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
  assert machine.host_memory(tmp_path) == (64 * 10**9, 60 * 10**9)
  for name, text in (
    ("memory.max", "8000000000"), ("memory.current", "5000000000"),
    ("memory.stat", "anon 1\ninactive_file 2000000000\n"), ("cpu.max", "50000 100000"),
  ):  # fmt: skip
    (tmp_path / name).write_text(text)
  assert machine.host_memory(tmp_path) == (8 * 10**9, 5 * 10**9)
  assert machine.cpus(tmp_path) == 0.5
  for name in ("memory.max", "cpu.max"):
    (tmp_path / name).write_text("max 100000")
  assert machine.host_memory(tmp_path)[0] == 64 * 10**9 and machine.cpus(tmp_path) >= 1
  room = psutil.disk_usage("/")._replace(free=10**9)
  monkeypatch.setattr(psutil, "disk_usage", lambda _: room)
  monkeypatch.setattr(psutil, "getloadavg", lambda: (1e4, 0.0, 0.0))
  found = {each.advice: each.level for each in machine.check() if each.advice}
  assert found == {"top": "hint", "df -h .": "mend"}


# Devices

H100 = {"kind": "NVIDIA H100 80GB HBM3", "dtype": "bfloat16", "tflops": 800.0, "gb_s": 2900.0}
H100["free_bytes"] = 80 * 10**9
ON_H100 = Facts(platform="gpu", kinds=(H100["kind"],) * 8, ceilings=(H100,))
CPU = {"kind": "cpu", "dtype": "float32", "tflops": 0.2, "gb_s": 20.0, "free_bytes": 8 * 10**9}
ON_CPU = Facts(platform="cpu", kinds=("cpu",), ceilings=(CPU,))


def test_gpus_by_their_files(tmp_path):
  for name, vendor, kind in (
    ("0000:00:01.0", "0x10de", "0x040300"),  # a GPU's sound
    ("0000:00:02.0", "0x10de", "0x030200"),
    ("0000:00:03.0", "0x1af4", "0x030000"),
    ("0000:00:04.0", "0x1ae0", "0x120000"),  # a TPU v5e
  ):
    folder = tmp_path / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    (folder / "device").write_text("0x0063\n")
  assert devices.gpu_files(tmp_path) == ("/sys/bus/pci/devices/0000:00:02.0",)
  assert has_tpu(folder.parent)
  (folder / "device").write_text("0x0042\n")  # Google's network
  assert not has_tpu(folder.parent)
  (tmp_path / "dev").mkdir()
  for name in ("nvidia0", "nvidiactl", "null"):
    (tmp_path / "dev" / name).touch()
  assert devices.gpu_files(tmp_path) == ("/dev/nvidia0",)


def test_what_a_process_says_of_the_devices(monkeypatch):
  gpu = {"name": "NVIDIA H100", "capability": [9, 0], "memory": 85 * 10**9, "used": 5 * 10**8}
  driver = {"driver": "580.65.06", "gpus": [gpu]}
  seen = {"platform": "gpu", "kinds": [*ON_H100.kinds]}
  none = {"driver": "", "gpus": []}
  monkeypatch.setattr(devices, "gpu_files", lambda: ())
  for said, code, error, level, words in (
    ([driver, seen, {"ceilings": [H100]}], 0, "", "ok", "NVIDIA H100, compute capability 9.0"),
    ([], None, "", "mend", "NVIDIA's driver did not answer within 30 s"),
    ([none], None, "", "mend", "JAX found no device within 30 s"),
    ([none], 1, "jaxspeed.errors.UserError: unset it.", "mend", "no device: unset it."),
  ):
    ended = child.Ended(code, said, error)
    monkeypatch.setattr(child, "run", lambda *_, **__: ended)  # noqa: B023
    found = [each.what for each in devices.check(devices.probe()) if each.level == level]
    assert any(words in what for what in found), found


def test_ceilings_beside_the_data_sheet():
  (found,) = devices.check_ceilings(ON_H100)
  assert "800 TFLOP/s in bfloat16 (81% of the data sheet), 2,900 GB/s of memory (87%" in found.what
  # The first name that is found counts.
  names = ("TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite")
  assert [devices.sheet_of(name)[0] for name in names] == [275, 197, 459, 918]
  (found,) = devices.check_ceilings(ON_CPU)
  assert found.what == "cpu: 0.2 TFLOP/s in float32, 20 GB/s of memory"
  slow = dataclasses.replace(ON_H100, ceilings=(H100 | {"tflops": 300.0},))
  late = dataclasses.replace(ON_CPU, unmeasured="not all was measured within 30 s")
  for facts in (slow, late):
    assert [each.level for each in devices.check_ceilings(facts)] == ["ok", "hint"]


def test_what_is_measured(monkeypatch):
  monkeypatch.setattr(ceilings, "_CPU", (64, 1, 1))
  monkeypatch.setattr(ceilings, "_SECONDS", 0.0)
  found = ceilings.measure(jax.devices()[0])
  assert found["tflops"] > 0 and found["gb_s"] > 0 and found["free_bytes"] > 0
  reduced = ceilings.all_reduce(jax.devices()[:2])
  assert reduced["devices"] == 2 and reduced["gb_s"] > 0


# Decoding

IMAGES = tiny_sets.random_images(0, 8, height=40, width=48)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """Class folders in splits."""
  path = tmp_path_factory.mktemp("images") / "set"
  parts = [(split, number) for split in ("train", "val") for number in range(8)]
  write(path, {f"{split}/{'ab'[n % 2]}/{n}.jpg": encode(IMAGES[n]) for split, n in parts})
  (path / "train/a/notes.txt").touch()
  return path


def test_a_sample_of_folders_and_of_shards(root, tmp_path):
  from jaxspeed.data.prepare.shards import write_shards

  whole = {encode(image) for image in IMAGES}
  found = [*decode.sample(root)]
  assert len(found) == 16 and set(found) == whole
  write_shards(root, tmp_path / "sets", name="t", shards=1)
  assert set(decode.sample(tmp_path / "sets")) == whole


def test_the_rate_of_decoding(root, tmp_path, monkeypatch):
  pytest.importorskip("tensorflow")
  monkeypatch.setattr(decode, "_SECONDS", 0.02)
  (root / "val/b/broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
  row = decode.rate(root, 32)
  assert row["images_per_s"] > 0 and (row["broken"], row["images"]) == (1, 17)
  with pytest.raises(UserError, match="holds no image"):
    decode.rate(tmp_path, 32)


@pytest.mark.parametrize(
  "code, line, error, level, words, advice",
  [
    (0, {"images_per_s": 900.0, "broken": 0}, "", "ok", "900 images/s of 224 px", ""),
    (0, {"images_per_s": 9.0, "broken": 2}, "", "mend", "2 of 9 sampled im", "prepare index {}"),
    (1, None, "x.UserError: needs TensorFlow", "mend", "needs TensorF", "'jaxspeed[images]'"),
    (1, None, "Traceback\nImportError: x", "mend", "decoding failed: ImportError: x", "index {}"),
    (None, None, "", "hint", "did not end within", "python -m jaxspeed.doctor --data={}"),
  ],
)
def test_what_decoding_says(root, monkeypatch, code, line, error, level, words, advice):
  ended = child.Ended(code, [line | {"images": 9}] if line else [], error)
  monkeypatch.setattr(child, "run", lambda *_, **__: ended)
  found = [*decode.check(root)][-1]
  assert found.level == level and words in found.what
  assert found.advice.endswith(advice.format(shlex.quote(str(root))))


# A recipe


def test_what_a_prediction_rests_on():
  cluster, words = forecast.cluster_for(ON_H100)
  rate = DEVICES["h100"].images_per_s
  assert cluster.images_per_s == pytest.approx(256 / (256 / rate - LAUNCH_S) * 800 / 989)
  assert cluster.per_host == 8 and "the matrix ceiling measured here" in words
  other = dataclasses.replace(ON_H100, ceilings=(H100 | {"kind": "TPU v5 lite"},))
  assert "TPU_V5E" in forecast.cluster_for(other)[1]
  cluster, _ = forecast.cluster_for(ON_CPU)
  own = forecast.CPU_SHARE * 0.2e12 / (PASSES * RESNET50)
  assert cluster.images_per_s == pytest.approx(own) and cluster.launch_s == 0


def test_a_recipe_is_predicted_with_what_binds_it():
  config = get_config("imagenet18", "4")
  found = [*forecast.check(config, ON_CPU, 0.0)]
  each = config.batch_size * 3 * work_of(config).forward / (forecast.CPU_SHARE * 0.2e12)
  assert found[0].facts["step_s"][0] == pytest.approx(each, rel=0.01)
  assert found[-1].level == "mend"  # it needs more than 8 GB
  found = [*forecast.check(config, ON_H100, 5.0)]
  assert any("bound by its input" in each.what for each in found)
  # One that does not fit is told its micro-batches.
  small = dataclasses.replace(ON_H100, ceilings=(H100 | {"free_bytes": 10**10},))
  found = [*forecast.check(config, small, 0.0)]
  assert "does not fit, " in found[0].what
  name, number = found[-1].advice.split("=")
  assert name == "--config.accumulate"
  config.accumulate = int(number)
  found = [*forecast.check(config, small, 0.0)]
  assert "does not fit" not in found[0].what and {each.level for each in found} == {"ok"}
