"""`jaxspeed.fit`: its runs, what it leaves of the process, and mistakes."""

import contextlib
import functools
import io
import json
import logging
import os
import re
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from commands import ROOT
from fits import Net, bits, recipe, said
from in_process import command, mistake
from PIL import Image
from toy import MIXED

import jaxspeed
from jaxspeed.run import session

pytestmark = pytest.mark.usefixtures("promotion")


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
    run = jaxspeed.fit(recipe(epochs=3, **MIXED), digits, folder, model=Net(), progress=True)
  return run, out.getvalue()


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
  assert run.class_names == tuple("0123456789") and [*metrics["per_class"]] == [*run.class_names]
  for arguments in (("test",), (digits.x_val,), ("test", digits.y_val)):
    assert "run.evaluate takes images and their labels" in said(
      functools.partial(run.evaluate, *arguments)
    )
  # One image without its first axis is one row; an image of another size is resized by Pillow.
  np.testing.assert_array_equal(run.predict(digits.x_val[0]), run.predict(digits.x_val[:1]))
  one = Image.fromarray(digits.x_val[0]).resize((24, 32), Image.Resampling.NEAREST)
  assert run.predict(one).argmax() == found[0].argmax()
  assert "predict takes files and images of Pillow" in said(lambda: run.predict(np.asarray(one)))
  assert "32 bits" in said(lambda: run.predict(Image.new("F", (8, 8))))
  assert "workdir=None: it must be the path" in said(lambda: jaxspeed.load(None))


def test_a_folder_a_file_and_images_of_pillow_are_predicted_alike(
  finished, digits, tmp_path, caplog
):
  for number in range(3):
    Image.fromarray(digits.x_val[number]).save(tmp_path / f"{number}.png")
  expected = finished.predict(digits.x_val[:3])
  files = sorted(tmp_path.iterdir())
  found = [tmp_path, str(tmp_path), files, [Image.open(file) for file in files]]
  for images in found:
    np.testing.assert_array_equal(finished.predict(images), expected)
  np.testing.assert_array_equal(finished.predict(files[1]), finished.predict(files[1:2]))
  (tmp_path / "empty").mkdir()
  assert "holds no image" in said(lambda: finished.predict(tmp_path / "empty"))
  assert "pass one kind" in said(lambda: finished.predict([files[0], digits.x_val[0]]))
  # A broken file of several is a row of NaN, with its reason in the log.
  (tmp_path / "1.png").write_text("no image")
  found = finished.predict(tmp_path)
  assert np.isnan(found[1]).all() and found.dtype == expected.dtype
  np.testing.assert_array_equal(found[[0, 2]], finished.predict(files[::2]))
  assert "1.png cannot be read as an image: it is not an image" in caplog.text
  assert "1.png cannot be read as an image" in said(lambda: finished.predict(files[1]))


def test_the_attributes_that_the_guide_names_are_there(finished):
  table = (ROOT / "docs" / "library.md").read_text().partition("## The run")[2]
  for name in set(re.findall(r"`run\.([a-z_.]+)", table)):
    functools.reduce(getattr, name.split("."), finished)
  names = re.findall("`([a-z]+)`", re.search(r"^\| `run.predictions`.*", table, re.M)[0])
  assert "loss" in names and all(hasattr(finished.predictions, name) for name in names)


def test_the_call_stands_in_the_result_and_python_trains_the_bits_of_the_command(
  finished, digits, tmp_path
):
  call = "jaxspeed.recipe('quickstart', epochs=2, batch_size=160, model.width=4)"
  assert finished.result["command"] == (
    f"jaxspeed.fit({call}, data=Arrays(...), workdir={str(finished.folder)!r})"
  )
  data, splits = tmp_path / "digits", {"train": (digits.x, digits.y)}
  for split, arrays in (splits | {"val": (digits.x_val, digits.y_val)}).items():
    (data / split).mkdir(parents=True)
    for name, array in zip(("images", "labels"), arrays, strict=True):
      np.save(data / split / f"{name}.npy", array)
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


