"""Compilation ahead, from the cache the second time and never inside the clock; its options."""

import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import rounding

from jaxspeed.devices import options
from jaxspeed.devices.compile import (
  BackgroundCompiler,
  CompiledInsideClock,
  compile_program,
  use_cache,
  warn_on_compile,
)
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


def test_the_second_time_comes_from_the_cache(cache, monkeypatch):
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


def test_the_cache_comes_from_the_environment_or_is_in_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv("JAXSPEED_COMPILE_CACHE", str(tmp_path / "environment"))
  assert use_cache() == tmp_path / "environment"
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
  (tmp_path / "file").write_text("in the way")
  before = jax.config.jax_compilation_cache_dir
  monkeypatch.setenv("JAXSPEED_COMPILE_CACHE", str(tmp_path / "file" / "programs"))
  assert use_cache() is None
  assert "programs cannot be written" in caplog.text
  assert jax.config.jax_compilation_cache_dir == before


def test_the_affinity_counts_or_without_one_the_machine(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8}, raising=False)
  assert usable_cpus() == 3
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  for counted, expected in ((None, 1), (8, 8)):
    monkeypatch.setattr(os, "cpu_count", lambda counted=counted: counted)
    assert usable_cpus() == expected


@pytest.fixture(autouse=True)
def _asked_anew():
  options.libraries.cache_clear()
  yield
  options.libraries.cache_clear()


def test_programs_for_cpus_leave_sums_to_ynnpack():
  found = options.libraries("cpu")
  program = jax.jit(lambda x: x.sum(axis=0)).lower(jnp.zeros((512, 512)))
  assert "__ynn_fusion" in program.compile(compiler_options=found).as_text()
  assert options.libraries("gpu") == {}


def test_an_option_of_xla_flags_is_the_users_and_one_that_xla_does_not_know_is_left_out(
  monkeypatch,
):
  monkeypatch.setenv("XLA_FLAGS", f"--{options._CPU_LIBRARIES}=LIBRARY_FUSION_TYPE_DOT")
  assert options.libraries("cpu") == {}
  options.libraries.cache_clear()
  monkeypatch.setattr(options, "_CPU_LIBRARIES", "xla_cpu_of_another_version")
  assert options.libraries("cpu") == {}


def test_convolutions_in_loops_have_the_layout_of_eigen():
  """XLA:CPU brings others to it outside of loops only; evaluations took nine times as long."""
  loop = jax.jit(lambda x, kernel: jax.lax.map(lambda x: convolve(x, kernel, 1, 1), x))
  program = loop.lower(jnp.ones((2, 4, 8, 8, 3)), jnp.ones((5, 3, 3, 3))).compile().as_text()
  layouts = {part.split(",")[0].split()[0] for part in program.split("dim_labels=")[1:]}
  assert layouts == {"b01f_01io->b01f"}
