"""A run that is killed at any moment goes on and ends with the same bits."""

import json
import pathlib
import random
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest
from commands import run, start

KILLS = 12
STEPS = 15 * 16


def parameters(folder: pathlib.Path) -> dict[str, bytes]:
  """Every array of the last checkpoint, by its path."""
  with ocp.StandardCheckpointer() as checkpointer:
    tree = checkpointer.restore((folder / "checkpoints" / str(STEPS)).absolute())
  found = {}

  def walk(node, path):
    for name, value in node.items():
      if isinstance(value, dict):
        walk(value, f"{path}/{name}")
      else:
        found[f"{path}/{name}"] = np.asarray(value).tobytes()

  walk(tree["state"], "")
  return found


def saved_steps(folder: pathlib.Path) -> set[str]:
  checkpoints = folder / "checkpoints"
  return {p.name for p in checkpoints.iterdir()} if checkpoints.is_dir() else set()


@pytest.mark.slow
def test_twelve_kills_change_no_bit(tmp_path):
  arguments = [
    "--config=configs/quickstart.py",
    "--config.epochs=16",
    "--config.model.width=4",
    "--config.checkpoint.every_seconds=0.05",
    f"--config.compile_cache={tmp_path / 'programs'}",
  ]
  undisturbed = run("train", *arguments, f"--workdir={tmp_path / 'a'}")
  assert undisturbed.returncode == 0, undisturbed.stderr

  rng = random.Random(0)
  for kill in range(KILLS):
    process = start("train", *arguments, f"--workdir={tmp_path / 'b'}")
    before = saved_steps(tmp_path / "b")
    if kill == 0:  # before anything is saved
      time.sleep(1.0)
    else:
      # From the next checkpoint on: inside a step, a save, a validation, as chance has it.
      while saved_steps(tmp_path / "b") == before and process.poll() is None:
        time.sleep(0.01)
      time.sleep(rng.uniform(0.0, 0.6))
    assert process.poll() is None, f"kill {kill}: the run had ended before: {process.stderr.read()}"
    process.kill()
    process.communicate()
  resumed = run("train", *arguments, f"--workdir={tmp_path / 'b'}")
  assert resumed.returncode == 0, resumed.stderr

  a, b = parameters(tmp_path / "a"), parameters(tmp_path / "b")
  assert len(a) > 20 and a == b
  rows = [
    [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    for name in ("a", "b")
  ]
  assert [r["step"] for r in rows[1]] == list(range(15, STEPS + 1, 15))
  for name in ("train_loss", "train_top1", "eval_loss", "eval_top1"):
    assert [r[name] for r in rows[0]] == [r[name] for r in rows[1]]
  results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("a", "b")]
  assert results[0]["top1"] == results[1]["top1"]
  # The seconds of the killed processes count up to their last checkpoint.
  assert results[1]["seconds"]["process"] > results[0]["seconds"]["process"]
