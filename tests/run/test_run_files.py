"""A run's folder: whose it is, and files that are damaged, missing or of another kind."""

import errno
import json
import os
import pathlib
import re
import shutil
import sys
import time

import jax
import numpy as np
import pytest
import tiny_sets
from PIL import Image
from toy import contents
from toy import saving_digits as digits
from toy_images import restored_from

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.signals import Stopped
from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.records.writer import Records
from jaxspeed.run import checkpoint, saver
from jaxspeed.run import folder as folder_lib
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.folder import look, taken
from jaxspeed.run.predict import predict, run_predictor
from jaxspeed.run.restore import load_config
from jaxspeed.run.session import train
from jaxspeed.run.setup import pin_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The folder of a finished run with the checkpoints of its last two steps."""
  folder = tmp_path_factory.mktemp("runs") / "a"
  train(digits(), str(folder))
  return folder


OWNER = {"incarnation": 2**32, "token": "a", "host": "b", "pid": 1, "job": "", "restart": 0}


@pytest.mark.parametrize(
  "name, text, words",
  [
    ("result.json", "{}", "seed: Field required"),
    ("metrics.jsonl", "[]\n", "Input should be an object"),
    ("owner.json", "", "it is no JSON"),
    ("owner.json", json.dumps(OWNER), "incarnation: Input should be less than 1073741824"),
    ("owner.json", json.dumps(OWNER | {"incarnation": "1"}), "should be a valid integer"),
  ],
)
def test_a_damaged_file_is_named_and_nothing_else_touched(run, tmp_path, name, text, words):
  folder = shutil.copytree(run, tmp_path / "a")
  if name != "result.json":
    (folder / "result.json").unlink()
  (folder / name).write_text(text)
  before = contents(folder)
  with pytest.raises(UserError) as error:
    train(digits(), str(folder))
  assert str(error.value).startswith(str(folder / name)) and words in str(error.value)
  assert re.search(r"(move it away|repair or delete the line|remove owner.json)", str(error.value))
  after = contents(folder)
  changed = {name for name in before | after if before.get(name) != after.get(name)}
  assert changed <= {"owner.json"} - {name}


def as_link(path):
  (path.parent.parent / "elsewhere" / "1").mkdir(parents=True)
  path.symlink_to("../elsewhere")


KINDS = {
  "file": "metrics.jsonl classes.json result.json config.json owner.json run.lock".split(),
  "folder": "checkpoints tensorboard profile run_000".split(),
}
PUTS = {"file": (pathlib.Path.mkdir, os.mkfifo), "folder": (pathlib.Path.touch, as_link)}


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in KINDS for name in KINDS[kind]])
def test_what_is_of_another_kind_is_not_written_or_followed(run, tmp_path, kind, name):
  for number, put in enumerate(PUTS[kind]):
    folder = shutil.copytree(run, tmp_path / f"{number}" / "a")
    if kind == "file":
      (folder / name).unlink()
    shutil.rmtree(folder / name, ignore_errors=True)
    put(folder / name)
    before = contents(tmp_path)
    words = f"{name} is no {kind}.*, and a run writes a {kind} of that name: move it away"
    with pytest.raises(UserError, match=words):
      train(digits(), str(folder))
    assert contents(tmp_path) == before


LOSSES = "result.json metrics.jsonl tensorboard/notes.txt broken_images.tsv profile/x".split()
LOSSES += "checkpoints/9/x run_000/checkpoints/9/x loggers/wandb/id".split()


def test_a_run_is_replaced_by_one_of_another_config_if_nothing_is_lost(tmp_path, caplog):
  # As a run leaves it that ends in its first steps.
  folder = tmp_path / "a"
  folder.mkdir()
  stored.save(digits(), folder / "config.json")
  (folder / "classes.json").write_text('["cat"]')
  (folder / "metrics.jsonl").touch()
  (folder / "tensorboard").mkdir()
  for number, name in enumerate(LOSSES):
    other = shutil.copytree(folder, tmp_path / str(number))
    (other / name).parent.mkdir(parents=True, exist_ok=True)
    (other / name).write_text("{}")
    before = contents(other)
    with pytest.raises(UserError, match=r"holds a run of another config .config.seed: 0 -> 5.: ch"):
      pin_config(other, digits(seed=5))
    words = r"train_images: 1500 -> 29.: .* undo the changes, in the images too, to resume"
    with pytest.raises(UserError, match=words):
      pin_config(other, digits(**{"data.train_images": 29}))
    assert contents(other) == before, name
  pin_config(folder, digits())
  assert (folder / "classes.json").exists() and not caplog.messages
  pin_config(folder, digits(seed=5))
  assert os.listdir(folder) == ["config.json"] and load_config(folder).seed == 5
  assert "held a run of another config without a checkpoint" in caplog.text


def test_a_last_row_that_is_missing_is_no_result(run, tmp_path):
  folder = shutil.copytree(run, tmp_path / "a")
  (folder / "result.json").unlink()
  lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
  (folder / "metrics.jsonl").write_text(lines[0])
  with pytest.raises(UserError, match="metrics.jsonl has no row of the last step, 18: put the fil"):
    train(digits(), str(folder))
  assert not (folder / "result.json").exists()
  # What the sentence says.
  shutil.rmtree(folder / "checkpoints" / "18")
  result = train(digits(), str(folder))
  assert result["top1"] == json.loads((run / "result.json").read_text())["top1"]


# The last checkpoint


def test_a_run_without_its_last_checkpoint_is_not_finished(run, tmp_path, monkeypatch):
  folder, save = shutil.copytree(run, tmp_path / "a"), checkpoint.save
  (folder / "result.json").unlink()
  shutil.rmtree(folder / "checkpoints" / "18")

  def saving(folder, saved, *options):
    if saved.step == 18:
      raise OSError(errno.ENOSPC, "No space left on device")
    save(folder, saved, *options)

  monkeypatch.setattr(checkpoint, "save", saving)
  words = r"of step 18 could not be written .*\(No space left on device\): the run stops, the last "
  for on_error in ("continue", "stop"):
    with pytest.raises(UserError, match=words + "whole checkpoint is of step 17"):
      train(digits(**{"checkpoint.on_error": on_error}), str(folder))
    assert not (folder / "result.json").exists()
    assert os.listdir(folder / "checkpoints") == ["17"]
  monkeypatch.undo()
  result = train(digits(), str(folder))
  assert result["top1"] == json.loads((run / "result.json").read_text())["top1"]
  assert evaluate(folder)[0]["top1"] == result["top1"]


def test_a_checkpoint_waits_for_the_rows_before_it(tmp_path, monkeypatch):
  said = "metrics.jsonl could not be written (No space left on device)"
  monkeypatch.setattr(Records, "write", lambda _: said)
  words = rf"\({re.escape(said)}\): the run stops, the last whole checkpoint is of step 0; "
  with pytest.raises(UserError, match=words):
    train(digits(), str(tmp_path / "a"))
  assert not [*tmp_path.glob("a/checkpoints"), *tmp_path.glob("a/result.json")]


def test_a_slow_save_gives_signs_of_life(tmp_path, monkeypatch):
  save, beats = checkpoint.save, []

  def slow(*arguments):
    before, deadline = len(beats), time.monotonic() + 60
    while len(beats) < before + 5 and time.monotonic() < deadline:
      time.sleep(0.01)
    save(*arguments)

  monkeypatch.setattr(checkpoint, "save", slow)
  monkeypatch.setattr(saver, "heartbeat", lambda: beats.append(0))
  monkeypatch.setattr(saver, "_SIGN_OF_LIFE", 0.05)
  train(digits(epochs=1.0, **{"checkpoint.every_seconds": 1e6}), str(tmp_path / "a"))
  assert len(beats) >= 5


def test_weights_that_are_not_finite_have_no_accuracies(run, tmp_path):
  folder = shutil.copytree(run, tmp_path / "a")
  restored = restored_from(folder)
  carry = jax.tree.map(np.asarray, restored.tree)
  average = jax.tree.map(lambda x: np.full_like(x, np.nan), carry.state.ema)
  carry = carry.replace(state=carry.state.replace(ema=average))
  checkpoint.save(folder, restored._replace(tree=carry), 2, (), None)
  with pytest.raises(UserError, match="mean loss of 297 images is nan: the weights give logits"):
    evaluate(folder)
  Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
  with pytest.raises(UserError, match="logits that are not finite: choose another --step"):
    predict(run_predictor(folder), [str(tmp_path / "a.png")])


def test_evaluate_downloads_nothing_and_writes_to_no_place_that_the_folder_names(
  run, tmp_path, capsys, monkeypatch
):
  folder, theirs = shutil.copytree(run, tmp_path / "a"), tmp_path / "theirs"
  config = json.loads((folder / "config.json").read_text())
  config["data"] |= {"name": "cifar10", "cache": str(theirs)}
  (folder / "config.json").write_text(json.dumps(config))
  monkeypatch.setenv("HOME", str(tmp_path))  # of the default cache
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(UserError, match=r"no cifar10 is in .*/tfds, and evaluate downloads nothing"):
    evaluate(folder)
  images = tiny_sets.random_images(0, 10, 8, 8)
  examples = [tiny_sets.example(image, label) for label, image in enumerate(images)]
  parts = {"train": [examples], "test": [examples]}
  names = [str(label) for label in range(10)]
  tiny_sets.write_tfds(tmp_path / "tfds" / "cifar10" / "3.0.2", parts, class_names=names)
  capsys.readouterr()
  assert evaluate(folder)[0]["images"] == 10
  assert f"--config.data.cache={theirs} uses it again" in capsys.readouterr().err
  assert not theirs.exists() and (tmp_path / ".cache" / "jaxspeed" / "data").exists()
  config = load_config(folder)
  config.data.cache = str(theirs)
  evaluate(folder, config=config)
  assert theirs.exists() and "uses it again" not in capsys.readouterr().err


LOCKS = {".owner.lock", "owner.json", "run.lock"}
NOWHERE = "cannot be created or written"


@pytest.mark.parametrize(
  "workdir, words",
  [("file", NOWHERE), ("file/run", NOWHERE), ("/proc/run", NOWHERE), ("a/\0b", f"{NOWHERE} .*null")]
  + [("gs://bucket/run", "gs://bucket/run is no local folder"), ("a\udcff", "utf-8. codec")]
  + [("a/" + "b" * 300, f"{NOWHERE} .File name too long")],
)
def test_a_place_for_no_folder_is_refused(tmp_path, monkeypatch, workdir, words):
  if workdir.startswith("/proc") and not os.path.isdir("/proc/self"):
    pytest.skip("needs /proc, which nobody can write")
  monkeypatch.chdir(tmp_path)
  (tmp_path / "file").write_text("precious")
  with pytest.raises(UserError, match=words), taken(workdir):
    pass
  assert contents(tmp_path) in ({"file": b"precious"}, {"file": b"precious", "a": None})


@pytest.mark.parametrize(
  "names, words",
  [
    ("metrics.jsonl", "config.json is missing (metrics.jsonl)"),
    ("a b c d", "config.json is missing (a, b, c, ...)"),
    ("train/cat/1.jpg", "config.json is missing (train)"),
    ("checkpoints/15/manifest.json", "config.json is missing (checkpoints)"),
    ("owner.json notes.txt", "config.json is missing (notes.txt)"),
    ("config.json", "config.json"),
  ],
)
def test_a_folder_that_holds_something_else_is_refused_as_it_is(tmp_path, names, words):
  for text in ('{"model_type": "resnet", "data": 3}', "[]", '{"data"'):
    for name in names.split():
      (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
      (tmp_path / name).write_text(text)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=re.escape(words)), taken(tmp_path):
      pass
    assert contents(tmp_path) == before


def test_what_a_killed_start_or_a_new_disk_leaves_is_nobodys(tmp_path):
  for name in (".owner.lock", "run.lock", ".jaxspeed-0123456789abcdef"):
    (tmp_path / name).touch()
  for name in ("lost+found", "checkpoints"):
    (tmp_path / name).mkdir()
  assert look(tmp_path)
  with taken(tmp_path) as lock:
    assert lock.incarnation == 1


EARLY = ("config.json", "metrics.jsonl", "run_000/config.json")


@pytest.mark.parametrize(
  "wrote, error, left",
  [
    (EARLY, UserError("no"), None),
    ((), UserError("no"), set()),  # in a folder that was there
    (("result.json",), UserError("no"), LOCKS | {"result.json"}),
    ((), Stopped("saved", 0), LOCKS),
  ],
)
def test_a_refused_start_leaves_what_was_there_or_may_be_lost(tmp_path, wrote, error, left):
  folder = tmp_path / "b" / "a"
  if left == set():
    folder.mkdir(parents=True)
  with pytest.raises(type(error)), taken(folder):
    for name in wrote:
      (folder / name).parent.mkdir(exist_ok=True)
      (folder / name).write_text("{}" if name != "metrics.jsonl" else "")
    raise error
  assert (set(os.listdir(folder)) if folder.exists() else None) == left


def test_what_another_start_wrote_or_holds_stays(tmp_path, monkeypatch):
  with taken(tmp_path / "held"):
    before = contents(tmp_path)
    with pytest.raises(UserError, match="is in use by start 1"), taken(tmp_path / "held"):
      pass
    assert contents(tmp_path) == before

  def faster(path, **options):
    stored.save(digits(), path / "config.json")
    return FolderLock(path, **options)

  monkeypatch.setattr(folder_lib, "FolderLock", faster)
  with pytest.raises(UserError, match="no"), taken(tmp_path / "a"):
    raise UserError("no")
  assert (tmp_path / "a" / "config.json").exists()
