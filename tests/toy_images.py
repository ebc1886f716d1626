"""A folder of small JPEGs whose class shows, a recipe for it, and runs that are killed."""

import contextlib
import pathlib

import jax
import numpy as np
import pytest
from image_files import encode, write
from ml_collections import ConfigDict
from toy import load_recipe

from jaxspeed.data.batch import seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.run import checkpoint
from jaxspeed.run.restore import load_config, stored_plan
from jaxspeed.run.saver import Saver
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.state import Carry


def write_folder(
  root: pathlib.Path, *, train: int = 40, held_out: int = 13, classes: int = 4
) -> pathlib.Path:
  """`train` and `held_out` images of some classes, about 2:1, every other one upright.

  They are noise around a brightness that tells the class.
  """
  for split, count in (("train", train), ("val", held_out)):
    for i in range(count):
      shape = (80, 40 + i % 5, 3) if i % 2 else (40 + i % 5, 80, 3)
      pixels = np.random.RandomState(i).randint(0, 40, shape) + 60 * (i % classes)
      content = encode(np.minimum(pixels, 255).astype(np.uint8), quality=90)
      write(root, {f"{split}/class_{i % classes}/{i:03d}.jpg": content})
  return root


def toy_stream(path: pathlib.Path, cache: pathlib.Path, **fields) -> ConfigDict:
  """Two phases of one epoch, 16 and 24 px, of a ResNet-9 of width 4."""
  config = load_recipe("imagenette.py")
  config.precision = "float32"
  config.epochs = 2.0
  config.batch_size = 16
  config.model = dict(name="resnet9", width=4, head_scale=1.0)
  config.data.update(
    path=str(path), cache=str(cache / "data"), classes=4, train_images=40, eval_images=13
  )
  config.data.image_size = 24
  config.phases.update(
    first_epoch=(0, 1), image_size=(16, 24), min_scale=(0.5, 0.5), eval_mode=("center", "rect")
  )
  config.eval.update(batch_size=1, shapes=3)
  config.average.update(kind="ema", decay=0.5)
  config.update_from_flattened_dict(fields)
  return config


def restored_from(folder: pathlib.Path) -> checkpoint.Checkpoint:
  """A run's newest checkpoint, with all that it holds."""
  config = load_config(folder)
  spec = make_train_spec(config, stored_plan(config), mesh_lib.make_mesh())
  size = spec.plan.phases[0].image_size
  images = jax.ShapeDtypeStruct((config.data.train_images, size, size, 3), np.uint8)
  state = jax.eval_shape(on_mesh(init_state, spec), jax.eval_shape(lambda: seed_key(0)), images)
  carry = Carry(state, MetricSums.zero(spec.accumulation))
  restored = checkpoint.restore(folder, mesh_lib.abstract(carry, mesh_lib.replicated(spec.mesh)))
  assert restored is not None
  return restored


def params_of(folder: pathlib.Path):
  """Step and carry of a run's newest checkpoint."""
  restored = restored_from(folder)
  return restored.step, restored.tree


class Killed(BaseException):
  """What ends a run here in place of kill -9: nothing in the package catches it."""


@contextlib.contextmanager
def killed_at(step: int, *, saved: bool = True):
  """A block in which a run is killed after its checkpoint of a step, or before."""

  def save_and_die(self, at, carry, **named):
    if saved or at != step:
      save(self, at, carry, **named)
    if at == step:
      raise Killed

  save = Saver.save
  with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
    patch.setattr(Saver, "save", save_and_die)
    patch.setattr("jaxspeed.run.loss_watcher._STEPS_AHEAD", 0)  # so that each step is saved
    yield
