"""Real saves and restores, and every way in which a checkpoint is not whole."""

import errno
import json
import logging
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspeed.cluster.folder_lock import Fence, holding
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.precision import LossScale
from jaxspeed.errors import UserError
from jaxspeed.run import checkpoint
from jaxspeed.run.checkpoint import MANIFEST, CheckpointError, Checkpoints
from jaxspeed.steps.losses import Sums
from jaxspeed.steps.state import Carry, TrainState

CLOCK = {"train": 1.5}


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
  return Carry(state, Sums(jnp.float32(0.1), jnp.int32(3), jnp.int32(5), jnp.int32(9)))


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
    (broken_manifest, "cannot be read"),
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
  monkeypatch.setattr(checkpoint, "write_atomically", lambda *_: 1 / 0)
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
  older = Fence(tmp_path, superseded=lose)
  Checkpoints(folder, incarnation=older.incarnation, fence=older).save(1, make_carry(1.0), CLOCK)
  monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
  with holding(tmp_path) as newer:
    Checkpoints(folder, incarnation=newer.incarnation, fence=newer).save(2, make_carry(2.0), CLOCK)
    with pytest.raises(Lost, match="taken over by incarnation 2"):
      Checkpoints(folder, incarnation=older.incarnation, fence=older).save(
        3, make_carry(3.0), CLOCK
      )
  older.close()
  starts = {
    p.name: json.loads((p / MANIFEST).read_text())["incarnation"]
    for p in folder.iterdir()
    if p.name.isdecimal()
  }
  assert starts == {"1": 1, "2": 2}


def test_nothing_to_restore(tmp_path):
  assert Checkpoints(tmp_path / "none").restore(target(make_carry(0.0))) is None


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
  store = Checkpoints(tmp_path)
  store.save(1, make_carry(1.0), CLOCK)
  other = make_carry(0.0)
  wider = other.replace(
    state=other.state.replace(params={"layer": {"kernel": jnp.zeros((4, 4)), "bias": jnp.zeros(4)}})
  )
  with pytest.raises(UserError, match="does not fit the run's model"):
    store.restore(target(wider))


def test_the_manifest_is_json_with_every_file(tmp_path):
  Checkpoints(tmp_path).save(4, make_carry(1.0), CLOCK)
  manifest = json.loads((tmp_path / "4" / MANIFEST).read_text())
  files = {str(p.relative_to(tmp_path / "4")) for p in (tmp_path / "4").rglob("*") if p.is_file()}
  assert set(manifest["files"]) == files - {MANIFEST}
