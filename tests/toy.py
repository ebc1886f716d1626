"""A training that compiles in seconds: ResNet-9 of width 4 on random 8 x 8 images."""

import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from recipes import get_config

from jaxspeed.config import checks
from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.precision import LossScale
from jaxspeed.planning.make import make_plan
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import TrainSpec, make_train_spec
from jaxspeed.steps.state import Carry, variables_of

# Augmentation that draws numbers in the step and mixes labels.
MIXED = {
  "augment.color_jitter": (0.4, 0.4, 0.4, 0.1),
  "augment.erasing": 0.5,
  "augment.mixup": 0.4,
  "augment.cutmix_alpha": 1.0,
}


class LinearNet(nn.Module):
  """Logits that are linear in the pixels: compiles in no time, and PyTorch states it in a line."""

  classes: int = 10
  dtype: type = jnp.float32

  @nn.compact
  def __call__(self, images, *, train):
    flat = images.reshape(len(images), -1)
    return nn.Dense(self.classes, dtype=self.dtype, name="head")(flat)


def load_recipe(file: str, variant: str | None = None) -> ConfigDict:
  """`get_config` of a file in configs/."""
  return get_config(file.removesuffix(".py"), variant)


def digits(**fields) -> ConfigDict:
  """The quickstart's recipe, small: two epochs of 9 steps."""
  config = load_recipe("quickstart.py")
  config.batch_size = 160  # 20 a device, 9 steps an epoch
  config.epochs = 2.0
  config.model.width = 4
  config.update_from_flattened_dict(fields)
  return config


def saving_digits(**fields) -> ConfigDict:
  """`digits`, checked, with a checkpoint after every step."""
  return checks.checked(digits(**{"checkpoint.every_seconds": 0.0} | fields).to_dict())


def contents(folder: pathlib.Path) -> dict[str, bytes | None]:
  """Every file in a folder with its bytes, every folder as None."""
  found = sorted(folder.rglob("*"))
  return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in found}


def toy_config(**fields) -> ConfigDict:
  """The quickstart on 64 random images: 4 steps of 16 an epoch."""
  config = load_recipe("quickstart.py")
  config.precision = "float32"
  config.batch_size = 16
  config.epochs = 2.0
  config.model.width = 4
  config.data.update(
    train_images=64, eval_images=21, mean=(120.0, 120.0, 120.0), std=(60.0, 60.0, 60.0)
  )
  config.eval.batch_size = 4
  with config.unlocked():
    config.update_from_flattened_dict(fields)
  return config


def toy_arrays(config: ConfigDict, seed: int = 0) -> Arrays:
  """Random images whose class shows: pixels of class k are around 20 k."""
  rng = np.random.default_rng(seed)
  size = config.data.image_size

  def split(n: int):
    labels = rng.integers(config.data.classes, size=n).astype(np.int32)
    noise = rng.integers(0, 40, size=(n, size, size, 3))
    return np.clip(20 * labels[:, None, None, None] + noise, 0, 255).astype(np.uint8), labels

  train, held_out = split(config.data.train_images), split(config.data.eval_images)
  names = tuple(str(i) for i in range(config.data.classes))
  return Arrays(*train, *held_out, class_names=names, source="random images")


def toy_spec(config: ConfigDict, devices: int = 1) -> TrainSpec:
  return make_train_spec(config, make_plan(config, devices=devices), mesh_lib.make_mesh(devices))


def drawn(shapes, rng):
  """Variables of these shapes of which none is at its initial value; some channels hardly vary."""

  def draw(path, leaf):
    name, shape = path[-1].key, leaf.shape
    if name == "var":
      return rng.uniform(1e-3, 1.0, shape)
    if name == "kernel":
      fan_in = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
      return rng.standard_normal(shape) / np.sqrt(fan_in)
    if name == "scale":  # some are negative
      return 0.7 * rng.standard_normal(shape) + 0.5
    return 0.3 * rng.standard_normal(shape)

  return jax.tree_util.tree_map_with_path(draw, shapes)


def drawn_state(shapes, seed=0):
  """A state of these shapes: random weights and statistics, some -0.0, and nothing of a run yet."""
  rng = np.random.default_rng(seed)

  def some_zeroed(shape, values):
    return np.where(rng.uniform(size=shape.shape) < 0.05, -0.0, values).astype(shape.dtype)

  stats = drawn(shapes.batch_stats, rng)
  stats = jax.tree.map(lambda shape, x: x.astype(shape.dtype), shapes.batch_stats, stats)
  params = jax.tree.map(some_zeroed, shapes.params, drawn(shapes.params, rng))
  return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes).replace(
    key=np.asarray(seed_key(0)),
    params=params,
    batch_stats=stats,
    ema=shapes.ema and variables_of(params, stats),
    lookahead=shapes.lookahead and variables_of(params, stats),
    proxy=shapes.proxy and drawn_state(shapes.proxy, seed + 1),
  )


def state_of(spec):
  size = spec.config.data.image_size
  images = jax.ShapeDtypeStruct((1, size, size, 3), jnp.uint8)
  key = jax.eval_shape(lambda: seed_key(0))
  state = drawn_state(jax.eval_shape(on_mesh(init_state, spec), key, images))
  return state.replace(loss_scale=state.loss_scale and LossScale.create(spec.config.loss_scale))


def inputs_of(spec):
  """A carry of random weights and statistics; a batch; and the plan's table."""
  random, size = np.random.default_rng(0), spec.config.data.image_size
  carry = Carry(state_of(spec), MetricSums.zero(spec.accumulation))
  count = spec.plan.phases[0].batch_size
  batch = Batch(
    image=random.integers(0, 256, (count, size, size, 3)).astype(np.uint8),
    label=random.integers(0, spec.config.data.classes, count).astype(np.int32),
    mask=np.ones(count, bool),
  )
  table = spec.plan.table_in(spec.accumulation)
  carry, table = mesh_lib.replicate((carry, table), spec.mesh)
  return carry, mesh_lib.split(batch, spec.mesh), table
