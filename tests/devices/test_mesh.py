"""The mesh of eight virtual CPU devices, and sums over it in groups."""

import ctypes
import dataclasses
from unittest import mock

import jax
import numpy as np
import pytest
from commands import python
from jax.sharding import PartitionSpec as P
from tolerances import rounding
from toy import toy_config, toy_spec

from jaxspeed.devices import allreduce
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.feeds.resident import compile_programs

NO_CPU = RuntimeError("Unable to initialize backend 'cpu': INVALID_ARGUMENT: no (set JAX_PLATFORMS")
NONE = RuntimeError("Unable to initialize backend 'x': no. (set JAX_PLATFORMS='' to choose)")
COUNT = "--xla_force_host_platform_device_count=0"


@pytest.mark.parametrize(
  "error, variables, sentence",
  [
    (AssertionError(), {}, "JAX_PLATFORMS=cpu asks for a device .* JAX, does not have: unset it"),
    (
      NONE,
      {},
      r"asks for .* have \(Unable to initialize backend 'x': no\): unset it, or set JAX",
    ),
    (NO_CPU, {"JAX_NUM_CPU_DEVICES": "0"}, "^JAX_NUM_CPU_DEVICES=0 is no number of devices: set"),
    (NO_CPU, {"XLA_FLAGS": f"--a=1 {COUNT}"}, f"^{COUNT} is no number of devices: set it to 1"),
  ],
)
def test_a_platform_without_its_device_is_a_sentence(error, variables, sentence, monkeypatch):
  monkeypatch.setattr(mesh_lib.jax, "devices", mock.Mock(side_effect=error))
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(UserError, match=sentence):
    mesh_lib.find_devices()


def test_programs_that_must_not_be_compiled_are_refused():
  with jax.disable_jit(), pytest.raises(UserError, match="JAX_DISABLE_JIT is set.*: unset it"):
    mesh_lib.find_devices()


@pytest.mark.parametrize(
  "environment, file, expected",
  [
    ({}, "nvidiactl", False),
    ({}, "nvidia0", True),
    ({}, "kfd", True),
    ({}, "vfio/0", True),
    ({"CUDA_VISIBLE_DEVICES": ""}, "nvidia0", False),
    ({"JAX_PLATFORMS": "cpu"}, "nvidia0", False),
    ({"JAX_PLATFORMS": "cuda,cpu"}, "none", True),
  ],
)
def test_host_memory_is_kept_where_there_are_cpus_only(
  environment, file, expected, tmp_path, monkeypatch
):
  (tmp_path / file).parent.mkdir(exist_ok=True)
  (tmp_path / file).touch()
  assert mesh_lib.may_have_accelerator(environment, tmp_path) == expected
  libc = mock.Mock()
  monkeypatch.setattr(mesh_lib.ctypes, "CDLL", lambda _: libc)
  monkeypatch.setattr(mesh_lib, "may_have_accelerator", lambda: expected)
  mesh_lib.keep_host_memory()
  assert libc.mallopt.called == (not expected)


def test_a_mesh_has_the_first_devices_and_goes_from_process_to_process_as_a_batch_does(monkeypatch):
  for asked, expected in ((0, 8), (3, 3)):
    assert list(mesh_lib.make_mesh(asked).devices.flat) == jax.devices()[:expected]
  # The numbers of a TPU's devices do not.
  Chip = dataclasses.make_dataclass("Chip", ["id", "process_index"], frozen=True)
  chips = [Chip(n, n // 2 % 2) for n in range(8)]
  monkeypatch.setattr(mesh_lib, "find_devices", lambda: chips)
  assert [chip.id for chip in mesh_lib.make_mesh().devices] == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no mallopt in its C library")
def test_freed_memory_is_kept_for_the_next_step():
  # Writing to 64 MB that the kernel gives anew costs a page fault every 4 kB.
  code = """
import resource
from jaxspeed.devices.mesh import keep_host_memory
def faults():
  found = []
  for _ in range(3):
    bytearray(b"1") * 2**26
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
  return found[2] - found[0]
given = faults()
keep_host_memory()
print(given, faults())
"""
  given, kept = map(int, python("-c", code).stdout.split())
  assert kept < given / 10


# Gradients in groups: their order, their sums, and the all-reduces of the compiled programs


def test_groups_are_closed_when_they_reach_the_limit():
  assert allreduce.make_groups([3, 1, 2, 5, 1], 4) == [[0, 1], [2, 3], [4]]
  assert allreduce.make_groups([3, 1, 2, 5, 1], 100) == [[0, 1, 2, 3, 4]]
  assert allreduce.make_groups([3, 1, 2, 5, 1], 0) == [[0, 1, 2, 3, 4]]
  assert allreduce.make_groups([3, 1], 0.5) == [[0], [1]]


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


def test_the_resident_step_has_one_all_reduce_a_group_in_the_order_of_the_layers():
  config = toy_config(**{"allreduce.group_mb": 0.002, "model.width": 8})
  spec = toy_spec(config, devices=2)
  programs, carry = compile_programs(spec)
  leaves = jax.tree_util.tree_leaves_with_path(carry.state.params)
  ordered = [leaves[i][0][0].key for i in spec.layer_order]
  # As they run, not as jax.tree lists them.
  assert ordered[0] == "whiten" and ordered[-1] == "head" and ordered != sorted(ordered)
  sizes = [4 * leaves[i][1].size for i in reversed(spec.layer_order)]
  groups = allreduce.make_groups(sizes, 2000)
  assert len(groups) > 3 and len(sizes) == len(leaves)
  expected = [sum(sizes[i] for i in group) for group in groups]
  statistics = sum(leaf.size for leaf in jax.tree.leaves(carry.state.batch_stats))
  found = allreduce.count(programs[spec.plan.kind_of(0)].text())
  assert sorted(found) == sorted([*expected, 4 * (statistics + 5)])
