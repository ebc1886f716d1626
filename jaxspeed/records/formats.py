"""The events of a run as lines: to be read, or as JSON.

header    fields by name, all texts
note      {"text"}
epoch     the row of metrics.jsonl
progress  {"epoch", "epochs", "step", "steps", "loss", "images_per_second", "seconds_left"}
result    the content of result.json; "finished_in" is the folder of a run that an earlier start
          finished
"""

import datetime
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from jaxspeed.errors import printable
from jaxspeed.files import dump_json, to_json
from jaxspeed.records.result_lines import format_figure, format_result
from jaxspeed.records.rows import COLUMNS

Event = Literal["header", "note", "epoch", "progress", "result"]


class JsonFormat:
  """Each event as an object of JSON on a line, whose "event" says what it is."""

  def lines(self, event: Event, content: Mapping[str, Any]) -> Iterator[str]:
    yield dump_json({"event": event} | to_json(content))


class TextFormat:
  """Lines to be read: aligned fields, and rows in fixed columns below their titles.

  Args:
    width: the characters of a terminal, at which a header is broken and columns are left out;
      None: none, as in a file.
  """

  def __init__(self, width: int | None) -> None:
    self._width, self._columns = width, dict(COLUMNS)
    for name in sorted(COLUMNS, key=lambda name: COLUMNS[name].dropped):
      if width is not None and COLUMNS[name].dropped and len(self._titles()) > width:
        del self._columns[name]
    self.begin()

  def begin(self) -> None:
    """Begins a table of rows."""
    self._has_titles = False

  def lines(self, event: Event, content: Mapping[str, Any]) -> Iterator[str]:
    yield from map(printable, getattr(self, f"_{event}")(content))

  def _note(self, content: Mapping[str, Any]) -> Iterator[str]:
    yield content["text"]

  def _header(self, fields: Mapping[str, str]) -> Iterator[str]:
    margin = max(map(len, fields), default=0)
    for name, value in fields.items():
      lines = [value]
      if self._width is not None:
        room = max(self._width - margin - 2, 20)
        # Neither paths nor words with hyphens are broken: they are copied from a terminal.
        how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
        lines = textwrap.wrap(printable(value), room, **how) or [""]
      for first, line in zip([name, *[""] * len(lines)], lines, strict=False):
        yield f"{first:<{margin}}  {line}"

  def _titles(self) -> str:
    return " ".join(column.title.rjust(column.width) for column in self._columns.values())

  def _epoch(self, row: Mapping[str, Any]) -> Iterator[str]:
    """The row in fixed columns, with "-" for missing values; below it, a line on broken images."""
    if not self._has_titles:
      yield self._titles()
    self._has_titles = True
    cells = []
    for name, column in self._columns.items():
      whole = name == "epoch" and float(row["epoch"]).is_integer()
      cell = format_figure(row.get(name), "g" if whole else column.format)
      cells.append(cell.rjust(column.width))
    yield " ".join(cells)
    parts = []
    if skipped := row.get("eval_images_skipped"):
      parts.append(f"{skipped:,} of {row['eval_images'] + skipped:,} evaluation images skipped")
    if broken := row.get("train_images_broken"):
      parts.append(f"{broken:,} training image{'s' * (broken > 1)} replaced")
    if parts:
      yield f"      ({', '.join(parts)})"

  def _progress(self, now: Mapping[str, Any]) -> Iterator[str]:
    left = now["seconds_left"]
    time_left = "-" if left is None else str(datetime.timedelta(seconds=round(left)))
    yield (
      f"epoch {now['epoch']}/{now['epochs']:g}  step {now['step']}/{now['steps']}  "
      f"loss {now['loss']:.4f}  {now['images_per_second']:,.0f} img/s  {time_left} left"
    )

  def _result(self, result: Mapping[str, Any]) -> Iterator[str]:
    if "finished_in" in result:
      yield f"{result['finished_in']} holds this run, already finished:"
    yield from format_result(result)
