"""Real saves and restores, and every way in which a checkpoint is not whole."""

import dataclasses
import errno
import json
import logging
import math
import os
import shutil
import zlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspeed.cluster.folder_lock import FolderLock, lock_folder
from jaxspeed.config.stored import FORMAT
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.precision import LossScale
from jaxspeed.errors import UserError
from jaxspeed.run import checkpoint
from jaxspeed.run import manifest as manifest_lib
from jaxspeed.run.checkpoint import CheckpointError, Checkpoints
from jaxspeed.run.manifest import MANIFEST
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.state import Carry, TrainState

CLOCK = {"init": 0.5, "train": 1.5, "process": 9.0}


def make_carry(value: float, average=True) -> Carry:
  params = {"layer": {"kernel": jnp.full((3, 2), value), "bias": jnp.arange(2.0) + value}}
  state = TrainState(
    step=jnp.int32(7),
    key=jnp.array([0, 3], jnp.uint32),
    params=params,
    batch_stats={"norm": {"mean": jnp.full((2,), value / 3)}},
    opt_state={"weight": (jnp.full((6,), value),)},
    average={"params": params} if average else None,
    slow=None,
    loss_scale=LossScale.create(),
  )
  return Carry(state, MetricSums(jnp.float32(0.1), jnp.int32(3), jnp.int32(5), jnp.int32(9)))


def target(carry, mesh=None):
  return mesh_lib.abstract(carry, mesh_lib.replicated(mesh or mesh_lib.make_mesh(1)))


def assert_same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_save_and_restore_are_exact(tmp_path):
  carry = make_carry(1 / 3)
  store = Checkpoints(tmp_path)
  store.save(7, carry, CLOCK)
  restored = store.restore(target(carry))
  assert restored is not None
  assert (restored.step, restored.clock) == (7, CLOCK)
  assert_same(restored.tree, carry)


def test_restore_to_more_devices(tmp_path):
  carry = make_carry(2.0)
  Checkpoints(tmp_path).save(7, carry, CLOCK)
  mesh = mesh_lib.make_mesh(8)
  restored = Checkpoints(tmp_path).restore(target(carry, mesh))
  assert restored is not None
  assert_same(restored.tree, carry)
  assert len(restored.tree.state.params["layer"]["kernel"].sharding.device_set) == 8


def test_without_an_average_and_a_named_step(tmp_path):
  store = Checkpoints(tmp_path, keep=5)
  for step in (1, 2, 10):
    store.save(step, make_carry(float(step), average=False), CLOCK)
  restored = store.restore(target(make_carry(0.0, average=False)), step=2)
  assert restored is not None and restored.step == 2
  assert_same(restored.tree, make_carry(2.0, average=False))
  with pytest.raises(UserError, match=r"3: there is no finished checkpoint; steps there: 1, 2, 10"):
    store.restore(target(make_carry(0.0, average=False)), step=3)


def test_only_the_newest_are_kept_by_number_and_not_by_name(tmp_path):
  store = Checkpoints(tmp_path, keep=2)
  for step in (8, 9, 10):
    store.save(step, make_carry(float(step)), CLOCK)
  assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "9"]
  assert store.newest() == 10


def test_the_best_of_those_there_is_kept_beside_the_newest(tmp_path):
  store = Checkpoints(tmp_path, keep=2)

  def names():
    return sorted(int(path.name) for path in tmp_path.iterdir())

  for step in (8, 9, 10, 11):
    store.save(step, make_carry(float(step)), CLOCK, best=[8])
  assert names() == [8, 10, 11]
  # Of step 7, the best, nothing could be saved; the second best stays.
  store.save(12, make_carry(12.0), CLOCK, best=[7, 10, 8])
  assert names() == [10, 11, 12]
  store.save(13, make_carry(13.0), CLOCK, best=[13, 7, 10])
  assert names() == [12, 13]


def cut_short(folder):
  file = max((p for p in folder.rglob("d/*") if p.is_file()), key=lambda p: p.stat().st_size)
  file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(folder):
  file = max((p for p in folder.rglob("d/*") if p.is_file()), key=lambda p: p.stat().st_size)
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(bytes(content))


