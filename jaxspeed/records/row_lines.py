"""The lines of a run's epochs and phases: rows in fixed columns, and their titles."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxspeed.records.result_lines import format_figure


class Column(NamedTuple):
  """A column of the rows: its title, its width in characters, its key in a row, its format."""

  title: str
  width: int
  key: str
  format: str


# 99 characters in all.
COLUMNS: tuple[Column, ...] = (
  Column("epoch", 5, "epoch", ".4g"),
  Column("lr", 8, "learning_rate", ".3g"),
  Column("px", 4, "image_size", ".0f"),
  Column("batch", 5, "batch_size", ".0f"),
  Column("train loss", 10, "train_loss", ".4f"),
  Column("train top1", 10, "train_top1", ".2%"),
  Column("eval loss", 9, "eval_loss", ".4f"),
  Column("eval top1", 9, "eval_top1", ".2%"),
  Column("eval top5", 9, "eval_top5", ".2%"),
  Column("img/s", 7, "images_per_second", ".0f"),
  Column("total train s", 13, "train_seconds", ".2f"),
)
# The columns that a narrow terminal leaves out, in this order: the header has the first two.
_LEFT_OUT = ("px", "batch", "train top1", "eval loss", "lr")


def columns_within(width: int) -> tuple[Column, ...]:
  """The columns that fit so many characters; those that are never left out may take more."""
  columns = COLUMNS
  for title in _LEFT_OUT:
    if len(_titles(columns)) <= width:
      break
    columns = tuple(column for column in columns if column.title != title)
  return columns


def epoch_titles(evaluated: str = "", columns: Sequence[Column] = COLUMNS) -> tuple[str, str]:
  """The two title lines above the rows of `format_epoch`, which name the evaluated weights."""
  titles = _titles(columns)
  evaluation = f"evaluation: {evaluated}" if evaluated else "evaluation"
  # Each group's name ends where its last column does.
  training = titles.index("eval") - 1
  end = titles.index("eval top5") + len("eval top5")
  return f"{'training':>{training}}{evaluation:>{end - training}}", titles


def _titles(columns: Sequence[Column]) -> str:
  return " ".join(column.title.rjust(column.width) for column in columns)


def format_epoch(row: Mapping[str, Any], columns: Sequence[Column] = COLUMNS) -> str:
  """An epoch's row in fixed columns, with "-" for missing values.

  Args:
    row: a row of `Records.epoch`: accuracies as fractions (printed as percent), times in seconds.
    columns: the columns to print.
  """
  cells = []
  for column in columns:
    value = row.get(column.key)
    whole = column.key == "epoch" and float(row["epoch"]).is_integer()
    cells.append(format_figure(value, "g" if whole else column.format).rjust(column.width))
  return " ".join(cells)


def format_missing(row: Mapping[str, Any]) -> str:
  """A line on the broken images of an epoch's row, to stand below it; '' if there are none."""
  parts = []
  if skipped := row.get("eval_images_skipped"):
    parts.append(f"{skipped:,} of {row['eval_images'] + skipped:,} evaluation images skipped")
  if broken := row.get("train_images_broken"):
    parts.append(f"{broken:,} training image{'s' * (broken > 1)} replaced")
  return f"      ({', '.join(parts)})" if parts else ""


def format_phase(
  number: int, row: Mapping[str, Any], pace: Mapping[str, float], *, epochs: int | float
) -> str:
  """A line on a phase of training.

  Args:
    number: the phase's number, from 1.
    row: the row of its last epoch.
    pace: the mean pace of its epochs (`results.mean_pace`).
    epochs: the number of its epochs so far; may be fractional.
  """
  return (
    f"phase {number}: {row['image_size']} px, batch {row['batch_size']:,}: "
    f"{epochs:.3g} {'epoch' if epochs == 1 else 'epochs'}, "
    f"{pace['images_per_second']:,.0f} images/s, "
    f"{pace['images_per_second_per_device']:,.0f} per device, "
    f"waited for input {pace['data_wait']:.1%} of the time"
  )
