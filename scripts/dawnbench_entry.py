"""The json and tsv of a run, in the format of stanford-futuredata/dawn-bench-entries.

    python scripts/dawnbench_entry.py runs/a --out=dawnbench

They are made of the run's result.json and metrics.jsonl. Author, e-mail and address of the code are
the config's (`records.author`, ...). The run is one on the whole CIFAR-10 or ImageNet, evaluated on
its test set. DAWNBench accepted its last entries in 2020; published times still use its format.
"""

import datetime
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from jaxspeed.config import flags as command_line
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, expanded, write_atomically
from jaxspeed.records.results import FILE, read_result
from jaxspeed.records.writer import read_metrics

# By classes, training images and evaluation images. The columns of each have the finest step of an
# accuracy: 0.01 % of 10,000 images and 0.002 % of 50,000.
_TASKS = {(10, 50_000, 10_000): "CIFAR10", (1000, 1_281_167, 50_000): "ImageNet"}
_COLUMNS = {
  "CIFAR10": ({"top1Accuracy": "eval_top1"}, 2),
  "ImageNet": ({"top1Accuracy": "eval_top1", "top5Accuracy": "eval_top5"}, 3),
}


def write_entry(folder: pathlib.Path, out: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  """Writes AUTHOR_MODEL_HARDWARE_FRAMEWORK.json and .tsv, and returns their paths.

  Args:
    folder: the folder of a finished run; the entry's day is that of its result.json.
    out: the folder to write to, created if needed.

  Raises:
    UserError: there is no result of one run, or DAWNBench has no table for it.
  """
  result = read_result(folder)
  if result is None:
    raise UserError(f"{folder / FILE} is missing: name the folder of a finished run.")
  if "n" in result:
    raise UserError(f"{folder} has several runs: name one of them, such as {folder / 'run_000'}.")
  task = task_of(result)
  entry = entry_of(result, datetime.date.fromtimestamp(os.stat(folder / FILE).st_mtime))
  if task is None:
    raise UserError(f"{folder} is no test on the whole CIFAR-10 or ImageNet.")
  rows = [row for row in read_metrics(folder) if row.get("eval_top1") is not None]
  if not rows:
    raise UserError(f"{folder / 'metrics.jsonl'} has no epoch with an evaluation: put it back.")
  # Letters, digits, dots and dashes, as "_" separates the parts.
  parts = [str(entry[name]) for name in ("author", "model", "hardware", "framework")]
  name = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", p).strip("-.") or "unknown" for p in parts)
  json_path, tsv_path = out / f"{name}.json", out / f"{name}.tsv"
  try:
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(json_path, dump_json(entry, indent=2) + "\n")
    write_atomically(tsv_path, table_of(task, rows))
  except OSError as error:
    raise UserError(f"{out} cannot be written ({error.strerror}): choose another --out.") from None
  return json_path, tsv_path


def task_of(result: Mapping[str, Any]) -> str | None:
  """DAWNBench's name of a result's data set; None for other images."""
  data = result["config"]["data"]
  if result["evaluated_on"] != "test" or data.get("synthetic"):
    return None
  return _TASKS.get((data["classes"], data["train_images"], data["eval_images"]))


def entry_of(result: Mapping[str, Any], day: datetime.date) -> dict[str, Any]:
  """The content of the json; no cost and no address leave their fields out."""
  config = result["config"]
  model, records = config["model"], config["records"]
  entry = {
    "version": "v1.0",
    "author": records["author"],
    "authorEmail": records["author_email"],
    "framework": f"JAX {result['versions']['jax']}",
    "codeURL": records["code_url"],
    "model": f"ResNet-{model['depth']}" if model["name"] == "resnet" else model["name"],
    "hardware": result["device"],
    "costPerHour": config["cost_per_hour"],
    "timestamp": day.isoformat(),
    # DAWNBench's reviewers asked for optimizer, schedule and CUDA versions.
    "misc": {"config": config, "versions": result["versions"]},
  }
  optional = ("codeURL", "costPerHour")
  return {key: value for key, value in entry.items() if value or key not in optional}


def table_of(task: str, rows: Sequence[Mapping[str, Any]]) -> str:
  """The content of the tsv: accuracies in percent, and hours without evaluation."""
  accuracies, decimals = _COLUMNS[task]
  lines = ["\t".join(["epoch", "hours", *accuracies])]
  for row in rows:
    percents = [f"{100 * row[key]:.{decimals}f}" for key in accuracies.values()]
    # Eight decimals of an hour are 36 microseconds.
    lines.append("\t".join([f"{row['epoch']:g}", f"{row['dawn_seconds'] / 3600:.8f}", *percents]))
  return "\n".join(lines) + "\n"


def main() -> None:
  """Reads the flags, writes the entry and prints its files."""
  out = flags.DEFINE_string("out", "dawnbench", "The folder to write to.")

  def run(arguments: list[str]) -> None:
    if len(arguments) != 1:
      raise UserError("name the folder of one run: python scripts/dawnbench_entry.py RUN.")
    for path in write_entry(expanded(arguments[0], "RUN"), expanded(out.value, "--out")):
      print(path)

  command_line.run(run)


if __name__ == "__main__":
  main()
