"""What a check found: a sentence, how bad it is, and the line to type; and how it is printed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from jaxspeed.errors import printable

_STYLES = {"ok": "", "hint": "yellow", "mend": "bold red"}


@dataclasses.dataclass(frozen=True)
class Finding:
  """One finding of a check.

  Attributes:
    what: a sentence or a fact.
    level: "mend": something is wrong; "hint": the machine is fine without; "ok": a fact.
    advice: the line to type; "" without one.
    facts: the figures in `what`, for programs, in JSON's types.
  """

  what: str
  level: Literal["ok", "hint", "mend"] = "ok"
  advice: str = ""
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def mend(what: str, advice: str) -> Finding:
  return Finding(what, "mend", advice)


def hint(what: str, advice: str) -> Finding:
  return Finding(what, "hint", advice)


def show(console: Console, name: str, findings: Sequence[Finding]) -> None:
  """Prints a check; a line to type is never wrapped, so that it can be copied."""
  console.print(Text(name, "bold"))
  for each in findings:
    mark = "" if each.level == "ok" else f"{each.level}: "
    text = Text.assemble((mark, _STYLES[each.level]), printable(each.what))
    console.print(Padding(text, (0, 0, 0, 2), expand=False))
    if each.advice:
      console.print(Text(f"      {printable(each.advice)}"), soft_wrap=True)


def figure(number: float) -> str:
  """A number with three digits, without an exponent where it is large: 0.0123, 2,900."""
  return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
