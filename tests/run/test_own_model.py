"""A user's own model, optimizer and data set, by --import: train, resume, evaluate, predict."""

import json
import shutil

import numpy as np
import optax
import pytest
from in_process import command, mistake
from PIL import Image
from tolerances import rounding

from jaxspeed.config import registry

# Fifteen lines of a model without running statistics, and no name that jaxspeed knows.
MODEL = """
from collections.abc import Callable
import jax.numpy as jnp
from flax import linen as nn
from jaxspeed.config import registry

@registry.model("perceptron")
class Perceptron(nn.Module):
  classes: int
  dtype: type = jnp.float32
  hidden: int = 16
  act: Callable = nn.relu

  @nn.compact
  def __call__(self, images, *, train):
    x = self.act(nn.Dense(self.hidden, name="z")(images.reshape(len(images), -1)))
    x = nn.Dropout(0.1, deterministic=not train)(x)
    return nn.Dense(self.classes, name="a")(x)
"""
REST = """
import jax.numpy as jnp
import numpy as np
import optax
from jaxspeed.config import registry

@registry.optimizer("my_lion")
def lion(fields):
  return optax.chain(optax.scale_by_lion(), optax.add_decayed_weights(fields.weight_decay))

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
  config.name = "own"
  config.epochs = 3.0
  config.batch_size = 24
  config.data.update(name="stripes", image_size=32, mean=(), std=())
  config.model = dict(name="perceptron")
  config.schedule.update(peak=0.02)
  config.average.update(kind="ema", decay=0.5)
  config.checkpoint.update(every_seconds=0.0, keep=9)
  return config
"""
IMPORT = "--import=my_model,my_rest"


@pytest.fixture
def written(module_folder):
  (module_folder / "my_model.py").write_text(MODEL)
  (module_folder / "my_rest.py").write_text(REST)
  (module_folder / "own.py").write_text(RECIPE)
  return module_folder


def train(workdir, *more):
  done = command("train", "--config=own.py", IMPORT, f"--workdir={workdir}", *more)
  assert done.returncode == 0, done
  return json.loads((workdir / "result.json").read_text())


def losses(workdir):
  rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return [(row["train_loss"], row["eval_loss"], row["largest_weight"]) for row in rows]


@pytest.mark.parametrize("optimizer", ["sgd", "my_lion"])
def test_it_trains_resumes_evaluates_and_predicts(optimizer, written):
  a, b = written / "a", written / "b"
  result = train(a, f"--config.optimizer.name={optimizer}")
  assert result["config"]["data"]["classes"] == 2 and result["config"]["data"]["image_size"] == 8
  if optimizer == "my_lion":
    assert result["top1"] == 1.0
  steps = sorted(int(path.name) for path in (a / "checkpoints").iterdir())
  assert len(steps) > 1 and steps[-1] == 9
  # As a run that was killed after its first checkpoint.
  shutil.copytree(a, b)
  (b / "result.json").unlink()
  for step in steps[1:]:
    shutil.rmtree(b / "checkpoints" / str(step))
  resumed = train(b, f"--config.optimizer.name={optimizer}")
  assert resumed["top1"] == result["top1"]
  assert losses(b) == losses(a)

  done = command("evaluate", IMPORT, f"--workdir={a}", "--json")
  # On one device, which sums the 18 losses in another order than eight.
  loss = json.loads(done.stdout)["loss"]
  assert loss == pytest.approx(losses(a)[-1][1], rel=rounding(2 * 18))
  stripes = np.zeros((8, 8), np.uint8)
  stripes[::2] = 200
  Image.fromarray(stripes).save(written / "stripes.png")
  done = command("predict", IMPORT, f"--workdir={a}", "stripes.png")
  assert done.returncode == 0 and {"along", "across"} < set(done.stdout.split())


