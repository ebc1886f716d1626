"""What the row of an epoch takes from the plan, and the lines below it on the pace of a stream."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxspeed.planning.plan import Plan
from jaxspeed.records.console import format_phase
from jaxspeed.records.results import mean_pace
from jaxspeed.steps.spec import Job

# Share of the seconds of training: devices that wait longer for input are reported.
_MUCH_WAITING = 0.1


def planned_row(job: Job, step: int) -> dict[str, Any]:
  """What the plan says of the epoch that ends with `step`, and of its last step."""
  plan = job.plan
  epoch, _ = plan.epoch_of(step - 1)
  phase = plan.phase_of(step - 1)
  done = epoch + plan.steps_in_epoch(epoch) / phase.steps_per_epoch
  momentum = plan.table.get("momentum")
  return {
    "epoch": int(done) if done == int(done) else done,
    "step": step,
    "examples": plan.examples(step),
    "learning_rate": float(plan.table["learning_rate"][step - 1]),
    "momentum": float(job.config.optimizer.momentum if momentum is None else momentum[step - 1]),
    "image_size": phase.image_size,
    "batch_size": phase.batch_size,
    "world": job.devices,
  }


def pace_lines(
  plan: Plan, rows: Sequence[Mapping[str, Any]], step: int, *, stopped: bool
) -> list[str]:
  """Lines on a stream after a step: that it is too slow, once a phase, and a phase's pace.

  Args:
    plan: of the run.
    rows: of its epochs so far.
    step: the last one of an epoch.
    stopped: whether the run ends here, as its target is reached.
  """
  phase = plan.phase_of(step - 1)
  rows = [row for row in rows if row["step"] > phase.first_step]
  lines = []
  slow = [row.get("data_wait", 0.0) > _MUCH_WAITING for row in rows]
  if slow[-1] and not any(slow[:-1]):
    lines.append(
      f"the devices waited for input {rows[-1]['data_wait']:.0%} of this epoch's training: make "
      f"resized copies (python -m jaxspeed.prepare resize) or use more cores; "
      f"--config.data.synthetic=True shows the machine without its disk"
    )
  end = min(phase.first_step + phase.epochs * phase.steps_per_epoch, plan.total_steps)
  if plan.streams and (step == end or stopped):
    pace = mean_pace(rows, examples=plan.examples(phase.first_step))
    epochs = rows[-1]["epoch"] - phase.first_epoch
    lines.append(format_phase(plan.phases.index(phase) + 1, rows[-1], pace, epochs=epochs))
  return lines
