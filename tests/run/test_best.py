"""The best evaluation, its checkpoint, patience and traces, in rows and in runs."""

import json
import types

import jax
import pytest
from fits import Net, bits, digits  # noqa: F401  a fixture
from made_plans import config_with
from toy_images import Killed, killed_at

import jaxspeed
from jaxspeed.errors import UserError
from jaxspeed.run import epoch_report, restore
from jaxspeed.run.epoch_report import reason_to_stop
from jaxspeed.run.profile import Profile, check_steps, parse_steps
from jaxspeed.run.restore import best_step
from jaxspeed.run.trainer import Trainer

# Accuracies by epoch; the fourth equals the second, which came first. An epoch has three steps.
TOP1 = (0.2, 0.6, 0.4, 0.6, 0.5)
BEST, LAST = 6, 15


@pytest.fixture(scope="module")
def fit(digits):  # noqa: F811
  """Trains; evaluations say what `TOP1` has, and a loss of the same order."""
  made = epoch_report.evaluated_row
  fields = {"epochs": 5, "batch_size": 400, "checkpoint.keep_best": "top1", "checkpoint.keep": 1}
  fields |= {"checkpoint.every_seconds": 1e6}

  def row(evaluation, *rest):
    top1 = TOP1[evaluation.step // 3 - 1]
    told = {"eval_loss": 1 - top1, "eval_top1": top1, "eval_top5": 1.0}
    return made(evaluation, *rest) | told

  def fit(folder, *, profile=None, **changes):
    config = jaxspeed.recipe("quickstart", **fields | changes)
    return jaxspeed.fit(config, digits, folder, model=Net(), profile=profile)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(epoch_report, "evaluated_row", row)
    yield fit


@pytest.fixture(scope="module")
def whole(fit, tmp_path_factory):
  """The folder of a run that nothing happened to but a trace of its steps 4 to 8."""
  folder = tmp_path_factory.mktemp("runs") / "whole"
  fit(folder, profile=(4, 8))
  return folder


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


def test_a_killed_run_ends_with_the_same_best_checkpoint(fit, whole, tmp_path):
  with killed_at(LAST, saved=False):
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
  with killed_at(BEST, saved=False):
    fit(tmp_path / "a")
  assert len((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()) == 2
  manifest = tmp_path / "a" / "checkpoints" / str(BEST) / "manifest.json"
  saved = manifest.read_bytes()
  fit(tmp_path / "a")
  assert content(tmp_path / "a") == content(whole)
  # It is saved once: between two renames there would be none of its step.
  assert manifest.read_bytes() == saved


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


@pytest.mark.parametrize(
  "steps, how, traced, said",
  [
    ((2, 5), {}, [2, 3, 4, 5], "trace of steps 2 to 5 is in"),
    ((9, 9), {}, [9], "trace of steps 9 to 9 is in"),
    ((2, 5), {"step": 4}, [5], "trace of steps 5 to 5 is in"),
    ((2, 5), {"step": 5}, [], "took none of the steps 2 to 5"),
    ((3, 4), {"whole": True}, [1, 2, 3, 4, 5, 6], "trace of steps 1 to 6 is in"),
    # A run that ends early writes what it has.
    ((5, 8), {"end": 6}, [5, 6], "trace of steps 5 to 6 is in"),
    ((8, 9), {"end": 6}, [], "no trace is written: this start took none of the steps 8 to 9"),
    (None, {}, [], ""),
  ],
)
def test_the_steps_that_are_traced(monkeypatch, tmp_path, steps, how, traced, said):
  """Epochs of three steps, of which nothing is known but where they end."""
  on, seen, told = [], [], []
  monkeypatch.setattr(jax.profiler, "start_trace", lambda *_, **__: on.append(True))
  monkeypatch.setattr(jax.profiler, "stop_trace", on.clear)
  how = {"step": 0, "end": 9, "whole": False} | how

  def feed(step, end):
    while step < end:
      first, step = step + 1, end if how["whole"] else step + 1
      seen.extend(range(first, step + 1) if on else ())
      yield types.SimpleNamespace(step=step, carry=None)

  made = types.SimpleNamespace
  hooks, feeds = made(profile=steps), made(whole_epochs=how["whole"])
  profile = Profile(made(hooks=hooks, folder=tmp_path, feed=feeds, screen=made(line=told.append)))
  with profile.open():
    step = how["step"]
    while step < how["end"]:
      until = 3 * (step // 3 + 1)
      for output in profile.traced(feed(step, until), None, step, until):
        step = output.step
  assert not on and seen == traced
  assert said in "".join(told) and len(told) == (steps is not None)


def test_words_that_name_no_steps_are_a_mistake():
  assert parse_steps("3:7") == (3, 7)
  for text in ("5:3", "0:2", "-1:3", "a:b", "7", ":", "3:", "1:2:3", "1:٣", "1.5:2"):
    with pytest.raises(UserError, match="name the first and the last step to trace, counted fr"):
      parse_steps(text)
  check_steps((1, 9), 9)
  with pytest.raises(UserError, match="steps 3 to 10 cannot be traced .* the run has 9 steps"):
    check_steps((3, 10), 9)


def rows_of(*values):
  """Rows of epochs; None: without an evaluation; "nan": with a loss that is not finite."""
  rows = []
  for epoch, value in enumerate(values, start=1):
    row = {"epoch": epoch, "step": 10 * epoch}
    if value == "nan":
      row["eval_loss"] = None
    elif value is not None:
      row |= {"eval_loss": 1.0 + value, "eval_top1": value}
    rows.append(row)
  return rows


@pytest.mark.parametrize(
  "values, fields, end",
  [
    ((0.3, 0.2, 0.1), {}, None),
    # As Keras's EarlyStopping: an equal value is no improvement, an epoch without an evaluation
    # does not count, one whose loss is not finite does.
    ((0.1, 0.3, 0.2, 0.3, 0.5), dict(patience=2), (4, "patience")),
    ((0.1, 0.3, 0.2, 0.4, 0.3, 0.5), dict(patience=2), None),
    ((0.2, None, None, 0.1), dict(patience=1), (4, "patience")),
    ((0.2, "nan", 0.1, 0.3), dict(patience=2), (3, "patience")),
    (("nan", "nan"), dict(patience=2), (2, "patience")),
    # The target comes before patience; 0: there is none.
    ((0.9,), dict(stop_at_target=True, target=0.8), (1, "target")),
    ((0.9, 0.7), dict(patience=1, stop_at_target=True, target=0.95), (2, "patience")),
    ((0.9, 0.9), dict(patience=1, target=0.8), (2, "patience")),
    ((0.9,), dict(stop_at_target=True, target=0.0), None),
    # Nothing follows a top-5 accuracy of five classes.
    ((0.9, 0.9), dict(patience=1, target_metric="top5", data__classes=5), None),
    ((0.9, 0.9), dict(patience=1, target_metric="top5", data__classes=10), (1, "patience")),
  ],
)
def test_when_and_why_a_run_ends(values, fields, end):
  rows, config = rows_of(*values), config_with(**fields)
  reasons = [(n, reason_to_stop(rows[:n], config)) for n in range(len(rows) + 1)]
  assert next((each for each in reasons if each[1]), None) == end


def test_the_best_step_is_among_the_rows_that_a_resumed_run_keeps(tmp_path, monkeypatch):
  with pytest.raises(UserError, match="has no evaluation with top1, so that none is the best"):
    best_step(tmp_path, config_with())
  rows = [row | dict(examples=9, world=1, dawn_seconds=1.0) for row in rows_of(0.2, 0.6, 0.1, 0.9)]
  (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  for saved, metric, best in ((20, "none", 20), (40, "top1", 40), (40, "loss", 30)):
    monkeypatch.setattr(restore, "steps_of", lambda _: [saved])  # noqa: B023
    assert best_step(tmp_path, config_with(checkpoint__keep_best=metric)) == best
