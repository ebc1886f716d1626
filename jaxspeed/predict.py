"""Prints the five likeliest classes of PNG and JPEG files.

python -m jaxspeed.predict --workdir=runs/quickstart cat.jpg ship.png
"""

import pathlib

from absl import flags

from jaxspeed.config import flags as command_line
from jaxspeed.errors import UserError


def main() -> None:
  """Reads the flags --workdir and --step, and the names of images; prints one block an image."""
  workdir = flags.DEFINE_string("workdir", None, "The folder of a run of jaxspeed.train.")
  step = flags.DEFINE_integer(
    "step", None, "Which checkpoint; the default is the newest whole one."
  )

  def run(images: list[str]) -> None:
    from jaxspeed.run.predict import predict

    folder = pathlib.Path(command_line.required("workdir", workdir.value))
    if not images:
      raise UserError("name one or more PNG or JPEG files after --workdir.")
    for image, likeliest in zip(images, predict(folder, images, step=step.value), strict=True):
      print(image)
      for name, probability in likeliest:
        print(f"  {probability:7.2%}  {name}")

  command_line.run(run)


if __name__ == "__main__":
  main()
