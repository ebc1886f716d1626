"""Compilation ahead: from the cache the second time, and never inside the clock unnoticed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import rounding

from jaxspeed.devices import compile as compile_lib
from jaxspeed.devices.compile import (
  BackgroundCompiler,
  CompiledInsideClock,
  compile_program,
  use_cache,
  warn_on_compile,
)
from jaxspeed.errors import UserError


@pytest.fixture
def cache(tmp_path):
  return use_cache(str(tmp_path / "programs"))


def matmul(x, y):
  return jnp.sin(x @ y).sum()


ABSTRACT = (jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32))


def test_the_second_time_comes_from_the_cache(cache):
  first = compile_program(matmul, ABSTRACT)
  assert not first.cached and any(cache.iterdir())
  jax.clear_caches()
  second = compile_program(matmul, ABSTRACT)
  assert second.cached
  x, y = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)
  np.testing.assert_allclose(second.call(x, y), 32 * np.sin(16.0), rtol=rounding(32))


def test_another_folder_is_used_from_the_next_program_on(cache, tmp_path):
  compile_program(jnp.sinh, ABSTRACT[:1])
  before = set(cache.iterdir())
  other = use_cache(str(tmp_path / "other"))
  assert not compile_program(jnp.arctan, ABSTRACT[:1]).cached
  assert set(cache.iterdir()) == before and any(other.iterdir())


@pytest.mark.parametrize("backend, threads", [("cpu", 7), ("gpu", 1), ("tpu", 1)])
def test_an_accelerator_compiles_one_program_at_a_time(backend, threads, monkeypatch):
  monkeypatch.setattr(compile_lib.jax, "default_backend", lambda: backend)
  monkeypatch.setattr(compile_lib, "usable_cpus", lambda: 7)
  assert compile_lib.compiling_threads() == threads


def test_the_cache_comes_from_the_command_line_or_the_environment(tmp_path, monkeypatch, cache):
  monkeypatch.setenv("JAXSPEED_COMPILE_CACHE", str(tmp_path / "environment"))
  assert use_cache() == use_cache("") == tmp_path / "environment"
  assert use_cache(str(tmp_path / "flag")) == tmp_path / "flag"
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


def test_what_other_threads_compile_is_not_inside_the_clock(recwarn):
  with warn_on_compile("train"):
    BackgroundCompiler({"a": lambda: compile_program(jnp.cosh, ABSTRACT[:1])}).wait()
  assert not [w for w in recwarn if w.category is CompiledInsideClock]


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
  compiled = jax.jit(lambda x: x + 43).lower(np.float32(1)).compile()
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    with warn_on_compile("train"):
      compiled(np.float32(1))


def test_without_a_writable_cache_the_run_goes_on(tmp_path):
  (tmp_path / "file").write_text("in the way")
  before = jax.config.jax_compilation_cache_dir
  with pytest.warns(UserWarning, match="cannot be written"):
    assert use_cache(str(tmp_path / "file" / "programs")) is None
  assert jax.config.jax_compilation_cache_dir == before
