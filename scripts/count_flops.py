"""Floating-point operations of a whole run, products of padding counted, as in published figures.

    python scripts/count_flops.py --config=configs/cifar10_airbench.py:94_muon --out=flops.json

Nothing is compiled and no data are read: XLA counts before it optimises, on a CPU. The count covers
the training steps with augmentation and optimizer, and the final evaluation with its views. XLA by
itself leaves out the products of a convolution with its padding: 9 % of a 3x3 kernel's on 15x15
pixels, 40 % on 3x3. So convolutions are counted on maps that have their padding already.
"""

import collections
import os
import pathlib
from unittest import mock

os.environ["JAX_PLATFORMS"] = "cpu"

import benchmarking
import jax
import jax.numpy as jnp
import step_program
from jax import lax

from jaxspeed.config import flags as command_line
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.planning.make import make_plan
from jaxspeed.steps import eval_step
from jaxspeed.steps.programs import on_mesh, resident_step
from jaxspeed.steps.spec import TrainSpec, make_train_spec


def flops_of(function, *arguments) -> float:
  return jax.jit(function).lower(*arguments).cost_analysis()["flops"]


def count(spec: TrainSpec) -> dict[str, float]:
  """FLOPs of the training steps, of the final evaluation, and of both."""
  plan, size = spec.plan, spec.config.data.image_size
  arguments = step_program.abstract_arguments(spec, plan.phases[0])
  train = 0.0
  kinds = collections.Counter(plan.kind_of(number) for number in range(plan.total_steps))
  for kind, number in kinds.items():
    one = on_mesh(resident_step, spec, phase=plan.phases[0], kind=kind)
    train += number * flops_of(one, *arguments)

  views = spec.config.eval.mode
  images = jax.ShapeDtypeStruct((plan.eval_batch_size, size, size, 3), jnp.float32)

  def evaluation(views: str) -> float:
    def logits(variables, images):
      return eval_step.logits_of(variables, images, views, spec=spec)

    return flops_of(logits, arguments[0].state.eval_variables(), images) / plan.eval_batch_size

  if views == "selective":
    each = evaluation("center") + eval_step.SELECTED * evaluation("selective")
  else:
    each = evaluation(views)
  evaluate = each * plan.eval_images
  return {"train": train, "evaluate": evaluate, "total": train + evaluate}


def with_padding(x, kernel, strides, padding):
  """A convolution whose padding XLA cannot tell from the image."""
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  return lax.conv_general_dilated(
    x, kernel, (strides, strides), "VALID", dimension_numbers=("NHWC", "OHWI", "NHWC")
  )


def main() -> None:
  config_flag = command_line.define_config_flag()
  out = benchmarking.define_out()

  def run(scratch: pathlib.Path) -> None:
    config = config_flag.value
    command_line.required("config", config and "given")
    config = step_program.resolve(config, "float32")
    config.precision = "float32"
    if "layers" in config.model:
      config.model.layers = "fused"  # whose convolutions `with_padding` replaces
    spec = make_train_spec(config, make_plan(config), mesh_lib.make_mesh(1))
    with mock.patch("jaxspeed.models.layers.conv.convolve_in_loops", with_padding):
      counted = {name: value / 1e12 for name, value in count(spec).items()}
    for name, value in counted.items():
      print(f"{name:<9}{value:9.1f} TFLOP")
    report = {"config": config.name, "tflop_with_padding": counted, "jax": jax.__version__}
    benchmarking.write_report(out.value, report)

  benchmarking.run(run)


if __name__ == "__main__":
  main()
