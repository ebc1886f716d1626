"""Broken images of a run: its file, its processes, and how many it may lose."""

import types
from unittest import mock

import pytest
from toy import load_recipe

from jaxspeed.cluster import processes
from jaxspeed.errors import UserError
from jaxspeed.feeds.broken import FILE, describe, require_few
from jaxspeed.files import dump_json
from jaxspeed.run.epoch_report import BrokenImages


def ledger(folder, max_broken=0.5):
  """The broken images of a run, and a function that notes some that its feed finds."""
  config = load_recipe("imagenette.py")
  config.data.max_broken = max_broken
  plan, found = types.SimpleNamespace(train_images=100, eval_images=20), {}
  feed = types.SimpleNamespace(broken=found)
  run = types.SimpleNamespace(folder=folder, plan=plan, config=config, feed=feed)
  broken = BrokenImages(run)

  def note(images):
    found.update(images)
    broken.note()

  return broken, note


def lines(folder):
  return (folder / FILE).read_text().splitlines()


def images(kind, count, reason="it is empty"):
  return {(kind, f"{kind}/{number}.jpg"): reason for number in range(count)}


def test_all_images_are_listed_once_and_a_few_are_told(tmp_path):
  broken, note = ledger(tmp_path)
  note(images("train", 7) | images("eval", 1, "no\tJPEG\n"))
  full = {"side_effect": OSError(28, "No space left on device")}
  with mock.patch("jaxspeed.run.epoch_report.write_atomically", **full):
    told = broken.settle()
  assert "could not be written (No space left on device)" in told[2]
  assert not broken.settle() and len(lines(tmp_path)) == 1 + 8  # tried again
  assert "train/4.jpg (it is empty) and 2 more (broken_images.tsv)" in told[0]
  assert "1 evaluation image could not be read, left out of the accuracies: eval" in told[1]
  note(images("train", 8))
  assert "train/7.jpg" in broken.settle()[0]
  assert broken.settle() == []
  assert broken.count("train") == 8 and broken.count("eval") == 1
  assert lines(tmp_path) == [
    "split\tname\treason",
    "eval\teval/0.jpg\tno\\tJPEG\\n",
    *(f"train\ttrain/{number}.jpg\tit is empty" for number in range(8)),
  ]


def test_a_resumed_run_adds_to_the_list_and_counts_anew_what_is_too_many(tmp_path):
  first, note_first = ledger(tmp_path, max_broken=0.05)
  note_first(images("train", 4))
  first.settle()
  (tmp_path / FILE).write_text((tmp_path / FILE).read_text() + "cut off by a ki")
  again, note_again = ledger(tmp_path, max_broken=0.05)
  assert again.count("train") == 4
  note_again(images("train", 3) | {("train", "train/new.jpg"): "it is empty"})
  again.settle()
  assert len(lines(tmp_path)) == 1 + 5
  # With repaired images, or a larger limit, the run resumes in the same folder.
  last, note_last = ledger(tmp_path, max_broken=0.02)
  last.settle()
  assert last.count("train") == 5


def test_too_many_end_the_run_with_the_file_that_lists_them(tmp_path):
  broken, note = ledger(tmp_path, max_broken=0.05)
  note(images("train", 5) | images("eval", 1))
  broken.settle()
  with pytest.raises(UserError) as error:
    note({("train", "train/one more.jpg"): "it is empty"})
  for words in (
    "6 of 100 training images could not be read, and config.data.max_broken=0.05 allows 5: ",
    "train/4.jpg (it is empty) and 1 more; ",
    "--config.data.max_broken=0.06: then broken_images.tsv lists all.",
  ):
    assert words in str(error.value)
  assert len(lines(tmp_path)) == 1 + 7
  enough, note_enough = ledger(tmp_path, max_broken=0.06)
  note_enough(images("train", 6))
  # Splits are counted apart, also where there is no run.
  with pytest.raises(UserError, match="^2 of 20 evaluation images"):
    note_enough(images("eval", 2))
  (line,) = describe(images("eval", 3))
  assert line.startswith("3 evaluation images could not be read, left out of the accuracies: eval/")
  with pytest.raises(UserError, match=r"3 of 299 .*allows 2: .*max_broken=0.0101: "):
    require_few(images("eval", 3), {"eval": 299}, 0.01)
  # One is let pass unless the share is 0.
  for count, share, most in ((50_000, 0.01, 500), (13, 0.01, 1), (13, 0.0, 0), (9, 1.0, 9)):
    require_few(images("eval", most), {"eval": count}, share)
    with pytest.raises(UserError, match=rf"allows {most:,}: "):
      require_few(images("eval", most + 1), {"eval": count}, share)


@pytest.mark.parametrize("number", [0, 1])
def test_processes_tell_each_other_what_they_found_and_end_together(tmp_path, monkeypatch, number):
  """What happens in a process of two, of which the first one writes."""
  sent: list[list[str]] = []  # by the other process

  def gather(own):
    other = dump_json(sent).encode()
    return [own, other] if number == 0 else [other, own]

  monkeypatch.setattr(processes, "several", lambda: True)
  monkeypatch.setattr(processes, "is_primary", lambda: number == 0)
  monkeypatch.setattr(processes, "gather_bytes", gather)
  broken, note = ledger(tmp_path, max_broken=0.05)
  # Each finds its own, and one that both have.
  note({("train", "a.jpg"): "it is empty", ("eval", "both.jpg"): "it is empty"})
  sent += [["train", "b.jpg", "it is empty"], ["eval", "both.jpg", "it is empty"]]
  told = broken.settle()
  assert broken.count("train") == 2 and broken.count("eval") == 1
  assert "a.jpg (it is empty)" in told[0] and "b.jpg (it is empty)" in told[0]
  note(images("train", 3))  # 5 may be broken, and a process alone does not end
  sent[:] = [["train", "c.jpg", "it is empty"]]
  with pytest.raises(UserError, match="^6 of 100 training images"):
    broken.settle()
  if number == 0:
    names = [line.split("\t")[1] for line in lines(tmp_path)[1:]]
    assert names == ["both.jpg", "a.jpg", "b.jpg", "c.jpg", *(f"train/{i}.jpg" for i in range(3))]
  assert (tmp_path / FILE).exists() == (number == 0)
