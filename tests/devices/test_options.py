"""The options of programs for CPUs: only where they are known, never over a user's own."""

import jax
import jax.numpy as jnp
import pytest

from jaxspeed.devices import options
from jaxspeed.models.layers.conv import convolve


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


def test_an_option_of_xla_flags_is_the_users(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", f"--{options._CPU_LIBRARIES}=LIBRARY_FUSION_TYPE_DOT")
  assert options.libraries("cpu") == {}


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
  monkeypatch.setattr(options, "_CPU_LIBRARIES", "xla_cpu_of_another_version")
  assert options.libraries("cpu") == {}


def test_convolutions_in_loops_have_the_layout_of_eigen():
  """XLA:CPU brings others to it outside of loops only; evaluations took nine times as long."""
  loop = jax.jit(lambda x, kernel: jax.lax.map(lambda x: convolve(x, kernel, 1, 1), x))
  program = loop.lower(jnp.ones((2, 4, 8, 8, 3)), jnp.ones((5, 3, 3, 3))).compile().as_text()
  layouts = {part.split(",")[0].split()[0] for part in program.split("dim_labels=")[1:]}
  assert layouts == {"b01f_01io->b01f"}