@pytest.mark.parametrize("split, images", [("eval", 18), ("train", 72)])
def test_logits_are_saved_by_the_number_of_an_image(split, images, written):
  train(written / "a")
  arguments = ["evaluate", IMPORT, "a", f"--split={split}", "--logits=logits.npz"]
  row = json.loads(command(*arguments, "--json").stdout)
  saved = np.load("logits.npz")
  assert saved["logits"].shape == (images, 2) and saved["logits"].dtype == np.float32
  np.testing.assert_array_equal(saved["labels"], np.arange(90)[:images] % 2)
  right = (saved["logits"].argmax(-1) == saved["labels"]).mean()
  assert (row["images"], row["top1"]) == (images, right)
  assert row["evaluated_on"] == {"eval": "test"}.get(split, split)
  assert "is for one mode" in mistake(*arguments, "--config.eval.mode=center,flip")
  assert "ends with .npz" in mistake(*arguments[:-1], "--logits=logits.txt")
  assert "none/a.npz cannot be written (No such" in mistake(*arguments[:-1], "--logits=none/a.npz")


@pytest.mark.parametrize(
  "name, make, sentence",
  [
    ("eval_top1", lambda state: state.step, "the scalar 'eval_top1' has the name of another"),
    ("stopped_by", lambda state: state.step, "the scalar 'stopped_by' has the name of another"),
    ("all", lambda state: state.key, "the scalar 'all' is an array of shape (2,): it must be"),
  ],
)
def test_what_is_no_scalar_is_one_sentence(name, make, sentence, written):
  registry.scalar(name)(make)
  done = command("train", "--config=own.py", IMPORT, "--workdir=n")
  assert done.returncode == 2 and done.stderr.startswith(f"jaxspeed: {sentence}")


def test_a_run_whose_model_is_not_registered_names_the_flag(written):
  train(written / "a")
  registry.FAMILIES.pop("perceptron")
  found = mistake("evaluate", f"--workdir={written / 'a'}")
  assert "config.json: config.model.name='perceptron': choose one of airbench, resnet" in found
  assert found.endswith("or name the module that registers it with --import.")
  Image.fromarray(np.zeros((8, 8), np.uint8)).save("x.png")
  assert "--import" in mistake("predict", f"--workdir={written / 'a'}", "x.png")


def test_other_unknown_names_name_the_flag_too(written):
  for name, flag in (("optimizer.name", "my_loin"), ("data.name", "strips")):
    found = mistake("train", "--config=own.py", IMPORT, f"--config.{name}={flag}", "--workdir=n")
    assert f"config.{name}='{flag}': " in found and found.endswith("with --import.")
  assert not (written / "n").exists()


@pytest.mark.parametrize(
  "kind, made, sentence",
  [
    ("data", None, "the data set 'wrong' returns NoneType: return a dict with train_images"),
    ("data", {"images": 1}, "the data set 'wrong' returns images: return a dict with train_images"),
    (
      "data",
      dict.fromkeys(("train_images", "train_labels", "eval_images", "eval_labels"), [1.0]),
      "the data set 'wrong': train_images is float64 of shape (1,): images are uint8",
    ),
    ("optimizer", {"kernels": print}, "the optimizer 'wrong' returns a dict with 'kernels': its"),
    ("optimizer", print, "the optimizer 'wrong' is of type builtin_function_or_"),
    # The plan's rate would turn these uphill; the second begins at a rate of 0.
    ("optimizer", {"head": optax.adam(0.1)}, "the optimizer 'wrong' for 'head' brings its own"),
    (
      "optimizer",
      optax.sgd(optax.linear_schedule(0.0, 0.1, 9)),
      "the optimizer 'wrong' brings",
    ),
    # It looks for the layers of the model, and fails on other parameters.
    (
      "optimizer",
      optax.masked(optax.sgd(0.1), lambda params: {name: True for name in ("z", "a")}),
      "the optimizer 'wrong' brings",
    ),
  ],
)
def test_what_is_no_data_set_or_optimizer_is_one_sentence(kind, made, sentence, written):
  register = {"data": registry.data_set, "optimizer": registry.optimizer}[kind]
  register("wrong")(lambda _: made)
  field = f"--config.{kind}.name=wrong"
  assert mistake("train", "--config=own.py", IMPORT, field, "--workdir=n").startswith(sentence)
  assert not (written / "n").exists()
