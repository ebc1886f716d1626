"""Compilation ahead, its cache and options; and the operations of a program."""

import functools
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tolerances import rounding

from jaxspeed.devices import options
from jaxspeed.devices.compile import (
  BackgroundCompiler,
  CompiledInsideClock,
  compile_program,
  use_cache,
  warn_on_compile,
)
from jaxspeed.devices.flops import count_flops
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError
from jaxspeed.models.layers.conv import convolve


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("JAXSPEED_COMPILE_CACHE", str(tmp_path / "programs"))
  return use_cache()


def matmul(x, y):
  return jnp.sin(x @ y).sum()


ABSTRACT = (jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32))


def test_the_second_time_comes_from_the_cache(cache, tmp_path, monkeypatch):
  first = compile_program(matmul, ABSTRACT)
  assert not first.cached and any(cache.iterdir())
  jax.clear_caches()
  second = compile_program(matmul, ABSTRACT)
  assert second.cached
  x, y = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)
  np.testing.assert_allclose(second.call(x, y), 32 * np.sin(16.0), rtol=rounding(32))
  monkeypatch.setenv("JAXSPEED_COMPILE_CACHE", f"{cache}_other")
  other = use_cache()
  jax.clear_caches()
  assert not compile_program(matmul, ABSTRACT).cached and any(other.iterdir())
  monkeypatch.delenv("JAXSPEED_COMPILE_CACHE")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert use_cache() == tmp_path / ".cache/jaxspeed/programs"


def test_programs_compile_side_by_side_and_an_error_comes_out():
  ahead = BackgroundCompiler(
    {
      "a": lambda: compile_program(matmul, ABSTRACT),
      "b": lambda: compile_program(jnp.tanh, ABSTRACT[:1]),
    }
  )
  assert ahead["b"].call is not None and "b" in ahead.ready()
  assert set(ahead.wait()) == set(ahead.ready()) == {"a", "b"}
  bad = BackgroundCompiler({"bad": lambda: compile_program(jnp.matmul, ABSTRACT[:1] * 2)})
  with pytest.raises(TypeError, match="dot_general"):
    bad.wait()


@pytest.mark.parametrize(
  "name, value", [("xla_no_such_option", True), ("xla_gpu_graph_min_graph_size", "many")]
)
def test_an_option_that_xla_does_not_know_is_named(name, value):
  with pytest.raises(UserError, match=f"compiler_options: XLA says: .*{name}"):
    compile_program(matmul, ABSTRACT, options={name: value})


def test_donated_memory_is_given_away():
  program = compile_program(jnp.negative, ABSTRACT[:1], donate=(0,))
  x = jax.device_put(np.ones((8, 16), np.float32))
  program.call(x)
  assert x.is_deleted()


def test_a_compilation_inside_the_clock_is_told():
  with pytest.warns(CompiledInsideClock, match="1 program.s. were compiled during train"):
    with warn_on_compile("train"):
      jax.jit(lambda x: jnp.cos(x) + 41)(np.float32(1)).block_until_ready()
  with warnings.catch_warnings():
    warnings.simplefilter("error", CompiledInsideClock)
    with warn_on_compile("train"):  # in other threads
      BackgroundCompiler({"a": lambda: compile_program(jnp.cosh, ABSTRACT[:1])}).wait()


def test_without_a_writable_cache_the_run_goes_on(tmp_path, caplog, monkeypatch):
  (tmp_path / "file").touch()
  before = jax.config.jax_compilation_cache_dir
  monkeypatch.setenv("JAXSPEED_COMPILE_CACHE", str(tmp_path / "file" / "programs"))
  assert use_cache() is None and jax.config.jax_compilation_cache_dir == before
  assert "programs cannot be written" in caplog.text


def test_the_affinity_counts_or_without_one_the_machine(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8}, raising=False)
  assert usable_cpus() == 3
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  for counted, expected in ((None, 1), (8, 8)):
    monkeypatch.setattr(os, "cpu_count", lambda counted=counted: counted)
    assert usable_cpus() == expected


