"""What augmentation costs in a training step: kernels and bytes of the step with each option.

    python scripts/bench_augment.py --config=configs/imagenet18.py:1 --image_size=224 \\
        --batch_size=256 --out=results/augment_h100.json
    python scripts/bench_augment.py --config=configs/cifar10.py --only=nothing,mixup \\
        --set="two at once: augment.mixup=0.2 augment.erasing=0.25"

Each set of options is one call of profile_step.py with --for: the step is compiled for a GPU that
is not there, and counted. The figures of `nothing` are the recipe's own; `more` is what a set adds
to them. What --out already holds stays there, except for sets that are counted again.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from jaxspeed.cluster.signals import exit_on_sigterm
from jaxspeed.errors import UserError
from jaxspeed.files import read_json, write_atomically

NOTHING = "nothing"
RANDAUGMENT = ("augment.randaugment_layers=2",)
MIXUP = ("augment.mixup=0.2",)
CUTMIX = ("augment.cutmix_alpha=1.0",)
ERASING = ("augment.erasing=0.25",)
JITTER = ("augment.color_jitter=(0.4,0.4,0.4,0.1)",)
SETS: dict[str, tuple[str, ...]] = {
  NOTHING: (),
  "randaugment": RANDAUGMENT,
  "mixup": MIXUP,
  "cutmix": CUTMIX,
  "erasing": ERASING,
  "color jitter": JITTER,
  "all": (*RANDAUGMENT, *MIXUP, *CUTMIX, *ERASING, *JITTER),
}

_PROFILE = pathlib.Path(__file__).with_name("profile_step.py")
_KEPT = ("kernels", "gigabytes", "milliseconds_at_bandwidth", "scatters", "temporary_gigabytes")
_COMMON = ("config", "device", "devices", "image_size", "batch_size", "precision", "versions")


def parse_set(text: str) -> tuple[str, tuple[str, ...]]:
  """The name and the overrides of "NAME: FIELD=VALUE FIELD=VALUE"."""
  name, colon, fields = text.partition(":")
  overrides = tuple(fields.split())
  if not colon or not name.strip() or not all("=" in field for field in overrides):
    raise UserError(f"--set={text!r}: write it as 'NAME: FIELD=VALUE FIELD=VALUE'.")
  return name.strip(), overrides


def chosen_sets(only: str, more: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """The sets that --only names, all if it is empty, and those of --set."""
  names = [name.strip() for name in only.split(",") if name.strip()]
  if unknown := [name for name in names if name not in SETS]:
    raise UserError(f"--only={unknown[0]}: choose from {', '.join(SETS)}.")
  return {name: SETS[name] for name in names or SETS} | dict(map(parse_set, more))


def count(arguments: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Any]:
  """What profile_step.py counts for one set.

  Raises:
    UserError: it failed; its own message is on stderr.
  """
  with exit_on_sigterm(), tempfile.TemporaryDirectory(prefix="jaxspeed-augment-") as folder:
    out = pathlib.Path(folder, "counts.json")
    command = [sys.executable, _PROFILE, f"--config={arguments.config}", f"--for={arguments.gpu}"]
    command += [f"--image_size={arguments.image_size}", f"--batch_size={arguments.batch_size}"]
    command += [f"--config.{override}" for override in overrides] + [f"--out={out}", "--top=0"]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
      raise UserError(f"profile_step.py could not count {' '.join(overrides) or 'the recipe'}.")
    return json.loads(out.read_text())


def row_of(counts: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
  """A set's row of the report."""
  augmentation = counts["classes"].get("augmentation", {"kernels": 0, "gigabytes": 0.0})
  figures = {name: counts[name] for name in _KEPT}
  return {"options": list(overrides)} | figures | {"augmentation": augmentation}


def with_differences(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
  """The rows with what each one has more than `nothing`, where that was counted."""
  if not (base := rows.get(NOTHING)):
    return rows
  differences = {
    name: {figure: row[figure] - base[figure] for figure in _KEPT} for name, row in rows.items()
  }
  return {name: row | {"more": differences[name]} for name, row in rows.items()}


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--config", default="configs/imagenet18.py:1", help="the recipe")
  parser.add_argument("--gpu", default="h100", help="h100, a100 or v100")
  parser.add_argument("--image_size", type=int, default=0, help="0: of the first phase")
  parser.add_argument("--batch_size", type=int, default=0, help="images a GPU; 0: the phase's")
  parser.add_argument("--only", default="", help=f"names with commas: {', '.join(SETS)}")
  parser.add_argument("--set", action="append", default=[], help="'NAME: FIELD=VALUE ...'")
  parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the figures")
  arguments = parser.parse_args(argv)
  try:
    what = f"scripts/bench_augment.py: {__doc__.split(chr(10))[0]}"
    report = arguments.out and read_json(arguments.out, dict[str, Any], "delete it")
    report = report or {"what": what}
    rows: dict[str, dict[str, Any]] = report.get("sets", {})
    for name, overrides in chosen_sets(arguments.only, arguments.set).items():
      counts = count(arguments, overrides)
      rows[name] = row_of(counts, overrides)
      rows = with_differences(rows)
      report |= {key: counts[key] for key in _COMMON} | {"sets": rows}
      print(
        f"{name:<16}{rows[name]['kernels']:>8.0f} kernels{rows[name]['gigabytes']:>10.3f} GB",
        flush=True,
      )
      if arguments.out:
        write_atomically(arguments.out, json.dumps(report, indent=1) + "\n")
  except UserError as error:
    print(f"bench_augment: {error}", file=sys.stderr)
    return 2
  return 0


if __name__ == "__main__":
  sys.exit(main())
