"""The command that prepares images for training: smaller copies, an index of sizes, shards.

python -m jaxspeed.prepare resize imagenet copies --sizes=160,352
python -m jaxspeed.prepare index copies/160
python -m jaxspeed.prepare shards copies/160 sets --name=imagenet160
python -m jaxspeed.prepare shards copies/160 s3://bucket/sets --name=imagenet160
"""

import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags
from rich.console import Console

from jaxspeed.config import flags as command_line
from jaxspeed.data import remote
from jaxspeed.data.prepare.resize import QUALITY, resize
from jaxspeed.data.prepare.shards import shards_folder, write_shards
from jaxspeed.data.prepare.writing import Broken, Done, broken_headers, write_index
from jaxspeed.data.table import Table
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError, printable
from jaxspeed.records.console import make_console, progress_bar

# At most this many broken images are named on the screen; a file lists all.
_NAMED = 10


def main() -> None:
  """Run the command on its folders, and print what was done."""
  sizes = flags.DEFINE_list("sizes", [], "resize: short sides of the copies in pixels (160,352).")
  quality = flags.DEFINE_integer(
    "quality", QUALITY, "resize: quality of the JPEGs.", lower_bound=1, upper_bound=100
  )
  name = flags.DEFINE_string("name", "images", "shards: the name of the data set.")
  help_text = "shards: number of files of each split; 0: one for each 1,024 images."
  shards = flags.DEFINE_integer("shards", 0, help_text, lower_bound=0, upper_bound=99_999)
  workers = flags.DEFINE_integer(
    "workers", usable_cpus(), "Processes; the default is one for each core.", lower_bound=1
  )
  commands: dict[str, tuple[Callable[..., None], tuple[str, ...], tuple[Any, ...]]] = {
    "resize": (_resize, ("SRC", "DST"), (sizes, quality, workers)),
    "index": (_index, ("FOLDER",), ()),
    "shards": (_shards, ("SRC", "DST"), (name, shards, workers)),
  }

  def run(arguments: list[str]) -> None:
    command, *folders = arguments or [""]
    if command not in commands:
      raise UserError(
        f"{command!r} is not a command: write resize SRC DST, index FOLDER or shards SRC DST; see "
        "--help."
      )
    function, names, own = commands[command]
    every = {flag.name: flag for _, _, each in commands.values() for flag in each}
    options = {flag.name: flag.value for flag in own}
    command_line.without_effect(
      f"with {command}", *(flag for name, flag in every.items() if name not in options)
    )
    if len(folders) != len(names) or not all(folders):
      raise UserError(
        f"{command} needs {' and '.join(names)}, but was given {' '.join(folders) or 'nothing'}; "
        "see --help."
      )
    if command != "shards" and (far := [each for each in folders if remote.is_remote(each)]):
      raise UserError(f"{far[0]} is an address: {command} takes folders; only shards uploads.")
    if not os.path.isdir(folders[0]):
      raise UserError(
        f"{folders[0]} is not a folder: name one with train/CLASS/*.jpg and val/CLASS/*.jpg."
      )
    function(make_console(), *folders, **options)

  command_line.run(run, output_is_result=False)


def _resize(
  console: Console, source: str, destination: str, *, sizes: Sequence[str], **options: Any
) -> None:
  sides = [int(each) if re.fullmatch(" *[0-9]{1,9} *", each) else 0 for each in sizes]
  if not sides or min(sides) < 1 or len(set(sides)) < len(sides):
    raise UserError(
      f"--sizes={','.join(sizes)}: name different short sides in pixels, as in --sizes=160,352."
    )
  with progress_bar(console, "resizing") as show:
    _report(console, "resized", resize(source, destination, sizes=sides, show=show, **options))


def _index(console: Console, folder: str) -> None:
  with progress_bar(console, "reading headers") as show:
    table = write_index(pathlib.Path(folder), show)
  _say(console, *table.notes)
  _report_index(console, table, "have no header that can be read")


def _shards(console: Console, source: str, destination: str, *, name: str, **options: Any) -> None:
  # What is uploaded is written beside the source first, so that packing can resume.
  local = f"{os.path.abspath(source)}-shards" if remote.is_remote(destination) else destination
  with progress_bar(console, "packing") as show:
    _report(console, "packed", write_shards(source, local, name=name, show=show, **options))
  folder = shards_folder(local, name)
  place = str(folder)
  if local != destination:
    place = f"{destination.rstrip('/')}/{name}/{folder.name}"
    with progress_bar(console, "uploading") as show:
      remote.upload(folder, place, show=show)
    _say(console, f"uploaded; {folder} may be removed")
  _say(console, f"train on them with --config.data.path={place}")


def _report(console: Console, verb: str, done: Done) -> None:
  rate = f": {done.made / done.seconds:,.0f} images/s" if done.made else ""
  rest = f"; {done.images - done.made:,} were done before" if done.made < done.images else ""
  _say(console, f"{verb} {done.made:,} images in {done.seconds:.1f} s{rate}{rest}", *done.notes)
  _name_broken(console, "are left out, and listed in broken.txt", done.broken)
  for table in done.indices:
    # A power cut leaves such files, a kill does not: a million files are not flushed one by one.
    _report_index(console, table, "the disk lost: remove them and run again")


def _report_index(console: Console, table: Table, broken: str) -> None:
  train, evaluation = table.counts
  split = f" for training, {evaluation:,} for evaluation" if evaluation else ""
  _say(console, f"{table.root}: {train:,} images{split}, {table.label.max() + 1:,} classes")
  _name_broken(console, broken, broken_headers(table))


def _name_broken(console: Console, what: str, broken: Sequence[Broken]) -> None:
  """Print the number of broken images, what happens to them, and the first; nothing without any."""
  if broken:
    first = [f"  {name}: {reason}" for name, reason in broken[:_NAMED]]
    more = [f"  and {len(broken) - _NAMED:,} more"] * (len(broken) > _NAMED)
    _say(console, f"broken: {len(broken):,} images {what}", *first, *more)


def _say(console: Console, *lines: str) -> None:
  for line in lines:
    console.out(printable(line), highlight=False)


if __name__ == "__main__":
  main()
