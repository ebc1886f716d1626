"""Prints the accuracies of a run's checkpoint, as training printed them, or of published weights.

python -m jaxspeed.evaluate --workdir=runs/quickstart
python -m jaxspeed.evaluate --workdir=runs/imagenette --config.eval.mode=center,flip,five,rect
python -m jaxspeed.evaluate --workdir=runs/imagenette --export=resnet18.safetensors
python -m jaxspeed.evaluate --config=configs/imagenet18.py:1 --config.pretrained.path=FILE
"""

import pathlib

from absl import flags

from jaxspeed.config import effects, fields
from jaxspeed.config import flags as command_line
from jaxspeed.config.imports import define_import_flag
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json


def main() -> None:
  """Reads the flags and evaluates a run, or published weights with a recipe."""
  workdir = flags.DEFINE_string("workdir", None, "The folder of a run that jaxspeed.train made.")
  step = flags.DEFINE_integer(
    "step", None, "The step of the checkpoint; the default is the newest whole one."
  )
  export = flags.DEFINE_string(
    "export", "", "Also writes the weights to this .safetensors file, for torchvision."
  )
  define_import_flag()
  config_flag: list[command_line.ConfigFlag] = []

  def define(argv: list[str]) -> None:
    from jaxspeed.run.restore import load_config

    folder = command_line.value_of("workdir", argv)
    if not folder:
      config_flag.append(command_line.define_config_flag())
      return
    if recipe := command_line.value_of("config", argv):
      raise UserError(
        f"--config={recipe} names a recipe and --workdir={folder} a run, which has its own config: "
        f"leave out one of them."
      )
    config = load_config(pathlib.Path(folder))
    if changed := command_line.overridden_in(argv, "model"):
      raise UserError(
        f"--config.{changed[0]}: the weights in {folder} belong to the model that was trained: "
        f"its fields cannot be changed."
      )
    help_text = "--config.FIELD=VALUE changes a field of the run: data.path, eval.mode, ..."
    config_flag.append(command_line.define_config(config, argv, help_text))

  def run(arguments: list[str]) -> None:
    from jaxspeed.run import restore as restore_lib
    from jaxspeed.run.restore import evaluate, evaluate_pretrained, with_last_mode

    command_line.nothing_left(arguments)

    config = config_flag[0].value
    if config is not None:
      effects.check(config, fields.overridden(), command="evaluate")
    if export.value:
      # Checked before an evaluation that may take hours.
      trained, exported = command_line.required("workdir", workdir.value), export.value
      restore_lib.check_export(pathlib.Path(trained), pathlib.Path(exported))
    if workdir.value or config is None:
      folder = pathlib.Path(command_line.required("workdir", workdir.value))
      rows = evaluate(folder, step=step.value, config=config)
    else:
      rows = evaluate_pretrained(with_last_mode(config), given=fields.overridden())
    for row in rows:
      print(dump_json(row))
    if export.value:
      restore_lib.export(pathlib.Path(trained), pathlib.Path(exported), step=step.value)

  command_line.run(run, define=define, fields=effects.USED["evaluate"][0])


if __name__ == "__main__":
  main()
