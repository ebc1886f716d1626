"""One part of the doctor's report: true lines, the same as facts, and what to mend."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Advice:
  """A sentence on what is wrong or could be better, and the line to type.

  Attributes:
    mend: whether it must be mended; else it is a hint, and the machine is fine without.
  """

  what: str
  type: str
  mend: bool = True


@dataclasses.dataclass(frozen=True)
class Part:
  """One part of the report.

  Attributes:
    name: its title, and its key in JSON.
    lines: what is true, for people.
    facts: the same for programs, in JSON's types.
    advice: what to mend, and hints.
  """

  name: str
  lines: Sequence[str]
  facts: Mapping[str, Any]
  advice: Sequence[Advice] = ()


def amount(size: float) -> str:
  """Bytes with three digits in a unit of 1,000s: 85.5 GB. The report has no other unit of bytes."""
  for unit in ("bytes", "kB", "MB", "GB"):
    if size < 999.5:  # which would be written as 1e+03
      return f"{size:.3g} {unit}"
    size /= 1000
  return f"{size:,.4g} TB"


def figure(number: float) -> str:
  """A number with three digits, without an exponent where it is large: 0.0123, 2,900."""
  return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
