"""What a report refuses: places that it must not write, and files that are no run's."""

import contextlib
import dataclasses
import json
import os
import shutil

import pytest
from in_process import command, mistake
from made_runs import NOW, change, without_images, write_run

from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json
from jaxspeed.report.command import read_all
from jaxspeed.report.data import Group, find_runs, groups_of, read_run
from jaxspeed.report.page import page
from jaxspeed.run.predict_csv import check_csv


@pytest.fixture(scope="module")
def one(tmp_path_factory):
  """A run's folder."""
  return write_run(tmp_path_factory.mktemp("inputs") / "a")


@pytest.mark.parametrize(
  "place, words",
  [
    *(
      (f"run/{name}", f"is, or lies in, {name} of the run in ")
      for name in ("result.json", "owner.json")
    ),
    ("run/checkpoints", "is a folder: name a file in it."),
    ("run/checkpoints/30/manifest.json", "is, or lies in, checkpoints of the run in "),
    ("link/x.html", "is, or lies in, tensorboard of the run in "),
    (256 * "a", "cannot be written (File name too long): name one that you can write"),
    ("no/r.html", "cannot be written (No such file or directory)"),
  ],
)
def test_no_command_replaces_what_is_a_runs(one, tmp_path, place, words):
  run = shutil.copytree(one, tmp_path / "run")
  (tmp_path / "link").symlink_to(run / "tensorboard")
  (run / "tensorboard").mkdir(exist_ok=True)
  inside = run / "checkpoints" / "30" / "manifest.json"
  inside.parent.mkdir(parents=True, exist_ok=True)
  inside.write_text("{}")
  path = tmp_path / place
  assert mistake("report", str(run), f"--out={path}").startswith(f"{path} {words}")
  export = ("export", str(run), "--format=stablehlo")
  assert mistake(*export, f"--out={path}").startswith(f"{path} {words}")
  with pytest.raises(UserError) as error:
    check_csv(str(path), [])
  assert str(error.value).startswith(f"--csv={path} {words}")
  # The program's metadata lie in FILE.json.
  for name, why in (
    ("run/result", "is, or lies in, result"),
    (251 * "a", "cannot be written (File name"),
  ):
    beside = tmp_path / name
    assert mistake(*export, f"--out={beside}").startswith(f"{beside}.json {why}")
  assert command("report", str(run), f"--out={run / 'report.html'}").returncode == 0
  assert inside.read_text() == "{}" and not os.listdir(run / "tensorboard")


def test_the_place_of_a_report_is_checked_before_the_runs_are_read(tmp_path):
  page = tmp_path / "no" / "r.html"
  assert "No such file or directory" in mistake("report", str(tmp_path / "none"), f"--out={page}")
  assert mistake("report", str(tmp_path), "--out=") == "--out is empty: name the file to write."
  assert mistake("report", "").startswith("name the folder of a run")
  out = f"--out={tmp_path / 'r.html'}"
  assert "name the folder of a run" in mistake("report", out)
  assert "is no folder" in mistake("report", str(tmp_path / "none"), out)
  assert "holds no run" in mistake("report", str(tmp_path), out)
  (write_run(tmp_path / "a") / "result.json").write_text("{}")
  assert "result.json" in mistake("report", str(tmp_path / "a"), out)
  assert not (tmp_path / "r.html").exists()
  words = mistake("report", str(tmp_path), "--watch=0.5")
  assert "is not a number in the range [1.0, 86400.0]" in words


def test_a_seed_counts_once_and_the_page_says_so(tmp_path):
  first, again = without_images(tmp_path / "a"), without_images(tmp_path / "b")
  (again / "result.json").unlink()
  other = without_images(tmp_path / "c", seed=1)
  (group,) = groups_of(read_all([tmp_path]))
  assert [run.folder for run in group.runs] == [first, other]
  assert [run.folder for run in group.repeated] == [again] and len(group.finished) == 2
  shown = page([group], now=NOW)
  assert "over 2 seeds" in shown.replace("\xa0", " ") and f"left out: {again}." in shown
  (group,) = groups_of(read_all([first, again]))
  assert "left out" not in page(groups_of([read_run(first)]), now=NOW)
  assert "over 2 seeds" not in page([group], now=NOW)


def test_runs_on_other_data_or_classes_are_other_settings(tmp_path):
  folders = [without_images(tmp_path / str(seed), seed=seed) for seed in range(3)]
  change(folders[1] / "config.json", data={"path": "elsewhere"})
  names = json.loads((folders[2] / "classes.json").read_text())
  (folders[2] / "classes.json").write_text(dump_json(names[::-1]))
  groups = groups_of(read_all(folders))
  assert len(groups) == 3
  assert all({*group.settings} == {"data.path", "class names"} for group in groups)
  assert "elsewhere" in page(groups, now=NOW)


