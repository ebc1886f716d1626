"""Seconds in words: measured or published ones, and estimates."""

# An estimate below so many seconds is shown in this unit, of so many seconds.
_UNITS = ((120, 1, "s"), (7200, 60, "min"), (2 * 86400, 3600, "h"))


def duration(seconds: float, *, as_published: bool = False) -> str:
  """A measured time as "1.98 s", "18.3 s", "12 min 05 s" or "3.42 h".

  Args:
    seconds: the time.
    as_published: whether a time below 100 s keeps its own digits, as "26 s": it was published so.
  """
  if seconds < 100:
    return f"{seconds:g} s" if as_published else f"{seconds:.{2 if seconds < 10 else 1}f} s"
  if seconds < 7200:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
  return f"{seconds / 3600:.2f} h"


def estimate(seconds: float, digits: int = 3) -> str:
  """An estimated time in one unit: "45 s", "12.3 min", "3.42 h" or "2,315 days".

  Args:
    seconds: the time.
    digits: the significant digits of a number below 100.
  """
  size, unit = next(
    ((size, unit) for limit, size, unit in _UNITS if seconds < limit), (86400, "days")
  )
  number = float(f"{seconds / size:.{digits}g}")  # 99.6 of two digits is 100
  return f"{seconds / size:,.0f} {unit}" if number >= 100 else f"{number:g} {unit}"
