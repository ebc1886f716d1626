"""Seconds in words."""


def duration(seconds: float, *, as_published: bool = False) -> str:
  """A time as "1.98 s", "18.3 s", "12 min 05 s", "3.42 h" or "23.1 days".

  Args:
    seconds: the time.
    as_published: whether a time below 100 s keeps its own digits, as "26 s": it was published so.
  """
  if seconds < 100:
    return f"{seconds:g} s" if as_published else f"{seconds:.{2 if seconds < 10 else 1}f} s"
  if seconds < 7200:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
  return f"{seconds / 3600:.2f} h" if seconds < 172_800 else f"{seconds / 86400:,.1f} days"