def test_settings_are_compared_by_one_metric(tmp_path):
  for name, metric in (("a", "top1"), ("b", "top5")):
    folder = without_images(tmp_path / name)
    change(folder / "config.json", target_metric=metric)
    change(folder / "result.json", top1=0.25 if name == "a" else 0.5, top5=0.75)
  groups = groups_of(read_all([tmp_path / "a", tmp_path / "b"]))
  assert [group.mean for group in groups] == [0.5, 0.25]
  shown = page(groups, now=NOW)
  assert "compared by top-1 accuracy, the target_metric of the first run named" in shown
  assert "25.00\xa0points" in shown and "target 50.00\xa0% top-5" in shown
  groups = groups_of(read_all([tmp_path / "b", tmp_path / "a"]))
  assert [group.mean for group in groups] == [0.75, 0.75]


def test_what_is_published_is_shown_where_there_is_something(tmp_path):
  folder = without_images(tmp_path / "a")
  assert ">Published<" not in page(groups_of([read_run(folder)]), now=NOW)
  change(folder / "config.json", name="cifar10")
  words = "train --config.seed=3 --config.phases.first_epoch='(0, 2)' --config.records.thumbnails=0"
  change(folder / "result.json", command=words)
  shown = page(groups_of([read_run(folder)]), now=NOW)
  assert "this run changed phases.first_epoch=(0, 2)<" in shown
  change(folder / "result.json", command="fit('it\\'s')")
  assert "this run changed" not in page(groups_of([read_run(folder)]), now=NOW)
  assert ">Published<" in shown and "94.02 % top-1" in shown and "recipe cifar10" in shown


def test_a_mean_over_fewer_runs_says_over_how_many(tmp_path):
  for seed in range(3):
    folder = without_images(tmp_path / str(seed), seed=seed)
    change(folder / "config.json", cost_per_hour=36.0)
    compiled = {"wall": 3.0 if seed < 2 else None, "cold": None if seed else 60.0, "cached": None}
    change(folder / "result.json", seconds={"dawn": 100.0 * seed, "compile": compiled})
  shown = page(groups_of(read_all([tmp_path])), now=NOW).replace("\xa0", " ")
  assert "waited 3.00 s (2 of 3 runs), 60.0 s (1 of 3 runs) summed over threads<" in shown
  assert (
    "whole run, from its start: 20.0 s<" in shown
    and "cost a run: $1, $0.057 to the target" in shown
  )


def test_bars_and_their_means_say_of_how_many_runs_they_are(tmp_path):
  run = read_run(write_run(tmp_path / "a"))
  clock = dict(load=2.0, train=6.0, process=10.0)
  clocks = [*13 * [clock], clock | dict(load=16.0, process=24.0), {}]
  runs = [dataclasses.replace(run, result=None, predictions=None, clock=own) for own in clocks]

  def shown(*runs):
    text = page([Group("a", {}, runs, "top1")], now=NOW).replace("\xa0", " ")
    return text.partition("Where the time went")[2].partition("What is missing")[0]

  found = shown(*runs)
  assert found.startswith(": the first 12 of 14 runs<") and found.count('class="bar"') == 12
  assert ">mean of 14 of 15 runs<" in found and ">3.00 s<" in found
  assert shown(*runs[:2]).startswith("</h2>") and ">mean<" in shown(*runs[:2])


def test_a_setting_says_whether_its_runs_still_run(tmp_path):
  for name, peak in (("a", 0.1), ("b", 0.3)):
    write_run(tmp_path / name, peak=peak, finished=False)
  with contextlib.closing(FolderLock(tmp_path / "a")):
    with contextlib.closing(FolderLock(tmp_path / "b")):
      pass
    shown = page(groups_of(read_all([tmp_path])), now=NOW)
  assert ">running<" in shown and ">stopped<" in shown


def test_an_interval_ends_at_zero(tmp_path):
  for seed, top1 in enumerate((0.0, 0.01)):
    folder = without_images(tmp_path / str(seed), seed=seed)
    change(folder / "result.json", top1=top1, versions={"jax": None, "numpy": "2"})
  shown = page(groups_of(read_all([tmp_path])), now=NOW)
  assert "over 2 seeds: 0.00\xa0% to" in shown
  assert "jax None" not in shown and "numpy 2" in shown


def test_class_names_that_cannot_be_used_say_what_to_do(tmp_path, monkeypatch):
  folder = without_images(tmp_path / "a")
  change(folder / "config.json", data={"classes": 10_000_000})
  with monkeypatch.context() as patch:
    patch.setattr("jaxspeed.report.data.map", pytest.fail, raising=False)  # no 10 million numbers
    with pytest.raises(UserError, match="the names of the run's 10000000 classes: restore the"):
      read_run(folder)

  def refuse(path):
    raise PermissionError(13, "Permission denied", path)

  monkeypatch.setattr("os.scandir", refuse)
  with pytest.raises(UserError, match=r"\(Permission denied\): make it readable, or name other"):
    find_runs(tmp_path)
