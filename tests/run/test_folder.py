"""Who owns a run's folder, what is refused before anything is written, and what is left behind."""

import dataclasses
import errno
import json
import os
import pathlib
import re
import shutil
import sys
import types

import jax
import numpy as np
import pytest
import tiny_sets
from ml_collections import ConfigDict
from PIL import Image
from toy import load_recipe, toy_config, toy_spec

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.signals import Stopped
from jaxspeed.config import checks, stored
from jaxspeed.devices.precision import LossScale
from jaxspeed.errors import UserError
from jaxspeed.records.clock import Clock
from jaxspeed.records.writer import Records
from jaxspeed.run import checkpoint, session
from jaxspeed.run import folder as folder_lib
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.finish import finish
from jaxspeed.run.folder import look, make, taken
from jaxspeed.run.hooks import COMMAND
from jaxspeed.run.predict import predict, run_predictor
from jaxspeed.run.restore import load_config, open_run
from jaxspeed.run.run import Run
from jaxspeed.run.session import train
from jaxspeed.run.setup import pin_config

LOCKS = {".owner.lock", "owner.json", "run.lock"}


def contents(folder: pathlib.Path) -> dict[str, bytes | None]:
  """Every file with its bytes, every folder as None."""
  found = sorted(folder.rglob("*"))
  return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in found}


# Made


def test_a_folder_is_made_with_its_parents_and_may_exist(tmp_path):
  folder = tmp_path / "a" / "b"
  assert make(folder) == [tmp_path / "a", folder]
  assert make(folder) == [] and list(folder.iterdir()) == []


def test_a_file_or_what_lies_under_one_is_no_folder(tmp_path):
  (tmp_path / "file").write_text("precious")
  for path in (tmp_path / "file", tmp_path / "file" / "run"):
    with pytest.raises(UserError, match=f"workdir {path} cannot be created or written"):
      with taken(path):
        pass
  assert contents(tmp_path) == {"file": b"precious"}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc, which nobody can write")
