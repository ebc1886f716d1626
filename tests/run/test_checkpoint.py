"""Real saves and restores, and every way in which a checkpoint is not whole."""

import contextlib
import errno
import json
import logging
import os
import random
import shutil
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.precision import LossScale
from jaxspeed.errors import UserError
from jaxspeed.files import write_atomically
from jaxspeed.run import checkpoint
from jaxspeed.run.checkpoint import FOLDER, MANIFEST, Checkpoint, steps_of

CLOCK = {"init": 0.5, "train": 1.5, "process": 9.0}


def tree_of(step):
  """A tree with the kinds of leaves and nodes that a run's carry has."""
  params = {"layer": {"kernel": jnp.full((3, 2), step / 3), "bias": jnp.arange(2.0) - step / 3}}
  state = {"params": params, "key": jnp.array([0, 3], jnp.uint32), "lookahead": None}
  state["opt_state"] = {"weight": (jnp.full((6,), -0.0), optax.EmptyState())}
  state["loss_scale"] = LossScale.create()
  return {"state": state, "sums": jnp.bfloat16(0.1)}


def target(tree=None, devices=1):
  mesh = mesh_lib.replicated(mesh_lib.make_mesh(devices))
  return mesh_lib.abstract(tree_of(0) if tree is None else tree, mesh)


def assert_same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  found, expected = ([np.asarray(x).tobytes() for x in jax.tree.leaves(tree)] for tree in (a, b))
  assert found == expected


def save(folder, *steps, keep=2, best=(), lock=None):
  for step in steps:
    saved = Checkpoint(tree_of(step), step, CLOCK, "arrays 01234567")
    checkpoint.save(folder.parent, saved, keep, best, lock)


def restore(folder, target, **options):
  return checkpoint.restore(folder.parent, target, **options)


def newest(folder):
  """The step of the newest sound checkpoint, which has to be exact."""
  restored = restore(folder, target())
  assert restored is not None and restored.clock == CLOCK
  assert_same(restored.tree, tree_of(restored.step))
  return restored.step


@pytest.fixture(scope="module")
def two_(tmp_path_factory):
  folder = tmp_path_factory.mktemp("two") / FOLDER
  save(folder, 1, 2)
  return folder


@pytest.fixture
def two(two_, tmp_path):
  """The folder of two checkpoints."""
  return shutil.copytree(two_, tmp_path / FOLDER)


@pytest.fixture
def folder(tmp_path):
  """The folder of checkpoints, which is not there yet."""
  return tmp_path / FOLDER


@pytest.mark.parametrize("devices", [1, 8])
def test_save_and_restore_are_exact_on_any_number_of_devices(folder, devices):
  assert restore(folder, target()) is None
  with mock.patch.object(checkpoint, "write_atomically", wraps=write_atomically) as wrote:
    save(folder, 7)
  restored = restore(folder, target(devices=devices))
  assert restored is not None and restored[1:] == (7, CLOCK, "arrays 01234567")
  assert_same(restored.tree, tree_of(7))
  assert all(len(x.sharding.device_set) == devices for x in jax.tree.leaves(restored.tree))
  # What Orbax does not sync itself is on the disk before the manifest.
  names = [call.args[0].name for call in wrote.call_args_list]
  assert "_METADATA" in names[:-1] and names[-1] == MANIFEST


def test_a_step_is_asked_for_by_its_number_and_a_part_by_its_target(two, monkeypatch):
  assert restore(two, target(), step=1).step == 1
  with pytest.raises(UserError, match=r" has no checkpoint of step 3; steps there: 1, 2\.$"):
    restore(two, target(), step=3)
  part = tree_of(2)
  del part["state"]["opt_state"]
  assert_same(restore(two, target(part), partial=True).tree, part)
  # What does not fit is refused before it is read.
  monkeypatch.setattr("orbax.checkpoint.Checkpointer.restore", None)
  kernel, bias = (tree_of(2)["state"]["params"]["layer"][name] for name in ("kernel", "bias"))
  for name, layer, words in (
    ("opt_state.weight.0", None, r"\[6\] there and nothing"),
    ("params.layer.kernel", {"kernel": jnp.zeros((4, 4))}, r"\[3, 2\] there and \[4, 4\]"),
    ("params.layer.scale", {"kernel": kernel, "scale": kernel}, r"nothing there and \[3, 2\]"),
    ("params.layer.kernel", {}, r"\[3, 2\] there and nothing in the model"),
  ):
    model = part if layer is None else tree_of(2)
    if layer is not None:
      model["state"]["params"] = {"layer": {"bias": bias} | layer}
    with pytest.raises(UserError, match=f"/2 does not fit .*: state.{name} is of shape {words}"):
      restore(two, target(model))


