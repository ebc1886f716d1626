"""Restores a run's checkpoint and prints the accuracies that training printed.

python -m jaxspeed.evaluate --workdir=runs/quickstart
python -m jaxspeed.evaluate --workdir=runs/imagenette --config.eval.mode=center,flip,five,rect
python -m jaxspeed.evaluate --workdir=runs/imagenette --export=resnet18.safetensors
python -m jaxspeed.evaluate --config=configs/imagenet18.py:1 --config.pretrained.path=FILE
"""

import json
import pathlib

from absl import flags
from ml_collections import config_flags

from jaxspeed.config import fields
from jaxspeed.config import flags as command_line


def main() -> None:
  """Reads the flags and evaluates a run, or published weights as a recipe would."""
  workdir = flags.DEFINE_string("workdir", None, "The folder of a run of jaxspeed.train.")
  step = flags.DEFINE_integer(
    "step", None, "Which checkpoint; the default is the newest whole one."
  )
  export = flags.DEFINE_string(
    "export", "", "Also writes the weights to this .safetensors file, for torchvision."
  )
  config_flag: list[flags.FlagHolder] = []

  def define(argv: list[str]) -> None:
    from jaxspeed.run.restore import load_config

    folder = command_line.value_of("workdir", argv)
    if folder:
      config = load_config(pathlib.Path(folder))
      help_text = "--config.FIELD=VALUE changes a field of the run: data.path, eval.mode, ..."
      config_flag.append(config_flags.DEFINE_config_dict("config", config, help_text))
    else:
      config_flag.append(command_line.define_config_flag())

  def run(arguments: list[str]) -> None:
    from jaxspeed.config import effects
    from jaxspeed.run import restore as restore_lib
    from jaxspeed.run.restore import evaluate, evaluate_pretrained, with_last_mode

    command_line.nothing_left(arguments)

    config = config_flag[0].value
    if config is not None:
      effects.check(config, fields.overridden(), command="evaluate")
    if workdir.value or config is None:
      folder = pathlib.Path(command_line.required("workdir", workdir.value))
      rows = evaluate(folder, step=step.value, config=config)
    else:
      rows = evaluate_pretrained(with_last_mode(config))
    for row in rows:
      print(json.dumps(row))
    if export.value:
      folder = pathlib.Path(command_line.required("workdir", workdir.value))
      restore_lib.export(folder, pathlib.Path(export.value), step=step.value)

  command_line.run(run, define=define)


if __name__ == "__main__":
  main()
