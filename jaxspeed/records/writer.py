"""The records of a run: metrics.jsonl, the screen and the loggers.

with Records(workdir, resume_step=None, screen=screen) as records:
  for ...:
    records.epoch({"epoch": 1, "step": 98, "examples": 100352, "train_loss": 1.2, ...})
"""

import contextlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, parse_json, read_bytes, to_json, write_atomically
from jaxspeed.records.appended import AppendedFile
from jaxspeed.records.console import Screen
from jaxspeed.records.loggers import LoggedRun, Logger, Loggers
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
  if not lines[-1] or _is_cut_off(lines[-1]):
    lines.pop()
  for number, line in enumerate(lines, start=1):
    try:
      row = parse_json(line, Row)
      if rows and row["step"] <= rows[-1]["step"]:
        raise ValueError(f"step {row['step']} comes after step {rows[-1]['step']}")
    except ValueError as error:
      raise UserError(
        f"{path}, line {number}, is no row of a run ({error}): repair or delete the line."
      ) from None
    rows.append(row)
  return rows


def _is_cut_off(line: bytes) -> bool:
  try:
    parse_json(line)
  except ValueError:
    return True
  return False


class Records(contextlib.AbstractContextManager["Records"]):
  """The writer of a new or resumed run's epochs. Close it, or use `with`.

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
    path, self._screen = workdir / FILE, screen
    self._metrics: AppendedFile | None = None
    is_missing = bool(resume_step) and not os.path.lexists(path)
    found = [] if resume_step is None else read_metrics(workdir)
    self.rows = [row for row in found if row["step"] <= (resume_step or 0)]
    if not primary:
      return
    write_atomically(path, "".join(map(_json_line, self.rows)))
    if is_missing:
      screen.warn(
        f"{path} is missing: it begins anew after step {resume_step}, and what was reached before "
        "does not count; to keep it, stop, restore the file and start again"
      )
    self._metrics = AppendedFile(path)
    logged = LoggedRun(workdir, dict(config or {}), tuple(self.rows), screen.line)
    self._loggers = Loggers(loggers, logged, screen.warn)

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Records the end of an epoch in metrics.jsonl, on the screen and in the loggers.

    Args:
      row: the fields of a `Row`, in numbers of Python, NumPy or JAX; other keys reach metrics.jsonl
        and the loggers only.
    """
    self.rows.append(plain := to_json(row))
    Row.model_validate(plain)
    if self._metrics is None:
      return
    self._screen.epoch(row)
    if reason := self._metrics.append(_json_line(plain).encode()):
      self._screen.line(f"{reason}: jaxspeed tries again after the next epoch")
    self._loggers.log(plain)

  def close(self) -> None:
    """Removes the live line and writes all that is not yet on the disk."""
    self._screen.close()
    if self._metrics is not None:
      self._metrics.close()
      self._loggers.close()

  def __exit__(self, *error: object) -> None:
    self.close()

  def write_waiting(self) -> str:
    """Writes the rows that wait for room on the disk; returns why it failed, or ''."""
    return "" if self._metrics is None else self._metrics.append()


def _json_line(row: Mapping[str, Any]) -> str:
  return dump_json(row) + "\n"
