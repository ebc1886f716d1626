"""The best checkpoint, patience and traces, in runs whose evaluations a table decides."""

import json
import re
import shutil

import jax
import pytest
from fits import Net, bits, digits  # noqa: F401  a fixture
from in_process import command, mistake

import jaxspeed
from jaxspeed.run import epoch_report, evaluation, restore
from jaxspeed.run import predict as predict_lib
from jaxspeed.run.saver import Saver
from jaxspeed.run.trainer import Trainer

# Accuracies by epoch; the fourth equals the second, which came first. An epoch has three steps.
TOP1 = (0.2, 0.6, 0.4, 0.6, 0.5)
BEST, LAST = 6, 15


class Killed(BaseException):
  """What ends a run here in place of kill -9: nothing in the package catches it."""


@pytest.fixture
def table(monkeypatch):
  """Evaluations say what `TOP1` has, and a loss of the same order."""
  by_step = {3 * epoch: value for epoch, value in enumerate(TOP1, start=1)}
  made = epoch_report.evaluated_row

  def row(evaluation, *rest):
    top1 = by_step[evaluation.step]
    told = {"eval_loss": 1 - top1, "eval_top1": top1, "eval_top5": 1.0}
    return made(evaluation, *rest) | told

  monkeypatch.setattr(epoch_report, "evaluated_row", row)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
  return str(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def fit(digits, table, programs):  # noqa: F811
  def fit(folder, *, profile=None, **changes):
    fields = {"epochs": 5, "batch_size": 400, "compile_cache": programs}
    fields |= {"checkpoint.every_seconds": 1e6, "checkpoint.keep": 1}
    fields |= {"checkpoint.keep_best": "top1"} | changes
    config = jaxspeed.recipe("quickstart", **fields)
    return jaxspeed.fit(config, digits, folder, model=Net(), profile=profile)

  return fit


def content(folder):
  """What a run's folder holds, without times: its rows, its result and all that is saved."""
  rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  kept = ("step", "train_loss", "train_top1", "eval_top1", "stopped_by")
  saved = {}
  for path in (folder / "checkpoints").iterdir():
    run = jaxspeed.load(folder, step=int(path.name), model=Net())
    saved[int(path.name)] = bits(run)
  result = json.loads((folder / "result.json").read_text())
  return [[row.get(key) for key in kept] for row in rows], saved, result["best"], result["top1"]


@pytest.fixture(scope="module")
def undisturbed():
  return {}


@pytest.fixture
def whole(fit, undisturbed, tmp_path_factory):
  """The folder of a run that nothing happened to but a trace of its steps 4 to 8."""
  if not undisturbed:
    undisturbed["folder"] = tmp_path_factory.mktemp("runs") / "whole"
    fit(undisturbed["folder"], profile=(4, 8))
  return undisturbed["folder"]


def damage(folder, step):
  path = folder / "checkpoints" / str(step)
  file = max((p for p in path.rglob("d/*") if p.is_file()), key=lambda p: p.stat().st_size)
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(bytes(content))


def test_the_best_checkpoint_is_kept_and_the_last_epoch_counts(whole):
  rows, saved, best, top1 = content(whole)
  assert sorted(saved) == [BEST, LAST] and [row[3] for row in rows] == list(TOP1)
  assert 0 < best.pop("macro_top1") < 1
  assert best == {"metric": "top1", "epoch": 2, "step": BEST, "top1": 0.6, "top5": 1.0, "loss": 0.4}
  assert top1 == TOP1[-1]
  run = jaxspeed.load(whole, step="best", model=Net())
  assert run.step == BEST and run.result["top1"] == TOP1[-1]
  assert "top1 50.00% at its end, weights of step 6" in repr(run)
  assert jaxspeed.load(whole, model=Net()).step == LAST


def kill_before_saving(monkeypatch, step):
  """The next save of `step` kills the run, whose row of that step is written."""
  save = Saver.save

  def saving(self, at, *arguments, **options):
    if at == step:
      raise Killed
    save(self, at, *arguments, **options)

  monkeypatch.setattr(Saver, "save", saving)


def test_a_killed_run_ends_with_the_same_best_checkpoint(fit, whole, tmp_path, monkeypatch):
  with monkeypatch.context() as patch, pytest.raises(Killed):
    kill_before_saving(patch, LAST)
    fit(tmp_path / "a")
  assert {path.name for path in (tmp_path / "a" / "checkpoints").iterdir()} == {str(BEST)}
  fit(tmp_path / "a")
  assert content(tmp_path / "a") == content(whole)


def test_a_run_saved_before_its_evaluation_writes_the_row_once(fit, whole, tmp_path, monkeypatch):
  # As after a signal in an epoch's last step.
  def save_and_die(self, step):
    if step < BEST:
      return validate(self, step)
    self._saver.save(step, self._carry)
    raise Killed

  validate = Trainer._validate
  with monkeypatch.context() as patch, pytest.raises(Killed):
    patch.setattr(Trainer, "_validate", save_and_die)
    fit(tmp_path / "a")
  with monkeypatch.context() as patch, pytest.raises(Killed):
    kill_before_saving(patch, BEST)
    fit(tmp_path / "a")
  assert len((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()) == 2
  fit(tmp_path / "a")
  assert content(tmp_path / "a") == content(whole)


def test_patience_ends_a_run_for_good(fit, tmp_path):
  run = fit(tmp_path / "a", patience=2)
  assert [row.get("stopped_by") for row in run.history] == [None, None, None, "patience"]
  assert (run.result["stopped_by"], run.result["best"]["step"], run.step) == ("patience", BEST, 12)
  # The clock of airbench's rule contains the evaluation that turned out to be the last.
  assert run.result["seconds"]["train"] == run.history[-1]["train_seconds"]
  assert run.result["seconds"]["train"] > run.result["seconds"]["dawn"]
  before = content(tmp_path / "a")
  (tmp_path / "a" / "result.json").unlink()  # killed before it was written
  again = fit(tmp_path / "a", patience=2)
  assert content(tmp_path / "a") == before
  assert fit(tmp_path / "a", patience=2).result == again.result
  # What would end the run does not depend on who asks it to stop.
  with pytest.raises(jaxspeed.UserError, match="config.patience: 2 -> 3"):
    fit(tmp_path / "a", patience=3)


def test_a_damaged_or_missing_best_checkpoint_is_told_with_what_there_is(whole, tmp_path):
  folder = shutil.copytree(whole, tmp_path / "a")
  damage(folder, BEST)
  for fault in ("it.* (cannot be read|has changed).*", "there is no finished checkpoint"):
    with pytest.raises(jaxspeed.UserError) as error:
      jaxspeed.load(folder, step="best", model=Net())
    assert re.fullmatch(f".*/6: {fault}; steps there: 15\\.", str(error.value))
    shutil.rmtree(folder / "checkpoints" / str(BEST), ignore_errors=True)


def test_the_commands_take_the_best_step(whole, monkeypatch):
  asked = []

  def answer(*_, step=None, **__):
    asked.append(step)
    return [{"worst_classes": [], "macro_top1": 0.5, "confusions": []}]

  monkeypatch.setattr(evaluation, "evaluate", answer)

  def refuse(folder, config, step):
    asked.append(step)
    raise jaxspeed.UserError("no")

  monkeypatch.setattr(restore, "run_weights", refuse)
  monkeypatch.setattr(predict_lib, "run_predictor", lambda _, step: asked.append(step))
  monkeypatch.setattr(predict_lib, "predict", lambda *_, **__: [[]])
  workdir = f"--workdir={whole}"
  for word in ("best", "6"):
    command("evaluate", workdir, f"--step={word}")
    command("export", workdir, f"--step={word}", "--format=onnx", "--out=a.onnx")
    command("predict", workdir, f"--step={word}", "a.png")
  assert asked == 3 * ["best"] + 3 * [6]
  for word in ("bestest", "0", "1.5"):
    assert f"flag --step={word}: " in mistake("predict", workdir, f"--step={word}", "a.png")


def test_python_names_steps_to_trace_by_two_numbers(fit, tmp_path):
  for wrong in ((5, 3), (0, 2), (1.0, 2), "1:2", 7, (1, 2, 3), (True, 2)):
    with pytest.raises(jaxspeed.UserError, match=r"^profile=.*: it must be the first and the last"):
      fit(tmp_path / "a", profile=wrong)
  with pytest.raises(jaxspeed.UserError, match=r"steps 3 to 16 cannot .* the run has 15 steps"):
    fit(tmp_path / "a", profile=(3, 16))
  assert not (tmp_path / "a").exists()


def test_a_trace_is_written_for_tensorboard_and_perfetto(whole):
  session = whole / "profile" / "plugins" / "profile" / "steps_4_to_8"
  (planes,) = session.glob("*.xplane.pb")
  data = jax.profiler.ProfileData.from_file(str(planes))
  names = {
    dict(event.stats)["step_num"]
    for plane in data.planes
    for line in plane.lines
    for event in line.events
    if event.name == "train"
  }
  assert names == {4, 5, 6, 7, 8}
  assert len([*session.glob("*trace.json.gz")]) == 2
