"""Reports: their figures, names that look like HTML, many classes, comparisons."""

import contextlib
import functools
import json
import pathlib
import re
import shutil
import time

import numpy as np
import pytest
from in_process import command, mistake
from made_runs import EVIL, Parsed, write_run
from scipy import stats

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.config import stored
from jaxspeed.files import dump_json
from jaxspeed.planning.make import make_plan
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.records.statistics import interval_of_share
from jaxspeed.report.command import read_all
from jaxspeed.report.curves import curves
from jaxspeed.report.data import Group, RunData, groups_of, read_run
from jaxspeed.report.images import images as draw_images
from jaxspeed.report.page import page
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
  _, out = one
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


def test_the_figures_of_one_run_are_on_the_page(one):
  folder, out = one
  text = "".join(Parsed(out.read_text()).text)
  run = read_run(folder)
  low, high = stats.binomtest(round(run.accuracy() * 160), 160).proportion_ci(method="wilson")
  for words in (f"{100 * run.accuracy():.2f} %", "8.00 s", "reached in epoch 3", "5.70 s"):
    assert words in text, words
  found = interval_of_share(round(run.accuracy() * 160) / 160, 160)
  assert found == pytest.approx((low, high), abs=1e-12)
  assert "16 px, batch 100" in text


def test_settings_are_compared(tmp_path):
  values = {peak: [] for peak in (0.1, 0.3)}
  for peak in values:
    for seed in range(3):
      folder = write_run(tmp_path / f"{peak}" / f"run_{seed:03}", seed=seed, peak=peak)
      values[peak].append(read_run(folder).accuracy())
    shutil.copy(folder / "config.json", folder.parent)
  assert command("report", str(tmp_path), f"--out={tmp_path / 'r.html'}").returncode == 0
  text = "".join(Parsed((tmp_path / "r.html").read_text()).text)
  p = stats.ttest_ind(values[0.3], values[0.1], equal_var=False).pvalue
  assert f"p = {p:.2g}" in text and "2 settings" in text and "schedule.peak" in text
  assert "optimizer.momentum" not in text and "over 3 seeds" in text
  assert "on the same 160 images; other images: " in text
  assert " of 3 runs)" not in text
  result = tmp_path / "0.3" / "run_000" / "result.json"
  missed = json.loads(result.read_text())
  missed["seconds"]["to_target"] = None
  result.write_text(dump_json(missed))
  assert command("report", str(tmp_path), f"--out={tmp_path / 'r.html'}").returncode == 0
  assert " (2 of 3 runs)" in "".join(Parsed((tmp_path / "r.html").read_text()).text)
  running = write_run(tmp_path / "0.3" / "run_003", seed=3, finished=False)
  rows = (running / "metrics.jsonl").read_text().splitlines(keepends=True)
  (running / "metrics.jsonl").write_text(rows[0])
  runs = [read_run(each) for each in sorted(tmp_path.glob("*/run_*"))]
  assert groups_of(runs)[0].mean == pytest.approx(np.mean(values[0.3]))
  assert [group.settings for group in groups_of(runs)] == [
    {"schedule.peak": "0.3"},
    {"schedule.peak": "0.1"},
  ]
  assert [group.name for group in groups_of(runs)] == ["peak=0.3", "peak=0.1"]


def test_a_run_counts_once_and_an_accuracy_of_zero_counts(tmp_path):
  folder = write_run(tmp_path / "a" / "run")
  (tmp_path / "a" / "link").symlink_to(folder)
  assert len(read_all([tmp_path / "a", folder])) == 1
  other = write_run(tmp_path / "b", seed=1)
  result = json.loads((other / "result.json").read_text())
  (other / "result.json").write_text(dump_json(result | {"top1": 0.0}))
  (other / "predictions.npz").unlink()
  (group,) = groups_of(read_all([folder, other]))
  assert group.finished == group.values and 0.0 in group.finished


def test_a_run_without_result_or_epochs(tmp_path):
  folder = write_run(tmp_path / "a", finished=False, epochs=2)
  assert command("report", str(folder), f"--out={tmp_path / 'r.html'}").returncode == 0
  text = "".join(Parsed((tmp_path / "r.html").read_text()).text)
  assert "still training: epoch 2" in text and "training clock so far:" in text
  (folder / "metrics.jsonl").write_text("")
  assert command("report", str(folder), f"--out={tmp_path / 'r.html'}").returncode == 0


def test_watching_ends_with_a_run_that_stopped(tmp_path):
  folder, page = write_run(tmp_path / "a", finished=False), tmp_path / "r.html"
  with contextlib.closing(FolderLock(folder)):
    assert command("report", str(folder), f"--out={page}").returncode == 0
    assert "still training: epoch 4" in "".join(Parsed(page.read_text()).text)
  assert command("report", str(folder), f"--out={page}", "--watch=5").returncode == 0
  assert "stopped without a result: epoch 4" in "".join(Parsed(page.read_text()).text)


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


