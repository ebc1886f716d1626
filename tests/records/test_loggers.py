"""Loggers: the hook, and Weights & Biases and Trackio offline."""

import io
import json
import re
import sqlite3
import sys
import types
import urllib.parse

import pytest
from rich.console import Console
from test_records import epoch_row

import jaxspeed
from jaxspeed.errors import UserError
from jaxspeed.records import loggers as loggers_lib
from jaxspeed.records.console import Screen, silent_console
from jaxspeed.records.loggers import LoggedRun
from jaxspeed.records.tracking import Tracker, TrackioLogger, WandbLogger, make_loggers
from jaxspeed.records.writer import Records


class Listener:
  """A logger of a user's own."""

  def __init__(self):
    self.heard = []

  def init(self, run):
    self.heard.append(("init", run.folder, run.config["name"], len(run.rows)))

  def log(self, row):
    self.heard.append(("log", row["step"], row["train_loss"]))

  def finish(self):
    self.heard.append(("finish",))


def write(folder, rows, logger, *, resume_step=0, console=None):
  screen = Screen(console or silent_console())
  how = dict(screen=screen, loggers=[logger], config={"name": "toy", "epochs": 4.0})
  with Records(folder, resume_step=resume_step, **how) as records:
    for row in rows:
      records.epoch(row)


def test_a_logger_hears_a_run_and_its_resume(tmp_path):
  logger = Listener()
  write(tmp_path, [epoch_row(1), epoch_row(2)], logger)
  write(tmp_path, [epoch_row(2), epoch_row(3)], logger, resume_step=10)
  assert logger.heard == [
    ("init", tmp_path, "toy", 0),
    ("log", 10, 2.0),
    ("log", 20, 1.0),
    ("finish",),
    ("init", tmp_path, "toy", 1),
    ("log", 20, 1.0),
    ("log", 30, pytest.approx(2 / 3)),
    ("finish",),
  ]


def fail_with(method, error):
  """A listener, one method of which raises an error."""

  def fail(self, *arguments):
    raise error

  return type("Failing", (Listener,), {method: fail})()


@pytest.mark.parametrize(
  "method, error, told",
  [
    ("init", ConnectionError("no route to host\nsecond line"), "ConnectionError: no route to host"),
    ("log", SystemExit(3), "SystemExit: 3"),
    ("finish", KeyError(), "KeyError"),
  ],
)
def test_a_logger_that_fails_leaves_the_run_and_the_process_alone(
  tmp_path, capsys, method, error, told
):
  rows, failing = [epoch_row(1), epoch_row(2)], fail_with(method, error)
  write(tmp_path, rows, failing, console=Console(width=300))
  told = f"Failing.{method} failed ({told}): the run continues"
  assert capsys.readouterr().out.count(told) == 1
  assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
  # A call from Python prints nothing.
  with pytest.warns(UserWarning, match=re.escape(told)):
    write(tmp_path, rows, failing)
  with pytest.raises(KeyboardInterrupt):
    loggers_lib.Loggers([fail_with("log", KeyboardInterrupt())], print).log({})


class Fields:
  """No logger, though its names are there."""

  init, log, finish = 1, 2, 3


def test_a_run_from_python_tells_its_loggers(tmp_path):
  logger = Listener()
  config = jaxspeed.recipe("quickstart", epochs=1, batch_size=96, **{"records.loggers": ()})
  jaxspeed.fit(config, workdir=tmp_path / "run", loggers=[logger])
  names = [each[0] for each in logger.heard]
  assert names == ["init", "log", "finish"]
  assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.parametrize(
  "loggers, sentence",
  [
    ([Listener], "holds the class Listener: pass objects"),
    ([Fields()], "holds a Fields: pass objects with the methods init"),
    (Listener(), "must be a list of objects"),
    ("wandb", "must be a list of objects"),
  ],
)
def test_objects_that_are_no_loggers_are_refused(tmp_path, loggers, sentence):
  with pytest.raises(UserError, match=sentence):
    jaxspeed.fit("quickstart", workdir=tmp_path / "run", loggers=loggers)
  assert not (tmp_path / "run").exists()


