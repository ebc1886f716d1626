"""What a spec decides: options of the compiler, the precision of products, frozen parts."""

import dataclasses
import functools
import re
import types

import jax
import numpy as np
import pytest
from small_steps import RESNET, make_spec, small_airbench, stepped
from tolerances import assert_equal
from toy import inputs_of, toy_config, toy_spec

from jaxspeed.config import checks
from jaxspeed.data.batch import seed_key
from jaxspeed.devices import allreduce
from jaxspeed.devices import options as options_lib
from jaxspeed.devices.compile import Program
from jaxspeed.errors import UserError
from jaxspeed.feeds import evaluation
from jaxspeed.feeds.resident import compile_programs
from jaxspeed.models import resnet
from jaxspeed.steps import eval_step
from jaxspeed.steps.init import init_state
from jaxspeed.steps.programs import batch_step, on_mesh, step_of
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
  job, off = toy_spec(toy_config(deterministic=True)), toy_spec(toy_config())
  fixed = {"xla_gpu_deterministic_ops": True, "xla_gpu_exclude_nondeterministic_ops": True}
  assert job.compiler_options("gpu") == job.common_options("gpu") == fixed
  # XLA reads options for GPUs on any machine, and refuses unknown names.
  jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=fixed)
  assert job.compiler_options("cpu") == job.common_options("cpu") == options_lib.libraries("cpu")
  assert off.compiler_options("gpu") == off.common_options("gpu") == {}
  assert options_lib.notes(False, "on", "gpu") == options_lib.notes(False, "off", "cpu") == []
  assert options_lib.notes(False, "on", "cpu") == ["conv_fusion has no effect on CPUs"]
  assert "no effect on CPUs" in options_lib.notes(True, "off", "cpu")[0]
  assert "slower" in options_lib.notes(True, "off", "gpu")[0]


def test_every_program_gets_the_options_of_all_programs(monkeypatch):
  seen = []

  def compile_program(*_, options=None, **__):
    seen.append(dict(options))
    return Program(None, 0.0, False, 0.0)

  monkeypatch.setattr(evaluation, "compile_program", compile_program)
  monkeypatch.setattr(TrainSpec, "common_options", lambda *_: {"common": "1"})
  compile_programs(toy_spec(toy_config()))
  assert seen == [{"common": "1"}] * 4


def test_conv_fusion_is_for_gpus_and_auto_waits_for_a_measurement(monkeypatch):
  spec = make_spec("")
  on = dataclasses.replace(spec, model=spec.model.clone(conv_fusion=True))
  option = {"xla_gpu_experimental_enable_conv_fusion": True}
  assert on.compiler_options("gpu") == spec.compiler_options("gpu") | option
  assert on.compiler_options("cpu") == spec.compiler_options("cpu")
  cpu = spec.mesh.devices.flat[0]
  gpu = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100 80GB HBM3")
  resolve = options_lib.resolve_conv_fusion
  assert [resolve("on", cpu), resolve("auto", gpu), resolve("on", gpu)] == ["off", "off", "on"]
  monkeypatch.setattr(options_lib, "_FASTER_FUSED", (gpu.device_kind,))
  assert resolve("auto", gpu) == "on"


@pytest.mark.equivalence
@pytest.mark.parametrize(
  "fields, freeze",
  [
    ({"depth": 50}, "stage1"),
    ({"depth": 50, "ghost_splits": 2, "blurpool": True, "width": 16}, ""),
    ({"depth": 18}, ""),
  ],
)
def test_steps_with_conv_fusion_are_those_of_the_usual_forms(monkeypatch, fields, freeze):
  for depth in (18, 50):  # their other blocks repeat these
    monkeypatch.setitem(resnet.STAGES, depth, (2, 2, 1, 1))
  # Maps of 5, 5, 3, 2 and 1 pixels: a stride meets odd and even sides.
  sizes = {"data.image_size": 20, "precision": "float64"}
  spec = make_spec(freeze, model=RESNET | fields, **sizes)
  fused = dataclasses.replace(spec, model=spec.model.clone(conv_fusion=True))
  usual, other = (stepped(each, steps=2) for each in (spec, fused))
  assert usual[2][0] != other[2][0]  # the programs
  for name in ("params", "batch_stats", "opt_state"):
    assert_equal(getattr(other[1], name), getattr(usual[1], name))


# Precision


def precisions(function, *arguments):
  """How many products and convolutions ask for the highest precision, and how many for nothing."""
  program = str(jax.make_jaxpr(function)(*arguments))
  asked = program.count("precision=(Precision.HIGHEST, Precision.HIGHEST)")
  assert program.count("Precision.") == 2 * asked
  return asked, len(re.findall(r"\b(dot_general|conv_general_dilated)\[", program)) - asked


def resnet50():
  config = toy_config(**{"data.image_size": 32})
  config.model = RESNET | {"depth": 50, "blurpool": True}
  return config


NETS = {
  "resnet9": toy_config,
  "airbench with Muon": lambda: small_airbench("94_muon"),
  "airbench with a proxy": lambda: small_airbench("96_faster"),
  "resnet50": resnet50,
}


def programs(config):
  """The precisions of the training step, the evaluation and the first state of a config."""
  job = toy_spec(config)
  carry, batch, table = inputs_of(job)
  state, row = carry.state, {name: column[0] for name, column in table.items()}
  step = on_mesh(step_of(job), job, kind=job.plan.kind_of(0))
  return (
    precisions(step, state, batch.replace(flip=batch.mask), row),
    precisions(
      eval_step.evaluate_on_mesh(job), state.eval_variables(), batch.replace(index=batch.label)
    ),
    precisions(on_mesh(init_state, job), seed_key(0), batch.image),
  )


