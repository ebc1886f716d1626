"""Several runs in one report: what tells settings apart, and what may not be compared."""

import contextlib
import json
import re
import shutil

import numpy as np
import pytest
from made_runs import change, groups_in, shown, without_images, write_run
from scipy import stats

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.files import dump_json
from jaxspeed.report.compare import image_sets
from jaxspeed.report.curves import curves
from jaxspeed.report.data import read_run


def test_settings_are_compared(tmp_path):
  values = {peak: [] for peak in (0.1, 0.3)}
  for peak in values:
    for seed in range(3):
      folder = write_run(tmp_path / f"{peak}" / f"run_{seed:03}", images=48, seed=seed, peak=peak)
      values[peak].append(read_run(folder).accuracy())
    shutil.copy(folder / "config.json", folder.parent)
  text = shown(tmp_path)
  p = stats.ttest_ind(values[0.3], values[0.1], equal_var=False).pvalue
  for words in (f"p = {p:.2g}", "2 settings", "over 3 seeds", "on the same 48 images; other imag"):
    assert words in text, words
  assert "schedule.peak" in text and "optimizer.momentum" not in text and " of 3 runs)" not in text
  # Areas from three seeds on.
  for folders, areas in ((["run_000", "run_001"], False), ([""], True)):
    found = curves(groups_in(*(tmp_path / "0.3" / name for name in folders)))
    lines = [line for _, _, charts in found.charts for chart in charts for line in chart.drawn]
    assert (any(line.low for line in lines), "Areas are" in found.note) == (areas, areas)
  change(tmp_path / "0.3" / "run_000" / "result.json", seconds={"to_target": None})
  assert " (2 of 3 runs)" in shown(tmp_path)
  # A run that trains does not count in the mean.
  running = write_run(tmp_path / "0.3" / "run_003", seed=3, finished=False)
  rows = (running / "metrics.jsonl").read_text().splitlines(keepends=True)
  (running / "metrics.jsonl").write_text(rows[0])
  groups = groups_in(tmp_path)
  assert groups[0].mean == pytest.approx(np.mean(values[0.3]))
  assert [group.settings["schedule.peak"] for group in groups] == ["0.3", "0.1"]
  assert [group.name for group in groups] == ["peak=0.3", "peak=0.1"]


def test_groups_with_the_same_first_fields_are_told_apart_by_their_folders(tmp_path):
  """A name has four fields, in the order of the alphabet: two of the three runs share them."""
  for place, folder in enumerate(("x/a", "y/a", "y/b")):
    last = int(place == 2)
    config = dict(augment={"cutout": last, "pad": last}, average={"decay": 0.5 + last / 4})
    config |= dict(batch_size=100 + last, patience=place)
    without_images(tmp_path / folder, seed=place, config=config)
  groups = groups_in(tmp_path)
  assert {group.folder for group in groups} == {"x/a", "y/a", "y/b"}
  assert len({group.name for group in groups}) == 3
  assert all(group.name.endswith(f" ({group.folder})") for group in groups)
  text = shown(groups=groups)
  assert all(text.count(group.name) > 2 for group in groups) and "folder" in text
  assert [group.folder for group in groups_in(tmp_path / "x", tmp_path / "y" / "b")] == ["", ""]


def test_accuracies_on_other_images_are_not_compared(tmp_path):
  """Three seeds of each of two settings: p needs two runs; then one test set is another one."""
  folders = [
    write_run(tmp_path / f"{peak}" / f"{seed}", images=48, peak=peak, seed=seed)
    for peak in (0.1, 0.3)
    for seed in range(3)
  ]

  def arrays_of(folder):
    with np.load(folder / "predictions.npz") as file:
      return dict(file)

  label = arrays_of(folders[0])["label"]
  for folder in folders:
    arrays = arrays_of(folder)
    right = arrays["predicted"] == arrays["label"]
    predicted = np.where(right, label, (label + 1) % 8).astype(np.int32)
    np.savez(folder / "predictions.npz", **arrays | dict(label=label, predicted=predicted))
    change(folder / "result.json", top1=float(right.mean()))
  text = shown(tmp_path)
  assert "The best: " in text and "Welch’s two-sided t-test of equal means)" in text
  assert "Not all were evaluated" not in text
  for folder in folders[3:]:
    arrays = arrays_of(folder)
    names = np.frombuffer(arrays["names"].tobytes().replace(b"val/", b"new/"), np.uint8)
    np.savez(folder / "predictions.npz", **arrays | {"names": names})
    change(folder / "config.json", data={"path": "elsewhere"})
  groups = groups_in(tmp_path)
  text = shown(groups=groups)
  words = "Not all were evaluated on the same images, so these accuracies cannot be compared. "
  sets = (
    f"{groups[0].name}: 48 test images of elsewhere, 8 classes; {groups[1].name}: 48 test images"
  )
  assert words + sets in text and "The best: " not in text
  assert "t-test of equal means)" not in text and "points above" not in text
  # Another number of images, or of classes, is another set; what is known of a run that has not
  # ended does not differ.
  assert image_sets(groups) == [0, 1]
  other = write_run(tmp_path / "other", images=64, peak=0.1, names=tuple("vwxyz"))
  assert sorted(image_sets(groups_in(tmp_path))) == [0, 1, 2]
  assert "64 test images of digits, 5 classes" in shown(tmp_path)
  shutil.rmtree(other)
  (folders[3] / "result.json").unlink()
  assert image_sets(groups_in(folders[0], folders[3])) == [0, 0]


