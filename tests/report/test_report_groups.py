"""What tells the groups of a report apart, and what may not be compared."""

import json
import re

import numpy as np
from made_runs import change, text_of, write_run
from recipes import get_config

from jaxspeed.report.command import read_all
from jaxspeed.report.compare import image_sets
from jaxspeed.report.data import groups_of


def test_groups_with_the_same_first_fields_are_told_apart_by_their_folders(tmp_path):
  """A name has four fields, in the order of the alphabet: two of the three runs share them."""
  for place, folder in enumerate(("x/a", "y/a", "y/b")):
    config = write_run(tmp_path / folder, images=48, seed=place) / "config.json"
    last = int(place == 2)
    change(config, augment={"cutout": last, "pad": last}, average={"decay": 0.5 + last / 4})
    change(config, batch_size=100 + last, patience=place)
  groups = groups_of(read_all([tmp_path]))
  assert {group.folder for group in groups} == {"x/a", "y/a", "y/b"}
  assert len({group.name for group in groups}) == 3
  assert all(group.name.endswith(f" ({group.folder})") for group in groups)
  shown = text_of(groups)
  assert all(shown.count(group.name) > 2 for group in groups) and "folder" in shown
  two = groups_of(read_all([tmp_path / "x", tmp_path / "y" / "b"]))
  assert [group.folder for group in two] == ["", ""]


def test_accuracies_on_other_images_are_not_compared(tmp_path):
  """Three seeds of each of two settings: p needs two runs; then one test set is another one."""
  folders = [
    write_run(tmp_path / f"{peak}" / f"{seed}", images=48, peak=peak, seed=seed)
    for peak in (0.1, 0.3)
    for seed in range(3)
  ]
  for folder in folders:
    with np.load(folders[0] / "predictions.npz") as file:
      arrays = dict(file)
    result = json.loads((folder / "result.json").read_text())
    right = np.arange(48) < round(result["top1"] * 48)
    label = arrays["label"]
    arrays["predicted"] = np.where(right, label, (label + 1) % 8).astype(np.int32)
    np.savez(folder / "predictions.npz", **arrays)
    change(folder / "result.json", top1=float(right.mean()))
  shown = text_of(groups_of(read_all([tmp_path])))
  assert "The best: " in shown
  assert (
    "Not all were evaluated" not in shown and "Welch’s two-sided t-test of equal means)" in shown
  )
  for folder in folders[3:]:
    with np.load(folder / "predictions.npz") as file:
      names = file["names"].tobytes().replace(b"val/", b"new/")
      np.savez(folder / "predictions.npz", **dict(file) | {"names": np.frombuffer(names, np.uint8)})
    change(folder / "config.json", data={"path": "elsewhere"})
  groups = groups_of(read_all([tmp_path]))
  shown = text_of(groups)
  words = "Not all were evaluated on the same images, so these accuracies cannot be compared. "
  sets = (
    f"{groups[0].name}: 48 test images of elsewhere, 8 classes; {groups[1].name}: 48 test images"
  )
  assert words + sets in shown and "The best: " not in shown
  assert "t-test of equal means)" not in shown and "points above" not in shown
  # A run that has not ended: what is known of it does not differ.
  assert image_sets(groups) == [0, 1]
  (folders[3] / "result.json").unlink()
  assert image_sets(groups_of(read_all([folders[0], folders[3]]))) == [0, 0]


def test_a_run_without_a_target_has_none_in_its_report(tmp_path):
  assert get_config("finetune").target == 0.0
  folders = [write_run(tmp_path / str(seed), images=48, seed=seed) for seed in range(2)]
  words = "at least|at most|target"
  assert re.search(words, text_of(groups_of(read_all([tmp_path]))).partition("Curves")[0])
  for folder in folders:
    change(folder / "config.json", target=0.0)
    change(folder / "result.json", seconds={"to_target": None})
  assert not re.search(words, text_of(groups_of(read_all([tmp_path]))).partition("Curves")[0])


def test_another_number_of_images_or_of_classes_is_another_set(tmp_path):
  write_run(tmp_path / "a", images=48)
  write_run(tmp_path / "b", images=64, peak=0.1)
  write_run(tmp_path / "c", images=48, names=tuple("vwxyz"))
  groups = groups_of(read_all([tmp_path]))
  assert sorted(image_sets(groups)) == [0, 1, 2]
  shown = text_of(groups)
  assert "48 test images of digits, 8 classes" in shown and "digits, 5 classes" in shown
  assert "64 test images of digits" in shown
