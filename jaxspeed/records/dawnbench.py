"""DAWNBench's two files of a run, in the format of stanford-futuredata/dawn-bench-entries.

The benchmark accepted its last entries in 2020; published times still use its format.
"""

import datetime
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspeed.files import dump_json, to_json, write_atomically


def write_dawnbench(
  folder: pathlib.Path,
  *,
  task: str,
  epochs: Sequence[Mapping[str, Any]],
  author: str,
  author_email: str,
  model: str,
  hardware: str,
  framework: str,
  cost_per_hour: int | float,
  code_url: str,
  misc: Mapping[str, Any],
  timestamp: datetime.date,
) -> tuple[pathlib.Path, pathlib.Path]:
  """Writes AUTHOR_MODEL_HARDWARE_FRAMEWORK.json and .tsv, and returns their paths.

  Args:
    folder: the folder to write to, created if needed.
    task: "CIFAR10" or "ImageNet", which decides the columns: CIFAR-10 has no top-5.
    epochs: rows with epoch, dawn_seconds, eval_top1 and, for ImageNet, eval_top5 (fractions); rows
      without accuracies, of epochs without validation, are left out.
    author: the name of the author or team.
    author_email: the author's e-mail address.
    model: the model's name, such as "ResNet-50".
    hardware: the hardware, such as "8 x NVIDIA H100 80GB HBM3".
    framework: the framework and its version, such as "JAX 0.10.2".
    cost_per_hour: US dollars for all the hardware; 0 leaves the field out.
    code_url: the address of the code; '' leaves the field out.
    misc: other facts that reproduce the run; DAWNBench's reviewers asked for optimizer, schedule
      and CUDA versions.
    timestamp: the day of the run.

  Raises:
    ValueError: no row has accuracies, and DAWNBench refuses an empty table.
  """
  rows = [row for row in epochs if row.get("eval_top1") is not None]
  if not rows:
    raise ValueError("DAWNBench's table needs at least one epoch with a validation")
  entry = {
    "version": "v1.0",
    "author": author,
    "authorEmail": author_email,
    "framework": framework,
    "codeURL": code_url,
    "model": model,
    "hardware": hardware,
    "costPerHour": cost_per_hour,
    "timestamp": timestamp.isoformat(),
    "misc": to_json(misc),
  }
  optional = ("codeURL", "costPerHour")
  entry = {key: value for key, value in entry.items() if value or key not in optional}

  folder.mkdir(parents=True, exist_ok=True)
  name = "_".join(_file_name_part(part) for part in (author, model, hardware, framework))
  json_path, tsv_path = folder / f"{name}.json", folder / f"{name}.tsv"
  write_atomically(json_path, dump_json(entry, indent=2) + "\n")
  write_atomically(tsv_path, _table(task, rows))
  return json_path, tsv_path


def _table(task: str, rows: Sequence[Mapping[str, Any]]) -> str:
  # The finest step of an accuracy is 0.01 % of 10,000 images and 0.002 % of 50,000.
  accuracies, decimals = {
    "CIFAR10": ({"top1Accuracy": "eval_top1"}, 2),
    "ImageNet": ({"top1Accuracy": "eval_top1", "top5Accuracy": "eval_top5"}, 3),
  }[task]
  lines = ["\t".join(["epoch", "hours", *accuracies])]
  for row in rows:
    percents = [f"{100 * row[key]:.{decimals}f}" for key in accuracies.values()]
    # Eight decimals of an hour are 36 microseconds.
    lines.append("\t".join([f"{row['epoch']:g}", f"{row['dawn_seconds'] / 3600:.8f}", *percents]))
  return "\n".join(lines) + "\n"


def _file_name_part(text: str) -> str:
  """`text` reduced to letters, digits, dots and dashes, as "_" separates the parts."""
  return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "unknown"
