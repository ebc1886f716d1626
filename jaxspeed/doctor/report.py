"""The doctor's report, as text and as one JSON object."""

from collections.abc import Sequence
from typing import Any

from jaxspeed.doctor.part import Advice, Part
from jaxspeed.files import to_json


def text_of(part: Part) -> str:
  """A part as text: its name, and its lines below."""
  return "\n".join([part.name, *(f"  {line}" for line in part.lines)])


def summary(parts: Sequence[Part]) -> str:
  """What to mend and the hints of all parts, each with the line to type, as text."""
  advice = [each for part in parts for each in part.advice]
  mend = [each for each in advice if each.mend]
  hints = [each for each in advice if not each.mend]
  lines = [f"to mend: {len(mend)}" if mend else "nothing to mend"]
  lines += [line for each in mend for line in _lines_of(each)]
  if hints:
    lines += ["hints", *(line for each in hints for line in _lines_of(each))]
  return "\n".join(lines)


def _lines_of(advice: Advice) -> list[str]:
  return [f"  {advice.what}", f"    {advice.type}"]


def is_well(parts: Sequence[Part]) -> bool:
  """Whether there is nothing to mend."""
  return not any(each.mend for part in parts for each in part.advice)


def object_of(parts: Sequence[Part], seconds: float) -> dict[str, Any]:
  """The report in JSON's types."""
  advice = [(part.name, each) for part in parts for each in part.advice]
  return to_json(
    {
      "well": is_well(parts),
      "seconds": round(seconds, 2),
      "advice": [
        {"part": name, "what": each.what, "type": each.type, "mend": each.mend}
        for name, each in advice
      ],
      "parts": {part.name: {"lines": list(part.lines), **part.facts} for part in parts},
    }
  )
