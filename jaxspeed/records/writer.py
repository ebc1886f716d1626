"""The records of a run: metrics.jsonl, the screen and the loggers.

with open_records(workdir, resume_step=None, total_epochs=18) as records:
  records.screen.header({"device": describe_device(), ...})
  for ...:
    records.epoch({"epoch": 1, "step": 98, "examples": 100352, "train_loss": 1.2, ...})
  records.screen.result(write_result(workdir, [result_row(...)]))
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console

from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, parse_json, read_bytes, to_json, write_atomically
from jaxspeed.records.console import Screen, make_console, silent_console
from jaxspeed.records.loggers import LoggedRun, Logger, Loggers

FILE = "metrics.jsonl"
# Of larger numbers, squares and differences are not finite.
_Figure = Annotated[float, Field(ge=-1e100, le=1e100)]
_Positive = Annotated[float, Field(ge=0, le=1e100)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=1)]


@dataclasses.dataclass
class _Row:
  """The part of a row of metrics.jsonl that a resumed run, its result and a report read."""

  epoch: _Positive
  step: _Count
  examples: _Count
  world: _Count
  dawn_seconds: _Positive
  train_seconds: _Positive | None = None
  # None for an epoch that an earlier process finished.
  images_per_second: Annotated[float, Field(gt=0, le=1e100)] | None = None
  data_wait: _Positive = 0.0
  batch_size: _Count | None = None
  image_size: _Count | None = None
  learning_rate: _Figure | None = None
  momentum: _Figure | None = None
  train_loss: _Figure | None = None
  train_top1: _Share | None = None
  train_top5: _Share | None = None
  eval_loss: _Figure | None = None
  eval_top1: _Share | None = None
  eval_top5: _Share | None = None
  eval_macro_top1: _Share | None = None
  eval_ece: _Share | None = None
  skipped_steps: int = 0
  eval_images: int | None = None
  eval_images_skipped: int | None = None
  train_images_broken: int | None = None


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of metrics.jsonl, except a last line that a kill cut off; empty without the file.

  Raises:
    UserError: another line is not JSON, or not a row of a run.
  """
  path = workdir / FILE
  rows: list[dict[str, Any]] = []
  for number, line in enumerate(_whole_lines(path), start=1):
    try:
      row = parse_json(line, _Row)
      if rows and row["step"] <= rows[-1]["step"]:
        raise ValueError(f"step {row['step']} comes after step {rows[-1]['step']}")
    except ValueError as error:
      raise UserError(
        f"{path}, line {number}, is no row of a run ({error}): repair or delete the line."
      ) from None
    rows.append(row)
  return rows


def _whole_lines(path: pathlib.Path) -> list[bytes]:
  try:
    lines = read_bytes(path).split(b"\n")
  except FileNotFoundError:
    return []
  except ValueError as error:
    raise UserError(f"{path} cannot be read ({error}): move it away.") from None
  if not lines[-1] or _is_cut_off(lines[-1]):
    lines.pop()
  return lines


def _is_cut_off(line: bytes) -> bool:
  try:
    parse_json(line)
  except ValueError:
    return True
  return False


