"""Reports: their figures, names that look like HTML, what they refuse and leave out."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import time
from unittest import mock

import numpy as np
import pytest
from in_process import command, mistake
from made_rows import epoch_row
from made_runs import EVIL, NOW, Parsed, change, groups_in, shown, without_images, write_run
from scipy import stats

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json
from jaxspeed.planning.make import make_plan
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.records.statistics import interval_of_share
from jaxspeed.report.curves import curves
from jaxspeed.report.data import Group, RunData, find_runs, read_run
from jaxspeed.report.images import images as draw_images
from jaxspeed.report.page import page
from jaxspeed.run.predict_csv import check_csv
from jaxspeed.run.thumbnails import choose


@pytest.fixture(scope="module")
def one(tmp_path_factory):
  """A run's folder, and its report."""
  folder = write_run(tmp_path_factory.mktemp("report") / EVIL.replace("/", "|"))
  out = folder.parent / "one.html"
  done = command("report", str(folder), f"--out={out}")
  assert done.returncode == 0 and str(out) in done.stdout
  return folder, out


def test_names_are_text_and_nothing_comes_from_a_network(one):
  folder, out = one
  text = out.read_text()
  page = Parsed(text)
  assert len(page.of("script")) == 1
  assert EVIL in "".join(page.text) and "two\\nlines" in text and "größe 猫" in text
  assert "\\xff" in text and "line\\u2028end" in text and "turned\\u202eround" in text
  assert not set(text) & {"\u2028", "\u202e"} and "שלום" in text
  for _, attributes in page.elements:
    assert not set(attributes) & {"href", "srcset", "action"}
    assert not any(name.startswith("on") for name in attributes)
    assert attributes.get("src", "data:image/").startswith("data:image/")
  outside = re.findall(r"(?:https?:)?//[a-z][^\s'\"<]*", re.sub('data:image[^"]*', "", text))
  assert set(outside) <= {"http://www.w3.org/2000/svg"}
  assert len(text) < 2_000_000
  # Every figure has a text alternative.
  assert len(page.of("svg")) > 5 and len(page.of("img")) > 40
  assert all(each.get("role") == "img" and each["aria-label"] for each in page.of("svg"))
  assert all(each["alt"] for each in page.of("img"))
  # Its figures.
  accuracy, text = read_run(folder).accuracy(), "".join(page.text)
  for words in ("8.00 s", "reached in epoch 3", "5.70 s", "16 px, batch 100"):
    assert words in text, words
  assert f"{100 * accuracy:.2f} %" in text
  right = round(accuracy * 160)
  interval = stats.binomtest(right, 160).proportion_ci(method="wilson")
  assert interval_of_share(right / 160, 160) == pytest.approx(tuple(interval), abs=1e-12)


def test_watching_ends_with_the_run_and_prints_what_changed(tmp_path, monkeypatch):
  folder, out = write_run(tmp_path / "a", finished=False), tmp_path / "r.html"
  done = write_run(tmp_path / "done")
  # A run leaves its images some seconds after its result.
  left, pages = iter([[], ["result.json", "predictions.npz"], [Thumbnails.FILE]]), []

  def finish(seconds):
    pages.append(out.read_text())
    assert seconds == 5.0
    for name in next(left):
      shutil.copy(done / name, folder)

  monkeypatch.setattr(time, "sleep", finish)
  watched = command("report", str(folder), f"--out={out}", "--watch=5")
  assert len(pages) == 3 and all('http-equiv="refresh" content="5"' in each for each in pages)
  assert len(watched.stdout.splitlines()) == len(set(watched.stdout.splitlines())) == 3
  assert "refresh" not in out.read_text().split("<style>")[0] and "Highest loss" in out.read_text()


def missing(folder):
  """What a report of a run says is missing."""
  return shown(folder).partition("What is missing")[2]


def test_a_page_says_what_is_missing_and_watching_does_not_wait_for_it(tmp_path):
  folder, out = write_run(tmp_path / "b", finished=False), tmp_path / "r.html"
  with contextlib.closing(FolderLock(folder)):
    text = shown(folder)
    assert "still training: epoch 4" in text and "training clock so far:" in text
  assert command("report", str(folder), f"--out={out}", "--watch=5").returncode == 0
  assert "stopped without a result: epoch 4" in shown(folder)
  folder = write_run(tmp_path / "a")
  assert "no checkpoint" in missing(folder) and "thumbnails" not in missing(folder)
  (folder / Thumbnails.FILE).unlink()
  assert "Images: thumbnails.npz is missing" in missing(folder)
  change(folder / "config.json", records={"thumbnails": 0})
  assert "Images: config.records.thumbnails is 0." in missing(folder)
  # Nothing to wait for.
  assert command("report", str(folder), f"--out={out}", "--watch=5").returncode == 0
  change(folder / "config.json", records={"thumbnails": 24})
  (folder / "predictions.npz").unlink()
  (folder / "metrics.jsonl").unlink()
  assert "predictions.npz is missing" in missing(folder)
  assert "no epoch has ended" in missing(folder)
  (folder / "result.json").unlink()
  assert "they need result.json, written when a run ends" in missing(folder)


