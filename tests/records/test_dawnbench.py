"""The checks of tests/test_submissions.py in stanford-futuredata/dawn-bench-entries, and more."""

import csv
import datetime
import json

import pytest

from jaxspeed.records.dawnbench import write_dawnbench

ENTRY = {
  "author": "A. Uthor",
  "author_email": "a@uthor.org",
  "model": "ResNet-50 (v1.5)",
  "hardware": "8 x NVIDIA H100 80GB HBM3",
  "framework": "JAX 0.10.2",
  "cost_per_hour": 24.48,
  "code_url": "https://example.org/jaxspeed",
  "misc": {"optimizer": "SGD", "phases": ({"px": 128},)},
  "timestamp": datetime.date(2026, 3, 4),
}

EPOCHS = [
  {"epoch": 1, "dawn_seconds": 36.0, "eval_top1": 0.5, "eval_top5": 0.75},
  {"epoch": 2, "dawn_seconds": 72.0},
  {"epoch": 3, "dawn_seconds": 108.0, "eval_top1": None, "eval_top5": None},
  # 38,006 and 46,506 of 50,000 images.
  {"epoch": 4, "dawn_seconds": 144.0001, "eval_top1": 0.76012, "eval_top5": 0.93012},
]


def read(json_path, tsv_path):
  with open(tsv_path, newline="") as file:
    return json.loads(json_path.read_text()), list(csv.DictReader(file, delimiter="\t"))


def check_submission(json_path, tsv_path, columns):
  entry, rows = read(json_path, tsv_path)
  required = {"version", "author", "authorEmail", "framework", "model", "hardware", "timestamp"}
  assert required <= set(entry)
  assert entry["version"] == "v1.0"
  datetime.datetime.strptime(entry["timestamp"], "%Y-%m-%d")
  assert tsv_path == json_path.with_suffix(".tsv") and rows
  assert sorted(rows[0]) == sorted(columns)
  return entry, rows


def test_imagenet_entry(tmp_path):
  paths = write_dawnbench(tmp_path / "dawnbench", task="ImageNet", epochs=EPOCHS, **ENTRY)
  columns = ["epoch", "hours", "top1Accuracy", "top5Accuracy"]
  entry, rows = check_submission(*paths, columns)
  assert max(float(row["top5Accuracy"]) for row in rows) >= 93.0
  assert paths[1].read_text() == (
    "epoch\thours\ttop1Accuracy\ttop5Accuracy\n"
    "1\t0.01000000\t50.000\t75.000\n"
    "4\t0.04000003\t76.012\t93.012\n"
  )
  assert entry == {
    "version": "v1.0",
    "author": "A. Uthor",
    "authorEmail": "a@uthor.org",
    "framework": "JAX 0.10.2",
    "codeURL": "https://example.org/jaxspeed",
    "model": "ResNet-50 (v1.5)",
    "hardware": "8 x NVIDIA H100 80GB HBM3",
    "costPerHour": 24.48,
    "timestamp": "2026-03-04",
    "misc": {"optimizer": "SGD", "phases": [{"px": 128}]},
  }


def test_cifar10_entry_with_a_fractional_epoch(tmp_path):
  epochs = [
    {"epoch": 9, "dawn_seconds": 3.6, "eval_top1": 0.9399, "eval_top5": 0.99},
    {"epoch": 9.9, "dawn_seconds": 7.2, "eval_top1": 0.9401, "eval_top5": 0.99},
  ]
  paths = write_dawnbench(tmp_path, task="CIFAR10", epochs=epochs, **ENTRY)
  _, rows = check_submission(*paths, ["epoch", "hours", "top1Accuracy"])
  assert max(float(row["top1Accuracy"]) for row in rows) >= 94.0
  assert paths[1].read_text() == (
    "epoch\thours\ttop1Accuracy\n9\t0.00100000\t93.99\n9.9\t0.00200000\t94.01\n"
  )


def test_optional_fields_may_be_left_out(tmp_path):
  options = ENTRY | {"cost_per_hour": 0, "code_url": "", "misc": {}}
  entry, _ = read(*write_dawnbench(tmp_path, task="CIFAR10", epochs=EPOCHS, **options))
  assert "costPerHour" not in entry and "codeURL" not in entry
  assert entry["misc"] == {}


@pytest.mark.parametrize(
  ("author", "part"),
  [
    ("A. Uthor", "A.-Uthor"),
    ("../../etc/passwd", "etc-passwd"),
    ("under_score", "under-score"),
    ("Zoë", "Zo"),
    ("", "unknown"),
  ],
)
def test_file_names_have_four_clean_parts(tmp_path, author, part):
  options = ENTRY | {"author": author}
  paths = write_dawnbench(tmp_path, task="CIFAR10", epochs=EPOCHS, **options)
  name = f"{part}_ResNet-50-v1.5_8-x-NVIDIA-H100-80GB-HBM3_JAX-0.10.2"
  assert paths == (tmp_path / f"{name}.json", tmp_path / f"{name}.tsv")
  assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_table_without_a_validation_is_refused(tmp_path):
  with pytest.raises(ValueError, match="at least one epoch with a validation"):
    write_dawnbench(tmp_path, task="CIFAR10", epochs=EPOCHS[1:3], **ENTRY)
  assert list(tmp_path.iterdir()) == []
