"""`jaxspeed.fit` with objects in place of fields, and the notebook of docs/."""

import json
import pathlib

import flax.linen as nn
import jax.numpy as jnp
import optax
import pytest
from fits import Net, bits, recipe, said
from flax import nnx
from in_process import mistake

import jaxspeed

pytestmark = pytest.mark.usefixtures("promotion")


def test_a_model_of_ones_own_trains_loads_and_is_asked_for(digits, tmp_path):
  folder = tmp_path / "a"
  run = jaxspeed.fit(recipe(), digits, folder, model=Net())
  call = lambda **given: jaxspeed.fit(recipe(), digits, folder, **given)  # noqa: E731
  described = "Net(width=8, activation=relu)"
  assert run.config.given.model == described and run.config.model.to_dict() == {"name": "Net"}
  assert f"model={described}" in run.result["command"]
  again = jaxspeed.load(folder, model=Net())
  assert again.evaluate(digits.x_val, digits.y_val)["top1"] == run.result["top1"]
  assert isinstance(run.model, Net)
  pass_it = f"a model from Python, {described}: pass"
  assert pass_it in said(lambda: jaxspeed.load(folder))
  assert "model= is Net(width=9" in said(lambda: jaxspeed.load(folder, model=Net(width=9)))
  assert f"(config.given.model: '{described}' -> '', config.model." in said(call)
  assert pass_it in mistake("evaluate", f"--workdir={folder}")
  assert "pass an instance, Net()" in said(lambda: call(model=Net))
  assert "must be a flax.linen.Module" in said(lambda: call(model=3))
  layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
  assert "pass flax.nnx.bridge.to_linen(Linear, ...)" in said(lambda: call(model=layer))


class Linear:
  """A model that is no Flax module, without statistics and a dtype: two functions are enough."""

  def init(self, rng, images, *, train):
    return {"params": {"w": jnp.zeros((images[0].size, 10))}}

  def apply(self, variables, images, *, train, mutable=(), rngs=None):
    logits = images.reshape(len(images), -1) @ variables["params"]["w"]
    return (logits, {}) if mutable else logits


def test_a_model_of_two_functions_trains_and_resumes_to_the_same_bits(digits, tmp_path):
  def train(name, **given):
    small = recipe(precision="float64")
    return jaxspeed.fit(small, digits, tmp_path / name, model=Linear(), **given)

  run = train("whole")
  assert run.result["top1"] > 0.4  # guessing gives a tenth
  train("cut", on_epoch=lambda row: True)
  assert bits(train("cut")) == bits(run)
  again = jaxspeed.load(tmp_path / "cut", model=Linear())
  assert again.evaluate(digits.x_val, digits.y_val)["top1"] == run.result["top1"]


def test_a_model_that_does_not_fit_or_train_is_refused_before_the_run(digits, tmp_path):
  class NoFlag(nn.Module):
    def __call__(self, images):
      return images

  class Odd(nn.Module):
    kind: str

    @nn.compact
    def __call__(self, images, *, train):
      if self.kind in ("empty", "two"):
        return jnp.zeros((len(images), 2 if self.kind == "two" else 10))
      if self.kind == "raises" and train:
        raise ValueError("mine")
      if self.kind == "cache":
        count = self.variable("cache", "count", lambda: jnp.zeros(()))
        count.value = count.value + 1
      if self.kind == "dropout":
        images = nn.Dropout(0.1, deterministic=False)(images)
      if self.kind == "hollow":
        self.param("hollow", nn.initializers.zeros, (0, 3))
      logits = nn.Dense(10)(images.mean((1, 2)))
      return logits.astype(int) if self.kind == "whole" else logits

  for model, sentence in (
    (NoFlag(), "fails on images of shape (2, 8, 8, 3) with train=False (TypeError"),
    (Odd("two"), "gives (2, 2) for 2 images, and the data have 10 classes"),
    (Odd("hollow"), "model= has a parameter without elements"),
    (Odd("whole"), "model= gives logits of type int32: they must be floats."),
    (Odd("empty"), "model= has no parameters"),
    (Odd("raises"), "with train=True (ValueError: mine)"),
    (Odd("cache"), "with train=False (ScopeCollectionNotFound"),
    (Odd("dropout"), "needs PRNG for"),
  ):
    fit = lambda model=model: jaxspeed.fit(recipe(), digits, tmp_path / "a", model=model)  # noqa: E731
    assert sentence in said(fit)
    assert not (tmp_path / "a").exists()


def test_an_optimizer_and_a_schedule_of_optax_train_resume_and_load(digits, tmp_path):
  given = {
    "optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam()),
    "schedule": optax.warmup_cosine_decay_schedule(0.0, 0.01, 4, 18),
  }

  def fit(name, given=given, **more):
    return jaxspeed.fit(recipe(), digits, tmp_path / name, model=Net(), **given, **more)

  whole = fit("a")
  rates = [row["learning_rate"] for row in whole.history]
  expected = [float(given["schedule"](step)) for step in (8, 17)]
  # The schedule computes in float32 here, in float64 in the plan.
  assert rates == pytest.approx(expected, rel=1e-5)
  assert whole.result["top1"] > 0.3
  part = fit("b", on_epoch=lambda row: True)
  assert part.step == 9 and jaxspeed.load(tmp_path / "b", model=Net()).step == 9
  for name in given:
    less = {other: value for other, value in given.items() if other != name}
    sentence = said(lambda less=less: fit("b", less))
    assert f"config.given.{name}: '" in sentence and "undo the changes to resume" in sentence
  assert bits(fit("b")) == bits(whole)


NOTEBOOK = pathlib.Path(__file__).parents[2] / "docs" / "own_images.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  cells = json.loads(NOTEBOOK.read_text())["cells"]
  names = {"__name__": "__main__"}
  for number, cell in enumerate(cells):
    if cell["cell_type"] == "code":
      assert not cell["outputs"], "clear the outputs: they are of one machine"
      exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
  lines = capsys.readouterr().out.splitlines()
  assert [line.split(":")[0] for line in lines[:3]] == [f"epoch {n}" for n in range(1, 4)]
  assert names["run"].result["top1"] > 0.8
  assert {path.name for path in tmp_path.iterdir()} == {"runs"}
