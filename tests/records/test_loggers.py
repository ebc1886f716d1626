"""Loggers: the hook, TensorBoard's event files, and Weights & Biases and Trackio offline."""

import contextlib
import io
import json
import re
import sqlite3
import sys
import textwrap
import types
import urllib.parse
from unittest import mock

import numpy as np
import pytest
from commands import ROOT
from made_rows import epoch_row
from rich.console import Console
from test_records import write_epochs

import jaxspeed
from jaxspeed.data.formats.tfrecord import read_records
from jaxspeed.errors import UserError
from jaxspeed.records import trackers
from jaxspeed.records.console import Screen, silent_console
from jaxspeed.records.loggers import LoggedRun, following
from jaxspeed.records.rows import TAGS
from jaxspeed.records.tensorboard import tensorboard
from jaxspeed.records.writer import Records


def listener(heard):
  """A logger of a user's own."""

  @contextlib.contextmanager
  def listen(run):
    heard.append(("begin", run.folder, run.config["name"], len(run.rows)))
    yield lambda row: heard.append(row["step"])
    heard.append("end")

  return listen


def two_starts(folder, logger):
  """Two starts of a run with a logger; returns what the second one prints."""
  console, how = Console(file=io.StringIO(), width=300), dict(config={"name": "toy", "epochs": 4.0})
  write_epochs(folder, [epoch_row(1), epoch_row(2)], loggers=[logger], **how)
  how |= dict(screen=Screen(console), resume_step=10)
  write_epochs(folder, [epoch_row(2), epoch_row(3)], loggers=[logger], **how)
  return console.file.getvalue()


def test_a_logger_hears_a_run_and_its_resume(tmp_path):
  heard = []
  two_starts(tmp_path, listener(heard))
  first, second = [("begin", tmp_path, "toy", rows) for rows in (0, 1)]
  assert heard == [first, 10, 20, "end", second, 20, 30, "end"]


def failing(when, error):
  """A logger that raises an error at its begin, at a row or at its end."""

  @contextlib.contextmanager
  def fails(run):
    raised = {when: error}
    parts = {name: mock.Mock(side_effect=raised.get(name)) for name in ("begin", "row", "end")}
    parts["begin"]()
    yield parts["row"]
    parts["end"]()

  return fails


@pytest.mark.parametrize(
  "when, error, reason",
  [
    ("begin", ConnectionError("no route\nsecond line"), "ConnectionError: no route"),
    ("row", SystemExit(3), "SystemExit: 3"),
    ("end", KeyError(), "KeyError"),
  ],
)
def test_a_logger_that_fails_leaves_the_run_and_the_process_alone(tmp_path, when, error, reason):
  told = f"the logger fails failed ({reason}): the run continues"
  # The first start is one from Python, which prints nothing.
  with pytest.warns(UserWarning, match=re.escape(told)):
    printed = two_starts(tmp_path, failing(when, error))
  assert printed.count(told) == 1
  assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
  interrupted = following([failing("row", KeyboardInterrupt())], LoggedRun(tmp_path), print)
  with pytest.raises(KeyboardInterrupt), interrupted as log:
    log({})


