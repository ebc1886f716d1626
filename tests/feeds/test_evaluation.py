"""The evaluation of images from disk."""

import types

import numpy as np
from recipes import get_config

from jaxspeed.feeds.evaluation import make_evaluation


def test_the_shapes_of_rectangles_do_not_depend_on_the_batch():
  rng = np.random.default_rng(0)
  sizes = {name: rng.integers(200, 700, 20_000).astype(np.int32) for name in ("width", "height")}
  split = types.SimpleNamespace(**sizes)
  phase = types.SimpleNamespace(eval_mode="rect", eval_size=128, eval_resize=145)
  config = get_config("imagenette")
  shapes = []
  for batch in (16, 64, 256):
    plan = types.SimpleNamespace(eval_batch_size=batch)
    spec = types.SimpleNamespace(config=config, plan=plan, devices=1)
    shapes.append(make_evaluation(split, spec, phase).shapes)
  assert shapes[0] == shapes[1] == shapes[2] and len(shapes[0]) > 1
