"""JAX's plugins that are broken, each in a process of its own, which imports them once."""

import json
import os
import subprocess
import sys

import pytest
from commands import ROOT, environment

from jaxspeed.doctor import fit, jax_devices, nvidia

SCRIPT = """
import dataclasses, json
from jaxspeed.config import output
from jaxspeed.doctor import jax_devices
output.guard()
seen, _ = jax_devices.find(seconds=300)
print(json.dumps(dataclasses.asdict(seen)))
"""


def seen(tmp_path, content):
  """What JAX sees beside a plugin with a content, without an accelerator."""
  plugin = tmp_path / "jax_plugins/odd"
  plugin.mkdir(parents=True)
  (plugin / "__init__.py").write_text(content)
  env = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
  done = subprocess.run(
    [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=600
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


INTERRUPTED = """
import sys
from jaxspeed.doctor import jax_devices

class Interrupt:
  def find_spec(self, name, *_):
    if name == "numpy":
      raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
try:
  seen, _ = jax_devices.find(seconds=300)
  print(seen)
except KeyboardInterrupt:
  print("interrupted")
"""


def test_an_interrupt_in_what_jaxlib_imports_is_no_broken_installation():
  done = subprocess.run(
    [sys.executable, "-c", INTERRUPTED],
    env=environment() | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600,
  )  # fmt: skip
  assert done.stdout == "interrupted\n", done.stdout + done.stderr


@pytest.mark.parametrize(
  "content, words",
  [
    (
      "raise ImportError('no libodd')",
      "jax_plugins.odd could not be loaded: ImportError: no libodd",
    ),
    ("import no_such_package", "jax_plugins.odd does not exist"),
  ],
)
def test_a_plugin_that_cannot_be_imported_is_named(tmp_path, content, words):
  found = seen(tmp_path, content)
  (said,) = found["complaints"]
  assert said.endswith(words) and found["broken"] == {said: "jax_plugins.odd"}
  assert found["platform"] == "cpu"


@pytest.mark.parametrize(
  "content, words",
  [
    (
      "raise RuntimeError('no driver')",
      "its plugin jax_plugins.odd fails (RuntimeError: no driver)",
    ),
    ("raise SystemExit(3)", "its plugin jax_plugins.odd fails (SystemExit: 3)"),
  ],
)
def test_a_plugin_that_leaves_jax_without_devices_is_named(tmp_path, content, words):
  found = seen(tmp_path, content)
  assert found["problem"] == words and found["broken"] == {words: "jax_plugins.odd"}


@pytest.mark.parametrize(
  "value, words",
  [
    ("--xla_nope=1", "Unknown flag in XLA_FLAGS: --xla_nope=1"),
    ("--xla_a --xla_b", "Unknown flags in XLA_FLAGS: --xla_a --xla_b"),
    (
      "--xla_cpu_enable_fast_math=so",
      "Couldn't interpret value so for flag xla_cpu_enable_fast_math",
    ),
    (
      "xla_nope",
      'Could not open file "xla_nope" to read flags for environment variable "XLA_FLAGS"',
    ),
    ("  ", 'Could not open file "  " to read flags for environment variable "XLA_FLAGS"'),
  ],
)
def test_flags_that_xla_refuses_are_named_and_the_doctor_lives_on(monkeypatch, value, words):
  monkeypatch.setenv("XLA_FLAGS", value)
  found, devices = jax_devices.find(seconds=300)
  assert found.problem == f"XLA refuses XLA_FLAGS and ends every program: {words}"
  part = fit.examine(fit.Facts(nvidia.Nvidia(""), found, {}, {}, os.environ))
  assert devices == [] and part.lines[0] == f"JAX: {found.problem}"
  assert [each.type for each in part.advice] == ["unset XLA_FLAGS"]
