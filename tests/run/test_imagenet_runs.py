"""imagenet18 from end to end at toy size: every phase, rectangles, averages, float16, resume."""

import jax
import numpy as np
import pytest
from toy import load_recipe
from toy_images import killed_at, params_of

from jaxspeed.records.writer import read_metrics
from jaxspeed.run.session import train

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.float16]


def test_all_phases_of_imagenet18_and_a_kill_in_a_later_one(tmp_path):
  # The recipe of one machine in 3 epochs of 5 steps, of a small net on noise.
  config = load_recipe("imagenet18.py", "1")
  assert config.phases.copies == (160, 352, 0)
  config.epochs = 3.0
  config.precision = "float16"
  config.model.update(depth=18, width=4)
  config.data.update(synthetic=True, classes=10, train_images=72, eval_images=21)
  config.phases.update(first_epoch=(0, 1, 2), image_size=(16, 24, 32), batch_size=(32, 16, 16))
  config.schedule.segments = ((0, 1, 0.1, 0.2), (1, 2, 0.2, 0.02), (2, 3, 0.02, 0.002))
  config.average.update(kind="ema", decay=0.9)
  config.eval.update(batch_size=1, shapes=2)
  config.checkpoint.update(every_seconds=0.0, keep=20)
  whole = tmp_path / "whole"
  result = train(config, str(whole))
  rows = read_metrics(whole)
  # 72 images: 3 steps of 32, then 5 of 16 twice, the last ones short.
  seen = [(r["step"], r["examples"], r["image_size"]) for r in rows]
  assert seen == [(3, 72, 16), (8, 144, 24), (13, 216, 32)]
  assert result["config"]["precision"] == "float16"
  assert [r["learning_rate"] for r in rows] == pytest.approx([0.2, 0.02, 0.002])
  assert all(np.isfinite(r["train_loss"]) for r in rows)
  state = params_of(whole)[1].state
  # A static scale, and the average that was evaluated is not the last state.
  assert float(state.loss_scale.scale) == 1024
  kernels = [t["stem"]["conv"]["kernel"] for t in (state.ema["params"], state.params)]
  assert not np.array_equal(*map(np.asarray, kernels))

  with killed_at(5):
    train(config, str(tmp_path / "run"))
  train(config, str(tmp_path / "run"))
  jax.tree.map(np.testing.assert_array_equal, state, params_of(tmp_path / "run")[1].state)
