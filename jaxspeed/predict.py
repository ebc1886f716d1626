"""Prints the five likeliest classes of image files: JPEG, PNG, GIF, BMP, WebP or TIFF.

python -m jaxspeed.predict runs/quickstart cat.jpg ship.png
python -m jaxspeed.predict --config=configs/imagenet18.py:1 --config.pretrained.path=FILE cat.jpg
python -m jaxspeed.predict runs/imagenette photos more.csv --csv=predictions.csv

--workdir=runs/quickstart names the run too. With --csv=FILE, a table takes the place of the printed
lines, and names may be folders, of which all images are predicted, and CSV files with a column of
file names. Its columns are file, label, probability and error; --top=3 adds label_2, probability_2,
label_3 and probability_3. It is written in UTF-8 when it is complete; --csv=- prints it. A name
that is not UTF-8 is escaped, as in \\xff. A cell that begins with = + - or @ gets an apostrophe
before it, so that spreadsheets show it; where such a table is named, the names lose it again.

For a file that is not an image, a sentence on standard error says why, or the column error; the
others are still predicted, and the exit code is 2.
"""

import os
import sys
from typing import Any

from absl import flags

from jaxspeed.config import flags as command_line
from jaxspeed.config import output
from jaxspeed.errors import MISTAKE, UserError, plural, printable


def main() -> None:
  """Reads the flags and the names of images; prints a block for each image, or writes a table."""
  workdir, step = command_line.define_run()
  csv = flags.DEFINE_string("csv", None, "Writes a table to this file; - is standard output.")
  top = flags.DEFINE_integer(
    "top", None, "The classes of an image; the default is 5, and 1 with --csv.", 1, 1_000_000
  )
  command_line.define_quiet("notes and progress")
  config_flag = command_line.define_config_flag()

  def run(images: list[str]) -> None:
    from jaxspeed.run import predict as run_predict
    from jaxspeed.run.restore import with_last_mode

    config = config_flag.value
    if config is not None:
      command_line.without_effect("beside --config", workdir, step)
      config = with_last_mode(config)
      opened = run_predict.pretrained_predictor(config, config_flag.overrides)
    elif workdir.value or os.path.isdir(images[0] if images else ""):
      folder, images = command_line.take_run(workdir.value, images)
      opened = run_predict.run_predictor(folder, step.value)
    elif images:
      raise UserError(
        f"{images[0]} is not a folder of a run: name the run first, as in jaxspeed predict runs/a "
        "cat.png."
      )
    if not images:
      raise UserError("name one or more image files after the flags.")
    if csv.value is not None:
      _write_table(csv.value, images, opened, top.value or 1)
      return
    rows = run_predict.predict(opened, images, top=top.value or 5)
    for image, row in zip(images, rows, strict=True):
      if isinstance(row, UserError):
        output.say(row)
        continue
      print(printable(image))
      for name, probability in row:
        print(f"  {probability:7.2%}  {printable(name)}")
    if any(isinstance(row, UserError) for row in rows):
      sys.exit(MISTAKE)

  command_line.run(run, command="predict")


def _write_table(path: str, arguments: list[str], opened: Any, top: int) -> None:
  """Writes the predictions of all images that the arguments name, and says how many there are."""
  from jaxspeed.cluster.signals import exit_on_sigterm
  from jaxspeed.records.console import make_console, progress_bar, silent_console
  from jaxspeed.run.predict_csv import check_csv, find_images, write_csv

  check_csv(path, arguments)
  images = find_images(arguments)
  check_csv(path, images.paths)
  for note in images.notes:
    output.note(note)
  console = silent_console() if output.is_quiet() else make_console(sys.stderr)
  with exit_on_sigterm(), opened as predictor, progress_bar(console, "predicting") as show:
    done = write_csv(path, predictor, images, top=top, show=show)
  if not output.is_quiet():
    rate = done.images / max(done.seconds, 1e-9)
    output.say(f"{plural(done.images, 'image')} in {done.seconds:.1f} s, {rate:,.0f} a second")
  if done.broken:
    output.say(f"{done.broken:,} of {done.images:,} files could not be read: see the column error.")
    sys.exit(MISTAKE)


if __name__ == "__main__":
  main()
