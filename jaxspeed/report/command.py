"""The command `python -m jaxspeed.report`."""

import datetime
import functools
import os
import pathlib
import time
from collections.abc import Callable, Sequence

from jaxspeed.config.output import note
from jaxspeed.errors import UserError, plural
from jaxspeed.files import expanded, write_atomically
from jaxspeed.report.data import RunData, find_runs, groups_of, read_run
from jaxspeed.report.page import page
from jaxspeed.run.folder import check_output


def run(arguments: Sequence[str], out: str, *, watch: float = 0.0) -> None:
  """Writes a report, and with `watch` again and again until every run has ended.

  Args:
    arguments: folders of runs, or with runs in them.
    out: the file to write.
    watch: seconds between two reports; 0: one report.

  Raises:
    UserError: there is no run that can be read, or the report cannot be written.
  """
  if not arguments or "" in arguments:
    raise UserError("name the folder of a run, or one with runs in it: jaxspeed report RUN.")
  if not out:
    raise UserError("--out is empty: name the file to write.")
  path = expanded(out, "--out")
  check_output(path)
  note_once, print_once, ran = functools.cache(note), functools.cache(print), False
  while True:
    runs = read_all(arguments, note_once)
    runs_on = any(run.result is None and not run.is_stopped for run in runs)
    # A run leaves its images some seconds after its result: one more report shows them.
    refresh, ran = watch if runs_on or ran else 0.0, runs_on
    size = write(runs, path, note_once, refresh=refresh)
    print_once(f"{path}: {plural(len(runs), 'run')}, {size / 1e6:.2f} MB")
    if not refresh:
      return
    time.sleep(watch)


def read_all(
  folders: Sequence[str | os.PathLike[str]], say: Callable[[str], None] = note
) -> list[RunData]:
  """The runs in folders, each once.

  Args:
    folders: folders of runs, or with runs in them.
    say: takes a note on each run that is left out, as a file is damaged, or that shows less.

  Raises:
    UserError: a folder has no run, or no run can be read.
  """
  found = [path for each in folders for path in find_runs(expanded(each, "RUN"))]
  runs: list[RunData] = []
  errors: list[Exception] = []
  # A run that is named twice, or through a link, is no second seed.
  for path in {os.path.realpath(each): each for each in found}.values():
    try:
      runs.append(read_run(path))
    except Exception as error:  # such as of a folder that is not readable
      errors.append(error if isinstance(error, UserError) else _unforeseen(path, error))
  if not runs:
    raise errors[0]
  for error in errors:
    say(f"a run is left out: {error}")
  for run in runs:
    for sentence in run.notes:
      say(sentence)
  return runs


def _unforeseen(folder: pathlib.Path, error: Exception) -> UserError:
  return UserError(f"{folder} cannot be shown ({type(error).__name__}: {error}).")


def write(
  runs: Sequence[RunData],
  path: pathlib.Path,
  say: Callable[[str], None] = note,
  *,
  refresh: float = 0.0,
) -> int:
  """Writes the report of runs to a file; returns its bytes.

  A run of which no page can be drawn is left out, unless it is the only one; `say` takes a note.

  Raises:
    UserError: it cannot be written.
  """
  draw = functools.partial(page, now=datetime.datetime.now().astimezone(), refresh=refresh)
  try:
    content = draw(groups_of(runs)).encode()
  except Exception:  # whatever a stranger's files make of a page
    sound = []
    for run in runs:
      try:
        draw(groups_of([run]))
        sound.append(run)
      except Exception as error:
        say(f"a run is left out: {_unforeseen(run.folder, error)}")
    if len(sound) in (0, len(runs)):
      raise
    content = draw(groups_of(sound)).encode()
  try:
    write_atomically(path, content, sync=False)
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): name another file in --out."
    ) from None
  return len(content)
