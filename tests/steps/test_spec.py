"""Names to objects, and what no net can be."""

import jax.numpy as jnp
import pytest
from toy import load_recipe, toy_config, toy_spec

from jaxspeed.devices import allreduce
from jaxspeed.errors import UserError
from jaxspeed.feeds.resident_programs import compile_programs
from jaxspeed.models.make import make_model


def test_the_fields_of_the_config_reach_the_net():
  job = toy_spec(toy_config(**{"data.classes": 7, "precision": "bfloat16"}), devices=8)
  assert (job.model.width, job.model.classes, job.model.dtype) == (4, 7, jnp.bfloat16)
  assert job.model.whiten and job.devices == 8


@pytest.mark.parametrize(
  "field, value",
  [
    ("name", "resnet51"),
    ("width", 0),
    ("ghost_splits", -1),
    ("celu_alpha", 0.0),
    ("pool_position", "nowhere"),
    ("activation", "gelu"),
  ],
)
def test_a_net_that_cannot_be_is_told(field, value):
  with pytest.raises(UserError, match=rf"config\.model\.{field}="):
    make_model(toy_config(**{f"model.{field}": value}))


@pytest.mark.parametrize(
  "field, value",
  [
    ("widths", (64, 256)),
    ("widths", (64, 256, 0)),
    ("depth", 4),
    ("activation", "celu"),
    ("init_method", "zeros"),
    ("whiten_bias", "ones"),
  ],
)
def test_an_airbench_net_that_cannot_be_is_told(field, value):
  config = load_recipe("cifar10.py")
  config.precision = "float32"
  config.model[field] = value
  with pytest.raises(UserError, match=rf"config\.model\.{field}="):
    make_model(config)


def test_a_head_that_cannot_begin_so_is_told():
  config = load_recipe("imagenet_ffcv.py", "16")
  config.precision = "float32"
  config.model.head_init = "zeros"
  with pytest.raises(UserError, match=r"config\.model\.head_init='zeros': choose one of normal, u"):
    make_model(config)


def test_options_of_the_config_go_to_the_compiler_beside_those_of_the_exchange():
  options = ("xla_gpu_graph_min_graph_size=7", "xla_gpu_autotune_level=0", "xla_gpu_x=True")
  job = toy_spec(toy_config(compiler_options=options), devices=2)
  assert job.compiler_options("gpu") == {
    **allreduce.compiler_options("gpu", 2),
    "xla_gpu_graph_min_graph_size": "7",
    "xla_gpu_autotune_level": "0",
    "xla_gpu_x": True,
  }
  with pytest.raises(UserError, match="compiler_options: XLA says: .*'xla_gpu_x'"):
    compile_programs(job)
  with pytest.raises(UserError, match=r"compiler_options=\('xla_gpu_x',\): .*NAME=VALUE"):
    toy_spec(toy_config(compiler_options=("xla_gpu_x",)))