@pytest.mark.parametrize("path", ["/proc", "/proc/run"])
def test_a_folder_that_nobody_can_write(path):
  with pytest.raises(UserError, match=f"workdir {path} cannot be created or written"):
    make(pathlib.Path(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
  tmp_path.chmod(0o500)
  with pytest.raises(UserError, match="Permission denied"):
    make(tmp_path)


@pytest.mark.parametrize(
  "workdir, words",
  [
    ("gs://bucket/run", "gs://bucket/run is no local folder"),
    ("a\udcff", "name that is not UTF-8"),
    ("a/" + "b" * 300, "cannot be created or written .File name too long"),
    ("a/\0b", "cannot be created or written .*null"),
  ],
)
def test_names_that_no_folder_can_have(tmp_path, monkeypatch, workdir, words):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=words):
    with taken(workdir):
      pass
  assert list(tmp_path.iterdir()) == []


# Not ours


def test_a_workdir_below_a_folder_that_was_removed(tmp_path, monkeypatch):
  (tmp_path / "here").mkdir()
  monkeypatch.chdir(tmp_path / "here")
  (tmp_path / "here").rmdir()
  with pytest.raises(UserError, match=r"runs/a cannot be created or written \(No such file"):
    with taken("runs/a"):
      pass


def digits(**fields) -> ConfigDict:
  config = load_recipe("quickstart.py")
  config.update(batch_size=160, epochs=2.0)  # 9 steps an epoch
  config.model.width = 4
  config.checkpoint.every_seconds = 0.0
  config.update_from_flattened_dict(fields)
  return checks.checked(config.to_dict())


@pytest.mark.parametrize(
  "names, words",
  [
    (["metrics.jsonl"], "(metrics.jsonl)"),
    (["classes.txt", "images.npy", "labels.npy"], "(classes.txt, images.npy, labels.npy)"),
    (["a", "b", "c", "d"], "(a, b, c, ...)"),
    (["train/cat/1.jpg"], "(train)"),
    (["checkpoints/15/manifest.json"], "(checkpoints)"),
    (["owner.json", "notes.txt"], "(notes.txt)"),
  ],
)
def test_a_folder_that_holds_something_else_is_refused_as_it_is(tmp_path, names, words):
  for name in names:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("precious")
  before = contents(tmp_path)
  with pytest.raises(UserError) as error:
    train(digits(), str(tmp_path))
  assert str(error.value).startswith(f"{tmp_path} is not empty and holds no run")
  assert words in str(error.value)
  assert contents(tmp_path) == before


@pytest.mark.parametrize(
  "text, words",
  [
    ("{}", "restore the file that jaxspeed.train wrote"),
    ('{"model_type": "resnet", "data": 3}', ""),
    ("[]", ""),
    ("", ""),
    ('{"data"', ""),
  ],
)
def test_a_config_of_something_else_is_refused_as_it_is(tmp_path, text, words):
  (tmp_path / "config.json").write_text(text)
  with pytest.raises(UserError, match=f"config.json:? .*{words}"):
    with taken(tmp_path):
      pass
  assert contents(tmp_path) == {"config.json": text.encode()}


@pytest.mark.parametrize(
  "names", [[], [".owner.lock", "run.lock"], [".owner.lock", ".jaxspeed-0123456789abcdef"]]
)
def test_what_a_killed_start_or_a_new_disk_leaves_is_nobodys(tmp_path, names):
  for name in names:
    (tmp_path / name).touch()
  for name in ("lost+found", "checkpoints"):
    (tmp_path / name).mkdir()
  assert look(tmp_path)
  with taken(tmp_path) as folder:
    assert folder.lock.incarnation == 1


def test_a_folder_of_the_data_is_no_workdir(tmp_path):
  data = tmp_path / "data"
  (data / "train" / "cat").mkdir(parents=True)
  before = contents(tmp_path)
  for workdir in (data, tmp_path / "data" / ".." / "data", data / "train" / "run", data / "val"):
    with pytest.raises(UserError, match="lies where the data is .config.data.path="):
      with taken(workdir, data_path=str(data)):
        pass
  assert contents(tmp_path) == before
  with taken(data / "runs" / "a", data_path=str(data)):
    pass


# Refused


def test_a_refused_start_leaves_no_folder_behind(tmp_path):
  with pytest.raises(UserError), taken(tmp_path / "a" / "b") as folder:
    (folder.path / "config.json").write_text("{}")
    (folder.path / "run_000").mkdir()
    (folder.path / "run_000" / "config.json").write_text("{}")
    raise UserError("no")
  assert list(tmp_path.iterdir()) == []


def test_what_was_there_before_a_refused_start_stays(tmp_path):
  (tmp_path / "a").mkdir()
  with pytest.raises(UserError), taken(tmp_path / "a") as folder:
    (folder.path / "config.json").write_text("{}")
    (folder.path / "by someone else").write_text("precious")
    raise UserError("no")
  assert contents(tmp_path) == {"a": None, "a/by someone else": b"precious"}


def test_what_another_start_wrote_meanwhile_stays(tmp_path, monkeypatch):
  def faster(path, **options):
    (path / "config.json").write_text((run / "config.json").read_text())
    return FolderLock(path, **options)

  with taken(run := tmp_path / "run"):
    stored.save(digits(), run / "config.json")
  monkeypatch.setattr(folder_lib, "FolderLock", faster)
  with pytest.raises(UserError, match="no"), taken(tmp_path / "a"):
    raise UserError("no")
  assert (tmp_path / "a" / "config.json").exists()


def test_a_run_that_has_begun_or_was_stopped_stays(tmp_path):
  with pytest.raises(UserError), taken(tmp_path / "a") as folder:
    folder.begun()
    raise UserError("no")
  with pytest.raises(Stopped), taken(tmp_path / "b") as folder:
    raise Stopped("saved", 0)
  assert set(os.listdir(tmp_path / "a")) == set(os.listdir(tmp_path / "b")) == LOCKS


def test_a_start_that_is_refused_for_another_one_leaves_that_alone(tmp_path):
  with taken(tmp_path / "a"):
    before = contents(tmp_path)
    with pytest.raises(UserError, match="is in use by start 1"), taken(tmp_path / "a"):
      pass
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"data.path": "nowhere"}, "nowhere"),
    ({"data.image_size": 9}, "image_size"),
    ({"schedule.peak": -1.0}, "schedule.peak"),
    ({"model.name": "resnet10"}, "resnet10"),
  ],
)
def test_bad_configs_and_data_leave_no_folder_behind(tmp_path, fields, words):
  with pytest.raises(UserError, match=words):
    train(digits(**fields), str(tmp_path / "runs" / "a"))
  assert list(tmp_path.iterdir()) == []


