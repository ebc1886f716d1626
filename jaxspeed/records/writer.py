"""The records of a run: metrics.jsonl, the screen and the loggers."""

import contextlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.files import (
  append_line,
  dump_json,
  parse_json,
  read_bytes,
  to_json,
  write_atomically,
)
from jaxspeed.records.console import Screen
from jaxspeed.records.loggers import LoggedRun, Logger, following
from jaxspeed.records.rows import Row

FILE = "metrics.jsonl"


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of metrics.jsonl, except a last line that a kill cut off; empty without the file.

  Raises:
    UserError: another line is not JSON, or not a `Row`.
  """
  path = workdir / FILE
  try:
    lines = read_bytes(path).split(b"\n")
  except FileNotFoundError:
    return []
  except ValueError as error:
    raise UserError(f"{path} cannot be read ({error}): move it away.") from None
  rows: list[dict[str, Any]] = []
  for number, line in enumerate(lines, start=1):
    try:
      row = parse_json(line, Row)
      if rows and row["step"] <= rows[-1]["step"]:
        raise ValueError(f"step {row['step']} comes after step {rows[-1]['step']}")
    except ValueError as error:
      if number == len(lines):  # no line end follows: it is empty, or cut off
        break
      raise UserError(
        f"{path}, line {number}, is no row of a run ({error}): repair or delete the line."
      ) from None
    rows.append(row)
  return rows


class Records(contextlib.AbstractContextManager["Records"]):
  """The writer of a new or resumed run's epochs, for a `with` block.

  Args:
    workdir: an existing folder.
    resume_step: the step of the restored checkpoint; rows of later steps, which will be repeated,
      are dropped. None: a new run, without earlier rows.
    screen: prints the rows.
    primary: whether this process writes; one does. The others only read, so that all agree whether
      the target was reached.
    loggers: what else follows the rows.
    config: the run's config, for the loggers.

  Attributes:
    rows: a row for each epoch of the run so far, including those before a resume.

  Raises:
    UserError: metrics.jsonl of the run to resume is damaged.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    *,
    resume_step: int | None,
    screen: Screen,
    primary: bool = True,
    loggers: Sequence[Logger] = (),
    config: Mapping[str, Any] | None = None,
  ) -> None:
    self._path, self._screen, self._writes = workdir / FILE, screen, primary
    is_missing = bool(resume_step) and not os.path.lexists(self._path)
    found = [] if resume_step is None else read_metrics(workdir)
    self.rows = [row for row in found if row["step"] <= (resume_step or 0)]
    self._written, self._opened = len(self.rows), contextlib.ExitStack()
    if not primary:
      return
    write_atomically(self._path, "".join(f"{dump_json(row)}\n" for row in self.rows))
    if is_missing:
      screen.warn(
        f"{self._path} is missing: it begins anew after step {resume_step}, and what was reached "
        "before does not count; to keep it, stop, restore the file and start again"
      )
    logged = LoggedRun(workdir, dict(config or {}), tuple(self.rows), screen.line)
    self._log = self._opened.enter_context(following(loggers, logged, screen.warn))

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Records the end of an epoch in metrics.jsonl, on the screen and in the loggers.

    Args:
      row: the fields of a `Row`, in numbers of Python, NumPy or JAX; other keys reach metrics.jsonl
        and the loggers only.
    """
    self.rows.append(plain := to_json(row))
    Row.model_validate(plain)
    if not self._writes:
      return
    self._screen.epoch(row)
    if reason := self.write():
      self._screen.line(f"{reason}: jaxspeed tries again after the next epoch")
    self._log(plain)

  def write(self) -> str:
    """Writes the rows that are not in metrics.jsonl yet; returns why it failed, or ''."""
    try:
      for row in self.rows[self._written :] if self._writes else ():
        append_line(self._path, dump_json(row), sync=False)
        self._written += 1
    except OSError as error:
      return f"{self._path} could not be written ({error.strerror or error})"
    return ""

  def __exit__(self, *error: object) -> None:
    """Removes the live line, and ends the loggers."""
    self._screen.close()
    self.write()
    self._opened.close()
