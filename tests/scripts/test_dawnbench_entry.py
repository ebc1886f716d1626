"""DAWNBench's json and tsv of a run's files: the bytes that the package itself once wrote."""

import datetime
import json
import os

import pytest
from dawnbench_entry import write_entry
from made_rows import one_result

from jaxspeed.errors import UserError

CONFIG = {
  "name": "imagenet18",
  "cost_per_hour": 24.48,
  "limit": None,
  "data": {"classes": 1000, "train_images": 1281167, "eval_images": 50000, "synthetic": False},
  "model": {"name": "resnet", "depth": 50},
  "records": {"author": "Zoë", "author_email": "z@o.org", "code_url": "https://example.org/c"},
}
RESULT = one_result(0.76012, top5=0.93012, config=CONFIG, device="8 x NVIDIA H100 80GB HBM3")
# 38,006 and 46,506 of 50,000 images.
ROWS = [
  {"epoch": 1, "dawn_seconds": 36.0, "eval_top1": 0.5, "eval_top5": 0.75},
  {"epoch": 2, "dawn_seconds": 72.0},
  {"epoch": 3, "dawn_seconds": 108.0, "eval_top1": None, "eval_top5": None},
  {"epoch": 3.5, "dawn_seconds": 144.0001, "eval_top1": 0.76012, "eval_top5": 0.93012},
]


@pytest.fixture
def run(tmp_path):
  """Writes the files of a run of 2026-03-04; returns its folder."""

  def run(rows=ROWS, config=None, **fields):
    folder = tmp_path / "run"
    folder.mkdir()
    result = RESULT | {"config": CONFIG | (config or {})} | fields
    (folder / "result.json").write_text(json.dumps(result))
    rows = [{"step": i + 1, "examples": i + 1, "world": 1} | row for i, row in enumerate(rows)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    day = datetime.datetime(2026, 3, 4, 12).timestamp()
    os.utime(folder / "result.json", (day, day))
    return folder

  return run


def test_the_entry_of_imagenet(run, tmp_path, script):
  done = script("dawnbench_entry", str(run()), f"--out={tmp_path / 'out'}")
  path = tmp_path / "out/Zo_ResNet-50_8-x-NVIDIA-H100-80GB-HBM3_JAX-0.10.2.json"
  assert done.stdout.split() == [str(path), str(path.with_suffix(".tsv"))]
  expected = {
    "version": "v1.0",
    "author": "Zoë",
    "authorEmail": "z@o.org",
    "framework": "JAX 0.10.2",
    "codeURL": "https://example.org/c",
    "model": "ResNet-50",
    "hardware": "8 x NVIDIA H100 80GB HBM3",
    "costPerHour": 24.48,
    "timestamp": "2026-03-04",
    "misc": {"config": CONFIG, "versions": RESULT["versions"]},
  }
  assert path.read_text() == json.dumps(expected, indent=2) + "\n"
  assert path.with_suffix(".tsv").read_text() == (
    "epoch\thours\ttop1Accuracy\ttop5Accuracy\n"
    "1\t0.01000000\t50.000\t75.000\n"
    "3.5\t0.04000003\t76.012\t93.012\n"
  )


def test_cifar10_has_no_top5_and_optional_fields_may_be_left_out(run, tmp_path):
  config = {"cost_per_hour": 0, "model": {"name": "resnet9"}}
  config["data"] = {"classes": 10, "train_images": 50_000, "eval_images": 10_000}
  config["records"] = {"author": "../../etc/under_score", "author_email": "", "code_url": ""}
  json_path, tsv_path = write_entry(run(config=config), tmp_path)
  assert json_path.name.startswith("etc-under-score_resnet9_8-x-")
  assert not {"costPerHour", "codeURL"} & json.loads(json_path.read_text()).keys()
  assert tsv_path.read_text() == (
    "epoch\thours\ttop1Accuracy\n1\t0.01000000\t50.00\n3.5\t0.04000003\t76.01\n"
  )


DATA = CONFIG["data"]


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"evaluated_on": "held-out"}, "is no test on the whole"),
    ({"config": {"data": DATA | {"synthetic": True}}}, "is no test on the whole"),
    ({"config": {"data": DATA | {"train_images": 1_281_166}}}, "is no test on the whole"),
    ({"rows": ROWS[1:3]}, "metrics.jsonl has no epoch with an evaluation"),
    ({"n": 2}, "several runs: name one of them"),
  ],
)
def test_a_run_without_a_table_is_refused(fields, words, run, tmp_path):
  with pytest.raises(UserError, match=words):
    write_entry(run(**fields), tmp_path / "out")
  with pytest.raises(UserError, match="result.json is missing"):
    write_entry(tmp_path, tmp_path / "out")
  assert not (tmp_path / "out").exists()