def test_the_newest_are_kept_by_number_and_the_best_beside_them(folder):
  for step, best, kept in (
    (8, [], [8]),
    (9, [8], [8, 9]),
    (10, [8], [8, 9, 10]),  # by number, not by name
    (11, [8], [8, 10, 11]),
    # Of step 7, the best, nothing could be saved; the second best stays.
    (12, [7, 10, 8], [10, 11, 12]),
    (13, [13, 7, 10], [12, 13]),
  ):
    save(folder, step, best=best)
    assert steps_of(folder.parent) == kept == sorted(int(path.name) for path in folder.iterdir())


def cut_short(folder):
  # All files: which of them Orbax reads depends on how it gathered its writes.
  for file in folder.rglob("d/*"):
    file.write_bytes(file.read_bytes()[:-1])


def edit(folder, *, sealed=True, **fields):
  """Changes fields of a manifest."""
  manifest = json.loads((folder / MANIFEST).read_text()) | fields
  if sealed:
    manifest.pop("crc32")
    manifest["crc32"] = checkpoint._crc_of(manifest)
  (folder / MANIFEST).write_text(json.dumps(manifest))


def manifest_as(put):
  def damage(folder):
    (folder / MANIFEST).unlink()
    put(folder / MANIFEST)

  return damage


def of_another_checkpoint(folder):
  shutil.copy(folder.parent / "1" / MANIFEST, folder)
  edit(folder, step=2)


