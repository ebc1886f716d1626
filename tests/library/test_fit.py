"""`jaxspeed.fit`: its runs, what it leaves of the process, and objects in place of fields."""

import contextlib
import functools
import io
import json
import logging
import os
import pathlib
import re
import signal
import sys
import threading

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from in_process import command, mistake
from toy import MIXED

import jaxspeed
from jaxspeed.data.memory.arrays import open_arrays
from jaxspeed.run import session


class Net(nn.Module):
  """A small net of a user's own."""

  width: int = 8
  activation: object = nn.relu
  dtype: object = jnp.float32

  @nn.compact
  def __call__(self, images, *, train):
    x = nn.Conv(self.width, (3, 3), strides=2, use_bias=False, dtype=self.dtype)(images)
    x = self.activation(nn.BatchNorm(use_running_average=not train, dtype=self.dtype)(x))
    return nn.Dense(10, dtype=self.dtype, name="head")(x.reshape(len(images), -1))


@pytest.fixture(scope="module")
def digits():
  found = open_arrays(name="digits", path="", cache="", classes=10)
  parts = (found.train_images, found.train_labels, found.eval_images, found.eval_labels)
  return jaxspeed.Arrays(*parts)


def recipe(**changes):
  return jaxspeed.recipe("quickstart", **{"epochs": 2, "batch_size": 160} | changes)


def bits(run):
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.variables)]


def said(call):
  """The sentence of the UserError that a call raises."""
  with pytest.raises(jaxspeed.UserError) as raised:
    call()
  assert "--" not in str(raised.value)
  return str(raised.value)


@pytest.fixture(scope="module")
def finished(digits, tmp_path_factory):
  """A run of a recipe's own model."""
  small = recipe(**{"model.width": 4})
  return jaxspeed.fit(small, digits, tmp_path_factory.mktemp("runs") / "a")


@pytest.fixture(scope="module")
def whole(digits, tmp_path_factory):
  """A run of `Net`, which compiles in no time; its images are mixed with each other."""
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    folder = tmp_path_factory.mktemp("runs") / "net"
    run = jaxspeed.fit(recipe(**MIXED), digits, folder, model=Net(), progress=True)
  return run, out.getvalue()


@pytest.fixture(scope="module", autouse=True)
def promotion():
  """Types are promoted as users have it: Optax's Adam needs that."""
  before = jax.config.values["jax_numpy_dtype_promotion"]
  jax.config.update("jax_numpy_dtype_promotion", "standard")
  yield
  jax.config.update("jax_numpy_dtype_promotion", before)


def test_a_run_has_its_result_history_weights_and_predictions(finished, digits):
  run = finished
  assert run.result == json.loads((run.folder / "result.json").read_text())
  assert [row["epoch"] for row in run.history] == [1, 2]
  assert run.history[-1]["eval_top1"] == run.result["top1"]
  metrics = run.evaluate(digits.x_val, digits.y_val)
  assert metrics["images"] == 297 and metrics["top1"] == run.result["top1"]
  assert metrics["top5"] == run.result["top5"]
  for name in ("macro_top1", "per_class", "confusion"):
    assert metrics[name] == run.result[name], name
  # Two programs may round a confidence, a float32 of at most 1, differently.
  assert metrics["ece"] == pytest.approx(run.result["ece"], abs=1e-6)
  right = run.predictions.label == run.predictions.predicted
  assert right.mean() == metrics["top1"]
  # Floats from 0 to 1 are the same images.
  assert run.evaluate(digits.x_val / 255, digits.y_val) == metrics
  found = run.predict(digits.x_val)
  assert found.shape == (297, 10) and np.allclose(found.sum(axis=1), 1, atol=1e-5)
  assert np.mean(found.argmax(axis=1) == digits.y_val) == metrics["top1"]
  assert "unfinished" not in repr(run)
  assert run.class_names == tuple("0123456789") and [*metrics["per_class"]] == [*run.class_names]
  for arguments in (("test",), (digits.x_val,), ("test", digits.y_val)):
    assert "run.evaluate takes images and their labels" in said(
      functools.partial(run.evaluate, *arguments)
    )
  assert "put the name of a file in a list" in said(lambda: run.predict("a.png"))
  assert "workdir=None: it must be the path" in said(lambda: jaxspeed.load(None))


