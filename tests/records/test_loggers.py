"""Loggers: the hook, and Weights & Biases and Trackio offline."""

import json
import re
import sqlite3
import urllib.parse

import pytest
from rich.console import Console
from test_records import epoch_row

import jaxspeed
from jaxspeed.errors import UserError
from jaxspeed.records import loggers as loggers_lib
from jaxspeed.records import tracking
from jaxspeed.records.loggers import LoggedRun
from jaxspeed.records.make_loggers import make_loggers
from jaxspeed.records.tracking import Tracker, TrackioLogger, WandbLogger
from jaxspeed.records.writer import open_records


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
  with open_records(
    folder,
    resume_step=resume_step,
    total_epochs=4,
    console=console or Console(quiet=True),
    loggers=[logger],
    config={"name": "toy", "epochs": 4.0},
  ) as records:
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


@pytest.mark.parametrize("method", ["init", "log", "finish"])
def test_a_logger_that_fails_leaves_the_run_alone(tmp_path, capsys, method):
  class Failing(Listener):
    pass

  def fail(self, *arguments):
    raise ConnectionError("no route to host\nsecond line")

  setattr(Failing, method, fail)
  write(tmp_path, [epoch_row(1), epoch_row(2)], Failing(), console=Console(width=300))
  printed = capsys.readouterr().out
  told = f"Failing.{method} failed (ConnectionError: no route to host)"
  assert printed.count(told) == 1
  assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
  # A call from Python prints nothing.
  with pytest.warns(UserWarning, match=re.escape(told)):
    (tmp_path / "quiet").mkdir()
    write(tmp_path / "quiet", [epoch_row(1)], Failing())


class Fields:
  """No logger, though its names are there."""

  init, log, finish = 1, 2, 3


class Mute(Exception):
  def __str__(self):
    raise RuntimeError("no words")


@pytest.mark.parametrize("error, told", [(SystemExit(3), "SystemExit: 3"), (Mute(), "Mute")])
def test_a_logger_cannot_end_the_process(error, told):
  class Failing(Listener):
    def log(self, row):
      raise error

  lines, other = [], Listener()
  loggers = loggers_lib.Loggers([Failing(), other], lines.append)
  loggers.log({"step": 1, "train_loss": 2.0})
  assert lines[0].startswith(f"Failing.log failed ({told}): the run continues")
  assert other.heard == [("log", 1, 2.0)]
  error = KeyboardInterrupt()
  with pytest.raises(KeyboardInterrupt):
    loggers_lib.Loggers([Failing()], lines.append).log({})


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
    ([Listener], "holds the class Listener: pass an object of it"),
    (2 * [Listener()], "holds one object of type Listener twice: name it once"),
    ([Fields()], "lacks one of the methods init"),
    ([object()], "lacks one of the methods init"),
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
  """A tracker that keeps what it is sent in a list."""

  name = "sent"

  def __init__(self, sent):
    self.sent = sent

  def start(self, identity):
    assert json.loads((self.run.folder / "loggers" / "sent.json").read_text())["id"] == identity
    self.sent.append(identity)

  def send(self, row, step):
    self.sent.append(step)

  def end(self):
    self.sent.append("end")


def test_rows_that_a_kill_kept_from_a_tracker_are_sent_by_the_next_process(tmp_path):
  rows, sent = [epoch_row(number) for number in (1, 2, 3)], []
  killed = Sent(sent)
  killed.init(LoggedRun(tmp_path))
  killed.log(rows[0])
  assert sent == []  # the row waits until the package is imported
  for before, row in ((1, rows[1]), (2, rows[2])):
    resumed = Sent(sent)
    resumed.init(LoggedRun(tmp_path, rows=rows[:before]))
    resumed.log(row)
    resumed.finish()
  assert sent == [sent[0], 10, 20, "end", sent[0], 30, "end"]
  finished = Sent(sent)
  finished.init(LoggedRun(tmp_path, rows=rows))
  finished.finish()
  assert len(sent) == 7


@pytest.mark.parametrize("seconds, again", [(30.0, [10, 20]), (0.0, [20])])
def test_the_last_rows_before_a_kill_are_sent_again(tmp_path, monkeypatch, seconds, again):
  """wandb had lost them: its own process writes a row later."""
  monkeypatch.setattr(tracking, "_SECONDS_TO_WRITE", seconds)
  monkeypatch.setattr(loggers_lib, "SECONDS_BEFORE_IMPORT", 0.0)
  rows, sent = [epoch_row(number) for number in (1, 2, 3)], []
  killed = Sent(sent)
  killed.init(LoggedRun(tmp_path))
  killed.log(rows[0])
  killed.log(rows[1])
  resumed = Sent(sent)
  resumed.init(LoggedRun(tmp_path, rows=rows[:2]))
  resumed.log(rows[2])
  resumed.finish()
  assert sent == [sent[0], 10, 20, sent[0], *again, 30, "end"]
  assert json.loads((tmp_path / "loggers" / "sent.json").read_text())["step"] == 30


def test_wandb_offline_holds_each_row_once(tmp_path, monkeypatch):
  pytest.importorskip("wandb")
  for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
  write(tmp_path, [epoch_row(1), epoch_row(2)], WandbLogger())
  write(tmp_path, [epoch_row(2), epoch_row(3)], WandbLogger(), resume_step=10)
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
  write(tmp_path, [epoch_row(2), epoch_row(3)], TrackioLogger(), resume_step=10)
  assert capsys.readouterr().out == ""
  uri = urllib.parse.quote(str(tmp_path / "trackio" / "tests.db"))
  with sqlite3.connect(f"file:{uri}?mode=ro", uri=True) as database:
    rows = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
  assert [step for _, step, _ in rows] == [10, 20, 30]
  assert len({name for name, _, _ in rows}) == 1
  assert [json.loads(metrics)["train_loss"] for *_, metrics in rows][:2] == [2.0, 1.0]
