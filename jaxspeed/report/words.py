"""Numbers in words, as the report shows them."""

from typing import NamedTuple

from jaxspeed.records import durations

_JOIN = "\u00a0"  # no line ends between a number and its unit
METRICS = {"top1": "top-1", "top5": "top-5"}


def percent(value: float | None, digits: int = 2) -> str:
  """A fraction as "98.65 %"; a dash for None."""
  return "–" if value is None else f"{100 * value:.{digits}f}{_JOIN}%"


def points(value: float) -> str:
  """A difference of fractions as "0.84 points"."""
  return f"{100 * value:.2f}{_JOIN}points"


def duration(seconds: float | None, *, as_published: bool = False) -> str:
  """A time in words (`durations.duration`); a dash for None."""
  if seconds is None:
    return "–"
  return durations.duration(seconds, as_published=as_published).replace(" ", _JOIN)


def number(value: float | None) -> str:
  """A number with four digits, or all those of a whole one; a dash for None."""
  if value is None:
    return "–"
  whole = float(value).is_integer() and abs(value) < 1e9
  return f"{value:,.0f}" if whole else f"{value:.4g}"


def p_value(value: float) -> str:
  """A p as "p = 0.039"; a tiny one as "p < 0.0001"."""
  return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"


class Cell(NamedTuple):
  """A cell of a table: its text, its class, its value from 0 to 1 as a shade, a colour's number."""

  text: str
  kind: str = ""
  value: float | None = None
  key: int | None = None


class Table(NamedTuple):
  """A table; the first cell of each row is its head."""

  heads: list[str]
  rows: list[list[Cell]]
