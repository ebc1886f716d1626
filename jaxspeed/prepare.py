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
from jaxspeed.data.disk.prepared import QUALITY
from jaxspeed.data.disk.sources import ImageSet, open_images
from jaxspeed.data.prepare.resize import resize
from jaxspeed.data.prepare.shards import shards_folder, write_shards
from jaxspeed.data.prepare.writing import Broken, Done, broken_headers
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
  shards = flags.DEFINE_integer(
    "shards",
    0,
    "shards: number of files of each split; 0: one for each 1,024 images.",
    lower_bound=0,
  )
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
    _check_folders(command, folders, names)
    function(make_console(), *folders, **options)

  def interruptible(arguments: list[str]) -> None:
    try:
      run(arguments)
    except KeyboardInterrupt:
      raise UserError("stopped: the same command resumes from here.") from None

  command_line.run(interruptible, output_is_result=False)


def _check_folders(command: str, given: Sequence[str], names: Sequence[str]) -> None:
  if len(given) != len(names):
    raise UserError(
      f"{command} needs {' and '.join(names)}, but was given {' '.join(given) or 'nothing'}; see "
      "--help."
    )
  if "" in given:
    raise UserError(f"{names[list(given).index('')]} is empty: name a folder.")
  if command != "shards" and (far := [each for each in given if remote.is_remote(each)]):
    raise UserError(f"{far[0]} is an address: {command} takes folders; only shards uploads.")
  if not os.path.isdir(given[0]):
    raise UserError(
      f"{given[0]} is not a folder: name one with train/CLASS/*.jpg and val/CLASS/*.jpg."
    )


def _to_sizes(given: Sequence[str]) -> list[int]:
  sizes = [int(each) if re.fullmatch(" *[0-9]{1,9} *", each) else 0 for each in given]
  if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
    raise UserError(
      f"--sizes={','.join(given)}: name different short sides in pixels, as in --sizes=160,352."
    )
  return sizes


def _resize(
  console: Console,
  source: str,
  destination: str,
  *,
  sizes: Sequence[str],
  workers: int,
  **options: Any,
) -> None:
  sides = _to_sizes(sizes)
  with progress_bar(console, "resizing") as show:
    done = resize(source, destination, sizes=sides, workers=workers, show=show, **options)
  _show_work(console, "resized", done, workers)
  copies = [pathlib.Path(destination) / str(size) for size in sides]
  _show_broken(console, done.broken, f"are left out and listed in {copies[0] / 'broken.txt'}")
  for folder in copies:
    images = _write_index(console, folder)
    _show_counts(console, folder, images)
    # A power cut leaves such files, a kill does not: a million files are not flushed one by one.
    _show_broken(console, broken_headers(images.table), "the disk lost: remove them and run again")


def _index(console: Console, folder: str) -> None:
  images = _write_index(console, folder)
  _show_notes(console, images.notes)
  _show_counts(console, folder, images)
  _show_broken(console, broken_headers(images.table), "have no header that can be read")


def _shards(
  console: Console, source: str, destination: str, *, name: str, shards: int, workers: int
) -> None:
  with progress_bar(console, "reading headers") as show:
    images = open_images(name=name, path=source, cache="", show=show, anew=True)
  # What is uploaded is written beside the source first, so that packing can resume.
  local = f"{os.path.abspath(source)}-shards" if remote.is_remote(destination) else destination
  with progress_bar(console, "packing") as show:
    done = write_shards(images, local, name=name, shards=shards, workers=workers, show=show)
  _show_work(console, "packed", done, workers)
  _show_broken(console, done.broken, "without a header that can be read are left out")
  folder = shards_folder(local, name)
  _show_counts(console, folder, _write_index(console, folder))
  place = str(folder)
  if local != destination:
    place = f"{destination.rstrip('/')}/{name}/{folder.name}"
    with progress_bar(console, "uploading") as show:
      remote.upload(folder, place, show=show)
    console.out(f"uploaded; {folder} may be removed", highlight=False)
  console.out(f"train on them with --config.data.path={printable(place)}", highlight=False)


def _write_index(console: Console, folder: str | os.PathLike[str]) -> ImageSet:
  with progress_bar(console, "reading headers") as show:
    return open_images(name="", path=str(folder), cache="", show=show, beside=True)


def _show_work(console: Console, verb: str, done: Done, workers: int) -> None:
  rate = f": {done.made / done.seconds:,.0f} images/s, --workers={workers}" if done.made else ""
  rest = f"; {done.images - done.made:,} were done before" if done.made < done.images else ""
  console.out(f"{verb} {done.made:,} images in {done.seconds:.1f} s{rate}{rest}", highlight=False)
  _show_notes(console, done.notes)


def _show_counts(console: Console, folder: str | os.PathLike[str], images: ImageSet) -> None:
  console.out(
    f"{printable(str(folder))}: {len(images.train):,} images for training, "
    f"{len(images.eval):,} for evaluation, {len(images.class_names):,} classes",
    highlight=False,
  )


def _show_broken(console: Console, broken: Sequence[Broken], what: str) -> None:
  """Print the number of broken images, what happens to them, and the first; nothing without any."""
  if not broken:
    return
  console.out(f"broken: {len(broken):,} images {what}", highlight=False)
  for each in broken[:_NAMED]:
    console.out(printable(f"  {each.name}: {each.reason}"), highlight=False)
  if len(broken) > _NAMED:
    console.out(f"  and {len(broken) - _NAMED:,} more", highlight=False)


def _show_notes(console: Console, notes: Sequence[str]) -> None:
  for note in notes:
    console.out(note, highlight=False)


if __name__ == "__main__":
  main()