DAMAGES = {
  "its manifest.json cannot be used .*No such file": manifest_as(lambda _: None),
  "cannot be read": cut_short,
  "cannot be read .*_METADATA": lambda f: (f / "_METADATA").unlink(),
  "it cannot be read": lambda f: (f / "_METADATA").write_text("3"),
  "its array .* has changed": of_another_checkpoint,
  "manifest.json has changed, or is of another": lambda f: edit(f, step=3),
  "manifest.json has changed": lambda f: edit(f, sealed=False, clock={}),
  "manifest.json cannot be used \\(clock.train": lambda f: edit(f, clock={"train": "a"}),
  "it is no regular file": manifest_as(os.mkfifo),
  "Is a directory|no regular file": manifest_as(os.mkdir),
  "it is no JSON": lambda f: (f / MANIFEST).write_text('{"step": 2, "fi'),
  "Input should be an object": lambda f: (f / MANIFEST).write_text("[2]"),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_sentence(two, caplog, words):
  (two / "11").mkdir()  # a folder that is none
  (two / "\u0663").mkdir()
  (two / ("9" * 200)).mkdir()
  DAMAGES[words](two / "2")
  with caplog.at_level(logging.WARNING, logger="jaxspeed"):
    assert newest(two) == 1
  # Orbax warns too.
  messages = [each.getMessage() for each in caplog.records if each.name == "jaxspeed"]
  assert [message.split(":")[0] for message in messages] == [
    f"checkpoint {two / name} is passed over" for name in ("9" * 200, "11", "2")
  ]
  with pytest.raises(UserError, match=rf"^{two / '2'}: .*({words}).*; steps there: 1, 11, 9+\.$"):
    restore(two, target(), step=2)
  # Without another one, nothing is trained over it.
  for name in ("1", "11", "9" * 200):
    shutil.rmtree(two / name)
  for step in (None, 2):
    with pytest.raises(UserError, match=f"; move {two} away to train afresh"):
      restore(two, target(), step=step)
  assert (two / "2").exists()


def test_no_flipped_bit_passes_unnoticed(two):
  draw, found = random.Random(0), []
  files = sorted(path for path in (two / "2").rglob("*") if path.is_file())
  for _ in range(60):
    file = draw.choice(files)
    intact = file.read_bytes()
    content = bytearray(intact)
    content[draw.randrange(len(content))] ^= 1
    file.write_bytes(content)
    found.append(newest(two))  # exact, or the one before
    file.write_bytes(intact)
  assert set(found) == {1, 2}  # what Orbax does not read of its files is not missed


def test_a_save_removes_older_checkpoints_and_nothing_of_a_stranger(two):
  victim = two.parent / "victim"
  victim.mkdir()
  (victim / "file").write_text("precious")
  for name in (".part-3", "4"):
    (two / name).symlink_to("../victim")
  cut_short(two / "2")
  (two / "3").write_text("a file with a step's name")
  (two / "0").mkdir()
  (two / "0" / "notes.txt").write_text("mine")
  shutil.copytree(two / "1", two / "999")  # of a later step, as after one that was passed over
  save(two, 2, 3, 4)
  assert newest(two) == 4 and not (two / "4").is_symlink()
  assert sorted(p.name for p in two.iterdir()) == [".part-3", "0", "3", "4", "999"]
  assert (two / "0" / "notes.txt").exists() and (victim / "file").read_text() == "precious"


def test_a_kill_leaves_no_half_checkpoint_under_a_steps_name(folder, monkeypatch):
  save(folder, 1)
  # Killed where the old one is removed, and where the new one is written.
  with monkeypatch.context() as patch:
    patch.setattr(shutil, "rmtree", lambda *_, **__: None)
    save(folder, 2, keep=1)
  (folder / ".part-4.orbax-checkpoint-tmp").mkdir()
  left = sorted(p.name[:6] for p in folder.iterdir())
  assert left == [".part-", ".part-", "2"] and newest(folder) == 2
  save(folder, 3, keep=1)
  assert [p.name for p in folder.iterdir()] == ["3"] and newest(folder) == 3


FULL = {"side_effect": OSError(errno.ENOSPC, "No space left on device")}
NO_ROOM = {"return_value": types.SimpleNamespace(free=2**20)}  # a MiB is for Orbax's own files


@pytest.mark.parametrize(
  "place, how",
  [
    ("orbax.checkpoint.Checkpointer.save", {"side_effect": ZeroDivisionError}),
    ("os.fsync", FULL),
    ("shutil.disk_usage", NO_ROOM),
  ],
)
def test_a_save_that_fails_leaves_the_earlier_checkpoints(two, place, how):
  with mock.patch(place, **how), pytest.raises((OSError, ZeroDivisionError)):
    save(two, 3)
  assert sorted(p.name for p in two.iterdir()) == ["1", "2"] and newest(two) == 2
  save(two, 3)
  assert newest(two) == 3


def test_an_old_checkpoint_that_cannot_be_removed_is_no_failure_to_save(two, monkeypatch):
  rename = type(two).rename

  def refuse(self, to):
    if self.name == "1":
      raise OSError(errno.EACCES, "Permission denied")
    return rename(self, to)

  with monkeypatch.context() as patch:
    patch.setattr(type(two), "rename", refuse)
    save(two, 3, keep=1)
  assert newest(two) == 3 and steps_of(two.parent) == [1, 3]
  save(two, 4, keep=1)
  assert steps_of(two.parent) == [4]


def test_a_start_writes_no_checkpoint_once_a_later_one_owns_the_folder(folder, monkeypatch):
  def lose(message):
    raise KeyError(message)

  monkeypatch.setenv("SLURM_JOB_ID", "7")
  monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
  older = FolderLock(folder.parent, superseded=lose)
  save(folder, 1, lock=older)
  monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
  with contextlib.closing(FolderLock(folder.parent)) as newer:
    save(folder, 2, lock=newer)
    with pytest.raises(KeyError, match="taken over by start 2"):
      save(folder, 3, lock=older)
  older.close()
  assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
