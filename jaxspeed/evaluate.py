"""Prints the accuracies of a run's checkpoint, as training printed them, or of published weights.

jaxspeed evaluate runs/quickstart
jaxspeed evaluate runs/imagenette --config.eval.mode=center,flip,five,rect
jaxspeed evaluate runs/imagenette --export=resnet18.safetensors
jaxspeed evaluate --config=imagenet18:1 --config.pretrained.path=FILE

--workdir=runs/quickstart names the run too. A table has a row for each mode. Below it are the
accuracies by class, the worst first (all of up to 20 classes, ten of more), and the ten most
frequent confusions, as "cat -> dog: 57 of 1,000"; --quiet leaves both out.

--json prints a JSON object for each mode in place of these, a line each: "worst_classes" and
"confusions" have what the table has below it.
"""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from jaxspeed.config import effects, fields, output
from jaxspeed.config import flags as command_line
from jaxspeed.config.imports import define_import_flag
from jaxspeed.config.run_argument import take_run
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded

# The columns of the table, and how each is printed.
_COLUMNS = {"mode": "", "images": ",", "loss": ".4f"}
_COLUMNS |= dict.fromkeys(("top1", "top5", "macro_top1", "ece"), ".2%") | {"seconds": ".1f"}


def main() -> None:
  """Reads the flags and evaluates a run, or published weights with a recipe."""
  workdir = flags.DEFINE_string("workdir", None, "The folder of a run that jaxspeed.train made.")
  step = command_line.define_step()
  export = flags.DEFINE_string(
    "export", "", "Also writes the weights to this .safetensors file, for torchvision."
  )
  as_json = flags.DEFINE_bool("json", False, "Prints a JSON object a line; see above.")
  command_line.define_quiet("notes, classes and confusions to be read")
  define_import_flag()
  config_flag = command_line.define_config_flag()

  def define(rest: list[str]) -> None:
    from jaxspeed.run.restore import load_config

    folder, _ = take_run(workdir.value, [*command_line.positionals(rest)])
    if not folder:
      return
    if recipe := flags.FLAGS["config"].value:
      raise UserError(
        f"--config={recipe} names a recipe and {'--workdir=' * bool(workdir.value)}{folder} a run, "
        "which has its own config: leave out one of them."
      )
    config = load_config(pathlib.Path(folder))
    if changed := command_line.overridden_in(rest, "model"):
      raise UserError(
        f"--config.{changed[0]}: the weights in {folder} belong to the model that was trained: "
        f"its fields cannot be changed."
      )
    help_text = "--config.FIELD=VALUE changes a field of the run: data.path, eval.mode, ..."
    command_line.define_config(config, rest, help_text)

  def run(arguments: list[str]) -> None:
    from jaxspeed.cluster.signals import exit_on_sigterm
    from jaxspeed.run import export as export_lib
    from jaxspeed.run.evaluation import evaluate, evaluate_pretrained
    from jaxspeed.run.restore import with_last_mode

    run_named, others = take_run(workdir.value, arguments)
    command_line.nothing_left(others)
    config = config_flag.value
    if config is not None:
      effects.check(config, fields.overridden(), command="evaluate")
    with exit_on_sigterm():
      if config is not None and not (run_named or export.value):
        rows = evaluate_pretrained(with_last_mode(config), given=fields.overridden())
      else:
        folder = pathlib.Path(command_line.required("workdir", run_named))
        exported = expanded(export.value, "--export")
        if export.value:
          # Before an evaluation that may take hours.
          export_lib.check_export(folder, exported)
        rows = evaluate(folder, step=step.value, config=config)
      if as_json.value:
        for row in rows:
          output.print_json(row)
      else:
        print("\n".join(map(printable, _table(rows))))
      if export.value:
        # The checkpoint that was evaluated, even if the run has saved a newer one since.
        export_lib.export(folder, exported, step=step.value or rows[0]["step"])

  command_line.run(run, define=define, command="evaluate")


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
  """The lines of the table, and what is below it."""
  from jaxspeed.records.class_figures import class_lines, confusion_lines

  def cell(row: dict[str, Any], name: str) -> str:
    return "" if row.get(name) is None else format(row[name], _COLUMNS[name])

  yield from output.table([[*_COLUMNS], *([cell(row, name) for name in _COLUMNS] for row in rows)])
  for row in [] if output.is_quiet() else rows:
    yield from ("", *class_lines(row["worst_classes"], row["macro_top1"]))
    yield from ("", *confusion_lines(row["confusions"]))


if __name__ == "__main__":
  main()
