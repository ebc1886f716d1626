"""All-reduces of a compiled step: read from text by hand, and of a toy net on virtual devices."""

import dataclasses
import importlib.util
import json
import sys

import pytest
from commands import ROOT
from toy import load_recipe

from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.scaling.allreduce_time import exchange_of
from jaxspeed.steps.spec import make_train_spec

SCRIPT = ROOT / "scripts" / "count_allreduces.py"

# Bytes of a kernel over 1,000 GB/s: 8 MB in 8 us and 2 us to start.
CONV = "__cudnn$convForward"
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
  %c = (f16[4,8,8,32]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%x, %w), custom_call_target="{CONV}"
  %g = f32[1000000]{{0}} fusion(%a), kind=kLoop, calls=%inside
  %d = f32[1000000]{{0}} all-reduce-done(%s)
  ROOT %h = f32[1000000]{{0}} fusion(%d), kind=kLoop, calls=%inside
}}
"""


@pytest.fixture(scope="module")
def script():
  if (folder := str(SCRIPT.parent)) not in sys.path:  # as for a script that is run
    sys.path.insert(0, folder)
  spec = importlib.util.spec_from_file_location("count_allreduces", SCRIPT)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  spec.loader.exec_module(module)
  yield module
  del sys.modules[spec.name]


def test_a_schedule_tells_what_runs_between_start_and_done(script):
  found = script.read_schedule(PROGRAM, None)
  assert (found["kernels"], found["convolutions"]) == (4, 1)
  (row,) = found["all_reduces"]
  assert row == {
    "megabytes": 4.0,
    "start": 1 / 4,
    "done": 3 / 4,
    "kernels_between": 2,
    "convolutions_between": 1,
  }


def test_work_is_bytes_or_products(script):
  gpu = dataclasses.replace(script.GPUS["v100"], bandwidth=1_000_000_000_000, peak=2e9)
  (row,) = script.read_schedule(PROGRAM, gpu)["all_reduces"]
  fusion = 8e6 / 1e12 + 2e-6
  # Two a weight (32 x 3 x 3 x 16) and a place (4 x 8 x 8), at half of 2 GFLOP/s.
  convolution = 2 * 32 * 9 * 16 * 4 * 64 / 1e9 + 2e-6
  work = 3 * fusion + convolution
  assert row["start"] == pytest.approx(fusion / work, abs=1e-4)
  assert row["done"] == pytest.approx((2 * fusion + convolution) / work, abs=1e-4)


def test_groups_of_a_toy_net_are_those_that_are_counted(script, tmp_path):
  config = load_recipe("imagenette.py")
  config.model.width = 4
  exchange = exchange_of(config)
  rows = []
  for group_mb in (0.0, 0.05):
    own = script.config_for(config, "cpu", devices=4, batch=1, image_size=8, group_mb=group_mb)
    assert (own.batch_size, own.data.image_size, own.precision) == (4, 8, "float32")
    spec = make_train_spec(own, make_plan(own, devices=4), script.mesh_of("cpu", 4, 8))
    row = script.report(spec, script.compile_step(spec, "cpu", {}), "cpu", {})
    expected = [size / 1e6 for _, size in exchange.groups(group_mb)]
    compiled = sorted(each["megabytes"] for each in row["all_reduces"])
    assert compiled == pytest.approx(sorted(expected), abs=1e-4)
    assert row["count"] == len(expected) and row["devices"] == 4
    assert script.line_of(row).startswith(f"4 x cpu, group_mb {group_mb:g}: {len(expected)} all")
    rows.append(row)
  assert rows[0]["count"] == 2 and rows[1]["count"] > 2

  out = tmp_path / "groups.json"
  for row in (*rows, rows[1] | {"kernels": 0}):
    script.keep(out, row)
  kept = json.loads(out.read_text())["programs"]
  assert [row["group_mb"] for row in kept] == [0.0, 0.05]
  assert kept[0]["kernels"] > 0 and kept[1]["kernels"] == 0


def test_a_set_in_memory_has_no_such_step(script):
  with pytest.raises(UserError, match="name one of configs/imagenet"):
    script.config_for(load_recipe("cifar10.py"), "cpu", devices=8)


def test_hosts_must_be_equal(script):
  with pytest.raises(UserError, match="--per_host"):
    script.mesh_of("h100", 13, 8)


@pytest.mark.parametrize("texts, kind", [(["0"], int), (["8", "x"], int), (["-1"], float)])
def test_numbers_are_refused_with_the_flags_name(script, texts, kind):
  with pytest.raises(UserError, match="--devices="):
    script.numbers("devices", texts, kind)
  assert script.numbers("devices", ["8", "2048"], int) == [8, 2048]