def test_the_attributes_that_the_guide_names_are_there(finished):
  text = (pathlib.Path(__file__).parents[2] / "docs" / "library.md").read_text()
  table = text.partition("## The run")[2]
  for name in set(re.findall(r"`run\.([a-z_.]+)", table)):
    functools.reduce(getattr, name.split("."), finished)
  row = next(line for line in table.splitlines() if line.startswith("| `run.predictions`"))
  names = re.findall("`([a-z]+)`", row)
  assert "loss" in names and all(hasattr(finished.predictions, name) for name in names)


def test_the_call_stands_in_the_result_and_python_trains_the_bits_of_the_command(
  finished, digits, tmp_path
):
  call = "jaxspeed.recipe('quickstart', epochs=2, batch_size=160, model.width=4)"
  assert finished.result["command"] == (
    f"jaxspeed.fit({call}, data=Arrays(...), workdir={str(finished.folder)!r})"
  )
  data = tmp_path / "digits"
  for split, images, labels in (
    ("train", digits.x, digits.y),
    ("val", digits.x_val, digits.y_val),
  ):
    (data / split).mkdir(parents=True)
    np.save(data / split / "images.npy", images)
    np.save(data / split / "labels.npy", labels)
  small = ["--config.epochs=2", "--config.batch_size=160", "--config.model.width=4"]
  done = command(
    "train", "--config=quickstart", *small, f"--config.data.path={data}", f"--workdir={tmp_path}/c"
  )
  assert done.returncode == 0, done.stderr
  assert bits(jaxspeed.load(tmp_path / "c")) == bits(finished)
  # Finished already, with the same config and data, whether a flag or an argument names them.
  same = jaxspeed.fit(recipe(**{"model.width": 4}), data, tmp_path / "c")
  assert same.result == jaxspeed.load(tmp_path / "c").result


def settings():
  """What a call could change in its process."""
  return {
    "config": {name: jax.config.values[name] for name in jax.config.values},
    "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
    "logging": [list(logging.getLogger(name).handlers) for name in ("", "jaxspeed", "absl")],
    "argv": list(sys.argv),
    "streams": (sys.stdout, sys.stderr),
  }


def test_a_call_prints_nothing_and_leaves_the_process_as_it_was(tmp_path, capfd):
  before = settings()
  wide = recipe(epochs=1, precision="float64")
  run = jaxspeed.fit(wide, workdir=tmp_path / "a", model=Net())
  with pytest.raises(jaxspeed.UserError):
    jaxspeed.fit(recipe(batch_size=5000), workdir=tmp_path / "b")
  jaxspeed.load(run.folder, model=Net())
  assert settings() == before
  assert capfd.readouterr() == ("", "")
  assert not (tmp_path / "b").exists()
  again = jaxspeed.fit(wide, workdir=run.folder, model=Net())
  assert again.result == run.result  # after a failed call


def test_a_thread_trains_while_the_main_thread_goes_on(digits, tmp_path):
  found, names = [], set()
  before = signal.getsignal(signal.SIGINT)

  def on_epoch(row):
    names.add(threading.current_thread().name)
    assert signal.getsignal(signal.SIGINT) is before
    found.append(said(lambda: jaxspeed.fit(recipe(), workdir=tmp_path / "b")))

  def work():
    found.append(jaxspeed.fit(recipe(), digits, tmp_path / "a", model=Net(), on_epoch=on_epoch))

  thread = threading.Thread(target=work, name="mine")
  thread.start()
  thread.join()
  assert names == {"mine"} and "another jaxspeed.fit is running" in found[0]
  assert found[-1].result["top1"] > 0.2 and not (tmp_path / "b").exists()


