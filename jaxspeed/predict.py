"""Prints the five likeliest classes of image files: JPEG, PNG, GIF, BMP, WebP or TIFF.

python -m jaxspeed.predict --workdir=runs/quickstart cat.jpg ship.png
python -m jaxspeed.predict --config=configs/imagenet18.py:1 --config.pretrained.path=FILE cat.jpg

For a file that is no image, a sentence on standard error says why; the others are still predicted,
and the exit code is 2.
"""

import pathlib
import sys

from absl import flags

from jaxspeed.config import effects, fields, output
from jaxspeed.config import flags as command_line
from jaxspeed.config.imports import define_import_flag
from jaxspeed.errors import MISTAKE, UserError, printable


def main() -> None:
  """Reads the flags and the names of images; prints a block for each image."""
  workdir = flags.DEFINE_string("workdir", None, "The folder of a run that jaxspeed.train made.")
  step = flags.DEFINE_integer(
    "step", None, "The step of the checkpoint; the default is the newest whole one."
  )
  config_flag = command_line.define_config_flag()
  define_import_flag()

  def define(_: list[str]) -> None:
    from jaxspeed.models import make  # noqa: F401  the fields of config.model are its families'

  def run(images: list[str]) -> None:
    from jaxspeed.run.predict import predict, predict_pretrained
    from jaxspeed.run.restore import with_last_mode

    config = config_flag.value
    if workdir.value and config is not None:
      raise UserError("--workdir names a run and --config a recipe: leave out one of them.")
    if not images:
      raise UserError("name one or more image files after the flags.")
    if config is not None:
      given = fields.overridden()
      effects.check(config, given, command="predict")
      rows = predict_pretrained(with_last_mode(config), images, given=given, on_error=output.say)
    else:
      folder = pathlib.Path(command_line.required("workdir", workdir.value))
      rows = predict(folder, images, step=step.value, on_error=output.say)
    for image, likeliest in zip(images, rows, strict=True):
      if likeliest is not None:
        print(printable(image))
        for name, probability in likeliest:
          print(f"  {probability:7.2%}  {printable(name)}")
    if None in rows:
      sys.exit(MISTAKE)

  command_line.run(run, define=define, fields=effects.USED["predict"][0])


if __name__ == "__main__":
  main()
