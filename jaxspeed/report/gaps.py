"""What a report cannot show of a run, and why."""

from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.records.class_figures import MOST_CLASSES
from jaxspeed.report.data import Group, RunData


def gaps(group: Group) -> list[str]:
  """What no run of a group has left."""
  by_run = [_of_run(run) for run in group.runs]
  return [line for line in by_run[0] if all(line in each for each in by_run)]


def _of_run(run: RunData) -> list[str]:
  lines = [*run.notes]
  if not run.rows:
    lines.append("Curves: metrics.jsonl has no whole row: no epoch has ended, or it was cut.")
  if not run.clock:
    lines.append("Where the time went: the run has no checkpoint that can be read.")
  if run.result is None:
    lines.append("Images and accuracy by class: they need result.json, written when a run ends.")
  elif run.predictions is None:
    file = Predictions.FILE
    lines.append(f"Images and accuracy by class: {file} is missing; older versions left none.")
  else:
    lines += _of_images(run)
  return lines


def _of_images(run: RunData) -> list[str]:
  """What is missing of a finished run with predictions."""
  lines = []
  if run.thumbnails is None and not run.keeps_thumbnails:
    lines.append("Images: config.records.thumbnails is 0.")
  elif run.thumbnails is None:
    if not any(Thumbnails.FILE in note for note in run.notes):
      lines.append(f"Images: {Thumbnails.FILE} is missing; older versions left none.")
  elif run.predictions is not None and run.thumbnails.step != run.predictions.step:
    lines.append(f"Evaluated images: those in {Thumbnails.FILE} are of another evaluation.")
  if len(run.class_names) > MOST_CLASSES:
    lines.append(f"Accuracy by class: it is shown up to {MOST_CLASSES:,} classes.")
  return lines
