"""A plan as text and as CSV."""

from collections.abc import Iterator

import numpy as np
from ml_collections import ConfigDict

from jaxspeed.planning.plan import Plan, momenta


def describe(config: ConfigDict, plan: Plan) -> str:
  """The plan as text: steps and images of the phases, learning rates, evaluation."""
  rate = plan.table["learning_rate"]
  turns = sorted({0, int(np.argmax(rate)), plan.total_steps - 1})
  lines = [f"{config.name}: {plan.total_steps} steps, {plan.examples(plan.total_steps)} images"]
  for phase in plan.phases:
    first, last = phase.first_epoch + 1, phase.first_epoch + phase.epochs
    lines.append(
      f"{f'epoch {first}' if first == last else f'epochs {first}-{last}'}: "
      f"{phase.steps_per_epoch} steps an epoch, batch {phase.batch_size}, "
      f"{phase.image_size} x {phase.image_size} pixels"
    )
  schedule = "segments" if config.schedule.segments else config.schedule.name
  lines.append(
    f"optimizer: {config.optimizer.name}; learning rate: {schedule}, every step in --csv"
  )
  lines += [f"learning rate at step {step + 1}: {rate[step]:.6g}" for step in turns]
  modes = " -> ".join(dict.fromkeys(phase.eval_mode for phase in plan.phases))
  lines.append(f"evaluation: {plan.eval_images} images, mode {modes}")
  return "\n".join(lines)


def csv_lines(config: ConfigDict, plan: Plan) -> Iterator[str]:
  """A CSV header and a line for each step; epochs count from 0, the steps in them from 1.

  `global_batch` counts the images that a step learns from: it is smaller in a short last step of an
  epoch. Numbers have all the digits needed to read back the same value.
  """
  yield "epoch,step_in_epoch,image_size,global_batch,learning_rate,momentum,min_scale"
  rate = plan.table["learning_rate"].tolist()
  momentum = momenta(config, plan)
  seen = 0
  for step, (r, m) in enumerate(zip(rate, momentum.tolist(), strict=True)):
    phase, (epoch, step_in_epoch) = plan.phase_of(step), plan.epoch_of(step)
    before, seen = seen, plan.examples(step + 1)
    place = f"{epoch},{step_in_epoch + 1},{phase.image_size}"
    yield f"{place},{seen - before},{r!r},{m!r},{phase.min_scale!r}"
