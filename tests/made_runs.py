"""Folders of runs with made-up figures, and the elements of a page made of them."""

import datetime
import html.parser
import json
import re

import numpy as np
from made_rows import epoch_row, one_result

from jaxspeed.config import recipe, stored
from jaxspeed.files import dump_json
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.report.command import read_all
from jaxspeed.report.data import groups_of
from jaxspeed.report.page import page
from jaxspeed.run.thumbnails import choose

NOW = datetime.datetime(2026, 1, 1)
EVIL = "<script>alert('1')</script>"
NAMES = (EVIL, 'a "quoted" & <em>name</em>', "two\nlines", "größe 猫", "\udcff", "line\u2028end")
NAMES += ("turned\u202eround", "שלום")


def write_run(folder, *, names=NAMES, images=160, seed=0, peak=0.3, epochs=4, finished=True):
  """A run's folder with made-up figures; returns it."""
  folder.mkdir(parents=True)
  config = stored.to_dict(recipe.load_recipe("quickstart"))
  config["data"]["classes"], config["schedule"]["peak"] = len(names), peak
  config |= {"seed": seed, "epochs": float(epochs), "target": 0.5}
  (folder / "config.json").write_text(dump_json(config))
  (folder / "classes.json").write_text(dump_json(list(names)))
  random = np.random.default_rng(seed)
  rows = [
    epoch_row(epoch, learning_rate=peak / epoch, eval_loss=2.1 / epoch, train_top1=0.2 * epoch)
    | {"eval_top1": 0.2 * epoch + 0.01 * random.random() + peak / 100, "data_wait": 0.0}
    | {"image_size": 8 * (1 + epoch // 3)}
    | {"train_seconds": 2.0 * epoch, "dawn_seconds": 1.9 * epoch}
    for epoch in range(1, epochs + 1)
  ]
  (folder / "metrics.jsonl").write_text("".join(dump_json(row) + "\n" for row in rows))
  if not finished:
    return folder
  label = random.integers(0, len(names), images).astype(np.int32)
  right = random.permutation(images) < round(rows[-1]["eval_top1"] * images)
  predicted = np.where(right, label, (label + 1) % len(names)).astype(np.int32)
  number = random.random(images).astype(np.float32)
  index = np.arange(images, dtype=np.int32)
  paths = tuple(f"val/{EVIL}/{i}\n.jpg" for i in range(images))
  found = Predictions(40, index, label, predicted, number, 3 * number, paths)
  found.write(folder)
  rows_shown = choose(found, 24)
  Thumbnails(
    step=40,
    eval_index=index[rows_shown],
    eval_image=random.integers(0, 255, (len(rows_shown), 64, 64, 3), np.uint8),
    train_image=random.integers(0, 255, (4, 64, 64, 3), np.uint8),
    train_label=np.arange(4, dtype=np.int32),
    train_partner=np.zeros(4, np.int32),
    train_share=np.full(4, 0.25, np.float32),
    filters=random.integers(0, 255, (16, 3, 3, 3), np.uint8),
  ).write(folder)
  seconds = {"train": 8.0, "dawn": 7.6, "process": 20.0, "to_target": 5.7}
  seconds["compile"] = {"wall": 3.0, "cold": None, "cached": 3.0}
  result = one_result(rows[-1]["eval_top1"], seconds=seconds, seed=seed, config=config, top5=None)
  result |= {"device": EVIL, "versions": {"jax": EVIL}, "command": f"train '{EVIL}'"}
  (folder / "result.json").write_text(dump_json(result))
  return folder


class Parsed(html.parser.HTMLParser):
  """The elements of a page: balanced, with their attributes; its text, with usual spaces."""

  def __init__(self, text):
    super().__init__()
    self.open, self.elements, self.text = [], [], []
    self.feed(text)
    assert self.open == []
    # No element became text.
    assert not re.search("</?(div|p|t[dhr]|h[1-6]|svg|figure|span|i|b)[ >]", "".join(self.text))

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    if tag not in ("meta", "img", "input"):
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.text.append(data.replace("\xa0", " "))

  def of(self, tag):
    return [attributes for name, attributes in self.elements if name == tag]


def change(path, **fields):
  """Changes fields of a JSON file, those of objects inside it too."""
  values = json.loads(path.read_text())
  for name, value in fields.items():
    old = values.get(name)
    values[name] = old | value if isinstance(old, dict) else value
  path.write_text(dump_json(values))


def without_images(folder, *, config=None, result=None, **fields):
  """A run's folder without predictions, and with other fields of its config and result."""
  write_run(folder, images=48, **fields)
  (folder / "predictions.npz").unlink()
  change(folder / "config.json", **config or {})
  change(folder / "result.json", **result or {})
  return folder


def groups_in(*folders):
  """The groups of the runs in some folders."""
  return groups_of(read_all(folders))


def shown(*folders, groups=()):
  """The text of the report on some folders, or groups, without the names of its styles."""
  return "".join(Parsed(page(groups or groups_in(*folders), now=NOW)).text)
