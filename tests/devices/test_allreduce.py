"""Gradients in groups: their order, their sums, and the all-reduces of the compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tolerances import rounding
from toy import toy_config, toy_spec

from jaxspeed.devices import allreduce
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.feeds.resident import compile_programs


def test_groups_are_closed_when_they_reach_the_limit():
  assert allreduce.make_groups([3, 1, 2, 5, 1], 4) == [[0, 1], [2, 3], [4]]
  assert allreduce.make_groups([3, 1, 2, 5, 1], 100) == [[0, 1, 2, 3, 4]]
  assert allreduce.make_groups([3, 1, 2, 5, 1], 0) == [[0, 1, 2, 3, 4]]
  assert allreduce.make_groups([3, 1], 0.5) == [[0], [1]]


def test_layers_stand_in_the_order_in_which_they_run():
  spec = toy_spec(toy_config(), devices=2)
  params = jax.eval_shape(
    lambda: spec.model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)), train=False)
  )["params"]
  names = [path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  ordered = list(dict.fromkeys(names[i] for i in spec.layer_order))
  assert ordered[0] == "whiten" and ordered[-1] == "head"
  assert ordered != sorted(ordered)  # as jax.tree lists them
  assert sorted(spec.layer_order) == list(range(len(names)))


@pytest.mark.parametrize("group_mb", [0.0, 0.00005, 100.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_are_those_of_the_devices(group_mb, dtype):
  mesh = mesh_lib.make_mesh(4)
  rng = np.random.default_rng(0)
  gradient = {"b": rng.random((4, 3, 5), np.float32) - 0.5, "a": rng.random((4, 7), np.float32)}
  rest = {"count": np.arange(4, dtype=np.int32)[:, None], "x": rng.random((4, 2), np.float32)}

  def body(gradient, rest):
    gradient, rest = jax.tree.map(lambda x: x[0], (gradient, rest))
    return allreduce.sum_over_devices(gradient, rest, order=(1, 0), group_mb=group_mb, dtype=dtype)

  summed, others = jax.jit(
    jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
  )(gradient, rest)
  for name, array in gradient.items():
    assert summed[name].dtype == np.float32
    # Of four devices, each rounded to the format before.
    error = rounding(4, dtype) * np.abs(array).sum(0).max()
    np.testing.assert_allclose(summed[name], array.sum(0), rtol=0, atol=error)
  assert others["count"].dtype == np.int32 and others["count"].tolist() == [0 + 1 + 2 + 3]
  np.testing.assert_allclose(others["x"], rest["x"].sum(0), rtol=rounding(4))
  if dtype == "bfloat16":
    assert not np.array_equal(summed["a"], gradient["a"].sum(0))


HLO = """
  %all-reduce.1 = f32[1024,3]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1}}
  %start = (f32[10]{0}, /*index=1*/bf16[4,2]{1,0}) all-reduce-start(%a, %b), channel_id=2
  %done = (f32[10]{0}, bf16[4,2]{1,0}) all-reduce-done(%start)
  ROOT %s = s32[]{:T(128)} all-reduce(%n), to_apply=%add
  %get = f32[10]{0} get-tuple-element(%start), index=0
"""


def test_all_reduces_of_a_program_are_counted_in_bytes():
  assert allreduce.count(HLO) == [1024 * 3 * 4, 10 * 4 + 4 * 2 * 2, 4]
  assert allreduce.describe(HLO) == "3 all-reduces of 4e-06 to 0.0123 MB, 0.01235 MB in all"
  assert allreduce.describe("%a = f32[3] add(%b, %c)") == "no all-reduce"


def test_the_resident_step_has_one_all_reduce_a_group():
  config = toy_config(**{"allreduce.group_mb": 0.002, "model.width": 8})
  spec = toy_spec(config, devices=2)
  programs, carry = compile_programs(spec)
  program = programs[spec.plan.kind_of(0)]
  sizes = allreduce.count(program.text())
  order = [jax.tree.leaves(carry.state.params)[i].size for i in spec.layer_order]
  groups = allreduce.make_groups([4 * n for n in reversed(order)], 2000)
  assert len(groups) > 3
  expected = [4 * sum(list(reversed(order))[i] for i in group) for group in groups]
  statistics = sum(leaf.size for leaf in jax.tree.leaves(carry.state.batch_stats))
  assert sorted(sizes) == sorted([*expected, 4 * (statistics + 5)])
