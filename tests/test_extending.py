"""docs/extending.md: every change that it shows is made in a copy of the package, and works."""

import json
import pathlib
import re
import shlex
import shutil

from commands import ROOT, environment, python

PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(python|diff|bash)\n(.*?)^```$", re.M | re.S)
# The commands one after the other, in one process: JAX is imported once.
RUNNER = """
import json, sys
sys.path.insert(0, {tests!r})
from in_process import command
for arguments in json.loads(sys.argv[1]):
  done = command(*arguments)
  assert done.returncode == 0, (arguments, done)
"""


def change(root: pathlib.Path, block: str) -> None:
  """Makes one change of a diff, whose removed lines occur once, perhaps inside other lines."""
  header, *lines = block.splitlines()
  path = root / header.removeprefix("# ")
  old = "\n".join(line[1:] for line in lines if line.startswith("-"))
  new = "\n".join(line[1:] for line in lines if line.startswith("+"))
  text = path.read_text()
  assert text.count(old) == 1, (path, old)
  path.write_text(text.replace(old, new))


def test_every_change_of_the_page_works(tmp_path):
  for folder in ("jaxspeed", "configs"):
    shutil.copytree(ROOT / folder, tmp_path / folder)
  commands = []
  for kind, block in BLOCK.findall(PAGE.read_text()):
    if kind == "python":
      path = tmp_path / block.splitlines()[0].removeprefix("# ")
      assert not path.exists()
      path.write_text(block.partition("\n")[2])
    elif kind == "diff":
      change(tmp_path, block)
    else:
      program, module, name, *arguments = shlex.split(block.replace("\\\n", " "))
      assert (program, module) == ("python", "-m")
      commands.append([name.removeprefix("jaxspeed."), *arguments])
  assert len(commands) == 14
  runner = RUNNER.format(tests=str(ROOT / "tests"))
  own = environment(PYTHONPATH=str(tmp_path), JAXSPEED_COMPILE_CACHE=str(tmp_path / "cache"))
  # In the folder where the modules of --import lie.
  python("-c", runner, json.dumps(commands), cwd=tmp_path, env=own, timeout=600)
  results = {
    path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("runs/*/result.json")
  }
  changing = {"feed", "metric"}
  own = {"recipe", "model", "layer", "nnx", "optimizer", "noise", "teacher", "student"}
  own |= {"scalar", "data"}
  assert set(results) == own | changing
  assert results["model"]["config"]["model"] == {"name": "perceptron", "width": 48}
  assert results["optimizer"]["config"]["optimizer"]["name"] == "lion"
  for name, result in results.items():
    # Guessing gives a tenth, of the stripes a half.
    assert result["top1"] > (0.8 if name == "data" else 0.4), (name, result["top1"])
  last = {
    name: json.loads((tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()[-1])
    for name in results
  }
  assert last["scalar"]["weight_norm"] > 1
  # It would be a tenth lower if it counted the noisy labels.
  assert last["noise"]["train_top1"] > last["recipe"]["train_top1"] - 0.1
  assert last["noise"]["train_loss"] > last["recipe"]["train_loss"] + 0.2
  row = last["metric"]
  assert row["eval_top1"] <= row["eval_top3"] <= row["eval_top5"]
  assert "train_top3" in row
