"""The end of a run: its result."""

import pathlib
from typing import Any

from jaxspeed.cluster import processes
from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, parse_json
from jaxspeed.records import class_figures
from jaxspeed.records.arrays import Predictions
from jaxspeed.records.provenance import of_this_process
from jaxspeed.records.results import Best, read_result, write_result
from jaxspeed.run.checkpoint import FOLDER, ranked
from jaxspeed.run.epoch_report import LOWER_PEAK, reaches_target
from jaxspeed.run.run import Run
from jaxspeed.steps.losses import has_top5
from jaxspeed.steps.state import TrainState

# What a result has of the row of the last epoch.
_OF_LAST_ROW = ("eval_images", "eval_images_skipped", "train_images_broken", "stopped_by")


def finished_result(folder: pathlib.Path) -> dict[str, Any] | None:
  """The content of result.json if process 0 finds the run finished, else None. All must call it.

  Raises:
    UserError: the result is damaged.
  """
  content = b""
  with processes.all_or_none("reading the result"):
    if processes.is_primary() and (found := read_result(folder)) is not None:
      content = dump_json(found).encode()
  # While a run is being finished, some processes might see the result and others not.
  content = processes.gather_bytes(content)[0]
  return parse_json(content) if content else None


def finish(
  run: Run, rows: list[dict[str, Any]], state: TrainState, predictions: Predictions
) -> dict[str, Any]:
  """Returns the `Result` of a run after its last step; process 0 writes it to result.json.

  Before that it writes the predictions to a file of their own.

  Raises:
    UserError: the last evaluation has no finite loss, the row of the last epoch is missing, or
      every step was skipped in float16.
  """
  folder, config, step = run.folder, run.config, int(state.step)
  last = rows[-1] if rows and rows[-1]["step"] == step else {}
  if last.get("eval_loss", 0.0) is None:
    raise UserError(
      "the loss of the last evaluation is not finite, and so there is no result: "
      f"{LOWER_PEAK}, or set another --config.precision."
    )
  if "eval_top1" not in last:
    raise UserError(
      f"{folder / 'metrics.jsonl'} has no row of the last step, {step}: put the file back, or "
      f"remove {folder / FOLDER / str(step)}, and the same command trains again from the "
      "checkpoint before it, if there is one."
    )
  first = next((row for row in rows if reaches_target(row, config)), None)
  row = {
    "config": stored.to_dict(config),
    "evaluated_on": run.feed.data.evaluated_on,
    "evaluated_weights": run.plan.evaluated_weights(step),
    "top1": last["eval_top1"],
    "top5": last.get("eval_top5") if has_top5(config.data.classes) else None,
    "seconds": run.clock.summary() | {"to_target": first["dawn_seconds"] if first else None},
    "seed": config.seed,
    **of_this_process(run.hooks.call),
    **{name: last[name] for name in _OF_LAST_ROW if name in last},
  }
  metric = config.checkpoint.keep_best
  for best in ranked(rows, metric)[:1]:
    figures = {name: best[f"eval_{name}"] for name in Best.model_fields if f"eval_{name}" in best}
    row["best"] = figures | {"metric": metric, "epoch": best["epoch"], "step": best["step"]}
  if state.loss_scale is not None:
    skipped = int(state.loss_scale.skipped)
    if skipped >= step:
      raise UserError(
        f"all {step} steps of the run were skipped, as their float16 gradients overflowed: there "
        "is no result; set --config.loss_scale=0, which finds the scale by itself."
      )
    row["skipped_steps"] = {"number": skipped, "share": skipped / step}
  row |= class_figures.figures_of(
    predictions, run.class_names, most_confused=class_figures.MOST_IN_JSON
  )
  if processes.is_primary():
    predictions.write(folder)
    write_result(folder, [row])
  return row
