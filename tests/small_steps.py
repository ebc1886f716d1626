"""Steps of small models from random weights: their specs, first and last states and programs."""

import jax
import numpy as np
from recipes import get_config
from toy import inputs_of, toy_config, toy_spec

from jaxspeed.steps.programs import batch_step

RESNET = dict(name="resnet", depth=18, width=4, zero_init=False, blurpool=False)
RESNET |= dict(head_init="normal", ghost_splits=1, norm_momentum=0.9)


def make_spec(freeze, devices=1, model=RESNET, **fields):
  config = toy_config(batch_size=24, **{"data.train_images": 48})
  config.model = model
  config.pretrained.update(path="weights.safetensors", freeze=freeze)
  config.optimizer.update(weight_decay=0.1, head_rate_factor=10.0)
  config.schedule.peak = 0.01
  config.average.update(kind="ema", decay=0.9, reach=0.0, every=1)
  config.update_from_flattened_dict(fields)
  return toy_spec(config, devices=devices)


def small_airbench(variant, **fields):
  """A recipe of airbench on 64 images of 12 pixels: two epochs of 4 steps."""
  config = get_config("cifar10_airbench", variant)
  config.update(precision="float32", batch_size=16, epochs=2.0)
  config.model.widths = (4, 6, 6)
  config.proxy.update(keep=config.proxy.keep and 8, widths=(2, 4, 4))
  config.augment.cutout = min(config.augment.cutout, 4)
  config.whitening.images = 64
  config.data.update(image_size=12, train_images=64, eval_images=21)
  config.eval.batch_size = 4
  config.update_from_flattened_dict(fields)
  return config


def stepped(spec, steps=3):
  """The first and the last state of some steps, and their program before and after XLA."""
  carry, batch, table = inputs_of(spec)
  first = jax.device_get(carry.state)
  lowered = jax.jit(batch_step(spec)).lower(carry, batch, table)
  step = lowered.compile()
  for _ in range(steps):
    carry, loss = step(carry, batch, table)
  assert np.isfinite(loss)
  programs = lowered.as_text(), step.as_text()
  return first, jax.device_get(carry.state), programs
