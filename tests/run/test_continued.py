"""Runs that begin with what another has learned, or with weights of the hub or of a run."""

import functools
import json
import os
import shutil
from unittest import mock

import jax
import numpy as np
import pytest
from toy import digits, toy_config
from toy_images import params_of

from jaxspeed.config import checks, stored
from jaxspeed.errors import UserError
from jaxspeed.models import hub
from jaxspeed.models.exchange import save_weights
from jaxspeed.models.vit_weights import VIT
from jaxspeed.run import trainer
from jaxspeed.run.initial import fitted, trained_before
from jaxspeed.run.planned import planned
from jaxspeed.run.restore import load_config, with_file
from jaxspeed.run.session import train


def test_images_held_out_that_another_run_may_have_trained_on_are_told(finished):
  config = load_config(finished[0])
  config.continue_from = str(finished[0])
  assert not trained_before(config, "held-out")
  config.data.train_images -= 100
  (line,) = trained_before(config, "validation")
  assert line.startswith("1,500 images were trained on before and 1,400 are now: some that are")
  assert not trained_before(config, "test")


@pytest.fixture
def source(finished, tmp_path):
  """A copy of a finished run's folder."""
  return shutil.copytree(finished[0], tmp_path / "a")


def test_a_run_begins_with_the_bits_of_another_ones_weights_optimizer_and_averages(
  source, tmp_path, monkeypatch, capsys
):
  begun = []

  def spy(*arguments):
    state = first_state(*arguments)
    begun.append(jax.tree.map(np.array, jax.device_get((arguments[0].key, state))))
    return state

  first_state = trainer.first_state
  monkeypatch.setattr(trainer, "first_state", spy)
  longer = digits(epochs=1.0, continue_from=str(source), seed=1)
  train(longer, str(tmp_path / "b"))
  printed = " ".join(capsys.readouterr().out.split())
  assert f"the weights, optimizer and averages of {source}" in printed
  last = jax.device_get(params_of(source)[1].state)
  ((key, first),) = begun
  for part in ("params", "batch_stats", "opt_state", "ema"):
    jax.tree.map(np.testing.assert_array_equal, getattr(first, part), getattr(last, part))
  assert all(leaf.any() for leaf in jax.tree.leaves(first.opt_state))
  assert first.step == 0 and last.step == 18
  np.testing.assert_array_equal(first.key, key)
  # It resumes as any other, and no longer needs that run.
  (tmp_path / "b" / "result.json").unlink()
  shutil.rmtree(source)
  train(longer, str(tmp_path / "b"))
  assert len(begun) == 1


def test_more_epochs_of_a_finished_run_are_refused_with_the_flags_that_train_them(finished):
  folder, _ = finished
  words = f"epochs: 2.0 -> 3.0.*add --config.continue_from={folder} and choose another --workdir"
  with pytest.raises(UserError, match=words):
    train(digits(epochs=3.0), str(folder))


OTHER_ARRAYS = "continue_from=.* cannot be continued .*: set the fields of the optimizer as it has"


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"model.activation": "relu"}, r"'celu' -> 'relu'.*only, with --config.pretrained.path"),
    ({"average.kind": "none"}, "average.kind: 'ema' -> 'none'"),
    ({"optimizer.name": "muon"}, "optimizer.name: 'sgd' -> 'muon'"),
    ({"optimizer.rate_in_momentum": False}, OTHER_ARRAYS),
    ({"optimizer.momentum": 0.0}, OTHER_ARRAYS),
    ({"continue_from": "nowhere"}, "config.continue_from: nowhere/config.json is missing"),
  ],
)
def test_a_run_that_another_cannot_begin_with_is_refused(finished, tmp_path, fields, words):
  config = digits(**{"continue_from": str(finished[0])} | fields)
  with pytest.raises(UserError, match=words):
    train(config, str(tmp_path / "b"))
  assert not (tmp_path / "b").exists()
  if words is not OTHER_ARRAYS:  # these are seen in the checkpoint alone
    with pytest.raises(UserError, match=words):
      planned(config, devices=8)


def test_forms_of_the_layers_schedules_and_arrays_are_the_new_runs_own(source):
  before = stored.load(source / "config.json")
  before.given.update(schedule="another", data="another")
  stored.save(before, source / "config.json")
  config = digits(continue_from=str(source), **{"model.layers": "plain"})
  fitted(checks.checked(config.to_dict()), ())


def test_that_run_decides_the_sizes_of_the_model_and_no_weights_are_looked_for(finished):
  fields = {"model.width": 8, "pretrained.path": "gone.safetensors"}
  config = digits(continue_from=str(finished[0]), **fields)
  config = checks.checked(config.to_dict())
  found = planned(config, devices=8)
  assert (found.config.model.width, found.config.pretrained.path) == (4, "")
  assert "model.width=4 in place of the recipe's 8" in " ".join(found.lines)
  with pytest.raises(UserError, match="model.width: 4 -> 8"):
    planned(config, devices=8, given={"model.width"})


def test_other_classes_and_lost_checkpoints_are_told(source, tmp_path):
  checkpoints = (source / "checkpoints").rename(tmp_path / "lost")
  several = stored.load(source / "config.json")
  several.runs = 2

  def name(classes):
    (source / "classes.json").write_text(json.dumps(classes))

  for words, change in (
    ("config.continue_from=.* holds no whole checkpoint", lambda: None),
    ("no list in JSON of the names of the run's 10 classes", lambda: name(["cat"])),
    ("a run of other classes: take its weights with", lambda: name([*"abcdefghij"])),
    ("holds 2 runs: name one of them", lambda: stored.save(several, source / "config.json")),
  ):
    change()
    with pytest.raises(UserError, match=words):
      train(digits(continue_from=str(source)), str(tmp_path / "b"))
    if checkpoints.exists():
      checkpoints.rename(source / "checkpoints")


