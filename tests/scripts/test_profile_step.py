"""Kernels of compiled programs and of traces, and what they are for.

A dry run of `gpu_day.sh` profiles a toy step: test_gpu_day.py.
"""

import dataclasses
import importlib.util
import types

import described_gpus
import jax
import kernels
import profile_step
import pytest
import step_program
import traces
from toy import load_recipe

from jaxspeed.errors import UserError
from jaxspeed.models.resnet import STAGES
from jaxspeed.scaling.allreduce_time import exchange_of

# As XLA writes them for a GPU: a loop of three, cuDNN and one of its graphs, a fusion that takes
# a row of its operand.
PROGRAM = """HloModule jit_step, is_scheduled=true

%fused_slice (param_0: f32[100,8], param_1: f32[8]) -> f32[8] {
  %param_0 = f32[100,8]{1,0} parameter(0)
  %param_1 = f32[8]{0} parameter(1)
  %slice.1 = f32[1,8]{1,0} slice(%param_0), slice={[3:4], [0:8]}
  %bitcast.1 = f32[8]{0} bitcast(%slice.1)
  ROOT %add.1 = f32[8]{0} add(%bitcast.1, %param_1), metadata={op_name="jit(step)/optimizer/add"}
}

%conv_fusion_comp (param_2: bf16[2,2,2,16], param_3: bf16[16,3,3,8]) -> f32[2,4,4,8] {
  %param_2 = bf16[2,2,2,16]{3,2,1,0} parameter(0)
  %param_3 = bf16[16,3,3,8]{3,2,1,0} parameter(1)
  %conv.4 = bf16[2,4,4,8]{3,2,1,0} convolution(%param_2, %param_3), window={size=3x3 pad=1_2x1_2 lhs_dilate=2x2}, dim_labels=b01f_i01o->b01f, metadata={op_name="jit(step)/transpose(jvp(Net))/conv/conv_general_dilated"}
  ROOT %convert.1 = f32[2,4,4,8]{3,2,1,0} convert(%conv.4)
}

%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %arg = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[8]{0} get-tuple-element(%arg), index=1
  %multiply.1 = f32[8]{0} multiply(%x, %x), metadata={op_name="jit(step)/while/body/jvp(Net)/mul"}
  ROOT %tuple.1 = (s32[], f32[8]{0}) tuple(%i, %multiply.1)
}

%condition (arg.1: (s32[], f32[8])) -> pred[] {
  %arg.1 = (s32[], f32[8]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %three = s32[] constant(3)
  ROOT %compare.1 = pred[] compare(%i.1, %three), direction=LT
}

ENTRY %main (image: bf16[2,4,4,8], kernel: bf16[16,3,3,8], table: f32[100,8]) -> f32[8] {
  %image = bf16[2,4,4,8]{3,2,1,0} parameter(0)
  %kernel = bf16[16,3,3,8]{3,2,1,0} parameter(1)
  %table = f32[100,8]{1,0} parameter(2)
  %zero = f32[8]{0} constant({...})
  %conv.1 = (bf16[2,4,4,16]{3,2,1,0}, u8[0]{0}) custom-call(%image, %kernel), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward", metadata={op_name="jit(step)/jvp(Net)/conv/conv_general_dilated"}
  %y = bf16[2,4,4,16]{3,2,1,0} get-tuple-element(%conv.1), index=0
  %conv.2 = (bf16[2,4,4,8]{3,2,1,0}, u8[0]{0}) custom-call(%y, %kernel), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward", metadata={op_name="jit(step)/transpose(jvp(Net))/conv/conv_general_dilated"}
  %conv.3 = (bf16[16,3,3,8]{3,2,1,0}, u8[0]{0}) custom-call(%image, %y), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardFilter", metadata={op_name="jit(step)/transpose(jvp(Net))/conv/conv_general_dilated"}
  %half = bf16[2,2,2,16]{3,2,1,0} slice(%y), slice={[0:2], [0:2], [0:2], [0:16]}
  %graph = f32[2,4,4,8]{3,2,1,0} fusion(%half, %kernel), kind=kCustom, calls=%conv_fusion_comp
  %bitcast.9 = bf16[32,16]{1,0} bitcast(%y)
  %gram = f32[16,16]{1,0} custom-call(%bitcast.9, %bitcast.9), custom_call_target="__cublas$gemm", metadata={op_name="jit(step)/jvp(Net)/norm1/dot_general"}
  %copy.1 = bf16[2,4,4,16]{3,2,1,0} copy(%y)
  %start = (s32[], f32[8]{0}) tuple(%zero, %zero)
  %while.1 = (s32[], f32[8]{0}) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %last = f32[8]{0} get-tuple-element(%while.1), index=1
  ROOT %fusion.1 = f32[8]{0} fusion(%table, %last), kind=kLoop, calls=%fused_slice, metadata={op_name="jit(step)/optimizer/add"}
}
"""  # noqa: E501