def test_what_fails_before_the_first_step_leaves_no_folder_behind(tmp_path, monkeypatch):
  monkeypatch.setattr(session, "make_feed", lambda *_: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    train(digits(), str(tmp_path / "runs" / "a"))
  assert list(tmp_path.iterdir()) == []


# Ours, and damaged


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The folder of a finished run with the checkpoints of its last two steps."""
  folder = tmp_path_factory.mktemp("runs") / "a"
  train(digits(), str(folder))
  return folder


def row(**fields) -> str:
  """A line of metrics.jsonl; a field of None is taken out."""
  known = {
    "epoch": 1,
    "step": 9,
    "examples": 1440,
    "world": 8,
    "images_per_second": 500.0,
    "dawn_seconds": 1.0,
  }
  return json.dumps({k: v for k, v in (known | fields).items() if v is not None}) + "\n"


RESULTS = {
  "": "it is no JSON",
  "[]": "Input should be an object",
  "{}": "config: Field required",
  '{"config": {}, "top1": NaN}': "NaN is no number of JSON",
  "[" * 100_000: "it is nested too deeply",
}
METRICS = {
  row(step=None): "step: Field required",
  row(examples=None): "examples: Field required",
  row(step="9"): "step: Input should be a valid integer",
  row() + row(): "step 9 comes after step 9",
  row(dawn_seconds=-1): "dawn_seconds: Input should be greater",
  row().replace("500.0", "1e999"): "1e999 is too large a number",
  "[]\n": "Input should be an object",
  "{half\n" + row(): "it is no JSON",
}
OWNER = {"incarnation": 1, "token": "a", "host": "b", "pid": 1, "job": "", "restart": 0}
OWNERS = {
  "": "it is no JSON",
  "[]": "Input should be an object",
  json.dumps(OWNER | {"incarnation": "1"}): "incarnation: Input should be a valid integer",
  json.dumps(OWNER | {"incarnation": 2**32}): "incarnation: Input should be less than 1073741824",
}


@pytest.mark.parametrize(
  "name, text, words",
  [
    *(("result.json", text, words) for text, words in RESULTS.items()),
    *(("metrics.jsonl", text, words) for text, words in METRICS.items()),
    *(("owner.json", text, words) for text, words in OWNERS.items()),
  ],
  ids=lambda value: value[:30] if isinstance(value, str) else None,
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


def test_a_result_of_another_config(run, tmp_path):
  folder = shutil.copytree(run, tmp_path / "a")
  result = json.loads((folder / "result.json").read_text())
  result["config"]["seed"] = 7
  (folder / "result.json").write_text(json.dumps(result))
  with pytest.raises(UserError, match=r"result.json is the result of another config .config.seed"):
    train(digits(), str(folder))


@pytest.mark.parametrize(
  "name", ["metrics.jsonl", "classes.json", "result.json", "config.json", "owner.json", "run.lock"]
)
def test_a_folder_or_a_pipe_in_place_of_a_file(run, tmp_path, name):
  folder = shutil.copytree(run, tmp_path / "a")
  (folder / name).unlink()
  for put, remove in ((pathlib.Path.mkdir, os.rmdir), (os.mkfifo, os.unlink)):
    put(folder / name)
    with pytest.raises(
      UserError, match=f"{name} is no file, but a run writes a file of that name: move it"
    ):
      train(digits(), str(folder))
    remove(folder / name)


def left_untrained(folder):
  """A folder as a run leaves it that ends in its first steps."""
  folder.mkdir()
  stored.save(digits(), folder / "config.json")
  (folder / "classes.json").write_text('["cat"]')
  (folder / "metrics.jsonl").touch()
  (folder / "tensorboard").mkdir()
  return folder


def test_a_run_without_a_checkpoint_is_replaced_by_one_of_another_config(tmp_path, caplog):
  folder, other = left_untrained(tmp_path / "a"), digits(seed=5)
  pin_config(folder, digits())
  assert (folder / "classes.json").exists() and not caplog.messages
  pin_config(folder, other)
  assert os.listdir(folder) == ["config.json"] and load_config(folder).seed == 5
  (said,) = caplog.messages
  assert said == f"{folder} held a run of another config without a checkpoint: this one replaces it"


@pytest.mark.parametrize(
  "name",
  [
    "checkpoints/9/x",
    "run_000/checkpoints/9/x",
    "result.json",
    "metrics.jsonl",
    "tensorboard/notes.txt",
    "loggers/wandb/id",
  ],
)
def test_a_run_with_something_to_lose_is_not_replaced(tmp_path, name):
  folder = left_untrained(tmp_path / "a")
  (folder / name).parent.mkdir(parents=True, exist_ok=True)
  (folder / name).write_text("{}")
  before = contents(folder)
  with pytest.raises(
    UserError, match="holds a run of another config .config.seed: 0 -> 5.: choose"
  ):
    pin_config(folder, digits(seed=5))
  assert contents(folder) == before


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_file_in_place_of_a_folder(run, tmp_path, name):
  folder = shutil.copytree(run, tmp_path / "a")
  shutil.rmtree(folder / name, ignore_errors=True)
  (folder / name).write_text("precious")
  before = contents(folder)
  with pytest.raises(
    UserError, match=f"{name} is no folder, but a run writes a folder of that name: move"
  ):
    train(digits(), str(folder))
  assert contents(folder) == before


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "profile", "run_000"])
def test_a_link_in_place_of_a_folder_is_not_followed(run, tmp_path, name):
  folder, elsewhere = shutil.copytree(run, tmp_path / "a"), tmp_path / "elsewhere"
  (elsewhere / "1").mkdir(parents=True)
  shutil.rmtree(folder / name, ignore_errors=True)
  (folder / name).symlink_to(elsewhere)
  (folder / "result.json").unlink()
  before = contents(tmp_path)
  with pytest.raises(UserError, match=f"{name} is a link, .*: put a folder in its place"):
    train(digits(), str(folder))
  assert contents(tmp_path) == before


def test_a_last_row_that_is_missing_is_no_result(run, tmp_path):
  folder = shutil.copytree(run, tmp_path / "a")
  (folder / "result.json").unlink()
  lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
  (folder / "metrics.jsonl").write_text(lines[0])
  with pytest.raises(
    UserError, match="metrics.jsonl has no row of the last step, 18: put the file"
  ):
    train(digits(), str(folder))
  assert not (folder / "result.json").exists()
  for each in (folder / "checkpoints").iterdir():
    if each.name != "18":
      shutil.move(each, tmp_path)
  with pytest.raises(UserError, match="back, or as there is no earlier checkpoint, train af"):
    train(digits(), str(folder))
  for each in tmp_path.iterdir():
    if each != folder:
      shutil.move(each, folder / "checkpoints")
  # What the first sentence says.
  shutil.rmtree(folder / "checkpoints" / "18")
  result = train(digits(), str(folder))
  assert result["top1"] == json.loads((run / "result.json").read_text())["top1"]


def test_a_run_of_which_no_step_was_taken_has_no_result(tmp_path):
  job = toy_spec(toy_config(precision="float16"))
  run = Run(job, tmp_path, types.SimpleNamespace(evaluated_on="test"), Clock(), *[None] * 3, ())
  run = dataclasses.replace(run, hooks=COMMAND)
  skipped = LossScale.create().replace(skipped=np.int32(8))
  state = types.SimpleNamespace(step=8, loss_scale=skipped)
  rows = [{"step": 8, "eval_top1": 0.1, "eval_top5": 0.5, "dawn_seconds": 1.0}]
  with pytest.raises(UserError, match="all 8 steps of the run were skipped"):
    finish(run, rows, state, None)
  assert list(tmp_path.iterdir()) == []


def test_a_finished_run_without_its_checkpoints_says_what_to_do(run, tmp_path, capsys):
  folder = shutil.copytree(run, tmp_path / "a")
  shutil.rmtree(folder / "checkpoints")
  train(digits(), str(folder))
  words = f"no longer holds a whole checkpoint: remove {folder / 'result.json'} to train it again"
  assert words in capsys.readouterr().out


# The last checkpoint


def no_room_for(monkeypatch, full_at: int) -> None:
  """A disk that has no room for the checkpoint of a step."""

  write = checkpoint.Checkpoints._write

  def full(self, step: int, *arguments) -> None:
    if step == full_at:
      raise OSError(errno.ENOSPC, "No space left on device")
    write(self, step, *arguments)

  monkeypatch.setattr(checkpoint.Checkpoints, "_write", full)


@pytest.mark.parametrize("on_error", ["continue", "stop"])
def test_a_run_without_its_last_checkpoint_is_not_finished(run, tmp_path, monkeypatch, on_error):
  folder = tmp_path / "a"
  fields = {"checkpoint.on_error": on_error}
  no_room_for(monkeypatch, 18)
  words = {
    "continue": "all steps are done, but without its weights the run is not finished; make room",
    "stop": "the run stops, the last whole checkpoint is of step ",
  }
  for _ in range(2):
    with pytest.raises(UserError) as error:
      train(digits(**fields), str(folder))
    assert "the checkpoint of step 18 could not be written" in str(error.value)
    assert "(No space left on device)" in str(error.value) and words[on_error] in str(error.value)
    assert not (folder / "result.json").exists()
    names = os.listdir(folder / "checkpoints")
    assert names and all(name.isdecimal() and int(name) < 18 for name in names)
  monkeypatch.undo()
  result = train(digits(**fields), str(folder))
  assert result["top1"] == json.loads((run / "result.json").read_text())["top1"]
  assert evaluate(folder)[0]["top1"] == result["top1"]


def test_one_of_several_runs_without_its_last_checkpoint(tmp_path, monkeypatch):
  folder, config = tmp_path / "two", digits(runs=2)
  saved = []
  write = checkpoint.Checkpoints._write

  def full_in_the_second(self, *arguments):
    saved.append(self._folder.parent.name)
    if saved[-1] == "run_001":
      raise OSError(errno.ENOSPC, "No space left on device")
    write(self, *arguments)

  monkeypatch.setattr(checkpoint.Checkpoints, "_write", full_in_the_second)
  with pytest.raises(UserError, match="run_001/checkpoints .No space left .* is not finished"):
    train(config, str(folder))
  assert "run_000" in saved and (folder / "run_000" / "result.json").exists()
  assert not (folder / "result.json").exists()
  assert not (folder / "run_001" / "result.json").exists()
  monkeypatch.undo()
  assert train(config, str(folder))["n"] == 2


def test_a_checkpoint_waits_for_the_rows_before_it(tmp_path, monkeypatch):
  said = "metrics.jsonl could not be written (No space left on device)"
  monkeypatch.setattr(Records, "write_waiting", lambda _: said)
  with pytest.raises(UserError) as error:
    train(digits(), str(tmp_path / "a"))
  assert str(error.value).startswith(f"{said}: all steps are done")
  assert not (tmp_path / "a" / "checkpoints").exists()
  assert not (tmp_path / "a" / "result.json").exists()


def test_weights_that_are_not_finite_have_no_accuracies(run, tmp_path):
  folder = shutil.copytree(run, tmp_path / "a")
  config = load_config(folder)
  _, restored = open_run(folder, config, 18)
  carry = jax.tree.map(np.asarray, restored.tree)
  average = jax.tree.map(lambda x: np.full_like(x, np.nan), carry.state.average)
  carry = carry.replace(state=carry.state.replace(average=average))
  checkpoint.Checkpoints(folder / "checkpoints").save(18, carry, restored.clock)
  with pytest.raises(UserError, match="mean loss of 297 images is nan: the weights give logits"):
    evaluate(folder)
  Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
  with pytest.raises(UserError, match="logits that are not finite: choose another --step"):
    predict(run_predictor(folder), [str(tmp_path / "a.png")])


def test_a_stored_precision_may_be_auto(run, tmp_path):
  folder = shutil.copytree(run, tmp_path / "a")
  config = json.loads((folder / "config.json").read_text())
  assert config["precision"] == "float32"
  (folder / "config.json").write_text(json.dumps(config | {"precision": "auto"}))
  assert evaluate(folder)[0]["loss"] == evaluate(run)[0]["loss"]


def test_the_programs_of_a_run_are_not_taken_from_its_folder(run, tmp_path):
  folder = shutil.copytree(run, tmp_path / "a")
  config = json.loads((folder / "config.json").read_text())
  config["compile_cache"] = str(tmp_path / "theirs")
  (folder / "config.json").write_text(json.dumps(config))
  assert load_config(folder).compile_cache == ""
  assert evaluate(folder)[0]["step"] == 18
  assert not (tmp_path / "theirs").exists()
  assert jax.config.jax_compilation_cache_dir != str(tmp_path / "theirs")


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