def test_a_run_that_stops_in_every_way_resumes_to_the_same_bits(whole, digits, tmp_path):
  expected, _ = whole
  rows = []

  def fit(on_epoch):
    return jaxspeed.fit(recipe(**MIXED), digits, tmp_path / "a", model=Net(), on_epoch=on_epoch)

  before = signal.getsignal(signal.SIGINT)
  run = fit(lambda row: signal.raise_signal(signal.SIGINT))
  assert (run.result, run.step, len(run.history)) == ({}, 9, 1) and "unfinished" in repr(run)
  assert signal.getsignal(signal.SIGINT) is before
  assert run.history[0]["eval_top1"] == run.evaluate(digits.x_val, digits.y_val)["top1"]
  run = fit(lambda row: rows.append(row) or True)  # the last epoch ends the run as it is
  assert bits(run) == bits(expected) and run.result["top1"] == expected.result["top1"]
  assert [row["epoch"] for row in rows] == [2]


def test_an_epoch_is_saved_before_an_exception_of_on_epoch_ends_the_run(whole, digits, tmp_path):
  def fit(on_epoch):
    return jaxspeed.fit(recipe(**MIXED), digits, tmp_path / "a", model=Net(), on_epoch=on_epoch)

  rows = []
  with pytest.raises(ZeroDivisionError):
    fit(lambda row: 1 / 0)
  run = fit(rows.append)
  assert bits(run) == bits(whole[0]) and [row["epoch"] for row in rows] == [2]


def full():
  return open("/dev/full", "w")


def read_by_nobody():
  reader, writer = os.pipe()
  os.close(reader)
  return open(writer, "w")


def closed():
  stream = open(os.devnull, "w")
  stream.close()
  return stream


@pytest.mark.parametrize("stream", [full, read_by_nobody, closed, lambda: None])
@pytest.mark.parametrize("own", [True, False])
def test_printing_neither_ends_nor_fails_a_run(whole, digits, stream, own, monkeypatch):
  run, _ = whole
  monkeypatch.setattr(sys, "stdout", stream())
  if own:  # Python's own standard output, not one that a program has put in its place
    monkeypatch.setattr(sys, "__stdout__", sys.stdout)
  again = jaxspeed.fit(recipe(**MIXED), digits, run.folder, model=Net(), progress=True)
  assert again.result == run.result


def test_on_epoch_stops_a_run_and_progress_prints_what_the_command_prints(whole, digits, tmp_path):
  _, printed = whole
  assert "eval top1" in printed and "\x1b" not in printed
  run = jaxspeed.fit(recipe(), digits, tmp_path / "a", model=Net(), on_epoch=lambda row: True)
  assert (run.result, run.step) == ({}, 9)


def test_ctrl_c_twice_or_before_the_first_step_is_an_interrupt(tmp_path, monkeypatch):
  def twice(row):
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)

  with pytest.raises(KeyboardInterrupt):
    jaxspeed.fit(recipe(), workdir=tmp_path / "a", model=Net(), on_epoch=twice)
  monkeypatch.setattr(session, "set_up", lambda *_, **__: signal.raise_signal(signal.SIGINT))
  with pytest.raises(KeyboardInterrupt):
    jaxspeed.fit(recipe(), workdir=tmp_path / "b")
  assert not (tmp_path / "b").exists()


def test_a_folder_that_another_start_took_over_raises_in_the_caller(tmp_path):
  folder = tmp_path / "a"

  def take_over(row):
    owner = json.loads((folder / "owner.json").read_text())
    owner |= {"token": "other", "incarnation": 2}
    (folder / "owner.json").write_text(json.dumps(owner))

  sentence = said(lambda: jaxspeed.fit(recipe(), workdir=folder, model=Net(), on_epoch=take_over))
  assert "was taken over by start 2" in sentence
  assert json.loads((folder / "owner.json").read_text())["token"] == "other"
  assert not (folder / "checkpoints").exists()