def test_kernels_of_a_program_with_their_bytes_runs_and_classes():
  found = {kernel.name: kernel for kernel in kernels.read(PROGRAM)}
  rows = {name: (k.purpose, k.moved, k.runs) for name, k in found.items()}
  image, output, kernel = 2 * 2 * 4 * 4 * 8, 2 * 2 * 4 * 4 * 16, 2 * 16 * 3 * 3 * 8
  assert rows == {
    "conv.1": ("convolution forward", image + kernel + output, 1),
    "conv.2": ("convolution data gradient", output + kernel + image, 1),
    "conv.3": ("convolution weight gradient", image + output + kernel, 1),
    "half": ("elementwise", output // 4 * 2, 1),
    "graph": ("convolution data gradient", output // 4 + kernel + 2 * image, 1),
    "gram": ("norm", output + 4 * 16 * 16, 1),  # its operand stands twice
    "copy.1": ("copy", 2 * output, 1),
    "multiply.1": ("elementwise", 2 * 4 * 8, 3),
    "compare.1": ("elementwise", 1 + 4 + 4, 3),
    "fusion.1": ("optimizer", 3 * 4 * 8, 1),  # a row of 8 of the table's 100
  }
  assert found["conv.1"].kind == "__cudnn$convForward"
  assert kernels.place_of(found["conv.2"]) == "transpose(jvp(Net))/conv/conv_general_dilated"
  assert kernels.module_name(PROGRAM) == "jit_step"
  assert kernels.scatters(PROGRAM) == 0


# Bytes: 8 MB a fusion, 4 MB the negation at the end of the last one's operand.
SCHEDULE = """HloModule toy, is_scheduled=true

%inside (p: f32[1000000]) -> f32[1000000] {
  ROOT %n = f32[1000000]{0} negate(%p)
}

ENTRY %main (a: f32[1000000]) -> f32[1000000] {
  %a = f32[1000000]{0} parameter(0)
  %f = f32[1000000]{0} fusion(%a), kind=kLoop, calls=%inside
  %s = ((f32[1000000]{0}), f32[1000000]{0}) all-reduce-start(%f), channel_id=1, to_apply=%add
  %g = f32[1000000]{0} fusion(%a), kind=kLoop, calls=%inside
  %h = f32[1000000]{0} fusion(%g), kind=kLoop, calls=%inside
  %d = f32[1000000]{0} all-reduce-done(%s)
  ROOT %i = f32[1000000]{0} fusion(%d), kind=kLoop, calls=%inside
}
"""


def test_a_schedule_tells_what_runs_between_start_and_done():
  (row,) = profile_step.all_reduces(SCHEDULE)
  assert row == {"megabytes": 4.0, "start": 1 / 4, "done": 3 / 4, "kernels_beside": 2}


def test_groups_of_a_toy_net_are_those_that_are_counted(monkeypatch):
  monkeypatch.setitem(STAGES, 18, (1, 1, 1, 1))
  config = load_recipe("imagenette.py")
  config.model.width, config.allreduce.group_mb = 4, 0.05
  step = step_program.step_of(config, "", devices=4, batch_size=1, image_size=8)
  assert (step.phase.batch_size, step.phase.image_size) == (4, 8)
  program = step_program.compile_step(step.spec(), step.phase)
  rows = profile_step.all_reduces(program.compiled.as_text())
  expected = [size / 1e6 for _, size in exchange_of(config).groups(0.05)]
  compiled = sorted(each["megabytes"] for each in rows)
  assert compiled == pytest.approx(sorted(expected), abs=1e-4) and len(rows) > 2


TPU = """HloModule jit_step, is_scheduled=true

ENTRY %main (a: bf16[8,4]) -> bf16[8,4] {
  %a = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(0)
  %u = bf16[8,4]{1,0:T(8,128)(2,1)} negate(%a), backend_config={"estimated_cycles":"4000000"}
  %g = bf16[8,4]{1,0:T(8,128)(2,1)} gather(%u), metadata={op_name="augment/gather"}
  %r = f32[250000]{0:T(1024)} all-reduce(%u), to_apply=%sum
  ROOT %c = bf16[8,4]{1,0:T(8,128)(2,1)} copy(%g), backend_config={"estimated_cycles":"2400000"}
}
"""


def test_cycles_of_a_step_on_a_tpu():
  sizes = {"temp": 12e9, "argument": 5e9, "output": 3e9, "alias": 3e9}
  memory = types.SimpleNamespace(**{f"{name}_size_in_bytes": n for name, n in sizes.items()})
  compiled = types.SimpleNamespace(as_text=lambda: TPU, memory_analysis=lambda: memory)
  found = profile_step.count(step_program.StepProgram(compiled, (), steps=8), "v5e")
  assert found["megacycles"] == 6.4 / 8 and found["classes"]["copy"]["megacycles"] == 2.4 / 8
  assert found["without_estimate"] == 2 and found["kernels"] == 4 / 8
  assert found["memory_gb"] == 17.0
  assert [each["megabytes"] for each in found["all_reduces"]] == [1.0]


def run(name, start, end):
  return profile_step.Run(name, start * 1e6, end * 1e6)


def test_times_are_summed_by_class_and_gaps_are_what_is_left():
  # Of two steps; a loop runs others, and counts not by itself.
  runs = [run("while.1", 0, 30), run("conv.1", 0, 4), run("conv.1", 10, 14)]
  runs += [run("multiply.1", 12, 20), run("multiply.1", 28, 30)]
  summary = profile_step.summarize(runs, PROGRAM, steps=2, seconds=0.05)
  assert summary["milliseconds"] == pytest.approx(30 / 2)
  assert summary["wall_milliseconds"] == pytest.approx(50 / 2)
  assert summary["kernels"] == 4 / 2
  classes = {name: row["milliseconds"] for name, row in summary["classes"].items()}
  # Something ran from 0 to 4, 10 to 20 and 28 to 30.
  expected = {"convolution forward": 8 / 2, "elementwise": 10 / 2, "gaps": (30 - 16) / 2}
  assert classes == pytest.approx(expected)
  assert [row["name"] for row in summary["heaviest"]] == ["multiply.1", "conv.1"]


def test_a_phase_is_chosen_and_a_batch_that_does_not_divide_is_told():
  config = load_recipe("imagenet18.py", "1").copy_and_resolve_references()

  def choose(devices, image_size, batch_size):
    sizes = dict(image_size=image_size, batch_size=batch_size)
    phase = step_program.choose_phase(config, devices=devices, **sizes)
    return phase.image_size, phase.batch_size

  assert choose(2, 224, 0) == (224, 8 * 224)  # 8 GPUs of 224 images each
  assert choose(2, 160, 32) == (160, 64)
  with pytest.raises(UserError, match="4096 does not divide over 3 devices"):
    choose(3, 0, 0)
  config.accumulate = 2
  with pytest.raises(UserError, match="33 does not divide .*accumulate=2: give .*--batch_size"):
    choose(1, 0, 33)


def test_a_compiler_that_is_missing_is_told_with_its_packages(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  for kind, devices, words in (
    ("h100", 1, f"pip install jax-cuda13-plugin=={jax.__version__} jax-cuda13-pjrt"),
    ("h100", 13, "do not divide over hosts of 8"),
    ("v5e", 2, "a slice of v5e has 1, 8, 256"),
  ):
    with pytest.raises(UserError, match=words):
      described_gpus.described_mesh(kind, devices)


# Traces of JAX's profiler, whatever a version calls their lines


Event = dataclasses.make_dataclass("Event", ["name", "start_ns", "duration_ns", "stats"])
Line = dataclasses.make_dataclass("Line", ["name", "events"])
Plane = dataclasses.make_dataclass("Plane", ["name", "lines"])


def kernel(op, start, end, **stats):
  """A kernel's event, as CUPTI has it: named by its function, with the operation as a stat."""
  return Event("void f<4>()", start, end - start, [("hlo_op", op), *stats.items()])


def streams(**stats):
  """Two streams: a convolution of two kernels and a fusion, beside them an all-reduce."""
  return [
    [kernel("conv", 0, 4, **stats), kernel("conv", 4, 6, **stats), kernel("add", 6, 8, **stats)],
    [kernel("sum", 5, 9, **stats)],
  ]


EXPECTED = [("conv", 0, 4), ("conv", 4, 6), ("sum", 5, 9), ("add", 6, 8)]


def read(*lines):
  """The runs on the first GPU, whose trace has lines of these events."""
  others = Plane("/device:GPU:1", [Line("a", [kernel("conv", 0, 99, hlo_module="jit_step")])])
  gpu = Plane("/device:GPU:0", [Line(str(number), line) for number, line in enumerate(lines)])
  names, planes = {"conv", "add", "sum"}, [others, gpu, Plane("/host:CPU", [])]
  runs = traces.runs_of(planes, "jit_step", names, platform="gpu")
  return [(run.name, run.start, run.end) for run in runs]


@pytest.mark.parametrize("module", ["jit_step", "jit_step(7)"])
def test_kernels_are_found_beside_summaries_and_other_programs(module):
  main, side = streams(hlo_module=module, correlation_id=3)
  summary = [kernel("conv", 0, 6, hlo_module=module), kernel("sum", 5, 9, hlo_module=module)]
  others = [kernel("conv", 20, 30, hlo_module="jit_other", correlation_id=4)]
  assert read(summary, main + others, side) == read(side, main, summary) == EXPECTED


def test_without_a_module_the_names_of_operations_tell():
  main, side = streams(correlation_id=1)
  foreign = [kernel("transpose.9", 30, 40, correlation_id=2)]
  assert read(main + foreign, side) == EXPECTED
  # And without the stat of the operation, the event's own name.
  plain = [Event(e.stats[0][1], e.start_ns, e.duration_ns, []) for e in main + side]
  assert read(plain[:3], plain[3:]) == EXPECTED


def test_threads_of_a_cpu_share_an_operation_and_all_count():
  main, _ = streams(hlo_module="jit_step")
  planes = [Plane("/host:CPU", [Line("thread/1", main), Line("thread/2", main)])]
  runs = traces.runs_of(planes, "jit_step", set(), platform="cpu")
  assert len(runs) == 6 and traces.busy(runs) == 8


@pytest.mark.parametrize(
  "plane, platform, sentence",
  [
    ("/host:CPU", "gpu", "nothing of a GPU, only /host:CPU: .* CUPTI"),
    ("/device:GPU:0", "gpu", "no kernels of jit_step: it has /device:GPU:0, and no event"),
    (None, "cpu", "it has nothing, and"),
  ],
)
def test_what_a_trace_lacks_is_told(plane, platform, sentence):
  planes = [Plane(plane, [Line("a", [kernel("other", 0, 1)])])] if plane else []
  with pytest.raises(UserError, match=sentence):
    traces.runs_of(planes, "jit_step", {"conv"}, platform=platform)