def test_a_tracker_that_is_not_installed_is_told_before_the_run(tmp_path, monkeypatch):
  monkeypatch.setattr(loggers_lib.importlib.util, "find_spec", lambda name: None)
  config = jaxspeed.recipe("quickstart", **{"records.loggers": ("wandb",)})
  with pytest.raises(UserError, match="names wandb, which is not installed: pip install wandb"):
    jaxspeed.fit(config, workdir=tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_each_name_adds_its_logger_to_tensorboard(monkeypatch):
  monkeypatch.setattr(loggers_lib.importlib.util, "find_spec", lambda name: object())

  def made(*names):
    config = jaxspeed.recipe("quickstart", **{"records.loggers": names})
    return [type(logger).__name__ for logger in make_loggers(config)]

  assert made("tensorboard", "trackio") == ["TensorBoardLogger", "TrackioLogger"]
  assert made("wandb") == ["TensorBoardLogger", "WandbLogger"]
  assert made() == []


class Sent(Tracker):
  """A tracker whose package, `sent`, keeps what it is sent in a list."""

  name = "sent"

  def open(self, tracker, identity):
    assert json.loads((self.run.folder / "loggers" / "sent.json").read_text())["id"] == identity
    tracker.found.append(identity)
    return tracker

  def where(self):
    return "the run is in a list"


@pytest.mark.parametrize("seconds, first", [(10.0, []), (0.0, [10, 20])])
def test_rows_of_a_killed_process_are_sent_by_the_next_one(tmp_path, monkeypatch, seconds, first):
  """They waited for the package's import, or the tracker had them, and may have lost them."""
  monkeypatch.setattr(loggers_lib, "SECONDS_BEFORE_IMPORT", seconds)
  rows, sent, said = [epoch_row(number) for number in (1, 2, 3, 4)], [], []
  package = types.SimpleNamespace(
    found=sent, log=lambda row, step: sent.append(step), finish=lambda: sent.append("end")
  )
  monkeypatch.setitem(sys.modules, "sent", package)
  killed = Sent()
  killed.init(LoggedRun(tmp_path))
  killed.log(rows[0])
  killed.log(rows[1])
  assert sent[1:] == first
  before = len(sent)
  for old, new in ((2, rows[2]), (2, rows[2]), (3, rows[3]), (4, None)):
    resumed = Sent()
    resumed.init(LoggedRun(tmp_path, rows=rows[:old], say=said.append))
    if new:
      resumed.log(new)
    resumed.finish()
  name = json.loads((tmp_path / "loggers" / "sent.json").read_text())["id"]
  # A repeated epoch is sent once; nothing new, nothing sent.
  assert sent[before:] == [name, 10, 20, 30, "end", name, 40, "end"]
  assert said == ["sent: the run is in a list"] * 2


def test_wandb_offline_holds_each_row_once(tmp_path, monkeypatch):
  pytest.importorskip("wandb")
  for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
  write(tmp_path, [epoch_row(1), epoch_row(2)], WandbLogger())
  console = Console(file=io.StringIO(), width=300)
  write(tmp_path, [epoch_row(2), epoch_row(3)], WandbLogger(), resume_step=10, console=console)
  assert re.search(r"wandb: .*, offline; to send it: wandb sync \S+", console.file.getvalue())
  files = sorted((tmp_path / "loggers" / "wandb").glob("offline-run-*/*.wandb"))
  identity = json.loads((tmp_path / "loggers" / "wandb.json").read_text())
  assert identity["step"] == 30
  # Both starts have the same identity, so that a server shows one run.
  assert [path.stem for path in files] == [f"run-{identity['id']}"] * 2
  first, second = (path.read_bytes() for path in files)
  logged = [set(re.findall(rb"examples.{0,12}?(\d000)", data, re.S)) for data in (first, second)]
  assert logged == [{b"1000", b"2000"}, {b"3000"}]
  assert b"toy" in first


def test_trackio_holds_each_row_once(tmp_path, monkeypatch, capsys):
  pytest.importorskip("trackio")
  utils = pytest.importorskip("trackio.utils")
  monkeypatch.setenv("TRACKIO_PROJECT", "tests")
  for module in (utils, pytest.importorskip("trackio.sqlite_storage")):
    monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
  write(tmp_path, [epoch_row(1), epoch_row(2)], TrackioLogger())
  console = Console(file=io.StringIO(), width=300)
  write(tmp_path, [epoch_row(2), epoch_row(3)], TrackioLogger(), resume_step=10, console=console)
  assert capsys.readouterr().out == ""
  assert "to look: trackio show --project tests\n" in console.file.getvalue()
  uri = urllib.parse.quote(str(tmp_path / "trackio" / "tests.db"))
  with sqlite3.connect(f"file:{uri}?mode=ro", uri=True) as database:
    rows = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
  assert [step for _, step, _ in rows] == [10, 20, 30]
  assert len({name for name, _, _ in rows}) == 1
  assert [json.loads(metrics)["train_loss"] for *_, metrics in rows][:2] == [2.0, 1.0]