def test_programs_for_cpus_leave_sums_to_ynnpack_unless_a_user_or_xla_says_no(monkeypatch):
  asked = options.libraries.__wrapped__
  program = jax.jit(lambda x: x.sum(axis=0)).lower(jnp.zeros((512, 512)))
  assert "__ynn_fusion" in program.compile(compiler_options=asked("cpu")).as_text()
  assert asked("gpu") == {}
  with monkeypatch.context() as patch:
    patch.setenv("XLA_FLAGS", f"--{options._CPU_LIBRARIES}=LIBRARY_FUSION_TYPE_DOT")
    assert asked("cpu") == {}
  monkeypatch.setattr(options, "_CPU_LIBRARIES", "xla_cpu_of_another_version")
  assert asked("cpu") == {}


def test_convolutions_in_loops_have_the_layout_of_eigen():
  """XLA:CPU brings others to it outside of loops only; evaluations took nine times as long."""
  loop = jax.jit(lambda x, kernel: jax.lax.map(lambda x: convolve(x, kernel, 1, 1), x))
  program = loop.lower(jnp.ones((2, 4, 8, 8, 3)), jnp.ones((5, 3, 3, 3))).compile().as_text()
  layouts = {part.split(",")[0].split()[0] for part in program.split("dim_labels=")[1:]}
  assert layouts == {"b01f_01io->b01f"}


# Operations beside counts by hand and XLA's own


valid = functools.partial(
  lax.conv_general_dilated, padding="VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
)
X = jax.ShapeDtypeStruct((2, 9, 9, 4), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 4, 6), jnp.float32)
GROUPED = jax.ShapeDtypeStruct((3, 3, 2, 6), jnp.float32)
A = jax.ShapeDtypeStruct((8, 8), jnp.float32)
# 7 x 7 places of 2 images, 6 channels, each with 3 x 3 x 4 products; with stride 2, 4 x 4 places.
ONE, STRIDED, PRODUCT = 2 * 2 * 49 * 6 * 36, 2 * 2 * 16 * 6 * 36, 2 * 8**3


def loss(x, kernel, stride):
  return valid(x, kernel, (stride, stride)).sum()


def gradient(stride, argument):
  return jax.grad(functools.partial(loss, stride=stride), argnums=argument)


def an_epoch(a):
  """Steps of two kinds, as those of a run with a frozen whitening bias."""
  for number, power in ((5, 2), (9, 1)):
    step = functools.partial(
      lambda power, _, a: functools.reduce(jnp.matmul, [a] * power, a), power
    )
    a = lax.fori_loop(0, jnp.int32(a[0, 0]) + number, step, a)
  return a


CASES = {
  "a convolution": (lambda x, k: valid(x, k, (1, 1)), (X, KERNEL), ONE),
  "in groups": (lambda x, k: valid(x, k, (1, 1), feature_group_count=2), (X, GROUPED), ONE / 2),
  # The forward pass is not needed for the gradient of a sum, and a gradient has as many products.
  "of the weights": (gradient(1, 1), (X, KERNEL), ONE),
  "of the weights, stride 2": (gradient(2, 1), (X, KERNEL), STRIDED),
  # Zeros between the inputs are no products: of 81 places of input each of the 9 x 4 x 6 weights
  # meets a quarter.
  "of the images, stride 2": (gradient(2, 0), (X, KERNEL), 2 * 2 * 81 * 4 * 54 / 4),
  # A scan counts with its length, and of loops and branches the largest.
  "a scan": (lambda a: lax.scan(lambda c, _: (c @ a, None), a, length=7)[0], (A,), 7 * PRODUCT),
  "an epoch": (an_epoch, (A,), 2 * PRODUCT),
  "branches": (
    lambda a: lax.cond(a[0, 0] > 0, lambda: a @ a @ a, lambda: a @ a),
    (A,),
    2 * PRODUCT,
  ),
  "a checkpoint": (jax.checkpoint(lambda a: a @ a), (A,), PRODUCT),
}


@pytest.mark.parametrize("name", CASES)
def test_products_are_counted(name):
  function, arguments, expected = CASES[name]
  assert count_flops(jax.jit(function).trace(*arguments).jaxpr) == expected


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_without_padding_it_is_xlas_count(strides):
  traced = jax.jit(functools.partial(valid, window_strides=strides)).trace(X, KERNEL)
  assert count_flops(traced.jaxpr) == traced.lower().cost_analysis()["flops"]
