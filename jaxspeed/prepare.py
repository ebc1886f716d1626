"""The command that prepares images for training: smaller copies, an index of sizes, shards.

python -m jaxspeed.prepare resize imagenet copies --sizes=160,352
python -m jaxspeed.prepare index copies/160
python -m jaxspeed.prepare shards copies/160 sets --name=imagenet160
python -m jaxspeed.prepare shards copies/160 s3://bucket/sets --name=imagenet160
"""

import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
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
  commands: dict[str, tuple[Callable[..., Iterator[str]], tuple[Any, ...]]] = {
    "resize": (_resize, (sizes, quality, workers)),
    "index": (_index, ()),
    "shards": (_shards, (name, shards, workers)),
  }
  every = {flag.name: flag for _, own in commands.values() for flag in own}

  def run(arguments: list[str]) -> None:
    command, *folders = arguments or [""]
    if command not in commands or len(folders) != 1 + (command != "index") or not all(folders):
      raise UserError(
        f"{' '.join(arguments)!r} is not a command: write resize SRC DST, index FOLDER or shards "
        "SRC DST; see --help."
      )
    function, own = commands[command]
    options = {flag.name: flag.value for flag in own}
    others = [flag for name, flag in every.items() if name not in options]
    command_line.without_effect(f"with {command}", *others)
    if command != "shards" and remote.is_remote(folders[-1]):
      raise UserError(f"{folders[-1]} is an address: {command} takes folders; only shards uploads.")
    if not os.path.isdir(folders[0]):
      raise UserError(
        f"{folders[0]} is not a folder: name one with train/CLASS/*.jpg and val/CLASS/*.jpg."
      )
    console = make_console()
    for line in function(console, *folders, **options):
      console.out(printable(line), highlight=False)

  command_line.run(run, output_is_result=False)


def _resize(
  console: Console, source: str, destination: str, *, sizes: Sequence[str], **options: Any
) -> Iterator[str]:
  sides = [int(each) if re.fullmatch(" *[0-9]{1,9} *", each) else 0 for each in sizes]
  if not sides or min(sides) < 1 or len(set(sides)) < len(sides):
    raise UserError(
      f"--sizes={','.join(sizes)}: name different short sides in pixels, as in --sizes=160,352."
    )
  with progress_bar(console, "resizing") as show:
    done = resize(source, destination, sizes=sides, show=show, **options)
  yield from _lines(done, "resized")


def _index(console: Console, folder: str) -> Iterator[str]:
  with progress_bar(console, "reading headers") as show:
    table = write_index(pathlib.Path(folder), show)
  yield from table.notes
  yield from _index_lines(table)


def _shards(
  console: Console, source: str, destination: str, *, name: str, **options: Any
) -> Iterator[str]:
  # What is uploaded is written beside the source first, so that packing can resume.
  local = f"{os.path.abspath(source)}-shards" if remote.is_remote(destination) else destination
  with progress_bar(console, "packing") as show:
    done = write_shards(source, local, name=name, show=show, **options)
  yield from _lines(done, "packed")
  folder = shards_folder(local, name)
  place = str(folder)
  if local != destination:
    place = f"{destination.rstrip('/')}/{name}/{folder.name}"
    with progress_bar(console, "uploading") as show:
      remote.upload(folder, place, show=show)
    yield f"uploaded; {folder} may be removed"
  yield f"train on them with --config.data.path={place}"


def _lines(done: Done, verb: str) -> Iterator[str]:
  """Yield the lines on what a command did."""
  rate = f": {done.made / done.seconds:,.0f} images/s" if done.made else ""
  rest = f"; {done.images - done.made:,} were done before" if done.made < done.images else ""
  yield f"{verb} {done.made:,} images in {done.seconds:.1f} s{rate}{rest}"
  yield from done.notes
  yield from _broken_lines(done.broken, "are left out, and listed in broken.txt")
  for table in done.indices:
    yield from _index_lines(table)


def _index_lines(table: Table) -> Iterator[str]:
  train, evaluation = table.counts
  split = f" for training, {evaluation:,} for evaluation" if evaluation else ""
  yield f"{table.root}: {train:,} images{split}, {table.label.max() + 1:,} classes"
  # A power cut leaves such copies, a kill does not: a million files are not flushed one by one.
  what = "have no header that can be read: repair or remove them and run again"
  yield from _broken_lines(broken_headers(table), what)


def _broken_lines(broken: Sequence[Broken], what: str) -> Iterator[str]:
  """Yield the number of broken images, what happens to them, and the first, if there are any."""
  if broken:
    yield f"broken: {len(broken):,} images {what}"
    yield from (f"  {name}: {reason}" for name, reason in broken[:_NAMED])
  if len(broken) > _NAMED:
    yield f"  and {len(broken) - _NAMED:,} more"


if __name__ == "__main__":
  main()