def test_settings_are_compared_by_one_metric(tmp_path):
  for metric, top1 in (("top1", 0.25), ("top5", 0.5)):
    figures = dict(top1=top1, top5=0.75)
    without_images(tmp_path / metric, config={"target_metric": metric}, result=figures)
  groups = groups_in(tmp_path / "top1", tmp_path / "top5")
  assert [group.mean for group in groups] == [0.5, 0.25]
  text = shown(groups=groups)
  assert "compared by top-1 accuracy, the target_metric of the first run named" in text
  assert "25.00 points" in text and "target 50.00 % top-5" in text
  assert [group.mean for group in groups_in(tmp_path / "top5", tmp_path / "top1")] == [0.75, 0.75]


def test_a_run_and_a_seed_count_once_and_the_page_says_so(tmp_path):
  first, again = without_images(tmp_path / "a"), without_images(tmp_path / "b")
  (tmp_path / "link").symlink_to(first)
  (again / "result.json").unlink()
  other = without_images(tmp_path / "c", seed=1, result={"top1": 0.0})
  (group,) = groups_in(tmp_path)
  assert {run.folder.resolve() for run in group.runs} == {first, other}
  assert [run.folder for run in group.repeated] == [again]
  # An accuracy of zero counts, and an interval ends there.
  assert len(group.values) == len(group.finished) == 2 and 0.0 in group.values
  text = shown(groups=[group])
  assert "over 2 seeds: 0.00 % to" in text and f"left out: {again}." in text
  assert "left out" not in shown(first) and "over 2 seeds" not in shown(first, again)


def test_means_say_over_how_many_runs_and_settings_what_they_are_of(tmp_path):
  folders = []
  for seed in range(3):
    compiled = {"wall": 3.0 if seed < 2 else None, "cold": None if seed else 60.0, "cached": None}
    result = dict(seconds={"dawn": 100.0 * seed, "compile": compiled})
    place, config = tmp_path / str(seed), {"cost_per_hour": 36.0}
    folders.append(without_images(place, seed=seed, config=config, result=result))
  text = shown(tmp_path)
  assert "waited 3.00 s (2 of 3 runs), 60.0 s (1 of 3 runs) summed over threads" in text
  assert "whole run, from its start: 20.0 s" in text
  assert "cost a run: $1, $0.057 to the target" in text
  words = "at least|at most|target"
  assert re.search(words, text.partition("Curves")[0])
  # Without a target, none is in the report.
  for folder in folders:
    change(folder / "config.json", target=0.0)
    change(folder / "result.json", seconds={"to_target": None})
  assert not re.search(words, shown(tmp_path).partition("Curves")[0])
  # Other data or classes are other settings.
  change(folders[1] / "config.json", data={"path": "elsewhere"})
  names = json.loads((folders[2] / "classes.json").read_text())
  (folders[2] / "classes.json").write_text(dump_json(names[::-1]))
  groups = groups_in(tmp_path)
  assert len(groups) == 3
  assert all({*group.settings} == {"data.path", "class names"} for group in groups)
  # One that still runs, and one that stopped.
  for folder in folders[:2]:
    (folder / "result.json").unlink()
  FolderLock(folders[1]).close()
  with contextlib.closing(FolderLock(folders[0])):
    text = shown(*folders[:2])
  assert re.search(r"\brunning\b", text) and re.search(r"\bstopped\b", text)
