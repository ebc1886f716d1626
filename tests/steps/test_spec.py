"""Options of the compiler: which programs get which."""

import dataclasses
import types

import jax
import pytest
from small_steps import make_spec
from toy import toy_config, toy_spec

from jaxspeed.config import checks
from jaxspeed.devices import allreduce
from jaxspeed.devices import options as options_lib
from jaxspeed.devices.compile import Program
from jaxspeed.errors import UserError
from jaxspeed.feeds import resident
from jaxspeed.feeds.resident import compile_programs
from jaxspeed.steps.spec import TrainSpec


def test_options_of_the_config_go_to_the_compiler_beside_those_of_the_exchange():
  options = ("xla_gpu_graph_min_graph_size=7", "xla_gpu_autotune_level=0", "xla_gpu_x=True")
  job = toy_spec(toy_config(compiler_options=options), devices=2)
  assert job.compiler_options("gpu") == {
    **allreduce.compiler_options("gpu", 2),
    "xla_gpu_graph_min_graph_size": "7",
    "xla_gpu_autotune_level": "0",
    "xla_gpu_x": True,
  }
  assert job.compiler_options("tpu").keys() == {option.partition("=")[0] for option in options}
  with pytest.raises(UserError, match="compiler_options: XLA says: .*'xla_gpu_x'"):
    compile_programs(job)
  with pytest.raises(UserError, match=r"compiler_options=\('xla_gpu_x',\): .*NAME=VALUE"):
    checks.checked(toy_config(compiler_options=("xla_gpu_x",)))


def test_options_for_gpus_reach_only_programs_for_gpus():
  job = toy_spec(toy_config(deterministic=True))
  fixed = {"xla_gpu_deterministic_ops": True, "xla_gpu_exclude_nondeterministic_ops": True}
  options = job.compiler_options("gpu")
  assert options == fixed
  # XLA reads options for GPUs on any machine, and refuses unknown names.
  jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=options)
  assert job.common_options("gpu") == fixed
  assert job.compiler_options("cpu") == job.common_options("cpu") == options_lib.libraries("cpu")
  off = toy_spec(toy_config())
  assert off.compiler_options("gpu") == off.common_options("gpu") == {}
  assert options_lib.notes(False, "on", "gpu") == options_lib.notes(False, "off", "cpu") == []
  assert "no effect on CPUs" in options_lib.notes(True, "off", "cpu")[0]
  assert "slower" in options_lib.notes(True, "off", "gpu")[0]


def test_every_program_gets_the_options_of_all_programs(monkeypatch):
  seen = []

  def compile_program(*_, options=None, **__):
    seen.append(dict(options))
    return Program(None, 0.0, False, 0.0)

  monkeypatch.setattr(resident, "compile_program", compile_program)
  monkeypatch.setattr(TrainSpec, "common_options", lambda *_: {"common": "1"})
  compile_programs(toy_spec(toy_config()))
  assert seen == [{"common": "1"}] * 4


def test_the_option_reaches_gpus_only_and_auto_waits_for_a_measurement(monkeypatch):
  spec = make_spec("")
  on = dataclasses.replace(spec, model=spec.model.clone(conv_fusion=True))
  option = {"xla_gpu_experimental_enable_conv_fusion": True}
  assert on.compiler_options("gpu") == spec.compiler_options("gpu") | option
  assert on.compiler_options("cpu") == spec.compiler_options("cpu")
  assert options_lib.notes(False, "on", "cpu") == ["conv_fusion has no effect on CPUs"]
  cpu = spec.mesh.devices.flat[0]
  gpu = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100 80GB HBM3")
  resolved = [
    options_lib.resolve_conv_fusion(*each) for each in (("on", cpu), ("auto", gpu), ("on", gpu))
  ]
  assert resolved == ["off", "off", "on"]
  monkeypatch.setattr(options_lib, "_FASTER_FUSED", (gpu.device_kind,))
  assert options_lib.resolve_conv_fusion("auto", gpu) == "on"
