"""A run in float64, from its first step to its predictions, in a process that is not set to it."""

import jax
import numpy as np
from PIL import Image
from toy import load_recipe
from toy_images import params_of

from jaxspeed.devices import precision
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.predict import predict, run_predictor
from jaxspeed.run.session import train


def test_a_run_in_float64_is_so_from_its_weights_to_its_predictions(tmp_path):
  folder = tmp_path / "run"
  config = load_recipe("quickstart.py")
  config.update(precision="float64", epochs=1.0, batch_size=160)
  config.model.width = 4
  result = train(config, str(folder))
  assert np.zeros(1).dtype == np.float64 and jax.numpy.zeros(1).dtype == np.float32
  with precision.wide_enough("float64"):
    state = params_of(folder)[1].state
  kept = (state.params, state.batch_stats, state.opt_state, state.ema)
  assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {np.dtype(np.float64)}
  row = read_metrics(folder)[-1]
  assert float(np.float32(row["train_loss"])) != row["train_loss"]  # digits that float32 lacks
  (found,) = evaluate(folder)
  assert (found["top1"], found["loss"]) == (result["top1"], row["eval_loss"])
  Image.fromarray(np.full((8, 8, 3), 100, np.uint8)).save(tmp_path / "grey.png")
  (likeliest,) = predict(run_predictor(folder), [str(tmp_path / "grey.png")], top=10)
  assert abs(sum(p for _, p in likeliest) - 1) < 1e-14
  assert jax.numpy.zeros(1).dtype == np.float32