def test_a_model_of_ones_own_trains_loads_and_is_asked_for(whole, digits):
  run, _ = whole
  folder = run.folder
  call = lambda **given: jaxspeed.fit(recipe(), digits, folder, **given)  # noqa: E731
  described = "Net(width=8, activation=relu)"
  assert run.config.given.model == described and run.config.model.to_dict() == {"name": "Net"}
  assert f"model={described}" in run.result["command"]
  again = jaxspeed.load(folder, model=Net())
  assert again.evaluate(digits.x_val, digits.y_val)["top1"] == run.result["top1"]
  assert isinstance(run.model, Net)
  assert f"a model from Python, {described}: pass the same one" in said(
    lambda: jaxspeed.load(folder)
  )
  assert "model= is Net(width=9" in said(lambda: jaxspeed.load(folder, model=Net(width=9)))
  assert f"with {described}: pass the same model= " in said(call)
  assert f"a model from Python, {described}: pass" in mistake("evaluate", f"--workdir={folder}")
  assert "pass an instance, Net()" in said(lambda: call(model=Net))
  assert "must be a flax.linen.Module" in said(lambda: call(model=3))


class Plain(nn.Module):
  """A model without running statistics and without a dtype, which drops activations."""

  @nn.compact
  def __call__(self, images, *, train):
    x = nn.relu(nn.Dense(16)(images.reshape(len(images), -1)))
    return nn.Dense(10)(nn.Dropout(0.2, deterministic=not train)(x))


def test_a_model_without_statistics_and_dtype_resumes_to_the_same_bits(digits, tmp_path):
  def train(name, **given):
    small = recipe(precision="float64")
    return jaxspeed.fit(small, digits, tmp_path / name, model=Plain(), **given)

  run = train("whole")
  assert set(run.variables) == {"params"} or not run.variables.get("batch_stats")
  train("cut", on_epoch=lambda row: True)
  resumed = train("cut")
  assert bits(resumed) == bits(run) and resumed.result["top1"] == run.result["top1"]


def test_a_model_that_does_not_fit_the_data_is_refused(digits, tmp_path):
  class Two(nn.Module):
    def __call__(self, images, *, train):
      return images.mean((1, 2))[:, :2]

  class NoFlag(nn.Module):
    def __call__(self, images):
      return images

  for model, sentence in (
    (Two(), "gives (2, 2) for 2 images, and the data have 10 classes"),
    (NoFlag(), "fails on images of shape (2, 8, 8, 3) with train=False (TypeError"),
  ):
    fit = lambda model=model: jaxspeed.fit(recipe(), digits, tmp_path / "a", model=model)  # noqa: E731
    assert sentence in said(fit)
    assert not (tmp_path / "a").exists()


def test_a_model_that_cannot_be_trained_is_refused_before_the_run(digits, tmp_path):
  class Odd(nn.Module):
    kind: str

    @nn.compact
    def __call__(self, images, *, train):
      if self.kind == "empty":
        return jnp.zeros((len(images), 10))
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

  for kind, sentence in (
    ("hollow", "model= has a parameter without elements"),
    ("whole", "model= gives logits of type int32: they must be floats."),
    ("empty", "model= has no parameters"),
    ("raises", "fails with train=True (ValueError: mine)"),
    ("cache", "fails with train=False (ScopeCollectionNotFound"),
    ("dropout", "needs PRNG for"),
  ):
    model = Odd(kind)
    fit = lambda model=model: jaxspeed.fit(recipe(), digits, tmp_path / "a", model=model)  # noqa: E731
    assert sentence in said(fit)
    assert not (tmp_path / "a").exists()