close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-9)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run of a small transformer, which compiles in less time than a ResNet."""
  folder = tmp_path_factory.mktemp("hub") / "run"
  train(small_vit(), str(folder))
  return folder


def small_vit(**fields):
  config = toy_config()
  config.model = dict(name="vit", depth=1, width=8, heads=1, mlp=16, patch_size=4)
  config.update_from_flattened_dict(fields)
  return config


@pytest.fixture
def cache(trained, tmp_path, monkeypatch):
  """The run's weights as timm/small, in the cache of the hub's library, which reaches no hub."""
  constants = pytest.importorskip("huggingface_hub.constants")
  folder = tmp_path / "cache" / "models--timm--small"
  for name in ("refs", f"snapshots/{COMMIT}"):
    (folder / name).mkdir(parents=True)
  (folder / "refs" / "main").write_text(COMMIT)
  variables = jax.device_get(params_of(trained)[1].state.eval_variables())
  save_weights(folder / "snapshots" / COMMIT / "model.safetensors", variables, VIT)
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

  def use(name):
    hub.fetch.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / name))

  use("cache")
  yield use
  hub.fetch.cache_clear()


def weights_of(folder):
  """The parameters that a run is evaluated with."""
  return jax.device_get(params_of(folder)[1].state.eval_variables()["params"])


def begun_with(path, workdir, given=(), **fields):
  """The parameters of a run that begins with weights and hardly moves."""
  config = small_vit(**{"pretrained.path": str(path), "schedule.peak": 1e-12, **fields})
  train(config, str(workdir), given=given)
  return jax.device_get(params_of(workdir)[1].state.params)


def test_a_run_begins_with_weights_of_the_hub_and_names_their_commit(trained, cache, tmp_path):
  path = "hf://timm/small"
  # The weights decide the width and the depth.
  config = small_vit(**{"pretrained.path": path, "model.depth": 3, "model.width": 16})
  cache("empty")
  assert f"weights: training downloads {path}" in planned(config, devices=1).lines
  for file, words in (("", "and the cache has no copy"), ("/../a.safetensors", "contain a '..'")):
    with pytest.raises(UserError, match=words):
      hub.fetch(f"{path}{file}")
  cache("cache")
  found = begun_with(path, tmp_path / "a", **{"model.depth": 3, "model.width": 16})
  jax.tree.map(close, weights_of(trained), found)
  kept = stored.load(tmp_path / "a" / "config.json")
  assert kept.pretrained.path == f"{path}@{COMMIT}"
  assert (kept.model.depth, kept.model.width) == (1, 8)
  decided = "the weights decide: model.depth=1 in place of the recipe's 3, model.width=8 in place"
  assert any(line.startswith(decided) for line in planned(config, devices=1).lines)
  assert hub.pinned(path) == kept.pretrained.path
  cache("empty")  # a run that resumes needs neither network nor cache
  begun_with(path, tmp_path / "a", **{"model.depth": 3, "model.width": 16})


@pytest.mark.parametrize(
  "path, error, words",
  [
    ("hf://timm/a", "EntryNotFoundError", "holds no model.safetensors: .* pickles .* are not load"),
    ("hf://timm/a@v9", "RevisionNotFoundError", "has no revision v9"),
    ("hf://timm/a", "RepositoryNotFoundError", "no such name, or it is private"),
    ("hf://timm/a", "GatedRepoError", "its owner must admit you"),
    ("hf://timm/a", "HfHubHTTPError", "hf://timm/a cannot be downloaded .*: run the same"),
  ],
)
def test_what_the_hub_lacks_is_a_sentence(cache, monkeypatch, path, error, words):
  errors = pytest.importorskip("huggingface_hub.errors")
  kind = getattr(errors, error)
  raised = kind.__new__(kind)  # its arguments are the library's own
  monkeypatch.setattr("huggingface_hub.hf_hub_download", mock.Mock(side_effect=raised))
  with pytest.raises(UserError, match=words):
    hub.fetch(path)


def test_a_run_begins_with_the_weights_of_a_run(trained, tmp_path):
  found = begun_with(trained, tmp_path / "a", **{"model.width": 16})
  jax.tree.map(close, weights_of(trained), found)
  with pytest.raises(UserError, match="width 8, but .* has width 16: set config.model.width=8"):
    begun_with(trained, tmp_path / "b", given=["model.width"], **{"model.width": 16})
  # Its classes are ours: so is its last layer.
  config = small_vit(**{"pretrained.path": str(trained), "pretrained.head": "new"})
  names = tuple(map(str, range(10)))
  for given, classes, head in (
    ([], names, "keep"),
    ([], names[::-1], "new"),
    (["pretrained.head"], names, "new"),
  ):
    found = fitted(config, given, classes)
    assert (found.pretrained.head, found.pretrained.path) == (head, str(trained))

  # Runs of one name have files of their own, and a run may go on.
  def file_of(folder):
    return with_file(small_vit(**{"pretrained.path": str(folder)})).pretrained.path

  other = shutil.copytree(trained, tmp_path / trained.name)
  before = file_of(trained), file_of(other)
  assert before == (file_of(trained), file_of(other)) and before[0] != before[1]
  os.utime(other / "checkpoints", ns=(1, 1))  # as a new checkpoint does
  assert file_of(other) != before[1]
