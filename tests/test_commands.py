"""The commands of the README; `jaxspeed COMMAND`; a mistake is one sentence and exit code 2."""

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
from commands import environment, python, run
from in_process import call, command, mistake
from PIL import Image

from jaxspeed.__main__ import commands, main

QUICKSTART = "--config=configs/quickstart.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Two epochs of the quickstart's net at width 4, by the command line."""
  folder = tmp_path_factory.mktemp("runs") / "small"
  small = ["--config.epochs=2", "--config.model.width=4"]
  with pytest.MonkeyPatch.context() as patch:  # as services of CI set it
    patch.setenv("FORCE_COLOR", "1")
    patch.setenv("COLUMNS", "20")
    done = python("-m", "jaxspeed.train", QUICKSTART, f"--workdir={folder}", *small)
  return folder, done, small


def test_train_prints_plainly_into_a_pipe(trained):
  _, done, _ = trained
  assert "\x1b" not in done.stdout and "\r" not in done.stdout
  lines = done.stdout.splitlines()
  assert lines[0].split() == ["recipe", "quickstart,", "seed", "0,", "float32"]
  assert any(re.match(r" +2 .* 100 ", line) for line in lines)
  (weights,) = [line for line in lines if line.startswith("weights ")]
  assert "an exponential moving average (decay 0.99 per step, every step" in weights
  assert ["top1", "top5"] in [line.split()[:2] for line in lines]


def test_evaluate_prints_what_training_printed(trained):
  folder, _, _ = trained
  done = python("-m", "jaxspeed.evaluate", "--step", "30", str(folder), "--json")
  assert done.stdout.count("\n") == 1, done
  result, row = json.loads((folder / "result.json").read_text()), json.loads(done.stdout)
  assert (row["top1"], row["top5"]) == (result["top1"], result["top5"])
  assert row["evaluated_weights"] == result["evaluated_weights"] == "average"
  assert (row["macro_top1"], row["ece"]) == (result["macro_top1"], result["ece"])
  worst = row["confusions"][0]
  assert result["confusion"][int(worst["label"])][int(worst["predicted"])] == worst["images"]
  by_class = {c["label"]: {"top1": c["top1"], "images": c["images"]} for c in row["worst_classes"]}
  assert by_class == result["per_class"]
  shown = command("evaluate", f"--workdir={folder}").stdout.splitlines()
  columns = "mode images loss top1 ci95 top5 macro_top1 ece seconds"
  assert shown[0].split() == columns.split()
  assert shown[1].split()[:4] == ["center", "297", f"{row['loss']:.4f}", f"{row['top1']:.2%}"]
  assert shown[3].startswith("eval.mode=center, ") and shown[4].startswith("accuracy by class, ")
  told = f"{worst['label']} -> {worst['predicted']}: {worst['images']} of {worst['of']}"
  assert shown[shown.index("the most frequent confusions, label -> prediction: images") + 1] == told
  quiet = command("evaluate", str(folder), "--quiet").stdout.splitlines()
  assert [line.split()[:-1] for line in quiet] == [line.split()[:-1] for line in shown[:2]]


def test_evaluate_says_where_the_name_of_missing_data_comes_from(trained, tmp_path):
  folder = tmp_path / "moved"
  shutil.copytree(trained[0], folder)
  config = json.loads((folder / "config.json").read_text())
  named = config | {"data": config["data"] | {"path": "photos"}}
  (folder / "config.json").write_text(json.dumps(named))
  assert mistake("evaluate", str(folder)) == (
    f"photos does not exist: {folder}/config.json names it, perhaps relative to the folder where "
    "it was trained; name the data with --config.data.path."
  )
  given = mistake("evaluate", str(folder), "--config.data.path=elsewhere")
  assert given.startswith("config.data.path: elsewhere does not exist; it names ")


def test_predict_prints_five_classes_and_goes_on_past_a_file_that_is_no_image(trained, tmp_path):
  folder, _, _ = trained
  good, bad, missing = tmp_path / "a good.png", tmp_path / "bad.png", tmp_path / "missing.png"
  Image.fromarray(np.full((8, 8), 100, np.uint8)).save(good)
  bad.write_text("no image")
  images = map(str, (bad, good, missing, good))
  done = python("-m", "jaxspeed.predict", f"--workdir={folder}", *images, code=2)
  lines = done.stdout.splitlines()
  assert len(lines) == 12 and lines[0] == lines[6] == str(good) and lines[1:6] == lines[7:]
  assert all(re.fullmatch(r" +\d+\.\d\d%  \d", line) for line in lines[1:6])
  told = done.stderr.splitlines()
  assert [line.split(" ")[1] for line in told] == [str(bad), f"{missing}:"]
  assert all(line.startswith("jaxspeed: ") for line in told)


def test_importing_the_package_imports_neither_tensorflow_nor_torch():
  code = (
    "import sys, jaxspeed, jaxspeed.run.trainer, jaxspeed.run.evaluation\n"
    "print([m for m in ('tensorflow', 'torch', 'tensorboard', 'scipy') if m in sys.modules])"
  )
  assert python("-c", code).stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.campaign
def test_the_quickstart_command(tmp_path):
  own = {"VENV": str(tmp_path / "venv"), "WORKDIR": str(tmp_path / "run")}
  own["PYTHON"] = os.environ.get("PYTHON", sys.executable)
  done = run("bash", "scripts/quickstart.sh", env=environment(**own), timeout=1800)
  result = json.loads((tmp_path / "run" / "result.json").read_text())
  assert result["top1"] >= 0.98
  assert json.loads(done.stdout.splitlines()[-1])["top1"] == result["top1"]


# One command for all


def jaxspeed(*arguments):
  """Exit code, standard output and standard error of `jaxspeed ARGUMENTS`."""
  done = call(main, "jaxspeed", *arguments)
  return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_commands(arguments):
  found = commands()
  assert {"train", "evaluate", "predict", "prepare", "plan", "scaling"} <= set(found)
  assert not {"errors", "files", "__main__", "run", "library"} & set(found)
  code, out, err = jaxspeed(*arguments)
  assert (code, err) == (0, "") and out.startswith("usage: jaxspeed COMMAND")
  for name, does in found.items():
    assert f"{name} " in out and does in out and does.endswith(".") and len(does) < 120


def test_a_command_gets_its_flags():
  code, out, err = jaxspeed("plan", "--config=quickstart", "--config.epochs=2")
  assert (code, err) == (0, "") and "quickstart: 30 steps" in out
  code, out, _ = jaxspeed("plan", "--help")
  assert code == 0 and out.startswith("Prints the plan of a config") and "--parameters" in out


def test_an_unknown_command_is_one_sentence():
  sentence = "jaxspeed: there is no command 'trian': did you mean train?\n"
  assert jaxspeed("trian") == (2, "", sentence)
  code, out, err = jaxspeed("zzz")
  assert (code, out, err.count("\n")) == (2, "", 1) and "choose one of doctor, evaluate, " in err
