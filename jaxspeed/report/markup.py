"""HTML elements whose text and attributes are escaped unless they are elements themselves."""

import html
from collections.abc import Iterable
from typing import Any

from jaxspeed.errors import printable

_VOID = {"img", "meta", "input", "br", "line", "rect", "circle", "path", "polyline"}
_PRECISION = 2  # decimals of a coordinate; a pixel has one unit


class Html(str):
  """Text that is HTML already."""


def text(value: object) -> Html:
  """A value as HTML that shows it literally, with control characters as escapes."""
  return value if isinstance(value, Html) else Html(html.escape(printable(str(value))))


def element(name: str, /, *children: object, **attributes: Any) -> Html:
  """An element of HTML or SVG.

  Args:
    name: its name.
    children: `Html`, which stays as it is, or other values, which become text.
    attributes: `class_` is written as class, and an underscore as a hyphen. None leaves an
      attribute out; numbers are rounded.
  """
  pairs = "".join(
    f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
    for key, value in attributes.items()
    if value is not None
  )
  if name in _VOID and not children:
    return Html(f"<{name}{pairs}/>")
  return Html(f"<{name}{pairs}>{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Html:
  """Parts one after the other; those that are not `Html` become text."""
  return Html("".join(map(text, parts)))


def table(heads: Iterable[object], rows: Iterable[Iterable[object]], **attributes: Any) -> Html:
  """A table; the first cell of each row is its head."""
  head = element("tr", *(element("th", each, scope="col") for each in heads))
  body = []
  for first, *rest in rows:
    cells = (each if _is_cell(each) else element("td", each) for each in rest)
    body.append(element("tr", element("th", first, scope="row"), *cells))
  return element("table", element("thead", head), element("tbody", *body), **attributes)


def _is_cell(value: object) -> bool:
  return isinstance(value, Html) and value.startswith("<td")


def _attribute(value: Any) -> str:
  if isinstance(value, float):
    return f"{round(value, _PRECISION):g}" if abs(value) < 1e5 else f"{value:.0f}"
  return html.escape(printable(str(value)))
