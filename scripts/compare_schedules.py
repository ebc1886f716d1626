"""The tables of all shipped recipes and sweeps beside those of an earlier commit.

    git worktree add ../before COMMIT
    python scripts/compare_schedules.py ../before --out=results/schedules.json

Each checkout makes the plans of its own recipes, in a process of its own: every variant with the
number of images that it expects, and every different job of the sweeps.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from jaxspeed.config.recipe import import_file, load_recipe, shipped
from jaxspeed.files import dump_json, write_atomically
from jaxspeed.launch.check import check_jobs
from jaxspeed.launch.sweep import load_sweep
from jaxspeed.planning.make import make_plan
from jaxspeed.records import provenance

# Named steps of a column whose float32 values moved.
_NAMED = 20


def configs() -> dict[str, Any]:
  """The config of every variant of every shipped recipe, and of the jobs of every shipped sweep."""
  found = {}
  for name, path in shipped().items():
    module = import_file(str(path), f"{path} is gone.")
    variants = getattr(module, "VARIANTS", getattr(module, "RUNGS", (None,)))
    for variant in variants:
      found[f"{name}:{variant}" if variant else name] = load_recipe(name, variant)
  for path in sorted((next(iter(shipped().values())).parent / "sweeps").glob("*.py")):
    for job, config in check_jobs(load_sweep(str(path))._complete(), data=False).items():
      found[f"sweeps/{path.stem}/{job}"] = config
  return found


def dump(file: str) -> None:
  """Writes the tables of this checkout to a file of arrays."""
  columns, seen = {}, set()
  for name, config in configs().items():
    # Seeds of a sweep share a plan.
    key = repr([config.schedule, config.optimizer, config.average, config.batch_size, config.name])
    if "/" not in name or key not in seen:
      for column, values in make_plan(config).table.items():
        columns[f"{name} {column}"] = values
    seen.add(key)
  np.savez(file, **columns)


def tables_of(checkout: pathlib.Path) -> dict[str, np.ndarray]:
  """The tables of a checkout, by recipe and column."""
  with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "tables.npz")
    environment = os.environ | {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, os.path.abspath(__file__), f"--dump={file}"]
    subprocess.run(command, env=environment, cwd=checkout, check=True)
    with np.load(file) as arrays:
      return dict(arrays)


def compare(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
  """The largest difference as a share of the column's peak, and the float32 values that moved."""
  peak = np.abs(before).max()
  row: dict[str, Any] = {"difference": float(np.abs(after - before).max() / peak)}
  old, new = before.astype(np.float32), after.astype(np.float32)
  moved = np.flatnonzero(old != new)
  if len(moved):
    ulps = np.abs(new[moved].astype(np.float64) - old[moved]) / np.spacing(old[moved])
    row |= {"float32_moved": len(moved), "most_ulps": float(ulps.max())}
    row["steps"] = moved[:_NAMED].tolist()
  return row


def main() -> None:
  """Compares, prints the differences and writes the file."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("before", nargs="?", type=pathlib.Path, help="a checkout")
  parser.add_argument("--out")
  parser.add_argument("--dump", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.dump:
    dump(args.dump)
    return
  if args.before is None or not args.before.is_dir():
    parser.error(f"before={args.before}: name the folder of a checkout of the earlier commit")
  here = pathlib.Path(__file__).parents[1]
  before, after = tables_of(args.before.resolve()), tables_of(here)
  if before.keys() != after.keys():
    sys.exit(f"the checkouts differ in {sorted(before.keys() ^ after.keys())}")
  rows: dict[str, dict[str, Any]] = {}
  for key in before:
    name, column = key.rsplit(" ", 1)
    rows.setdefault(name, {})[column] = compare(before[key], after[key])
  every = [row for columns in rows.values() for row in columns.values()]
  result = {
    "what": "scripts/compare_schedules.py: the columns of each shipped recipe's table beside those "
    "of the commit `before`. difference: the largest, as a share of the column's largest value; "
    "float32_moved: how many values differ in float32, most_ulps: by how much; steps: the first of "
    "them, from 0. Sweeps have one row for each different plan.",
    "before": subprocess.run(
      ["git", "rev-parse", "HEAD"], cwd=args.before, check=True, capture_output=True, text=True
    ).stdout.strip(),
    "versions": provenance.versions(),
    "largest_difference": max(row["difference"] for row in every),
    "columns": len(every),
    "float32_values": sum(len(column) for column in after.values()),
    "float32_moved": sum(row.get("float32_moved", 0) for row in every),
    "recipes": rows,
  }
  text = dump_json(result, indent=1)
  if args.out:
    write_atomically(pathlib.Path(args.out), text + "\n")
  for name, columns in rows.items():
    for column, row in columns.items():
      print(f"{name} {column}: {row}")
  print({key: result[key] for key in ("largest_difference", "float32_values", "float32_moved")})


if __name__ == "__main__":
  main()
