"""Exact counts on any number of devices, and test-time augmentation."""

import jax
import numpy as np
import pytest
from toy import toy_arrays, toy_config, toy_job

from jaxspeed import mesh as mesh_lib
from jaxspeed import step, validate
from jaxspeed.data.augment import normalize
from jaxspeed.data.feed import pad_batches
from jaxspeed.loop import seed_key


def variables_of(job):
  init = jax.jit(step.on_mesh(step.init_state, job))
  return jax.device_get(init(seed_key(0), toy_arrays(job.config).train_images)).evaluated()


def evaluate(job, variables):
  arrays = toy_arrays(job.config)
  data = pad_batches(
    arrays.eval_images, arrays.eval_labels, batch=job.plan.eval_batch_size, devices=job.devices
  )
  program = jax.jit(validate.evaluate_on_mesh(job))
  return program(mesh_lib.replicate(variables, job.mesh), mesh_lib.shard(data, job.mesh))


def by_hand(job, variables):
  """Accuracies of all images at once, in NumPy after the net."""
  arrays, config = toy_arrays(job.config), job.config
  images = normalize(arrays.eval_images, config.data.mean, config.data.std)
  logits = np.asarray(job.model.apply(variables, images, train=False))
  if config.eval.views == "flip":
    mirrored = np.asarray(job.model.apply(variables, images[:, :, ::-1], train=False))
    logits = (logits + mirrored) / 2
  shifted = logits - logits.max(axis=1, keepdims=True)
  log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
  best = np.argsort(-logits, axis=1, kind="stable")
  labels = arrays.eval_labels[:, None]
  return {
    "loss": -np.take_along_axis(log_p, labels, axis=1).mean(),
    "top1": (best[:, :1] == labels).any(axis=1).mean(),
    "top5": (best[:, :5] == labels).any(axis=1).mean(),
  }


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("views", ["center", "flip"])
def test_every_image_counts_once(devices, views):
  # 21 images in batches of 4 on one device, of 3 on eight: padding in both.
  job = toy_job(toy_config(**{"eval.views": views}), devices=devices)
  assert job.plan.eval_batch_size == (4 if devices == 1 else 3)
  variables = variables_of(job)
  sums = evaluate(job, variables)
  assert int(sums.count) == 21
  means = sums.means()
  expected = by_hand(job, variables)
  for name in ("loss", "top1", "top5"):
    np.testing.assert_allclose(means[name], expected[name], rtol=1e-5)


def test_the_mirror_image_changes_the_loss():
  center, flip = (toy_job(toy_config(**{"eval.views": views})) for views in ("center", "flip"))
  variables = variables_of(center)
  assert float(evaluate(center, variables).loss) != float(evaluate(flip, variables).loss)
