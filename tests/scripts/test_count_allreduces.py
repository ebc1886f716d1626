"""All-reduces of a compiled step: read from text by hand, and of a toy net on virtual devices."""

import dataclasses

import count_allreduces
import pytest
import step_program
from toy import load_recipe

from jaxspeed.errors import UserError
from jaxspeed.scaling.allreduce_time import exchange_of

# Bytes of a kernel over 1,000 GB/s: 8 MB in 8 us and 2 us to start.
CONV = 'custom_call_target="__cudnn$convForward", window={size=3x3}, dim_labels=b01f_o01i->b01f'
PROGRAM = f"""HloModule toy, is_scheduled=true

%inside (p: f32[1000000]) -> f32[1000000] {{
  ROOT %n = f32[1000000]{{0}} negate(%p)
}}

ENTRY %main (a: f32[1000000], x: f16[4,8,8,16], w: f16[32,3,3,16]) -> f32[1000000] {{
  %a = f32[1000000]{{0}} parameter(0)
  %x = f16[4,8,8,16]{{3,2,1,0}} parameter(1)
  %w = f16[32,3,3,16]{{3,2,1,0}} parameter(2)
  %f = f32[1000000]{{0}} fusion(%a), kind=kLoop, calls=%inside
  %s = ((f32[1000000]{{0}}), f32[1000000]{{0}}) all-reduce-start(%f), channel_id=1, to_apply=%add
  %c = (f16[4,8,8,32]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%x, %w), {CONV}
  %g = f32[1000000]{{0}} fusion(%a), kind=kLoop, calls=%inside
  %d = f32[1000000]{{0}} all-reduce-done(%s)
  ROOT %h = f32[1000000]{{0}} fusion(%d), kind=kLoop, calls=%inside
}}
"""


def test_a_schedule_tells_what_runs_between_start_and_done():
  found = count_allreduces.read_schedule(PROGRAM, None)
  assert (found["kernels"], found["convolutions"]) == (4, 1)
  (row,) = found["all_reduces"]
  assert row == {
    "megabytes": 4.0,
    "start": 1 / 4,
    "done": 3 / 4,
    "kernels_between": 2,
    "convolutions_between": 1,
  }


def test_work_is_bytes_or_products():
  gpu = dataclasses.replace(count_allreduces.GPUS["v100"], bandwidth=1_000_000_000_000, peak=2e9)
  (row,) = count_allreduces.read_schedule(PROGRAM, gpu)["all_reduces"]
  fusion = 8e6 / 1e12 + 2e-6
  # Two a weight (32 x 3 x 3 x 16) and a place (4 x 8 x 8), at half of 2 GFLOP/s.
  convolution = 2 * 32 * 9 * 16 * 4 * 64 / 1e9 + 2e-6
  work = 3 * fusion + convolution
  assert row["start"] == pytest.approx(fusion / work, abs=1e-4)
  assert row["done"] == pytest.approx((2 * fusion + convolution) / work, abs=1e-4)


def test_groups_of_a_toy_net_are_those_that_are_counted():
  config = load_recipe("imagenette.py")
  config.model.width = 4
  exchange = exchange_of(config)
  counts = []
  for group_mb in (0.0, 0.05):
    sizes = {"devices": 4, "batch": 1, "image_size": 8}
    step = count_allreduces.step_of(config, "cpu", group_mb=group_mb, **sizes)
    assert (step.phase.batch_size, step.phase.image_size, step.config.precision) == (
      4,
      8,
      "float32",
    )
    program = step_program.compile_step(step.spec(), step.phase)
    row = count_allreduces.report(step, program, "cpu", [])
    expected = [size / 1e6 for _, size in exchange.groups(group_mb)]
    compiled = sorted(each["megabytes"] for each in row["all_reduces"])
    assert compiled == pytest.approx(sorted(expected), abs=1e-4)
    assert row["count"] == len(expected) and row["devices"] == 4
    assert count_allreduces.line_of(row).startswith(
      f"4 x cpu, group_mb {group_mb:g}: {len(expected)} all"
    )
    counts.append(row["count"])
  assert counts[0] == 2 < counts[1]


def test_hosts_must_be_equal():
  with pytest.raises(UserError, match="--per_host"):
    count_allreduces.step_of(load_recipe("imagenette.py"), "h100", devices=13)
