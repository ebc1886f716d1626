"""The best of a run's evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

# Values of checkpoint.keep_best and target_metric; of all but the loss, larger is better.
METRICS = ("top1", "top5", "macro_top1", "loss")
# A checkpoint's step, a number or a text, or "best" for that of the best evaluation; None: that of
# the newest whole checkpoint.
CheckpointStep = int | str | None


def ranked(rows: Sequence[Row], metric: str) -> list[Row]:
  """The rows with a metric of the evaluation, the best first; of equal ones the earlier first.

  `metric` is one of `METRICS`, or "none", which no row has.
  """
  known = [row for row in rows if row.get(f"eval_{metric}") is not None]
  return sorted(known, key=lambda row: row[f"eval_{metric}"], reverse=metric != "loss")
