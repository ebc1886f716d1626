"""continue_from: a new run that begins with all that another one has learned."""

import json
import shutil

import jax
import numpy as np
import pytest
from toy import digits
from toy_images import params_of

from jaxspeed.config import checks, stored
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.run import trainer
from jaxspeed.run.initial import fitted
from jaxspeed.run.planned import planned
from jaxspeed.run.session import train


def test_a_run_begins_with_the_bits_of_another_ones_weights_optimizer_and_averages(
  cache, tmp_path, monkeypatch, capsys
):
  fields = {"precision": "float64", "epochs": 1.0}
  train(digits(cache, **fields), str(tmp_path / "a"))
  begun = []

  def spy(*arguments):
    state = first_state(*arguments)
    begun.append(jax.tree.map(np.array, jax.device_get((arguments[0].key, state))))
    return state

  first_state = trainer.first_state
  monkeypatch.setattr(trainer, "first_state", spy)
  longer = digits(cache, **fields, continue_from=str(tmp_path / "a"), seed=1)
  train(longer, str(tmp_path / "b"))
  assert f"the weights, optimizer and averages of {tmp_path / 'a'}" in " ".join(
    capsys.readouterr().out.split()
  )
  with precision.wide_enough("float64"):
    last = jax.device_get(params_of(tmp_path / "a")[1].state)
  ((key, first),) = begun
  for part in ("params", "batch_stats", "opt_state", "ema"):
    jax.tree.map(np.testing.assert_array_equal, getattr(first, part), getattr(last, part))
  assert all(leaf.any() for leaf in jax.tree.leaves(first.opt_state))
  assert first.step == 0 and last.step == 9
  np.testing.assert_array_equal(first.key, key)
  # It resumes as any other, and no longer needs that run.
  (tmp_path / "b" / "result.json").unlink()
  shutil.rmtree(tmp_path / "a")
  train(longer, str(tmp_path / "b"))
  assert len(begun) == 1


def test_more_epochs_of_a_finished_run_are_refused_with_the_flags_that_train_them(finished, cache):
  folder, _ = finished
  words = f"epochs: 2.0 -> 3.0.*add --config.continue_from={folder} and choose another --workdir"
  with pytest.raises(UserError, match=words):
    train(digits(cache, epochs=3.0), str(folder))


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"model.activation": "relu"}, r"'celu' -> 'relu'.*only, with --config.pretrained.path"),
    ({"average.kind": "none"}, "average.kind: 'ema' -> 'none'"),
    ({"optimizer.name": "muon"}, "optimizer.name: 'sgd' -> 'muon'"),
    ({"continue_from": "nowhere"}, "config.continue_from: nowhere/config.json is missing"),
  ],
)
def test_a_run_that_another_cannot_begin_with_is_refused(finished, cache, tmp_path, fields, words):
  config = digits(cache, continue_from=str(finished[0]))
  config.update_from_flattened_dict(fields)
  for check in (lambda: planned(config, devices=8), lambda: train(config, str(tmp_path / "b"))):
    with pytest.raises(UserError, match=words):
      check()
  assert not (tmp_path / "b" / "checkpoints").exists()


def test_other_forms_of_the_layers_begin_with_the_same_arrays(finished, cache):
  config = digits(cache, continue_from=str(finished[0]), **{"model.layers": "plain"})
  fitted(checks.checked(config.to_dict()), ())


def test_that_run_decides_the_sizes_of_the_model_and_no_weights_are_looked_for(finished, cache):
  fields = {"model.width": 8, "pretrained.path": "gone.safetensors"}
  config = digits(cache, continue_from=str(finished[0]), **fields)
  config = checks.checked(config.to_dict())
  found = planned(config, devices=8)
  assert (found.config.model.width, found.config.pretrained.path) == (4, "")
  assert "model.width=4 in place of the recipe's 8" in " ".join(found.lines)
  with pytest.raises(UserError, match="model.width: 4 -> 8"):
    planned(config, devices=8, given={"model.width"})


@pytest.mark.parametrize("field, value", [("rate_in_momentum", False), ("momentum", 0.0)])
def test_an_optimizer_with_other_arrays_is_told_by_its_field(
  finished, cache, tmp_path, field, value
):
  config = digits(cache, continue_from=str(finished[0]), **{f"optimizer.{field}": value})
  words = "continue_from=.* cannot be continued .*: set the fields of the optimizer as it has them"
  with pytest.raises(UserError, match=words):
    train(config, str(tmp_path / "b"))
  assert (finished[0] / "checkpoints").exists() and not (tmp_path / "b").exists()


@pytest.mark.parametrize("part", ["schedule", "data"])
def test_another_schedule_and_other_arrays_are_the_new_runs_own(finished, cache, tmp_path, part):
  source = shutil.copytree(finished[0], tmp_path / "a")
  before = stored.load(source / "config.json")
  before.given[part] = "another"
  stored.save(before, source / "config.json")
  config = checks.checked(digits(cache, continue_from=str(source)).to_dict())
  fitted(config, ())


def test_other_classes_and_lost_checkpoints_are_told(finished, cache, tmp_path):
  run = shutil.copytree(finished[0], tmp_path / "a")
  config = digits(cache, continue_from=str(run))
  shutil.rmtree(run / "checkpoints")
  with pytest.raises(UserError, match="config.continue_from=.* holds no whole checkpoint"):
    train(config, str(tmp_path / "b"))
  shutil.copytree(finished[0] / "checkpoints", run / "checkpoints")
  (run / "classes.json").write_text('["cat"]')
  with pytest.raises(UserError, match="no list in JSON of the names of the run's 10 classes"):
    train(config, str(tmp_path / "b"))
  (run / "classes.json").write_text(json.dumps([*"abcdefghij"]))
  with pytest.raises(UserError, match="a run of other classes: take its weights with"):
    train(config, str(tmp_path / "b"))
  several = stored.load(run / "config.json")
  several.runs = 2
  stored.save(several, run / "config.json")
  with pytest.raises(UserError, match="holds 2 runs: name one of them"):
    train(config, str(tmp_path / "b"))
