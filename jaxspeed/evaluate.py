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

from jaxspeed.config import fields as config_lib


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
    from jaxspeed.run import restore

    folder = config_lib.value_of("workdir", argv)
    if folder:
      config = restore.load_config(pathlib.Path(folder))
      help_text = "--config.FIELD=VALUE changes a field of the run: data.path, eval.mode, ..."
      config_flag.append(config_flags.DEFINE_config_dict("config", config, help_text))
    else:
      config_flag.append(config_lib.define_config_flag())

  def run(arguments: list[str]) -> None:
    from jaxspeed.run import restore

    config_lib.nothing_left(arguments)

    config = config_flag[0].value
    if workdir.value or config is None:
      folder = pathlib.Path(config_lib.required("workdir", workdir.value))
      rows = restore.evaluate(folder, step=step.value, config=config)
    else:
      rows = restore.evaluate_pretrained(restore.with_last_mode(config))
    for row in rows:
      print(json.dumps(row))
    if export.value:
      folder = pathlib.Path(config_lib.required("workdir", workdir.value))
      restore.export(folder, pathlib.Path(export.value), step=step.value)

  config_lib.run(run, define=define)


if __name__ == "__main__":
  main()