def open_records(
  workdir: pathlib.Path,
  *,
  resume_step: int | None,
  total_epochs: int | float,
  evaluated: str = "",
  console: Console | None = None,
  make_screen: Callable[..., Screen] = Screen,
  primary: bool = True,
  loggers: Sequence[Logger] = (),
  config: Mapping[str, Any] | None = None,
) -> "Records":
  """Opens the records of a new or resumed run.

  Args:
    workdir: an existing folder.
    resume_step: the step of the restored checkpoint; rows of later steps, which will be repeated,
      are dropped. None: a new run, without earlier rows.
    total_epochs: the epochs of the whole run; may be fractional.
    evaluated: the evaluated weights, as in `Screen`.
    console: the console to print on; None: standard output.
    make_screen: makes the screen on it.
    primary: whether this process writes and prints; one does. The others only read, so that all
      agree whether the target was reached.
    loggers: what else follows the rows.
    config: the run's config, for the loggers.

  Raises:
    UserError: metrics.jsonl of the run to resume is damaged.
  """
  rows = []
  is_missing = bool(resume_step) and not os.path.lexists(workdir / FILE)
  if resume_step is not None:
    rows = [row for row in read_metrics(workdir) if row["step"] <= resume_step]
  if not primary:
    return Records(None, rows=rows, screen=Screen(silent_console(), total_epochs=total_epochs))
  write_atomically(workdir / FILE, "".join(_json_line(row) for row in rows))
  screen = make_screen(console or make_console(), total_epochs=total_epochs, evaluated=evaluated)
  if is_missing:
    screen.warn(
      f"{workdir / FILE} is missing: it begins anew after step {resume_step}, and what "
      "was reached before does not count; to keep it, stop, restore the file and start again"
    )
  run = LoggedRun(workdir, dict(config or {}), tuple(rows))
  return Records(workdir, rows=rows, screen=screen, loggers=loggers, run=run)


class Records:
  """The writer of a run's epochs, from `open_records`. Close it, or use `with`.

  Attributes:
    rows: a row for each epoch of the run so far, including those before a resume.
    screen: the printed output of the run.
  """

  def __init__(
    self,
    workdir: pathlib.Path | None,
    *,
    rows: list[dict[str, Any]],
    screen: Screen,
    loggers: Sequence[Logger] = (),
    run: LoggedRun | None = None,
  ) -> None:
    self.rows = rows
    self.screen = screen
    self._metrics = open(workdir / FILE, "ab", buffering=0) if workdir else None
    self._unwritten = b""  # lines of metrics.jsonl for which the disk had no room
    self._loggers = Loggers(loggers if workdir else (), screen.warn)
    if run is not None:
      self._loggers.init(run)

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Records the end of an epoch in metrics.jsonl, on the screen and in the loggers.

    Args:
      row: epoch (from 1; fractional if training ends inside one), step and examples (since the
        start of the run), and any of the following; other keys reach metrics.jsonl only.
        world: devices; batch_size; image_size; learning_rate, momentum: at the last step;
        train_loss, eval_loss; train_top1, train_top5, eval_top1, eval_top5: fractions;
        eval_macro_top1, eval_ece: as in `class_figures.summary`;
        images_per_second, images_per_second_per_device, step_seconds: means over training;
        data_wait: share of the training time in which the devices waited for a batch;
        train_seconds, dawn_seconds: of the run; eval_seconds: of this evaluation;
        eval_images, eval_images_skipped: images in the accuracies, and images left out;
        train_images_broken: images replaced by others in the run so far;
        skipped_steps: steps of the run with overflowing float16 gradients;
        memory_gb: peak of a device; net_recv_gbit, net_transmit_gbit: per second.
    """
    self.rows.append(to_json(row))
    if self._metrics is None:
      return
    self.screen.epoch(row)
    self._write_metrics(_json_line(self.rows[-1]).encode())
    self._loggers.log(self.rows[-1])

  def close(self) -> None:
    """Removes the live line and writes all that is not yet on the disk."""
    self.screen.close()
    if self._metrics is not None:
      self._write_metrics()
      self._metrics.close()
    self._loggers.finish()

  def __enter__(self) -> "Records":
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self.close()

  def write_waiting(self) -> str:
    """Writes the lines of metrics.jsonl that wait for room on the disk; why it failed, or ''."""
    try:
      while self._unwritten and self._metrics is not None:
        self._unwritten = self._unwritten[self._metrics.write(self._unwritten) :]
    except OSError as error:
      assert self._metrics is not None
      return f"{self._metrics.name} could not be written ({error.strerror or error})"
    return ""

  def _write_metrics(self, line: bytes = b"") -> None:
    """Writes waiting lines and this one; on a full disk the run continues, and they wait."""
    self._unwritten += line
    if reason := self.write_waiting():
      self.screen.line(f"{reason}: jaxspeed tries again after the next epoch")


def _json_line(row: Mapping[str, Any]) -> str:
  return dump_json(row) + "\n"
