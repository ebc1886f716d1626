"""Models in half precision: what they compute in it, and what stays in float32."""

import functools

import jax
import numpy as np
import pytest
from exported import random_variables, shapes_of

from jaxspeed.models.airbench import Airbench
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.models.vit import ViT

MODELS = {
  "airbench": Airbench(widths=(8, 8, 8)),
  "resnet9": ResNet9(width=8, classes=7, activation="celu", ghost_splits=2, whiten=True),
  "resnet": ResNet(18, classes=10, width=16),
  "vit": ViT(classes=5, patch_size=4, width=16, depth=2, heads=4, mlp=24),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_parameters_statistics_and_logits_are_float32_beside_half_activations(name, dtype):
  side, model = 20, MODELS[name]
  images = np.random.default_rng(0).standard_normal((16, side, side, 3)).astype(np.float32)
  variables = random_variables(model, side)
  half = model.clone(dtype=jax.numpy.dtype(dtype))
  assert {p.dtype for p in jax.tree.leaves(shapes_of(half, side))} == {np.dtype(np.float32)}
  exact, rounded = (
    jax.jit(functools.partial(each.apply, train=True, mutable=["batch_stats"]))(variables, images)
    for each in (model, half)
  )
  assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {np.dtype(np.float32)}
  difference = np.abs(rounded[0] - exact[0]).max() / np.abs(exact[0]).max()
  assert 1e-5 < difference < 0.1  # 8 or 11 bits of mantissa