def test_a_run_from_python_tells_its_loggers_and_that_of_the_guide(tmp_path):
  heard, guide = [], (ROOT / "docs" / "library.md").read_text()
  names = {"contextlib": contextlib}
  exec(textwrap.dedent(re.search(r"```python\n( *@contextlib.*?)```", guide, re.S)[1]), names)
  small = {"model.width": 4, "records.loggers": ()}
  config = jaxspeed.recipe("quickstart", epochs=1, batch_size=96, **small)
  loggers = [listener(heard), names["to_a_file"]]
  run = jaxspeed.fit(config, workdir=tmp_path / "run", loggers=loggers)
  assert heard[1:] == [run.history[0]["step"], "end"]
  loss = run.history[0]["train_loss"]
  assert (tmp_path / "run" / "losses.txt").read_text() == f"1 {loss}\n"
  assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_package_that_is_missing_is_told_before_the_run(tmp_path, monkeypatch):
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
  config = jaxspeed.recipe("quickstart", **{"records.loggers": ("wandb",)})
  words = "names wandb, which is not installed: pip install wandb"
  with pytest.raises(UserError, match=words):
    jaxspeed.fit(config, workdir=tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_rows_of_a_killed_process_are_sent_by_the_next_one(tmp_path, monkeypatch):
  """The tracker had them, and may have lost them."""
  rows, sent, said = [epoch_row(number) for number in (1, 2, 3, 4)], [], []
  package = types.SimpleNamespace(finish=lambda: sent.append("end"))
  package.log = lambda row, step: sent.append(step)
  monkeypatch.setitem(sys.modules, "sent", package)

  def open_run(tracker, identity, how):
    assert json.loads((tmp_path / "loggers" / "sent.json").read_text())["id"] == identity
    sent.append(identity)
    return tracker, "in a list"

  def logger(*rows):
    return trackers._tracked(LoggedRun(tmp_path, rows=rows, say=said.append), "sent", open_run)

  killed = logger()
  log = killed.__enter__()
  log(rows[0])
  log(rows[1])
  for old, new in ((2, rows[2]), (2, rows[2]), (3, rows[3])):
    with logger(*rows[:old]) as log:
      log(new)
  name = json.loads((tmp_path / "loggers" / "sent.json").read_text())["id"]
  # A repeated epoch is sent once.
  first, *resumed = [name, 10, 20], [name, 10, 20, 30, "end"], [name, "end"], [name, 40, "end"]
  assert sent == sum(resumed, first)
  assert said == ["sent: the run is in a list"] * 3


def test_wandb_offline_holds_each_row_once(tmp_path, monkeypatch):
  pytest.importorskip("wandb")
  for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
  printed = two_starts(tmp_path, trackers.wandb)
  assert re.search(r"wandb: .*, offline; to send it: wandb sync \S+", printed)
  files = sorted((tmp_path / "loggers" / "wandb").glob("offline-run-*/*.wandb"))
  identity = json.loads((tmp_path / "loggers" / "wandb.json").read_text())
  assert identity["step"] == 30
  # Both starts have the same identity, so that a server shows one run.
  assert [path.stem for path in files] == [f"run-{identity['id']}"] * 2
  first, second = (path.read_bytes() for path in files)
  logged = [set(re.findall(rb"examples.{0,12}?(\d000)", data, re.S)) for data in (first, second)]
  assert logged == [{b"1000", b"2000"}, {b"3000"}] and b"toy" in first


def test_trackio_holds_each_row_once(tmp_path, monkeypatch, capsys):
  pytest.importorskip("trackio")
  monkeypatch.setenv("TRACKIO_PROJECT", "tests")
  for name in ("trackio.utils", "trackio.sqlite_storage"):
    monkeypatch.setattr(pytest.importorskip(name), "TRACKIO_DIR", tmp_path / "trackio")
  printed = two_starts(tmp_path, trackers.trackio)
  assert capsys.readouterr().out == ""
  assert "to look: trackio show --project tests\n" in printed
  uri = urllib.parse.quote(str(tmp_path / "trackio" / "tests.db"))
  with sqlite3.connect(f"file:{uri}?mode=ro", uri=True) as database:
    rows = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
  assert [step for _, step, _ in rows] == [10, 20, 30]
  assert len({name for name, _, _ in rows}) == 1
  assert [json.loads(metrics)["train_loss"] for *_, metrics in rows][:2] == [2.0, 1.0]


def read_events(workdir):
  """Every event of every file in TensorBoard's order; the reader verifies checksums."""
  event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
  for path in sorted((workdir / "tensorboard").iterdir()):
    for record in read_records(np.fromfile(path, np.uint8), path):
      yield event_pb2.Event.FromString(bytes(record))


def scalars(workdir):
  """tag -> {x: value}, without what a later process has purged, as TensorBoard shows it."""
  shown = {}
  for event in read_events(workdir):
    if event.HasField("session_log"):
      for tag, points in shown.items():
        shown[tag] = {x: value for x, value in points.items() if x < event.step}
    for value in event.summary.value:
      shown.setdefault(value.tag, {})[event.step] = value.simple_value
  return shown


# What imagenet18's training/logger.py and training/train_imagenet_nv.py write, but for the caches
# of PyTorch's allocator; and, below, what it does not have. Accuracies in percent, while
# metrics.jsonl keeps fractions; milliseconds, a quarter of which is waited for.
SHOWN = {"sizes/world": 4, "sizes/batch": 25, "sizes/batch_total": 100, "sizes/image": 32}
SHOWN |= {"sizes/lr": 0.5, "sizes/momentum": 0.875, "losses/xent": 1.0, "losses/train_1": 50.0}
SHOWN |= {"losses/train_5": 75.0, "losses/test_1": 50.0, "losses/test_5": 75.0, "times/step": 250}
SHOWN |= {"times/data": 62.5, "times/1gpu_images_per_sec": 1250, "times/eval_sec": 3.5}
SHOWN |= {"net/recv_gbit": 0.5, "net/transmit_gbit": 0.25, "memory/max_allocated_gb": 6.5}
SHOWN |= {"epoch": 2, "losses/test_xent": 1.5, "losses/test_macro_1": 25.0}
SHOWN |= {"losses/test_ece": 0.125, "losses/skipped_steps": 4, "times/images_per_sec": 5000}
SHOWN |= {"times/data_wait": 0.25, "times/train_seconds": 1.0, "times/dawn_seconds": 0.5}


def test_each_scalar_is_there_at_once_over_the_examples_seen(tmp_path, monkeypatch):
  now = [1.5e9]
  monkeypatch.setattr("jaxspeed.records.tensorboard.time.time", lambda: now[0])
  figures = dict(loss=1.5, top1=0.5, top5=0.75, macro_top1=0.25, ece=0.125, seconds=3.5)
  more = {f"eval_{name}": value for name, value in figures.items()}
  more |= dict(skipped_steps=4, memory_gb=6.5, net_recv_gbit=0.5, net_transmit_gbit=0.25)
  how = dict(screen=Screen(silent_console()), loggers=[tensorboard])
  with Records(tmp_path, resume_step=None, **how) as records:
    for epoch, fields in ((1, {}), (2, more)):
      now[0] += 60.0
      records.epoch(epoch_row(epoch, **fields))
      assert len(scalars(tmp_path)["epoch"]) == epoch
  shown, events = scalars(tmp_path), list(read_events(tmp_path))
  assert shown.pop("first") == {0: pytest.approx(1.5e9, rel=1e-6)}
  assert {tag: points.get(2000) for tag, points in shown.items()} == SHOWN
  assert shown["losses/xent"][1000] == 2.0 and 1000 not in shown["losses/test_1"]
  assert {tag.name for tag in TAGS.values()} <= set(SHOWN)
  assert events[0].file_version == "brain.Event:2"
  times = {(v.tag, event.step): event.wall_time for event in events for v in event.summary.value}
  assert (times["first", 0], times["losses/xent", 2000]) == (1.5e9, 1.5e9 + 120.0)


def test_it_hides_what_a_resumed_run_does_again(tmp_path):
  how = dict(loggers=[tensorboard])
  write_epochs(tmp_path, [epoch_row(1), epoch_row(2), epoch_row(3)], **how)
  # Within one second of the first: neither may overwrite the other's file.
  write_epochs(tmp_path, [epoch_row(2, train_loss=9.0)], resume_step=15, **how)
  assert len(list((tmp_path / "tensorboard").iterdir())) == 2
  assert scalars(tmp_path)["losses/xent"] == {1000: 2.0, 2000: 9.0}
  write_epochs(tmp_path, [epoch_row(1, train_loss=8.0)], **how)  # a new run
  assert scalars(tmp_path)["losses/xent"] == {1000: 8.0}