def test_an_optimizer_and_a_schedule_of_optax_train_resume_and_load(digits, tmp_path):
  given = {
    "optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam()),
    "schedule": optax.warmup_cosine_decay_schedule(0.0, 0.01, 4, 18),
  }
  whole = jaxspeed.fit(recipe(), digits, tmp_path / "a", **given, model=Net())
  rates = [row["learning_rate"] for row in whole.history]
  expected = [float(given["schedule"](step)) for step in (8, 17)]
  # The schedule computes in float32 here, in float64 in the plan.
  assert rates == pytest.approx(expected, rel=1e-5)
  assert whole.result["top1"] > 0.3
  part = jaxspeed.fit(
    recipe(), digits, tmp_path / "b", **given, model=Net(), on_epoch=lambda row: True
  )
  assert part.step == 9 and jaxspeed.load(tmp_path / "b", model=Net()).step == 9
  for name in given:
    less = {other: value for other, value in given.items() if other != name}
    sentence = said(
      lambda less=less: jaxspeed.fit(recipe(), digits, tmp_path / "b", model=Net(), **less)
    )
    assert f"pass the same {name}= to jaxspeed.fit to resume it" in sentence
  assert bits(jaxspeed.fit(recipe(), digits, tmp_path / "b", model=Net(), **given)) == bits(whole)


@pytest.mark.parametrize(
  "given, sentence",
  [
    ({"optimizer": optax.adam(1e-3)}, "brings its own learning rate"),
    ({"optimizer": 3}, "optimizer= is of type int"),
    ({"schedule": 0.1}, "schedule= is of type float"),
    ({"schedule": lambda step: 0.1 - 0.01 * step}, "gives -0.01 at step 11 of 18"),
    ({"schedule": lambda step: step.nothing}, "schedule= fails (AttributeError"),
    ({"schedule": lambda step: np.zeros(3)}, "gives values of shape (3,)"),
    ({"data": 3}, "data= is of type int"),
    ({"data": "nowhere"}, "nowhere does not exist"),
    ({"workdir": 3}, "workdir=3: it must be the path of a folder"),
    ({"workdir": "~nobody_/w"}, "workdir: ~nobody_/w begins with a home folder that nobody has"),
    ({"on_epoch": 3}, "on_epoch= must be a function"),
    ({"config": 3}, "config is of type int"),
    ({"config": "quikstart"}, "did you mean quickstart?"),
  ],
  ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(given, sentence, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert sentence in said(lambda: jaxspeed.fit(**{"config": recipe(), "workdir": "a"} | given))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  "changes, given, sentence",
  [
    ({"runs": 2}, {}, "call it once for each seed"),
    ({"watchdog_seconds": 60.0}, {}, "nothing ends the caller's process"),
    ({"schedule.peak": 1.0}, {"schedule": lambda step: 0.1}, "no effect beside schedule="),
    ({"optimizer.momentum": 0.5}, {"optimizer": optax.identity()}, "no effect beside optimizer="),
    ({"model.width": 8}, {"model": Net()}, "no effect beside model="),
    ({"augment.cutmix_epochs": 1.0}, {}, "has no effect beside config.augment.cutmix=0"),
  ],
  ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_without_effect_is_refused(changes, given, sentence, tmp_path):
  config = jaxspeed.recipe("quickstart", **changes)
  assert sentence in said(lambda: jaxspeed.fit(config, workdir=tmp_path / "a", **given))
  assert not list(tmp_path.iterdir())


def test_other_arrays_do_not_resume_a_run_and_a_command_names_what_it_lacks(finished, digits):
  other = jaxspeed.Arrays(255 - digits.x, digits.y, digits.x_val, digits.y_val)
  assert "pass the same data= to" in said(lambda: jaxspeed.fit(recipe(), other, finished.folder))
  sentence = mistake("evaluate", f"--workdir={finished.folder}")
  assert "arrays of 1,500 and 297 images of 8 x 8 pixels" in sentence
  assert "name a data set with --config.data.path" in sentence


def test_arrays_need_a_recipe_that_trains_from_memory(digits, tmp_path):
  fit = lambda: jaxspeed.fit("imagenette", digits, tmp_path / "a")  # noqa: E731
  assert "images come from disk (config.data.feed=stream)" in said(fit)
  assert "take a recipe that trains from memory, like cifar10" in said(fit)
  config = jaxspeed.recipe("finetune", **{"pretrained.path": ""})
  fit = lambda: jaxspeed.fit(config, digits, tmp_path / "a")  # noqa: E731
  assert "or set data.feed to resident, which keeps arrays" in said(fit)