@pytest.mark.parametrize("most, right", [(1, 0), (5, 3), (24, 200)])
def test_images_are_shown_under_their_title_whatever_their_number(most, right):
  """The number of correct images may be less than that of the images to show."""
  random, index = np.random.default_rng(0), np.arange(200, dtype=np.int32)
  loss = random.random(200).astype(np.float32)
  predicted = (random.permutation(200) >= right).astype(np.int32)
  found = Predictions(40, index, np.zeros(200, np.int32), predicted, loss, loss)
  rows = choose(found, most)
  images, column = np.zeros((len(rows), 1, 1, 3), np.uint8), np.zeros(1, np.int32)
  share = np.zeros(1, np.float32)
  left = Thumbnails(40, index[rows], images, images[:1], column, column, share, images[:1])
  run = RunData(pathlib.Path(), {}, [], None, {}, ("a", "b"), found, left, False)
  titled = {title: each for title, _, each in draw_images(Group("a", {}, (run,), "top1"))[1]}
  highest, correct = titled["Highest loss"], titled.get("Correct, drawn at random", [])
  assert len(highest) + len(correct) == len(rows) and len(correct) >= len(rows) - most
  assert not any(each.guess for each in correct)
  assert sum(bool(each.guess) for each in highest) == predicted[rows].sum()


def test_one_odd_run_does_not_stop_the_report_of_the_others(tmp_path, monkeypatch):
  good, damaged, rowless, imageless, undrawn = (
    write_run(tmp_path / "runs" / name, seed=seed) for seed, name in enumerate("abcde")
  )
  (damaged / "metrics.jsonl").write_text("[]\n")
  (rowless / "metrics.jsonl").unlink()
  (imageless / Thumbnails.FILE).write_bytes(b"PK")
  running = write_run(tmp_path / "runs" / "f", seed=5, finished=False)

  def draw(groups, **options):
    if any(run.folder == undrawn for group in groups for run in group.runs):
      raise KeyError("odd")
    return page(groups, **options)

  def finish(_):
    shutil.copytree(good, running, dirs_exist_ok=True)

  monkeypatch.setattr("jaxspeed.report.command.page", draw)
  monkeypatch.setattr(time, "sleep", finish)
  out = tmp_path / "r.html"
  done = command("report", str(tmp_path / "runs"), f"--out={out}", "--watch=30")
  assert done.returncode == 0
  notes = done.stderr.splitlines()
  for words in (
    f"note: a run is left out: {damaged}/metrics.jsonl, line 1",
    f"note: {rowless}/metrics.jsonl is missing",
    f"note: {imageless}/{Thumbnails.FILE} cannot be used",
    f"note: a run is left out: {undrawn} cannot be shown (KeyError: 'odd').",
  ):
    assert sum(words in line for line in notes) == 1, (words, notes)
  assert len(notes) == 4
  monkeypatch.undo()
  assert f"{Thumbnails.FILE} cannot be used" in missing(imageless)
  assert "metrics" in mistake("report", str(damaged), f"--out={out}")


def test_a_learning_rate_is_drawn_within_epochs_with_its_warm_up(tmp_path):
  folder = write_run(tmp_path / "a", finished=False)
  plan = make_plan(stored.load(folder / "config.json"))
  steps, rates = plan.phases[0].steps_per_epoch, plan.table["learning_rate"]

  def drawn(factor):
    rows = [epoch_row(n, step=steps * n, train_seconds=2.0 * n) for n in (1, 2, 3)]
    rows = [row | {"learning_rate": factor * rates[row["step"] - 1]} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(dump_json(row) + "\n" for row in rows))
    charts = [chart for *_, found in curves(groups_in(folder)).charts for chart in found]
    return [chart.drawn[0] for chart in charts if chart.title == "Learning rate"]

  over_epochs, over_seconds = drawn(1.0)
  assert over_epochs.y == [rates[round(x * steps) - 1] for x in over_epochs.x] == over_seconds.y
  assert len(over_epochs.x) == min(3 * steps, 240) and over_epochs.x[-1] == 3.0
  assert over_seconds.x == pytest.approx([2.0 * x for x in over_epochs.x])
  # Rows with other rates than the plan's, as of a schedule of one's own, are right.
  assert len(drawn(2.0)[0].x) == 3


