"""A run in float64, from its first step to its predictions, in a process that is not set to it."""

import jax
import numpy as np
import pytest
from toy import load_recipe

from jaxspeed.devices import precision
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.predict import predict, run_predictor
from jaxspeed.run.restore import load_config, open_run
from jaxspeed.run.session import train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A finished run's folder and what `train` returned."""
  tmp = tmp_path_factory.mktemp("float64")
  config = load_recipe("quickstart.py")
  config.update(precision="float64", epochs=1.0, batch_size=160)
  config.model.width = 4
  return tmp / "run", train(config, str(tmp / "run"))


def test_everything_a_run_keeps_is_float64_and_the_process_is_as_before(finished):
  folder, result = finished
  assert result["config"]["precision"] == "float64"
  assert np.zeros(1).dtype == np.float64 and jax.numpy.zeros(1).dtype == np.float32
  with precision.wide_enough("float64"):
    _, restored = open_run(folder, load_config(folder), None)
  state = restored.tree.state
  kept = (state.params, state.batch_stats, state.opt_state, state.ema)
  assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {np.dtype(np.float64)}
  # Digits of which float32 has none.
  loss = row_of(folder)["train_loss"]
  assert float(np.float32(loss)) != loss


def row_of(folder):
  return read_metrics(folder)[-1]


def test_it_is_evaluated_and_predicts_in_float64(finished, tmp_path):
  image = pytest.importorskip("PIL.Image")
  folder, result = finished
  (row,) = evaluate(folder)
  assert (row["top1"], row["loss"]) == (result["top1"], row_of(folder)["eval_loss"])
  image.fromarray(np.full((8, 8, 3), 100, np.uint8)).save(tmp_path / "grey.png")
  (likeliest,) = predict(run_predictor(folder), [str(tmp_path / "grey.png")], top=10)
  assert abs(sum(p for _, p in likeliest) - 1) < 1e-14
  assert jax.numpy.zeros(1).dtype == np.float32
