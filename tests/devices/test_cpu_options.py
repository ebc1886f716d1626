"""The options of programs for CPUs: only where they are known, never over a user's own."""

import jax
import jax.numpy as jnp
import pytest

from jaxspeed.devices import cpu_options


@pytest.fixture(autouse=True)
def _asked_anew():
  cpu_options.libraries.cache_clear()
  yield
  cpu_options.libraries.cache_clear()


def test_programs_for_cpus_leave_sums_to_ynnpack():
  options = cpu_options.libraries("cpu")
  program = jax.jit(lambda x: x.sum(axis=0)).lower(jnp.zeros((512, 512)))
  assert "__ynn_fusion" in program.compile(compiler_options=options).as_text()
  assert cpu_options.libraries("gpu") == {}


def test_an_option_of_xla_flags_is_the_users(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", f"--{cpu_options._NAME}=LIBRARY_FUSION_TYPE_DOT")
  assert cpu_options.libraries("cpu") == {}


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
  monkeypatch.setattr(cpu_options, "_NAME", "xla_cpu_of_another_version")
  assert cpu_options.libraries("cpu") == {}