def remove_a_file(folder):
  (folder / "_METADATA").unlink()


def no_manifest(folder):
  (folder / MANIFEST).unlink()


def broken_manifest(folder):
  (folder / MANIFEST).write_text('{"step": 2, "fi')


@pytest.mark.parametrize(
  "damage, words",
  [
    (cut_short, "bytes, not"),
    (flip_a_bit, "has changed"),
    (remove_a_file, "_METADATA is missing"),
    (no_manifest, "no finished checkpoint"),
    (broken_manifest, "its manifest.json cannot be used (it is no JSON"),
  ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_sentence(tmp_path, caplog, damage, words):
  store = Checkpoints(tmp_path)
  store.save(1, make_carry(1.0), CLOCK)
  store.save(2, make_carry(2.0), CLOCK)
  damage(tmp_path / "2")
  (tmp_path / "11").mkdir()  # a folder that is none
  (tmp_path / "notes").mkdir()
  with caplog.at_level(logging.WARNING, logger="jaxspeed"):
    restored = store.restore(target(make_carry(0.0)))
  assert restored is not None and restored.step == 1
  assert_same(restored.tree, make_carry(1.0))
  messages = [record.getMessage() for record in caplog.records]
  assert len(messages) == 2
  assert str(tmp_path / "11") in messages[0] and "no finished checkpoint" in messages[0]
  assert str(tmp_path / "2") in messages[1] and words in messages[1]


def edit(folder, **fields):
  """Changes fields of a manifest; a field of None is taken out."""
  manifest = json.loads((folder / MANIFEST).read_text()) | fields
  manifest = {name: value for name, value in manifest.items() if value is not None}
  (folder / MANIFEST).write_text(json.dumps(manifest))


NONSENSE: list[tuple[object, str]] = [
  ({"files": None}, "files: Field required"),
  ({"files": {}}, "files: Dictionary should have at least 1 item"),
  ({"files": []}, "files: Input should be an object"),
  ({"files": 3}, "files: Input should be an object"),
  ({"files": {"_METADATA": 3}}, "files._METADATA: Input should be a valid array"),
  ({"files": {"_METADATA": [1, 2, 3]}}, "files._METADATA: "),
  ({"files": {"_METADATA": ["1", 2]}}, "files._METADATA.0: Input should be a valid integer"),
  ({"files": {"/etc/hostname": [1, 2]}}, "files: '/etc/hostname' lies outside"),
  ({"files": {"../1/_METADATA": [1, 2]}}, "files: '../1/_METADATA' lies outside"),
  ({"format": None}, "format: Field required"),
  ({"format": 0}, f"format: Input should be greater than or equal to {FORMAT}"),
  ({"step": None}, "step: Field required"),
  ({"step": "2"}, "step: Input should be a valid integer"),
  ({"step": 2.0}, "step: Input should be a valid integer"),
  ({"step": 0}, "step: Input should be greater than"),
  ({"step": 2**31}, "step: Input should be less than"),
  ({"clock": None}, "clock: Field required"),
  ({"clock": {}}, "clock: init is missing"),
  ({"clock": "late"}, "clock: Input should be an object"),
  ({"clock": CLOCK | {"train": "1"}}, "clock.train: Input should be a valid number"),
  ({"clock": CLOCK | {"train": -1}}, "clock.train: Input should be greater than"),
  ({"clock": CLOCK | {"train": 1e300}}, "clock.train: Input should be less than"),
  ({"clock": CLOCK | {"train": math.nan}}, "NaN is no number of JSON"),
  ({"clock": CLOCK | {"lunch": 1.0}}, "clock: 'lunch' is no time of a run"),
  ("[]", "Input should be an object"),
  ("null", "Input should be an object"),
  ("", "it is no JSON"),
  ("[" * 100_000, "it is nested too deeply"),
]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
  """The folder of two checkpoints."""
  folder = tmp_path_factory.mktemp("two")
  store = Checkpoints(folder)
  store.save(1, make_carry(1.0), CLOCK)
  store.save(2, make_carry(2.0), CLOCK)
  return folder


@pytest.mark.parametrize("content, words", NONSENSE)
def test_a_manifest_with_nonsense_is_passed_over(two, tmp_path, caplog, content, words):
  folder = shutil.copytree(two, tmp_path / "checkpoints")
  if isinstance(content, dict):
    edit(folder / "2", **content)
  else:
    (folder / "2" / MANIFEST).write_text(str(content))
  store = Checkpoints(folder)
  with caplog.at_level(logging.WARNING, logger="jaxspeed"):
    assert store.newest() == 1
  (message,) = [record.getMessage() for record in caplog.records]
  assert message.startswith(
    f"checkpoint {folder / '2'} is passed over: its manifest.json cannot be used ({words}"
  )
  with pytest.raises(UserError, match=r"manifest.json cannot be used .*; steps there: 1\."):
    store.restore(target(make_carry(0.0)), step=2)
  assert (folder / "2" / MANIFEST).exists()


def test_a_manifest_that_names_a_file_that_no_folder_can_hold(two, tmp_path):
  folder = shutil.copytree(two, tmp_path / "checkpoints")
  edit(folder / "2", files={300 * "a": [1, 2]})
  assert Checkpoints(folder).newest() == 1


def test_a_checkpoint_of_a_later_format_is_not_passed_over(two, tmp_path):
  folder = shutil.copytree(two, tmp_path / "checkpoints")
  edit(folder / "2", format=FORMAT + 1)
  for ask in (Checkpoints(folder).newest, lambda: Checkpoints(folder).restore(None, step=2)):
    with pytest.raises(UserError, match=f"is of format {FORMAT + 1}, and this version of jaxspeed"):
      ask()


def test_what_is_passed_over_comes_with_its_reason(two, tmp_path):
  folder = shutil.copytree(two, tmp_path / "checkpoints")
  assert Checkpoints(folder).find_newest() == (2, [])
  for step in ("1", "2"):
    (folder / step / MANIFEST).write_text("")
  found, notes = Checkpoints(folder).find_newest()
  assert found is None and len(notes) == 2
  assert notes[0].startswith(f"checkpoint {folder / '2'} is passed over: its {MANIFEST} cannot be")


def test_a_manifest_that_is_a_folder_or_a_pipe(two, tmp_path):
  folder = shutil.copytree(two, tmp_path / "checkpoints")
  (folder / "2" / MANIFEST).unlink()
  (folder / "2" / MANIFEST).mkdir()
  assert Checkpoints(folder).newest() == 1
  (folder / "1" / MANIFEST).unlink()
  os.mkfifo(folder / "1" / MANIFEST)
  assert Checkpoints(folder).newest() is None


def test_a_renamed_checkpoint_is_of_the_step_in_its_manifest(two, tmp_path, caplog):
  folder = shutil.copytree(two, tmp_path / "checkpoints")
  (folder / "2").rename(folder / "999")
  shutil.copytree(folder / "1", folder / "7")
  store = Checkpoints(folder)
  with caplog.at_level(logging.WARNING, logger="jaxspeed"):
    restored = store.restore(target(make_carry(0.0)))
  assert restored is not None and restored.step == 2
  assert_same(restored.tree, make_carry(2.0))
  assert [record.getMessage() for record in caplog.records] == [
    f"checkpoint {folder / '999'} is of step 2, as its manifest.json says"
  ]
  for step in (7, 999):
    words = f"its manifest.json is of step {1 if step == 7 else 2}; steps there: 1, 2"
    with pytest.raises(UserError, match=words):
      store.restore(target(make_carry(0.0)), step=step)
  # Of copies the original; names that are no numbers of ours are no steps.
  (folder / "\u0663").mkdir()
  (folder / ("9" * 5000)[:200]).mkdir()
  one = store.restore(target(make_carry(0.0)), step=1)
  assert one is not None
  assert_same(one.tree, make_carry(1.0))
  # What somebody has named is nobody's to remove, and does not push out what is ours.
  for step in (3, 8, 9):
    store.save(step, make_carry(float(step)), CLOCK)
  names = {p.name for p in folder.iterdir() if (p / MANIFEST).exists()}
  assert names == {"7", "8", "9", "999"}


def test_a_state_of_another_step_than_its_manifest(two, tmp_path):
  store = Checkpoints(two)
  restored = store.restore(target(make_carry(0.0)))
  assert restored is not None
  with pytest.raises(
    UserError, match="of step 2 holds a state of step 7: its manifest.json belongs"
  ):
    restored.check_state()
  dataclasses.replace(restored, step=7).check_state()


def test_what_orbax_does_not_expect_in_its_files_is_told(two, tmp_path):
  folder = shutil.copytree(two, tmp_path / "checkpoints")
  metadata = folder / "2" / "_METADATA"
  metadata.write_text("3")
  files = json.loads((folder / "2" / MANIFEST).read_text())["files"]
  edit(folder / "2", files=files | {"_METADATA": [1, zlib.crc32(b"3")]})
  with pytest.raises(UserError, match="/2 (cannot be read|does not fit)"):
    Checkpoints(folder).restore(target(make_carry(0.0)))


def test_what_is_saved_is_on_the_disk_before_the_manifest_says_so(tmp_path, monkeypatch):
  synced = []

  def fail(path):
    synced.append(path.name)
    raise OSError(errno.ENOSPC, "No space left on device")

  store = Checkpoints(tmp_path)
  monkeypatch.setattr(manifest_lib, "sync", fail)
  with pytest.raises(CheckpointError, match="of step 2 could not .* .No space left on device.$"):
    store.save(2, make_carry(2.0), CLOCK)
  assert len(synced) == 1 and store.newest() is None and list(tmp_path.iterdir()) == []


def test_a_link_in_the_way_of_a_save_is_not_followed(tmp_path):
  (tmp_path / "victim").write_text("precious")
  (tmp_path / "checkpoints").mkdir()
  (tmp_path / "checkpoints" / ".part-3-2").symlink_to("../victim")
  store = Checkpoints(tmp_path / "checkpoints", incarnation=3)
  with pytest.raises(CheckpointError, match=r"\(File exists\)$"):
    store.save(2, make_carry(2.0), CLOCK)
  assert (tmp_path / "victim").read_text() == "precious"
  # It is gone for the next one.
  store.save(2, make_carry(2.0), CLOCK)
  assert store.newest() == 2 and (tmp_path / "victim").read_text() == "precious"


def test_saving_over_a_broken_checkpoint(tmp_path):
  store = Checkpoints(tmp_path)
  store.save(2, make_carry(2.0), CLOCK)
  no_manifest(tmp_path / "2")
  store.save(2, make_carry(3.0), CLOCK)
  restored = store.restore(target(make_carry(0.0)))
  assert restored is not None
  assert_same(restored.tree, make_carry(3.0))


def test_folders_of_other_makings_stay_and_push_nothing_out(tmp_path):
  store = Checkpoints(tmp_path, keep=1)
  for name in ("11", "12"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("mine")
  (tmp_path / "3").write_text("a file with a step's name")
  for step in (1, 2, 3):
    store.save(step, make_carry(float(step)), CLOCK)
  assert sorted(p.name for p in tmp_path.iterdir()) == ["11", "12", "3"]
  assert store.newest() == 3 and (tmp_path / "11" / "notes.txt").exists()


def test_a_kill_leaves_no_half_checkpoint_under_a_steps_name(tmp_path, monkeypatch):
  store = Checkpoints(tmp_path, keep=1, incarnation=4)
  store.save(1, make_carry(1.0), CLOCK)
  # Killed where the old one is removed, and where the new one is written.
  monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
  store.save(2, make_carry(2.0), CLOCK)
  (tmp_path / ".part-4-3.orbax-checkpoint-tmp").mkdir()
  monkeypatch.undo()
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    ".part-4-1-old",
    ".part-4-3.orbax-checkpoint-tmp",
    "2",
  ]
  next_start = Checkpoints(tmp_path, keep=1, incarnation=5)
  next_start.remove_parts()
  assert [p.name for p in tmp_path.iterdir()] == ["2"] and next_start.newest() == 2


def test_a_disk_without_room_is_told_before_orbax_finds_out(tmp_path, monkeypatch):
  store = Checkpoints(tmp_path)
  store.save(1, make_carry(1.0), CLOCK)
  asked = []

  def full(descriptor, offset, size):
    asked.append((offset, size))
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(os, "posix_fallocate", full)
  with pytest.raises(CheckpointError, match=r"of step 2 could not .* \(No space left on device\)$"):
    store.save(2, make_carry(2.0), CLOCK)
  arrays = jax.tree.leaves(make_carry(2.0))
  assert asked == [(0, sum(array.nbytes for array in arrays) + 2**20)]
  assert [p.name for p in tmp_path.iterdir()] == ["1"] and store.newest() == 1
  monkeypatch.undo()
  store.save(2, make_carry(2.0), CLOCK)
  assert store.newest() == 2


def test_what_orbax_raises_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
  store = Checkpoints(tmp_path)
  store.save(1, make_carry(1.0), CLOCK)
  monkeypatch.setattr(checkpoint, "_ensure_room", lambda path, _: path.write_text("in the way"))
  monkeypatch.setattr(manifest_lib, "write_atomically", lambda *_: 1 / 0)
  with pytest.raises(CheckpointError, match="of step 2 could not be written .* .division by zero"):
    store.save(2, make_carry(2.0), CLOCK)
  assert store.newest() == 1


def test_a_checkpoint_carries_its_start_and_an_older_one_writes_none(tmp_path, monkeypatch):
  class Lost(Exception):
    pass

  def lose(message):
    raise Lost(message)

  folder = tmp_path / "checkpoints"
  monkeypatch.setenv("SLURM_JOB_ID", "7")
  monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
  older = FolderLock(tmp_path, superseded=lose)
  Checkpoints(folder, incarnation=older.incarnation, lock=older).save(1, make_carry(1.0), CLOCK)
  monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
  with lock_folder(tmp_path) as newer:
    Checkpoints(folder, incarnation=newer.incarnation, lock=newer).save(2, make_carry(2.0), CLOCK)
    with pytest.raises(Lost, match="taken over by start 2"):
      Checkpoints(folder, incarnation=older.incarnation, lock=older).save(3, make_carry(3.0), CLOCK)
  older.close()
  starts = {
    p.name: json.loads((p / MANIFEST).read_text())["incarnation"]
    for p in folder.iterdir()
    if p.name.isdecimal()
  }
  assert starts == {"1": 1, "2": 2}


def test_nothing_to_restore(tmp_path):
  assert Checkpoints(tmp_path / "none").restore(target(make_carry(0.0))) is None


def test_a_checkpoint_of_another_model_is_refused_before_it_is_read(tmp_path, monkeypatch):
  store = Checkpoints(tmp_path)
  store.save(1, make_carry(1.0), CLOCK)
  read = mock.Mock(side_effect=AssertionError)
  monkeypatch.setattr("orbax.checkpoint.StandardCheckpointer.restore", read)

  def refusal(layer):
    other = make_carry(0.0)
    other = other.replace(state=other.state.replace(params={"layer": layer}))
    with pytest.raises(UserError, match="/1 does not fit the run's model: ") as caught:
      store.restore(target(other))
    return str(caught.value).split(": ", 1)[1].partition("; use the version of the code")[0]

  layer = make_carry(0.0).state.params["layer"]
  name = "state.params.layer"
  kernel = layer["kernel"]
  assert refusal(layer | {"kernel": jnp.zeros((4, 4))}) == (
    f"{name}.kernel has the shape {kernel.shape} there and (4, 4) in the model"
  )
  more = layer | {"scale": kernel, "shift": kernel}
  assert refusal(more) == f"the model has {name}.scale and 1 more and the checkpoint does not"
  fewer = {"bias": layer["bias"]}
  assert refusal(fewer) == f"the checkpoint has {name}.kernel and the model does not"
  read.assert_not_called()


def test_the_manifest_is_json_with_every_file(tmp_path):
  Checkpoints(tmp_path).save(4, make_carry(1.0), CLOCK)
  manifest = json.loads((tmp_path / "4" / MANIFEST).read_text())
  files = {str(p.relative_to(tmp_path / "4")) for p in (tmp_path / "4").rglob("*") if p.is_file()}
  assert set(manifest["files"]) == files - {MANIFEST}