def test_a_report_of_a_thousand_classes_is_small(tmp_path):
  folder = write_run(tmp_path / "a", names=[f"{i} {EVIL}" for i in range(1000)], images=50_000)
  assert len(page(groups_in(folder), now=NOW)) < 5_000_000


@pytest.mark.parametrize(
  "place, words",
  [
    ("run/result.json", "is, or lies in, result.json of the run in "),
    ("run/owner.json", "is, or lies in, owner.json of the run in "),
    ("run/checkpoints", "is a folder: name a file in it."),
    ("run/checkpoints/30/manifest.json", "is, or lies in, checkpoints of the run in "),
    ("link/x.html", "is, or lies in, tensorboard of the run in "),
    (256 * "a", "cannot be written (File name too long): name one that you can write"),
    ("no/r.html", "cannot be written (No such file or directory)"),
  ],
)
def test_no_command_replaces_what_is_a_runs(tmp_path, place, words):
  run = without_images(tmp_path / "run")
  (tmp_path / "link").symlink_to(run / "tensorboard")
  (run / "tensorboard").mkdir()
  inside = run / "checkpoints" / "30" / "manifest.json"
  inside.parent.mkdir(parents=True)
  inside.write_text("{}")
  path = tmp_path / place
  assert mistake("report", str(run), f"--out={path}").startswith(f"{path} {words}")
  export = ("export", str(run), "--format=stablehlo")
  assert mistake(*export, f"--out={path}").startswith(f"{path} {words}")
  with pytest.raises(UserError) as error:
    check_csv(str(path), [])
  assert str(error.value).startswith(f"--csv={path} {words}")
  # The program's metadata lie in FILE.json.
  for name, why in (("run/result", "is, or lies in"), (251 * "a", "cannot be written (File name")):
    beside = tmp_path / name
    assert mistake(*export, f"--out={beside}").startswith(f"{beside}.json {why}")
  assert command("report", str(run), f"--out={run / 'report.html'}").returncode == 0
  assert inside.read_text() == "{}" and not os.listdir(run / "tensorboard")


def test_a_folder_without_runs_has_no_report(tmp_path):
  assert "holds no run" in mistake("report", str(tmp_path), f"--out={tmp_path / 'r.html'}")
  assert not (tmp_path / "r.html").exists()


def test_what_is_published_is_shown_where_there_is_something(tmp_path):
  folder = without_images(tmp_path / "a", result={"versions": {"jax": None, "numpy": "2"}})
  text = shown(folder)
  assert "Published" not in text and "jax None" not in text and "numpy 2" in text
  change(folder / "config.json", name="cifar10")
  words = "train --config.seed=3 --config.phases.first_epoch='(0, 2)' --config.records.thumbnails=0"
  change(folder / "result.json", command=words)
  assert "this run changed phases.first_epoch=(0, 2)" in shown(folder)
  change(folder / "result.json", command="fit('it\\'s')")
  text = shown(folder)
  assert "Published" in text and "94.02 % top-1" in text and "recipe cifar10" in text
  assert "this run changed" not in text


def test_bars_and_their_means_say_of_how_many_runs_they_are(tmp_path):
  run = read_run(write_run(tmp_path / "a"))
  clock = dict(load=2.0, train=6.0, process=10.0)
  clocks = [*13 * [clock], clock | dict(load=16.0, process=24.0), {}]
  runs = [dataclasses.replace(run, result=None, predictions=None, clock=own) for own in clocks]
  text = shown(groups=[Group("a", {}, runs, "top1")]).partition("Where the time went")[2]
  assert text.startswith(": the first 12 of 14 runs") and "mean of 14 of 15 runs" in text
  text = text.partition("What is missing")[0]
  assert "3.00 s" in text and text.count("seed 0") == 12


def test_what_cannot_be_read_says_what_to_do(tmp_path, monkeypatch):
  folder = without_images(tmp_path / "a")
  change(folder / "config.json", data={"classes": 10_000_000})
  with monkeypatch.context() as patch:
    patch.setattr("jaxspeed.report.data.map", pytest.fail, raising=False)  # no 10 million numbers
    with pytest.raises(UserError, match="the names of the run's 10000000 classes: restore the"):
      read_run(folder)
  refused = mock.Mock(side_effect=PermissionError(13, "Permission denied", "a"))
  monkeypatch.setattr("os.scandir", refused)
  with pytest.raises(UserError, match=r"\(Permission denied\): make it readable, or name other"):
    find_runs(tmp_path)
