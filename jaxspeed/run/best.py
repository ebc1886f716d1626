"""The best of a run's evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ml_collections import ConfigDict

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
  known = [row for row in rows if row.get(key) is not None]
  return sorted(known, key=lambda row: row[key], reverse=METRICS.get(metric, True))


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
