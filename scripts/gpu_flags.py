"""The flags of a day on a GPU (`gpu_day.py`)."""

import argparse
import os
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import gpu_parts
from gpu_machine import ROOT, Mistake

_MOST_MINUTES = 10_000  # a week


class _Parser(argparse.ArgumentParser):
  def error(self, message: str) -> Any:
    raise Mistake(f"{message}; see --help.")


class _WholeWords(argparse.HelpFormatter):
  """Breaks lines between words only: a name in two parts could not be copied."""

  def _split_lines(self, text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def parse_flags(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
  """The command line's flags, checked; `out` is None for a dry run into a folder of its own.

  Args:
    argv: the arguments; None: the process's.
    description: what --help says first.

  Raises:
    Mistake: one of them is wrong.
  """
  names = [part.name for part in gpu_parts.PARTS]
  listed = ", ".join(names)
  parser = _Parser(description=description, prog="gpu_day.sh", formatter_class=_WholeWords)
  add = parser.add_argument
  add(
    "--minutes", type=float, default=10.0, help="minutes for all parts together; the default is 10"
  )
  add("--data", type=pathlib.Path, help="the CIFAR-10 to train on; without it, runs train on noise")
  add(
    "--peer",
    type=pathlib.Path,
    action="append",
    default=[],
    help="a PyTorch script to time beside the runs, or a folder of them, as for bench_cifar.py; "
    "can be given several times",
  )
  add(
    "--parts",
    default=",".join(names),
    help=f"the parts to measure, separated by commas; the default is all of them: {listed}",
  )
  add("--again", action="store_true", help="measures parts again that are done")
  add(
    "--out",
    type=pathlib.Path,
    help="the folder for the figures; the default is results/, and for a dry run a temporary "
    "folder, which is removed",
  )
  add("--commit", default="", help="the commit to note, if this copy has no .git")
  add("--table", action="store_true", help="prints the table of what was measured, and ends")
  add("--dry_run", action="store_true", help="runs the parts at toy size on the CPU")
  flags = parser.parse_args(argv)
  flags.parts = [name for name in flags.parts.split(",") if name]
  if unknown := [name for name in flags.parts if name not in names]:
    raise Mistake(f"--parts={unknown[0]}: there are {listed}.")
  if not flags.parts:
    raise Mistake(f"--parts names no part: there are {listed}.")
  if not 0 < flags.minutes <= _MOST_MINUTES:
    raise Mistake(
      f"--minutes={flags.minutes:g}: give a number above 0, and at most {_MOST_MINUTES}."
    )
  for flag, path in [("data", flags.data), *(("peer", peer) for peer in flags.peer)]:
    if path is not None and not os.path.exists(path):
      raise Mistake(f"--{flag}={path}: there is no such file or folder.")
  flags.data, flags.peer = flags.data and flags.data.resolve(), [p.resolve() for p in flags.peer]
  if flags.out or flags.table or not flags.dry_run:
    flags.out = (flags.out or ROOT / "results").resolve()
  return flags
