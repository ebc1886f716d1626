"""metrics.jsonl: what is written, what a resume keeps, and lines that no run writes."""

import io
import json
import math
import os

import jax.numpy as jnp
import numpy as np
import pytest
from made_rows import epoch_row
from rich.console import Console

from jaxspeed.errors import UserError
from jaxspeed.files import parse_json
from jaxspeed.records.console import Screen, silent_console
from jaxspeed.records.writer import Records, read_metrics


def write_epochs(workdir, rows, resume_step=None, **how):
  how = {"screen": Screen(silent_console()), "resume_step": resume_step} | how
  with Records(workdir, **how) as records:
    for number, row in enumerate(rows, start=1):
      before = len(records.rows)
      records.epoch(row)
      # Read while the run goes on: a kill here must lose nothing.
      assert len(read_metrics(workdir)) == before + 1, number
  return records


def test_metrics_are_valid_json_whatever_the_numbers(tmp_path):
  given = {
    "train_loss": (math.nan, None),
    "eval_loss": (-math.inf, None),
    "eval_top1": (np.float32(0.5), 0.5),
    "eval_top5": (jnp.float32(0.75), 0.75),
    "learning_rate": (jnp.bfloat16(0.25), 0.25),
    "step": (np.int64(10), 10),
    "eval_top3": (1, 1),  # a metric of one's own
  }
  write_epochs(tmp_path, [epoch_row(1, **{name: each[0] for name, each in given.items()})])
  read = parse_json((tmp_path / "metrics.jsonl").read_text())  # which takes no NaN
  assert read == epoch_row(1, **{name: each[1] for name, each in given.items()})
  assert type(read["epoch"]) is int
  with pytest.raises(ValueError, match="train_seconds"):  # a row that none can be
    write_epochs(tmp_path, [epoch_row(1, train_seconds=-1.0)])
  # All processes but the first write nothing.
  how = dict(resume_step=None, screen=Screen(silent_console()), primary=False)
  with Records(tmp_path / "none", **how) as records:
    records.epoch(epoch_row(1))
    assert records.rows == [epoch_row(1)]
  assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("step, kept", [(20, [1, 2]), (19, [1]), (None, []), (0, [])])
def test_a_resume_drops_what_will_be_done_again(tmp_path, step, kept):
  write_epochs(tmp_path, [epoch_row(epoch) for epoch in (1, 2, 3)])
  records = write_epochs(tmp_path, [epoch_row(9)], resume_step=step)
  assert read_metrics(tmp_path) == records.rows == [epoch_row(epoch) for epoch in (*kept, 9)]


@pytest.mark.parametrize("cut", ['{"epoch": 2, "st', "\0\0\0\0", '{"epoch": "\udcff', ""])
def test_a_resume_forgets_a_line_that_a_kill_cut_off(tmp_path, cut):
  text = json.dumps(epoch_row(1)) + ("\n" if cut else "") + cut
  (tmp_path / "metrics.jsonl").write_bytes(text.encode(errors="surrogateescape"))
  write_epochs(tmp_path, [epoch_row(2)], resume_step=10)
  assert read_metrics(tmp_path) == [epoch_row(1), epoch_row(2)]


def row_with(field, value):
  return json.dumps(epoch_row(1) | {field: value}), f"line 1, is no row of a run .{field}: "


@pytest.mark.parametrize(
  "text, words",
  [
    row_with("train_top5", 1.5),
    row_with("learning_rate", "high"),
    row_with("step", None),
    ("{half\n{}", "line 1, is no row of a run .it is no JSON"),
    ("[]", "line 1, is no row of a run .Input should be an object"),
    ('{"epoch": 1, "train_loss": NaN}', "line 1, is no row of a run .it is no JSON: NaN is "),
    ("\n".join(2 * [json.dumps(epoch_row(1))]), "line 2, .*step 10 comes after step 10"),
  ],
)
def test_damage_before_the_last_line_is_named_and_leaves_the_file(tmp_path, text, words):
  (tmp_path / "metrics.jsonl").write_text(f"{text}\n")
  with pytest.raises(UserError, match=rf"metrics\.jsonl, {words}"):
    Records(tmp_path, resume_step=20, screen=Screen(silent_console()))
  assert (tmp_path / "metrics.jsonl").read_text() == f"{text}\n"


def test_a_resume_without_metrics_starts_them(tmp_path):
  assert read_metrics(tmp_path) == []
  with pytest.warns(UserWarning, match=r"metrics\.jsonl is missing.*step 10"):
    write_epochs(tmp_path, [epoch_row(2)], resume_step=10)
  assert read_metrics(tmp_path) == [epoch_row(2)]


def test_rows_wait_for_room_on_the_disk_and_then_follow_in_their_order(tmp_path, monkeypatch):
  write, console = os.write, Console(file=io.StringIO(), width=300)
  with Records(tmp_path, resume_step=None, screen=Screen(console)) as records:
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:5]))
    records.epoch(epoch_row(1))
    records.epoch(epoch_row(2))
    told = "metrics.jsonl could not be written (No space left on device): jaxspeed tries again"
    assert console.file.getvalue().count(told) == 2
    assert "No space left" in records.write() and read_metrics(tmp_path) == []
    monkeypatch.undo()
    assert records.write() == ""
  assert read_metrics(tmp_path) == [epoch_row(1), epoch_row(2)]
