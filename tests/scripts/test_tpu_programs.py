"""The figures of a program for TPUs, from the text that libtpu gives."""

import types

import pytest
import tpu_programs
from step_program import StepProgram

from jaxspeed.errors import UserError

HLO = """HloModule jit_step, is_scheduled=true

%body (p: (bf16[8,4])) -> (bf16[8,4]) {
  %p = (bf16[8,4]{1,0:T(8,128)(2,1)}) parameter(0)
  %x = bf16[8,4]{1,0:T(8,128)(2,1)} get-tuple-element(%p), index=0
  %y = bf16[8,4] copy(%x), op_name="jvp(Airbench)/group1/norm1/mul" "estimated_cycles":"3000000"
  %z = bf16[8,4] add(%y), op_name="transpose(jvp(Airbench))/whiten/add" "estimated_cycles":"500000"
  %g = bf16[8,4]{1,0:T(8,128)(2,1)} gather(%z), metadata={op_name="augment/gather"}
  %s = f32[250000]{0:T(1024)} all-reduce(%g), to_apply=%sum
  ROOT %t = (bf16[8,4]{1,0:T(8,128)(2,1)}) tuple(%g)
}

ENTRY %main (a: bf16[8,4]) -> bf16[8,4] {
  %a = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(0)
  %u = bf16[8,4]{1,0:T(8,128)(2,1)} negate(%a), backend_config={"estimated_cycles":"4000000"}
  %b = (bf16[8,4]{1,0:T(8,128)(2,1)}) tuple(%u)
  %w = (bf16[8,4]{1,0:T(8,128)(2,1)}) while(%b), condition=%until, body=%body
  ROOT %c = bf16[8,4]{1,0:T(8,128)(2,1)} get-tuple-element(%w), index=0
}

%until (p: (bf16[8,4])) -> pred[] {
  %q = (bf16[8,4]{1,0:T(8,128)(2,1)}) parameter(0)
  ROOT %r = pred[] constant(true)
}
"""


def test_cycles_of_a_step_by_layer_memory_and_all_reduces():
  memory = types.SimpleNamespace(
    argument_size_in_bytes=5e9,
    output_size_in_bytes=3e9,
    alias_size_in_bytes=3e9,
    temp_size_in_bytes=12e9,
    generated_code_size_in_bytes=0,
  )
  compiled = types.SimpleNamespace(as_text=lambda: HLO, memory_analysis=lambda: memory)
  found = tpu_programs.count(StepProgram(compiled, (), steps=8))
  assert found["megacycles"] == 4.0  # an eighth of what is before the loop
  assert found["megacycles_by_layer"] == {
    "group1/norm1": 3.0,
    "no layer named": 0.5,
    "whiten": 0.5,
  }
  assert found["operations_without_estimate"] == 2 and found["operations"] == 5
  assert (found["gigabytes"], found["fits"]) == (17.0, False)
  assert (found["all_reduces"], found["all_reduced_megabytes"]) == (1, 1.0)


def test_without_libtpu_the_package_is_named(monkeypatch):
  def missing(**_):
    raise RuntimeError("Unable to initialize backend 'tpu'")

  monkeypatch.setattr(tpu_programs.topologies, "get_topology_desc", missing)
  with pytest.raises(UserError, match="v5e:2x4 .*pip install libtpu"):
    tpu_programs.described_mesh(8)