@pytest.mark.parametrize("name", NETS)
def test_float32_is_float32_in_every_product_and_tf32_where_a_gpu_makes_it_that(name, monkeypatch):
  monkeypatch.setitem(resnet.STAGES, 50, (2, 2, 1, 1))
  config = NETS[name]()
  config.precision = "float32"
  full = programs(config)
  config.precision = "tf32"
  fast = programs(config)
  for program, same in zip(full, fast, strict=True):
    assert program == (sum(same), 0)
  # What asks for more by itself: the covariances of whitening, and of the norms behind 1x1
  # convolutions, which bottlenecks and shortcuts have.
  (step, rest), evaluation, init = fast
  assert evaluation[0] == 0 < evaluation[1]
  assert (step > 0) == (name == "resnet50") and rest > step / 2
  assert (init[0] > 0) == (name != "resnet50")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_asks_for_nothing(precision):
  step, evaluation, _ = programs(toy_config(precision=precision))
  assert step[0] == evaluation[0] == 0 < step[1]


# Frozen parts of a pretrained model: their bits, their norms, and what a step leaves out


TRAINED = {"stage4", "head"}
VIT = dict(name="vit", patch_size=4, width=8, depth=2, heads=2, mlp=8, rep_size=4)
VIT |= dict(pool="token", posemb="learned")


def bits(tree):
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_frozen_parts_keep_their_bits_and_the_others_train():
  # Sums over three devices and two micro-batches would round, decay and momentum would move.
  first, last, (lowered, compiled) = stepped(make_spec("stage3", devices=3, accumulate=2))
  trees = {
    "params": (first.params, last.params),
    "batch_stats": (first.batch_stats, last.batch_stats),
    **{f"average {k}": (first.ema[k], last.ema[k]) for k in first.ema},
  }
  for name, (before, after) in trees.items():
    for part in before:
      same = [a == b for a, b in zip(bits(before[part]), bits(after[part]), strict=True)]
      assert all(same) if part not in TRAINED else not any(same), (name, part)
  # No gradient of theirs is sent either, and they have no momentum.
  sizes = {part: sum(x.size for x in jax.tree.leaves(tree)) for part, tree in first.params.items()}
  sent = sum(sizes[part] for part in TRAINED)
  rest = sum(x.size for x in jax.tree.leaves(first.batch_stats))
  assert 4 * (sent + rest) <= sum(allreduce.count(compiled)) <= 4 * (sent + rest + 8)
  assert sum(x.size for x in jax.tree.leaves(first.opt_state)) == sent
  # 20 convolutions in each of two micro-batches, and at most two more for each of the five that are
  # trained; the backward pass of the whole model would have 39 more.
  assert 40 < lowered.count("stablehlo.convolution") <= 60


@pytest.mark.equivalence
def test_clipped_adamw_with_rates_by_layer_and_frozen_patches_on_eight_devices_is_that_on_one():
  fields = {
    "precision": "float64",
    "optimizer.name": "adamw",
    "optimizer.clip_norm": 0.5,
    "optimizer.epsilon": 1e-3,  # a gradient of 1e-9 and its rounding would move as far as others
    "optimizer.layer_decay": 0.7,
  }
  runs = [stepped(make_spec("patch", devices, VIT, **fields)) for devices in (1, 8)]
  (first, last, _), (_, other, _) = runs
  assert_equal((other.params, other.ema), (last.params, last.ema))
  same = {part: bits(first.params[part]) == bits(last.params[part]) for part in first.params}
  assert {part for part in same if same[part]} == {"patch", "positions", "class_token"}


def test_frozen_norms_are_those_of_an_evaluation_and_the_step_has_no_other_backward_pass():
  spec = make_spec("backbone")
  inputs = inputs_of(spec)
  variables, images = inputs[0].state.variables(), inputs[1].image.astype(np.float32)

  def logits(variables, images, **how):
    return spec.model.apply(variables, images, **how, mutable=["batch_stats"])

  how = ({"train": True, "frozen": spec.frozen}, {"train": False})
  traced = [jax.make_jaxpr(functools.partial(logits, **each))(variables, images) for each in how]
  assert str(traced[0]) == str(traced[1])
  # The 20 convolutions of the forward pass.
  lowered = jax.jit(batch_step(spec)).lower(*inputs)
  assert lowered.as_text().count("stablehlo.convolution") == 20


@pytest.mark.parametrize(
  "model, freeze, frozen",
  [
    (RESNET, "", ""),
    (RESNET, "stem", "stem"),
    (RESNET, "stage1", "stage1 stem"),
    (RESNET, "backbone", "stage1 stage2 stage3 stage4 stem"),
    (VIT, "patch", "class_token patch positions"),
    (VIT, "block2", "block1 block2 class_token norm patch positions"),
    (VIT, "backbone", "block1 block2 class_token norm patch positions pre_logits"),
  ],
)
def test_parts_of_a_model_up_to_the_named_one(model, freeze, frozen):
  assert make_spec(freeze, model=model).frozen == tuple(frozen.split())


@pytest.mark.parametrize("name", ["stage5", "head"])
def test_a_part_that_there_is_not_is_one_sentence(name):
  known = "choose backbone or the last part to freeze, one of stem, stage1, stage2, stage3, stage4"
  with pytest.raises(UserError, match=f"^config.pretrained.freeze='{name}': {known}.$"):
    make_spec(name)
