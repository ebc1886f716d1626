"""Prints the plan of a config; no data is read and nothing is compiled for it.

python -m jaxspeed.plan --config=configs/cifar10_resnet9.py:ema
python -m jaxspeed.plan --config=configs/imagenet18.py:8 --csv
"""

import os
import sys
from collections.abc import Iterator

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from jaxspeed import config as config_lib
from jaxspeed.errors import UserError
from jaxspeed.plan import Plan, make_plan


def describe(config: ConfigDict, plan: Plan) -> str:
  """The plan as lines of text: phases, rates at their turning points, shapes, programs."""
  rate = plan.table["learning_rate"]
  turns = sorted({0, int(np.argmax(rate)), plan.total_steps - 1})
  lines = [f"{config.name}: {plan.total_steps} steps, {plan.examples(plan.total_steps)} images"]
  for phase in plan.phases:
    lines.append(
      f"epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}: "
      f"{phase.steps_per_epoch} steps an epoch, batch {phase.batch_size}, "
      f"{phase.image_size} x {phase.image_size} pixels"
    )
  lines += [f"rate at step {step + 1}: {rate[step]:.6g}" for step in turns]
  lines.append(f"evaluation: {plan.eval_images} images, mode {config.eval.mode}")
  lines += [f"program: {name}" for name in plan.programs()]
  return "\n".join(lines)


def csv_lines(config: ConfigDict, plan: Plan) -> Iterator[str]:
  """A header and a line for every step: epochs from 0, steps in them from 1.

  The batch counts images that the step learns from, so that it is smaller in the short last step of
  an epoch. Numbers have all the digits that tell them from their neighbours.
  """
  yield "epoch,step_in_epoch,image_size,global_batch,learning_rate,momentum,min_scale"
  rate = plan.table["learning_rate"].tolist()
  momentum = plan.table.get("momentum", np.full(plan.total_steps, config.optimizer.momentum))
  seen = 0
  for step, (r, m) in enumerate(zip(rate, momentum.tolist(), strict=True)):
    phase, (epoch, within) = plan.phase_of(step), plan.epoch_of(step)
    before, seen = seen, plan.examples(step + 1)
    yield f"{epoch},{within + 1},{phase.image_size},{seen - before},{r!r},{m!r},{phase.min_scale!r}"


def _main(arguments: list[str]) -> None:
  config_lib.nothing_left(arguments)
  config = _FLAG.value
  if config is None:
    raise UserError("--config=FILE.py names the recipe whose plan is wanted.")
  plan = make_plan(config)
  try:
    print("\n".join(csv_lines(config, plan)) if _CSV.value else describe(config, plan), flush=True)
  except BrokenPipeError:
    # A reader such as `head` has enough; without this the interpreter complains as it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
  _FLAG = config_lib.define_config_flag()
  _CSV = flags.DEFINE_bool("csv", False, "Prints every step of the plan as comma-separated values.")
  config_lib.run(_main)
