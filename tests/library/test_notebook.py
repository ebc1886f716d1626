"""The cells of docs/own_images.ipynb, one after the other, as a notebook runs them."""

import json
import pathlib

NOTEBOOK = pathlib.Path(__file__).parents[2] / "docs" / "own_images.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  cells = json.loads(NOTEBOOK.read_text())["cells"]
  names = {"__name__": "__main__"}
  for number, cell in enumerate(cells):
    if cell["cell_type"] == "code":
      assert not cell["outputs"], "clear the outputs: they are of one machine"
      exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
  lines = capsys.readouterr().out.splitlines()
  assert [line.split(":")[0] for line in lines[:3]] == [f"epoch {n}" for n in range(1, 4)]
  assert names["run"].result["top1"] > 0.8
  assert {path.name for path in tmp_path.iterdir()} == {"runs"}
