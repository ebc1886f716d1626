"""Prints the accuracies of a run's checkpoint, as training printed them, or of published weights.

jaxspeed evaluate runs/quickstart
jaxspeed evaluate runs/imagenette --config.eval.mode=center,flip,five,rect
jaxspeed evaluate --config=imagenet18:1 --config.pretrained.path=FILE
jaxspeed evaluate runs/teacher --split=train --logits=teacher.npz

--workdir=runs/quickstart names the run too. A table has a row for each mode. Below it are the
accuracies by class, the worst first (all of up to 20 classes, ten of more), and the ten most
frequent confusions, as "cat -> dog: 57 of 1,000"; --quiet leaves both out.

--json prints a JSON object for each mode in place of these, a line each: "worst_classes" and
"confusions" have what the table has below it.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import checks, output
from jaxspeed.config import flags as command_line
from jaxspeed.config.checks import with_overrides
from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json

# The columns of the table, and how each is printed; ci95 is the interval of top1.
_COLUMNS = {"mode": "", "images": ",", "loss": ".4f"}
_COLUMNS |= {"top1": ".2%", "ci95": ""}
_COLUMNS |= dict.fromkeys(("top5", "macro_top1", "ece"), ".2%") | {"seconds": ".1f"}


def main() -> None:
  """Reads the flags and evaluates a run, or published weights with a recipe."""
  workdir, step = command_line.define_run()
  split = flags.DEFINE_enum(
    "split", "eval", ["eval", "train"], "The images to evaluate; train: without augmentation."
  )
  logits = flags.DEFINE_string(
    "logits", None, "Saves logits and labels in this .npz file, row i for image i of the split."
  )
  as_json = flags.DEFINE_bool("json", False, "Prints a JSON object a line; see above.")
  command_line.define_quiet("notes, classes and confusions to be read")
  config_flag = command_line.define_config_flag()

  def run(arguments: list[str]) -> None:
    from jaxspeed.cluster.signals import exit_on_sigterm
    from jaxspeed.run.evaluation import evaluate, evaluate_pretrained
    from jaxspeed.run.restore import load_config

    recipe, given, folder = config_flag.recipe, config_flag.overrides, None
    if recipe is not None:
      command_line.without_effect("beside --config", workdir, step)
    else:
      folder, arguments = command_line.take_run(workdir.value, arguments)
      if own := [name for name in given if name.startswith("model.")]:
        raise UserError(
          f"--config.{own[0]}: the weights in {folder} belong to the model that was trained: its "
          "fields cannot be changed."
        )
    command_line.nothing_left(arguments)
    config = _merged(load_config(folder) if folder else recipe, given)
    checks.check_effects(config, given, command="evaluate")
    file = None if logits.value is None else _output(logits.value, config)
    what: dict[str, Any] = {"split": split.value, "logits": file}
    with exit_on_sigterm():
      if folder:
        rows = evaluate(folder, step=step.value, config=config, **what)
      else:
        rows = evaluate_pretrained(config, given=given, **what)
      lines = map(dump_json, rows) if as_json.value else map(printable, _table(rows))
      print("\n".join(lines))

  command_line.run(run, command="evaluate")


def _output(name: str, config: ConfigDict) -> pathlib.Path:
  """The file of --logits; a UserError if it cannot be written, or there are several modes."""
  from jaxspeed.run.folder import check_output

  if not name.endswith(".npz"):
    raise UserError(f"--logits={name}: name a file that ends with .npz.")
  if "," in config.eval.mode:
    raise UserError(
      f"--logits={name} is for one mode, not for config.eval.mode={config.eval.mode}."
    )
  check_output(pathlib.Path(name), f"--logits={name}")
  return pathlib.Path(name)


def _merged(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
  """A config with changes, each of the modes in eval.mode checked; commas separate them."""
  from jaxspeed.run.restore import with_last_mode

  config = with_last_mode(config)
  modes = str(changes.get("eval.mode", config.eval.mode)).split(",")
  merged = [with_overrides(config, {**changes, "eval.mode": mode}) for mode in modes][0]
  merged.eval.mode = ",".join(modes)
  return with_last_mode(merged)


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
  """The lines of the table, and what is below it."""
  from jaxspeed.records.class_figures import class_lines
  from jaxspeed.records.statistics import interval_of_share

  def cell(row: dict[str, Any], name: str) -> str:
    if name == "ci95":
      return "-".join(f"{end:.1%}" for end in interval_of_share(row["top1"], row["images"]))
    return "" if row.get(name) is None else format(row[name], _COLUMNS[name])

  yield from output.table([[*_COLUMNS], *([cell(row, name) for name in _COLUMNS] for row in rows)])
  for row in [] if output.is_quiet() else rows:
    yield from ("", f"eval.mode={row['mode']}, {row['data']}")
    yield from class_lines(row)


if __name__ == "__main__":
  main()