def test_a_page_says_what_is_missing(tmp_path):
  folder = write_run(tmp_path / "a")
  report = functools.partial(text_of_report, folder, tmp_path / "r.html")

  assert "no checkpoint" in report() and "thumbnails" not in report()
  (folder / Thumbnails.FILE).unlink()
  assert "Images: thumbnails.npz is missing" in report()
  config = (folder / "config.json").read_text()
  changed = json.loads(config)
  changed["records"]["thumbnails"] = 0
  (folder / "config.json").write_text(dump_json(changed))
  assert "Images: config.records.thumbnails is 0." in report()
  # Nothing to wait for.
  assert command("report", str(folder), f"--out={tmp_path / 'r.html'}", "--watch=5").returncode == 0
  (folder / "config.json").write_text(config)
  (folder / "predictions.npz").unlink()
  (folder / "metrics.jsonl").unlink()
  assert "predictions.npz is missing" in report() and "no epoch has ended" in report()
  (folder / "result.json").unlink()
  assert "they need result.json, written when a run ends" in report()


@pytest.mark.parametrize("most, right", [(1, 0), (5, 3), (24, 24), (24, 200)])
def test_images_are_shown_under_their_title_whatever_their_number(most, right):
  """The number of correct images may be less than that of the images to show."""
  random = np.random.default_rng(0)
  loss = random.random(200).astype(np.float32)
  label = np.zeros(200, np.int32)
  predicted = (random.permutation(200) >= right).astype(np.int32)
  index = np.arange(200, dtype=np.int32)
  found = Predictions(40, index, label, predicted, loss, loss)
  rows = choose(found, most)
  one = np.zeros((1, 1, 1, 3), np.uint8)
  column = np.zeros(1, np.int32)
  images = np.zeros((len(rows), 1, 1, 3), np.uint8)
  thumbnails = Thumbnails(
    40, index[rows], images, one, column, column, np.zeros(1, np.float32), one
  )
  run = RunData(pathlib.Path(), {}, [], None, {}, ("a", "b"), found, thumbnails, False)
  shown = {title: pictures for title, _, pictures in draw_images(Group("a", {}, (run,), "top1"))[1]}
  highest, correct = shown["Highest loss"], shown.get("Correct, drawn at random", [])
  assert len(highest) + len(correct) == len(rows) and len(correct) >= len(rows) - most
  assert not any(each.guess for each in correct)
  assert sum(bool(each.guess) for each in highest) == np.sum(predicted[rows] != label[rows])
  if right in (0, 200):
    assert len(highest) == most


def test_a_report_of_a_thousand_classes_is_small(tmp_path):
  names = [f"class {i} {EVIL}" for i in range(1000)]
  folder = write_run(tmp_path / "a", names=names, images=50_000)
  assert command("report", str(folder), f"--out={tmp_path / 'r.html'}").returncode == 0
  assert (tmp_path / "r.html").stat().st_size < 5_000_000


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

  waits = []

  def finish(seconds):
    waits.append(seconds)
    if len(waits) == 2:
      shutil.copytree(good, running, dirs_exist_ok=True)

  monkeypatch.setattr("jaxspeed.report.command.page", draw)
  monkeypatch.setattr(time, "sleep", finish)
  out = tmp_path / "r.html"
  done = command("report", str(tmp_path / "runs"), f"--out={out}", "--watch=30")
  assert done.returncode == 0 and len(waits) >= 2
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
  assert f"{Thumbnails.FILE} cannot be used" in text_of_report(imageless, out)
  assert "metrics" in mistake("report", str(damaged), f"--out={out}")


def text_of_report(folder, out):
  """What a report of a run says is missing."""
  assert command("report", str(folder), f"--out={out}").returncode == 0
  return "".join(Parsed(out.read_text()).text).partition("What is missing")[2]


@pytest.mark.parametrize("seeds, areas", [(2, False), (3, True)])
def test_curves_show_an_interval_from_three_seeds_on(tmp_path, seeds, areas):
  for seed in range(seeds):
    write_run(tmp_path / f"run_{seed:03}", seed=seed)
  shown = curves(groups_of(read_all([tmp_path])))
  lines = [line for _, _, charts in shown.charts for chart in charts for line in chart.drawn]
  assert (any(line.low for line in lines), "Areas are" in shown.note) == (areas, areas)


def test_a_learning_rate_is_drawn_within_epochs_with_its_warm_up(tmp_path):
  folder = write_run(tmp_path / "a", finished=False)
  config = stored.load(folder / "config.json")
  plan = make_plan(config)
  steps, rates = plan.phases[0].steps_per_epoch, plan.table["learning_rate"]
  rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][:3]
  for row in rows:
    row["step"] = steps * row["epoch"]
    row["learning_rate"] = float(rates[row["step"] - 1])
  write = (folder / "metrics.jsonl").write_text
  write("".join(dump_json(row) + "\n" for row in rows))

  def drawn():
    shown = curves(groups_of([read_run(folder)]))
    return [
      chart.drawn[0]
      for *_, found in shown.charts
      for chart in found
      if chart.title == "Learning rate"
    ]

  over_epochs, over_seconds = drawn()
  assert over_epochs.y == [rates[round(x * steps) - 1] for x in over_epochs.x]
  assert len(over_epochs.x) == min(3 * steps, 240) and over_epochs.x[-1] == 3.0
  assert over_seconds.y == over_epochs.y and over_seconds.x == pytest.approx(
    [2.0 * x for x in over_epochs.x]
  )
  # Rows with other rates than the plan's, as of a schedule of one's own, are right.
  rows[-1]["learning_rate"] *= 2
  write("".join(dump_json(row) + "\n" for row in rows))
  assert len(drawn()[0].x) == 3
