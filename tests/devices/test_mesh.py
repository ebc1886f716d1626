"""The mesh of eight virtual CPU devices and arrays on it."""

import ctypes
import dataclasses
import subprocess
import sys
from unittest import mock

import jax
import pytest

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError


@pytest.mark.parametrize(
  "error, reason",
  [
    (AssertionError(), "JAX, does not have: unset it"),
    (
      RuntimeError("Unable to initialize backend 'x': no. (set JAX_PLATFORMS='' to choose)"),
      r"does not have \(Unable to initialize backend 'x': no\): unset it, or set JAX_PLATFORMS=cpu",
    ),
  ],
)
def test_a_platform_without_its_device_is_a_sentence(error, reason, monkeypatch):
  monkeypatch.setattr(mesh_lib.jax, "devices", mock.Mock(side_effect=error))
  with pytest.raises(UserError, match=reason) as caught:
    mesh_lib.make_mesh()
  assert str(caught.value).startswith("JAX_PLATFORMS=cpu asks for a device")


@pytest.mark.parametrize("platforms", ["", "cpu"])
@pytest.mark.parametrize(
  "variable, value, setting",
  [
    ("JAX_NUM_CPU_DEVICES", "0", "JAX_NUM_CPU_DEVICES=0"),
    ("XLA_FLAGS", "--a=1 --xla_force_host_platform_device_count=0", "--xla_force_.*_count=0"),
  ],
)
def test_no_cpu_device_is_told_of_its_variable(platforms, variable, value, setting, monkeypatch):
  error = RuntimeError(
    "Unable to initialize backend 'cpu': INVALID_ARGUMENT: no (set JAX_PLATFORMS"
  )
  monkeypatch.setattr(mesh_lib.jax, "devices", mock.Mock(side_effect=error))
  monkeypatch.setenv("JAX_PLATFORMS", platforms)
  monkeypatch.setenv(variable, value)
  with pytest.raises(UserError, match=f"^{setting} is no number of devices: set it to 1"):
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


def test_freed_memory_is_kept_for_the_next_step():
  # Writing to 256 MB that the kernel gives anew costs a page fault every 4 kB.
  code = """
import resource, sys
from jaxspeed.devices.mesh import keep_host_memory
if sys.argv[1] == "keep":
  keep_host_memory()
bytearray(2**28)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(b"1") * 2**28
bytearray(b"1") * 2**28
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
  faults = {}
  for mode in ("keep", "give"):
    done = subprocess.run(
      [sys.executable, "-c", code, mode], capture_output=True, text=True, check=True
    )
    faults[mode] = int(done.stdout)
  if not hasattr(ctypes.CDLL(None), "mallopt"):
    pytest.skip("this C library has no mallopt")
  assert faults["keep"] < faults["give"] / 10
