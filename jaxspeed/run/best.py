"""What the evaluations of a run say: which one is the best, and whether they end the run early."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ml_collections import ConfigDict

from jaxspeed.steps.losses import has_top5

Row = Mapping[str, Any]

# Values of checkpoint.keep_best and target_metric, and whether larger is better.
METRICS = {"top1": True, "top5": True, "macro_top1": True, "loss": False}

# A checkpoint's step, or that of the best evaluation; None: that of the newest whole checkpoint.
CheckpointStep = int | Literal["best"] | None


def ranked(rows: Sequence[Row], metric: str) -> list[Row]:
  """The rows with a metric of the evaluation, the best first; of equal ones the earlier first.

  `metric` is one of `METRICS`, or "none", which no row has.
  """
  key = f"eval_{metric}"
  known = [row for row in rows if row.get(key) is not None and math.isfinite(row[key])]
  return sorted(known, key=lambda row: row[key], reverse=METRICS.get(metric, True))


def reaches_target(row: Row, config: ConfigDict) -> bool:
  """Whether the epoch of `row` was evaluated and reached the target; without one none does."""
  reached = row.get(f"eval_{config.target_metric}")
  return reached is not None and 0 < config.target <= reached


def reason_to_stop(rows: Sequence[Row], config: ConfigDict) -> str:
  """Why the run ends after its last row, whatever steps are left: "target", "patience" or ''.

  Both are read from the rows alone, so a resumed run decides as the one before it. Patience counts
  as Keras's EarlyStopping does (min_delta 0): an equal value is no improvement.
  """
  if not rows or "eval_loss" not in rows[-1]:
    return ""
  if config.target_metric == "top5" and not has_top5(config.data.classes):
    return ""  # a note of `setup` says that nothing follows it
  if config.stop_at_target and reaches_target(rows[-1], config):
    return "target"
  best = next((row["step"] for row in ranked(rows, config.target_metric)), -1)
  without_gain = sum("eval_loss" in row and row["step"] > best for row in rows)
  return "patience" if 0 < config.patience <= without_gain else ""


def said_to_stop(reason: str, config: ConfigDict) -> str:
  """A line on what `reason_to_stop` found."""
  if reason == "target":
    return "the target is reached: the run ends here (stop_at_target)"
  return (
    f"no better {config.target_metric} in {config.patience} "
    f"evaluation{'s' * (config.patience > 1)}: the run ends here (patience)"
  )


def best_of(rows: Sequence[Row], config: ConfigDict) -> dict[str, Any] | None:
  """The best evaluation in the words of result.json; None if the config keeps none.

  Returns:
    {"metric", "epoch", "step", "top1", "top5", "macro_top1", "loss"}, as far as evaluated.
  """
  metric = config.checkpoint.keep_best
  for best in ranked(rows, metric):
    figures = {name: best[f"eval_{name}"] for name in METRICS if f"eval_{name}" in best}
    return {"metric": metric, "epoch": best["epoch"], "step": best["step"], **figures}
  return None
