"""Published times beside the predictions of `jaxspeed.scaling`."""

import importlib
import json
import sys

import pytest
from commands import ROOT
from toy import load_recipe

from jaxspeed.scaling.hardware import DEVICES, cluster_of

if (FOLDER := str(ROOT / "scripts")) not in sys.path:
  sys.path.insert(0, FOLDER)
times = importlib.import_module("published_times")


def test_a_fit_finds_what_made_the_numbers():
  fixed, rate = 0.118, 748.0
  rows = [
    (side, batch, batch / (fixed + batch * (side / 224) ** 2 / rate))
    for side, batch in ((128, 128), (128, 256), (224, 224), (288, 128))
  ]
  assert times.fit_step(rows) == pytest.approx((fixed, rate))


def test_published_runs_stand_in_the_results_with_their_errors():
  table = times.published_table()
  assert table["runs"] == json.loads((ROOT / "results/scaling.json").read_text())["runs"]
  rows = {row["run"]: row for row in table["runs"]}
  assert len(rows) == 8 + 1 + 4
  for row in rows.values():
    columns = [row[name] for name in row if name.startswith("by_")]
    for cell in columns:
      error = 100 * (cell["predicted_s"] / row["published_s"] - 1)
      # The published seconds and the predicted ones are rounded to tenths, the error too.
      rounded = 0.05 + 100 * 0.05 / row["published_s"] * (
        1 + cell["predicted_s"] / row["published_s"]
      )
      assert cell["error_percent"] == pytest.approx(error, abs=rounded)
    off = any(abs(cell["error_percent"]) > 25 for cell in columns)
    assert off == bool(row.get("why"))
  # Without a number of their own time.
  for name in ("Fujitsu, 2,048 V100", "Alibaba, 1 machine", "Alibaba, 16 machines"):
    assert abs(rows[name]["by_data_sheets"]["error_percent"]) < 25
  # From the images/s of 8 machines; those that are off are told of.
  for name in ("fast.ai, 4 machines", "fast.ai, 8 machines"):
    assert abs(rows[name]["by_imagenet18_on_8_machines"]["error_percent"]) < 25


def test_published_epochs_and_seconds_are_those_of_the_entries():
  runs = {run.name: run for run in times.published_runs()}
  assert runs["fast.ai, 16 machines"].seconds == pytest.approx(18 * 60 + 5, abs=1)
  assert runs["Alibaba, 16 machines"].seconds == pytest.approx(157.55, abs=0.1)
  # The target falls in the first or second epoch of 288 px.
  for name, file, variant in (
    ("fast.ai, 4 machines", "imagenet18.py", "4"),
    ("fast.ai, 8 machines", "imagenet18.py", "8"),
    ("fast.ai, 16 machines", "imagenet18.py", "16"),
    ("Lambda, 8 TITAN RTX", "imagenet18_lambda.py", "8"),
  ):
    first = load_recipe(file, variant).phases.first_epoch[-1]
    assert runs[name].epochs - first in (1, 2)


def test_mlperf_runs_have_their_times_batches_and_a_rate_by_data_sheet():
  runs = {run.devices: run for run in times.mlperf_runs()}
  minutes = {n: each.seconds / 60 for n, each in runs.items()}
  assert minutes == pytest.approx({8: 13.466, 64: 2.664, 512: 0.509, 3584: 0.183})
  h100, a100 = DEVICES["h100"], DEVICES["a100"]
  ratio = h100.memory_gb_s / a100.memory_gb_s
  assert h100.images_per_s == pytest.approx(a100.images_per_s * ratio)
  # The rate beside the fixed launches; nothing else differs from an H100's cluster.
  assert all(each.cluster == cluster_of(h100, in_flight=8) for each in runs.values())
  batches = {}
  for n, each in runs.items():
    config = load_recipe(*each.recipe)
    config.update_from_flattened_dict(dict(each.changes))
    assert config.target == 0.759 and each.epochs <= config.epochs
    batches[n] = config.batch_size // n
  assert batches == {8: 400, 64: 50, 512: 64, 3584: 16}
