"""A third feed, as somebody would add it: a class, and its line in `run.setup.FEEDS`."""

import jax
import numpy as np
import pytest
from toy import load_recipe

from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.feeds.protocol import Feed
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.records.writer import read_metrics
from jaxspeed.run import setup
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.session import train
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.state import Carry, StepOutput


class ToyFeed(Feed):
  """Batches that NumPy draws from arrays, one by one."""

  open_data = staticmethod(ResidentFeed.open_data)
  prepare_evaluation = staticmethod(ResidentFeed.prepare_evaluation)

  def __init__(self, data, spec):
    super().__init__(data, spec)
    self.step, self.first = jax.jit(batch_step(spec)), jax.jit(on_mesh(init_state, spec))
    self.table = mesh_lib.replicate(spec.plan.table_in(np.float32), spec.mesh)
    carry = Carry(self.init(0), MetricSums.zero(spec.accumulation))
    self.carry = mesh_lib.abstract(carry, mesh_lib.replicated(spec.mesh))

  def init(self, seed):
    return self.first(*mesh_lib.replicate((seed_key(seed), self.data.train_images), self.spec.mesh))

  def train(self, carry, seed, first_step, last_step):
    images, labels = self.data.train_images, self.data.train_labels
    size = self.spec.plan.phases[0].batch_size
    for step in range(first_step, last_step):
      drawn = np.random.default_rng((seed, step)).permutation(len(labels))[:size]
      batch = Batch(image=images[drawn], label=labels[drawn], mask=np.ones(size, bool))
      carry, loss = self.step(carry, mesh_lib.split(batch, self.spec.mesh), self.table)
      yield StepOutput(step + 1, carry, loss)

  def evaluate(self, variables, step):
    return self.prepare_evaluation(self.data, self.spec, self.spec.plan.phases[-1], variables)()[0]


# Its programs are compiled where they are first called.
@pytest.mark.filterwarnings("ignore:.*compiled during:UserWarning")
def test_a_third_feed_is_a_class_and_a_line(tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(setup.FEEDS, "toy", ToyFeed)
  config = load_recipe("quickstart.py")
  config.data.feed = "toy"
  config.update(batch_size=160, epochs=2.0)  # 9 steps an epoch
  config.model.width = 4
  config.checkpoint.every_seconds = 0.0
  original = ToyFeed.train

  def interrupted(self, *arguments):
    for steps in original(self, *arguments):
      if steps.step == 14:
        raise KeyboardInterrupt
      yield steps

  with monkeypatch.context() as patched:
    patched.setattr(ToyFeed, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
      train(config, str(tmp_path))
  result = train(config, str(tmp_path))
  # From inside the second epoch.
  assert "resumes from the checkpoint of step 13" in capsys.readouterr().out
  rows = read_metrics(tmp_path)
  assert [row["step"] for row in rows] == [9, 18]
  assert rows[1]["train_loss"] < rows[0]["train_loss"]
  assert (rows[0]["data_wait"], rows[1]["train_images_broken"]) == (0.0, 0)
  assert evaluate(tmp_path)[0]["top1"] == result["top1"]
