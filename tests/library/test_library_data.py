"""Arrays and recipes: what they accept, and the sentence for everything else."""

import subprocess
import sys

import numpy as np
import pytest
from fits import said

import jaxspeed
from jaxspeed.library.arrays import opened

X = np.arange(12 * 4 * 4 * 3, dtype=np.uint8).reshape(12, 4, 4, 3)
Y = np.arange(12) % 3


def test_images_are_uint8_or_floats_from_0_to_1_and_grey_ones_are_repeated():
  floats = jaxspeed.Arrays((X / 255).astype(np.float32), Y.tolist(), X[:3], Y[:3])
  assert floats.x.dtype == np.uint8 and (floats.x == X).all()
  assert floats.y.dtype == np.int32 and (floats.y == Y).all()
  for grey in (X[..., 0], X[..., :1], (X[..., 0] / 255).astype(np.float32)):
    arrays = jaxspeed.Arrays(grey, Y, grey[:3], Y[:3])
    assert arrays.x.dtype == np.uint8 and (arrays.x == np.repeat(X[..., :1], 3, axis=-1)).all()
  # What is odd is said.
  notes = opened(jaxspeed.Arrays((X > 99).astype(np.uint8), Y, X, Y)).notes
  assert [note for note in notes if "the largest pixel of x is 1" in note]
  assert not opened(jaxspeed.Arrays(X, Y, X, Y)).notes


def test_without_x_val_a_share_of_each_class_is_held_out():
  data = opened(jaxspeed.Arrays(X, Y, class_names=["a", "b", "c"]))
  assert data.counts == (9, 3) and data.evaluated_on == "held-out"
  assert sorted(data.eval_labels) == [0, 1, 2]
  assert opened(jaxspeed.Arrays(X, Y), 0.5).counts == (6, 6)
  assert data.class_names == ("a", "b", "c")
  assert data.source == opened(jaxspeed.Arrays(X, Y)).source
  for other in (jaxspeed.Arrays(X, (Y + 1) % 3), jaxspeed.Arrays(X ^ 1, Y)):
    assert data.source != opened(other).source


@pytest.mark.parametrize(
  "arguments, sentence",
  [
    ((X[0], Y[:1]), "x is uint8 of shape (4, 4, 3): images are uint8"),
    ((X[..., :2], Y), "images are uint8 from 0 to 255, or floats from 0 to 1"),
    ((X.astype(float), Y), "has floats from 0 to 255: they must be from 0 to 1"),
    ((X / 255 - 0.5, Y), "must be from 0 to 1, and not normalised"),
    ((X[:0], Y[:0]), "x is uint8 of shape (0, 4, 4, 3): images are uint8"),
    (([X[0], X[0, :2]], Y[:2]), "have different sizes: resize them"),
    ((X, Y[:5]), "labels are integers of shape (12,)"),
    ((X, np.eye(3)[Y]), "and LABELS.argmax(axis=1) turns one-hot rows into labels"),
    ((X, Y[:, None]), "one for each image; LABELS.ravel() makes a row of a column"),
    ((X, Y - 1), "y has the label -1: labels count classes from 0"),
    ((X, Y, X[:3]), "one of x_val and y_val without the other"),
    ((X, Y, X[:3, :2, :2], Y[:3]), "resize them to one size"),
    ((X[:1], Y[:1]), "too few to hold one out"),
    ((X[:2], [[0], [1, 2]]), "y has labels of different shapes"),
    ((X, Y, None, None, "abc"), "class_names='abc': it must be a list of names"),
    ((X, Y, None, None, {"a", "b"}), "it must be a list of names"),
  ],
  ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_images_and_labels_are_refused(arguments, sentence):
  assert sentence in said(lambda: jaxspeed.Arrays(*arguments))


def test_a_recipe_takes_changes_by_name_by_group_and_by_dotted_name(tmp_path):
  config = jaxspeed.recipe(
    "cifar10", epochs=4, optimizer={"weight_decay": 1e-3}, **{"data.mean": [1, 2, 3.0]}
  )
  assert config.epochs == 4.0 and isinstance(config.epochs, float)
  assert config.optimizer.weight_decay == 1e-3 and config.data.mean == (1, 2, 3.0)
  assert jaxspeed.recipe("quickstart", seed=np.int64(3)).seed == 3
  other = jaxspeed.recipe("quickstart", model={"name": "resnet", "depth": 18})
  assert (other.model.name, other.model.depth) == ("resnet", 18) and "pool" not in other.model
  # A file of one's own inherits from a shipped recipe.
  mine = tmp_path / "mine.py"
  mine.write_text(
    "import jaxspeed\n\ndef get_config():\n"
    '  return jaxspeed.recipe("cifar10", epochs=4, name="mine")\n'
  )
  config = jaxspeed.recipe(str(mine), batch_size=512)
  assert (config.name, config.epochs, config.batch_size) == ("mine", 4.0, 512)
  assert config.model == jaxspeed.recipe("cifar10").model
  assert "choose one of 1, 2, 4, 8, 16" in said(lambda: jaxspeed.recipe("imagenet18:5"))
  assert "no field given.model" in said(
    lambda: jaxspeed.recipe("quickstart", **{"given.model": ""})
  )


# `config/test_mistakes.py` has more of a command; from Python they name no flags.
@pytest.mark.parametrize(
  "field, value, arrays, sentence",
  [
    ("data.clases", 3, None, "the config has no field data.clases: did you mean data.classes?"),
    ("epochs", "3", None, "config.epochs='3': it must be a number above 0 and up to 100,000."),
    ("data.hold_out", 0.3, jaxspeed.Arrays(X, Y, X, Y), "0.3 has no effect: x_val is evaluated."),
    # Classes without gaps, or their names, are asked for.
    ("batch_size", 3, jaxspeed.Arrays(X, Y * 5), "go up to 10, but use only 3 numbers"),
    ("batch_size", 3, jaxspeed.Arrays(X, Y * 5), "class_names=, or set config.data.classes=11"),
  ],
)
def test_a_config_is_checked_before_anything_is_written(
  field, value, arrays, sentence, tmp_path, monkeypatch
):
  config = jaxspeed.recipe("quickstart", **({field: value} if arrays else {}))
  group, _, last = field.rpartition(".")
  (config[group] if group else config)[last] = value
  monkeypatch.chdir(tmp_path)
  assert sentence in said(lambda: jaxspeed.fit(config, arrays))
  assert not list(tmp_path.glob("*/*"))


LIGHT = """
import sys
import jaxspeed
heavy = {"jax", "flax", "numpy", "ml_collections", "absl", "orbax"} & set(sys.modules)
assert not heavy, heavy
assert {"Arrays", "fit", "load", "recipe", "UserError"} <= set(dir(jaxspeed))
import pydoc
page = pydoc.plain(pydoc.render_doc(jaxspeed))
for words in ("fit(config", "load(workdir", "recipe(name", "class Arrays", "class Run", "on_epoch"):
  assert words in page, words
"""


def test_the_import_is_light_and_help_is_a_page():
  done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr
