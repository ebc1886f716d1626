"""A user's own model and data set, by --import: train, resume, evaluate, predict."""

import json
import shutil

import numpy as np
import optax
import pytest
from in_process import command, mistake
from PIL import Image
from tolerances import rounding

from jaxspeed.config import registry
from jaxspeed.records.writer import read_metrics

# A model without running statistics, and no name that jaxspeed knows.
OWN = """
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxspeed.config import registry

@registry.model("perceptron")
class Perceptron(nn.Module):
  classes: int
  dtype: type = jnp.float32

  @nn.compact
  def __call__(self, images, *, train):
    x = nn.relu(nn.Dense(16, name="z")(images.reshape(len(images), -1)))
    x = nn.Dropout(0.1, deterministic=not train)(x)
    return nn.Dense(self.classes, name="a")(x)

@registry.scalar("largest_weight")
def largest_weight(state):
  return jnp.max(jnp.abs(state.params["a"]["kernel"]))

@registry.data_set("stripes")
def stripes(path):
  labels = np.arange(90) % 2
  images = np.zeros((90, 8, 8, 3), np.uint8)
  images[labels == 0, ::2] = images[labels == 1, :, ::2] = 200
  return dict(train_images=images[:72], train_labels=labels[:72], eval_images=images[72:],
              eval_labels=labels[72:], class_names=("along", "across"))
"""
RECIPE = """
from jaxspeed.config import fields

def get_config():
  config = fields.base()
  config.update(name="own", epochs=3.0, batch_size=24)
  config.data.update(name="stripes", image_size=32, mean=(), std=())
  config.model = dict(name="perceptron")
  config.schedule.update(peak=0.02)
  config.average.update(kind="ema", decay=0.5)
  config.checkpoint.update(every_seconds=0.0, keep=9)
  return config
"""
IMPORT = "--import=my_own"


@pytest.fixture
def written(module_folder):
  (module_folder / "my_own.py").write_text(OWN)
  (module_folder / "own.py").write_text(RECIPE)
  return module_folder


def train(workdir):
  done = command("train", "--config=own.py", IMPORT, f"--workdir={workdir}")
  assert done.returncode == 0, done
  return json.loads((workdir / "result.json").read_text())


def refused(written, *flags):
  """The sentence of a training that is refused, and leaves nothing."""
  found = mistake("train", "--config=own.py", IMPORT, "--workdir=n", *flags)
  assert not (written / "n").exists()
  return found


def test_it_trains_resumes_evaluates_and_predicts(written):
  a, b = written / "a", written / "b"
  result = train(a)
  assert result["config"]["data"]["classes"] == 2 and result["config"]["data"]["image_size"] == 8
  assert result["top1"] == 1.0
  steps = sorted(int(path.name) for path in (a / "checkpoints").iterdir())
  assert len(steps) > 1 and steps[-1] == 9
  # As a run that was killed after its first checkpoint.
  shutil.copytree(a, b)
  (b / "result.json").unlink()
  for step in steps[1:]:
    shutil.rmtree(b / "checkpoints" / str(step))
  assert train(b)["top1"] == result["top1"]
  kept = "train_loss", "eval_loss", "largest_weight"
  ended, rows = [[[row[name] for name in kept] for row in read_metrics(run)] for run in (a, b)]
  assert ended == rows

  row = json.loads(command("evaluate", IMPORT, f"--workdir={a}", "--json").stdout)
  # On one device, which sums the 18 losses in another order than eight.
  assert row["loss"] == pytest.approx(rows[-1][1], rel=rounding(2 * 18))
  # Logits are saved by the number of an image.
  for split, images in (("eval", 18), ("train", 72)):
    arguments = ["evaluate", IMPORT, "a", f"--split={split}", "--logits=logits.npz"]
    row = json.loads(command(*arguments, "--json").stdout)
    saved = np.load("logits.npz")
    assert saved["logits"].shape == (images, 2) and saved["logits"].dtype == np.float32
    np.testing.assert_array_equal(saved["labels"], np.arange(90)[:images] % 2)
    right = (saved["logits"].argmax(-1) == saved["labels"]).mean()
    assert (row["images"], row["top1"]) == (images, right)

  stripes = np.zeros((8, 8), np.uint8)
  stripes[::2] = 200
  Image.fromarray(stripes).save("stripes.png")
  done = command("predict", IMPORT, f"--workdir={a}", "stripes.png")
  assert done.returncode == 0 and {"along", "across"} < set(done.stdout.split())
  # Without the flag that registers the model.
  registry.FAMILIES.pop("perceptron")
  found = mistake("evaluate", f"--workdir={a}")
  assert "config.json: config.model.name='perceptron': choose one of airbench, resnet" in found
  assert found.endswith("or name the module that registers it with --import.")
  assert "--import" in mistake("predict", f"--workdir={a}", "stripes.png")


FLOATS = dict.fromkeys(("train_images", "train_labels", "eval_images", "eval_labels"), [1.0])


@pytest.mark.parametrize(
  "kind, made, sentence",
  [
    ("data", None, "the data set 'wrong' returns NoneType: return a dict with train_images"),
    ("data", {"images": 1}, "the data set 'wrong' returns images: return a dict with train_images"),
    ("data", FLOATS, "the data set 'wrong': train_images is float64 of shape (1,): images are u"),
    ("optimizer", {"kernels": print}, "the optimizer 'wrong' returns a dict with 'kernels': its"),
    ("optimizer", print, "the optimizer 'wrong' is of type builtin_function_or_"),
    # The plan's rate would turn these uphill; the second begins at a rate of 0.
    ("optimizer", {"head": optax.adam(0.1)}, "the optimizer 'wrong' for 'head' brings its own"),
    ("optimizer", optax.sgd(optax.linear_schedule(0.0, 0.1, 9)), "the optimizer 'wrong' brings"),
    # It looks for the layers of the model, and fails on other parameters.
    ("optimizer", optax.masked(optax.sgd(0.1), lambda _: {"z": True, "a": True}), "the optimizer"),
  ],
)
def test_what_is_no_data_set_or_optimizer_is_one_sentence(kind, made, sentence, written):
  register = {"data": registry.data_set, "optimizer": registry.optimizer}[kind]
  register("wrong")(lambda _: made)
  assert refused(written, f"--config.{kind}.name=wrong").startswith(sentence)
  assert refused(written, f"--config.{kind}.name=wring").endswith("with --import.")


def test_what_is_no_scalar_is_one_sentence(written):
  for name, make, sentence in (
    ("eval_top1", lambda state: state.step, "the scalar 'eval_top1' has the name of another"),
    ("all", lambda state: state.key, "the scalar 'all' is an array of shape (2,): it must be"),
  ):
    registry.scalar(name)(make)
    done = command("train", "--config=own.py", IMPORT, "--workdir=n")
    assert done.returncode == 2 and done.stderr.startswith(f"jaxspeed: {sentence}")
    del registry.SCALARS[name]
