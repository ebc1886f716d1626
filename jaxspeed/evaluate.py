"""Prints the accuracies of a run's checkpoint, as training printed them, or of published weights.

python -m jaxspeed.evaluate runs/quickstart
python -m jaxspeed.evaluate runs/imagenette --config.eval.mode=center,flip,five,rect
python -m jaxspeed.evaluate runs/imagenette --export=resnet18.safetensors
python -m jaxspeed.evaluate --config=configs/imagenet18.py:1 --config.pretrained.path=FILE

--workdir=runs/quickstart names the run too. Standard output has one line of JSON for each mode, and
nothing else. Its "worst_classes" are the accuracies by class, the worst first: all of up to 20
classes, ten of more. Its "confusions" are the ten most frequent pairs of a class and another one
that is predicted. Standard error shows both to be read, as "cat -> dog: 57 of 1,000".
"""

import pathlib

from absl import flags

from jaxspeed.config import effects, fields, output
from jaxspeed.config import flags as command_line
from jaxspeed.config.imports import define_import_flag
from jaxspeed.config.run_argument import arguments_of, take_run
from jaxspeed.errors import UserError
from jaxspeed.files import expanded


def main() -> None:
  """Reads the flags and evaluates a run, or published weights with a recipe."""
  workdir = flags.DEFINE_string("workdir", None, "The folder of a run that jaxspeed.train made.")
  step = command_line.define_step()
  export = flags.DEFINE_string(
    "export", "", "Also writes the weights to this .safetensors file, for torchvision."
  )
  command_line.define_quiet("notes, classes and confusions to be read")
  define_import_flag()
  config_flag: list[command_line.ConfigFlag] = []

  def define(argv: list[str]) -> None:
    from jaxspeed.run.restore import load_config

    named = command_line.value_of("workdir", argv)
    folder, _ = take_run(named, arguments_of(argv))
    if not folder:
      config_flag.append(command_line.define_config_flag())
      return
    if recipe := command_line.value_of("config", argv):
      raise UserError(
        f"--config={recipe} names a recipe and {'--workdir=' * bool(named)}{folder} a run, which "
        f"has its own config: leave out one of them."
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
    from jaxspeed.cluster.signals import exit_on_sigterm
    from jaxspeed.records.class_figures import class_lines, confusion_lines
    from jaxspeed.run import export as export_lib
    from jaxspeed.run.restore import evaluate, evaluate_pretrained, with_last_mode

    run_named, others = take_run(workdir.value, arguments)
    command_line.nothing_left(others)
    config = config_flag[0].value
    if config is not None:
      effects.check(config, fields.overridden(), command="evaluate")
    with exit_on_sigterm():
      if export.value:
        # Checked before an evaluation that may take hours.
        trained = pathlib.Path(command_line.required("workdir", run_named))
        exported = expanded(export.value, "--export")
        export_lib.check_export(trained, exported)
      if run_named or config is None:
        folder = pathlib.Path(command_line.required("workdir", run_named))
        rows = evaluate(folder, step=step.value, config=config)
      else:
        rows = evaluate_pretrained(with_last_mode(config), given=fields.overridden())
      for row in rows:
        output.print_json(row)
        if not output.is_quiet():
          by_class = class_lines(row["worst_classes"], row["macro_top1"])
          for line in [*by_class, *confusion_lines(row["confusions"])]:
            output.say(line)
      if export.value:
        # The checkpoint that was evaluated, even if the run has saved a newer one since.
        export_lib.export(trained, exported, step=step.value or rows[0]["step"])

  command_line.run(run, define=define, fields=effects.USED["evaluate"][0])


if __name__ == "__main__":
  main()