def test_a_call_in_float64_prints_nothing_and_leaves_the_process_as_it_was(digits, tmp_path, capfd):
  before = settings()
  wide = recipe(epochs=1, precision="float64")
  model = Net(dtype=jnp.float64)
  run = jaxspeed.fit(wide, digits, workdir=tmp_path / "a", model=model)
  # It is in float64 from its weights to its predictions.
  assert {leaf.dtype for leaf in jax.tree.leaves(run.variables)} == {np.dtype(np.float64)}
  loss = run.history[-1]["train_loss"]
  assert float(np.float32(loss)) != loss  # digits that float32 lacks
  found = run.evaluate(digits.x_val, digits.y_val)
  assert found["top1"] == run.result["top1"]
  assert found["loss"] == pytest.approx(run.history[-1]["eval_loss"], rel=1e-13)
  assert abs(run.predict(digits.x_val[0]).sum() - 1) < 1e-14
  with pytest.raises(jaxspeed.UserError):
    jaxspeed.fit(recipe(batch_size=5000), workdir=tmp_path / "b")
  jaxspeed.load(run.folder, model=model)
  assert settings() == before and jnp.zeros(1).dtype == jnp.float32
  assert capfd.readouterr() == ("", "")
  assert not (tmp_path / "b").exists()
  again = jaxspeed.fit(wide, digits, run.folder, model=model)
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
  expected, printed = whole
  assert "eval top1" in printed and "\x1b" not in printed
  config, rows = recipe(epochs=3, **MIXED), []

  def fit(on_epoch):
    return jaxspeed.fit(config, digits, tmp_path / "a", model=Net(), on_epoch=on_epoch)

  before = signal.getsignal(signal.SIGINT)
  # An interrupted cell of a notebook: the cells below it do not run.
  with pytest.raises(KeyboardInterrupt, match="saved step 9 of 27 in .* jaxspeed.load"):
    fit(lambda row: signal.raise_signal(signal.SIGINT))
  run = jaxspeed.load(tmp_path / "a", model=Net())
  assert (run.result, run.step, len(run.history)) == ({}, 9, 1) and "unfinished" in repr(run)
  assert signal.getsignal(signal.SIGINT) is before
  assert run.history[0]["eval_top1"] == run.evaluate(digits.x_val, digits.y_val)["top1"]
  # An epoch is saved before an exception of on_epoch ends the run.
  with pytest.raises(SystemExit):
    fit(lambda row: sys.exit(3))
  run = fit(lambda row: rows.append(row) or True)  # the last epoch ends the run as it is
  assert bits(run) == bits(expected) and run.result["top1"] == expected.result["top1"]
  assert [row["epoch"] for row in rows] == [3]


@pytest.mark.parametrize("own", [True, False])
def test_printing_neither_ends_nor_fails_a_run(whole, digits, own, monkeypatch):
  run, _ = whole
  reader, writer = os.pipe()
  os.close(reader)
  closed = open(os.dup(writer), "w")
  closed.close()
  # One that is full, one read by nobody, one that is closed, and none at all.
  for stream in (open("/dev/full", "w"), open(writer, "w"), closed, None):
    monkeypatch.setattr(sys, "stdout", stream)
    if own:  # Python's own standard output, not one that a program has put in its place
      monkeypatch.setattr(sys, "__stdout__", stream)
    config = recipe(epochs=3, **MIXED)
    again = jaxspeed.fit(config, digits, run.folder, model=Net(), progress=True)
    assert again.result == run.result


def test_ctrl_c_twice_or_before_the_first_step_is_an_interrupt(tmp_path, monkeypatch):
  def twice(row):
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # the same press
    time.sleep(0.6)
    signal.raise_signal(signal.SIGINT)

  with pytest.raises(KeyboardInterrupt, match="^$"):
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


GREY = jaxspeed.Arrays(np.zeros((300, 8, 8, 3), np.uint8), np.arange(300) % 10)


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
    ({"workdir": 3}, "workdir=3: name a folder"),
    ({"workdir": "~nobody_/w"}, "workdir: ~nobody_/w begins with a home folder that nobody has"),
    ({"on_epoch": 3}, "on_epoch= must be a function"),
    ({"loggers": [object()]}, "loggers= must be a list of functions"),
    ({"config": 3}, "config is of type int"),
    ({"config": "quikstart"}, "did you mean quickstart?"),
    ({"profile": (5, 3)}, "it must be the first and the last"),
    ({"profile": "1:2"}, "it must be the first and the last"),
    ({"profile": (3, 19)}, "steps 3 to 19 cannot be traced (profile): the run has 18 steps"),
    # Arrays need a recipe that trains from memory.
    ({"data": GREY, "config": "imagenette"}, "images come from disk (config.data.feed=stream)"),
    # Fields without effect.
    ({"config": recipe(runs=2)}, "call it once for each seed"),
    ({"config": recipe(watchdog_seconds=60.0)}, "nothing ends the caller's process"),
    ({"config": recipe(**{"schedule.peak": 1.0}), "schedule": lambda step: 0.1}, ": schedule= of"),
    (
      {"config": recipe(**{"optimizer.momentum": 0.5}), "optimizer": optax.identity()},
      "no effect: optimizer= of",
    ),
    ({"config": recipe(**{"model.width": 8}), "model": Net()}, "no effect: model= of"),
    ({"config": recipe(**{"augment.cutmix_epochs": 1.0})}, "has no effect: set config.augment.cut"),
  ],
  ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(given, sentence, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert sentence in said(lambda: jaxspeed.fit(**{"config": recipe(), "workdir": "a"} | given))
  assert not list(tmp_path.iterdir())


def test_other_arrays_do_not_resume_a_run_and_a_command_names_what_it_lacks(finished, digits):
  other = jaxspeed.Arrays(255 - digits.x, digits.y, digits.x_val, digits.y_val)
  refused = said(lambda: jaxspeed.fit(recipe(), other, finished.folder))
  assert "config.given.data: " in refused and "in the images too, to resume" in refused
  sentence = mistake("evaluate", f"--workdir={finished.folder}")
  assert "arrays of 1,500 and 297 images of 8 x 8 pixels" in sentence
  assert "name a data set with --config.data.path" in sentence
