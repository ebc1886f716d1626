"""Faults made for real on runs of jaxspeed.train: what is done to them, and what has to come of it.

Each function makes one fault, asserts what follows, and returns a row of what was seen, which the
tests of tests/campaign keep as a property of the test (`pytest --junitxml`).
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import orbax.checkpoint as ocp
import pytest
import toy_stream_config
from local_cluster import Ended, Host, Processes, processes, two_hosts, wait_until
from toy_images import write_folder

from jaxspeed.errors import DONE, INTERRUPTED, LOST_PEER, MISTAKE, SUPERSEDED
from jaxspeed.run.checkpoint import MANIFEST

WITHIN = 60  # seconds in which the others of a lost process have to end
START = 400  # seconds in which a process has to come to its first steps on a busy machine
INTERVAL = 0.3  # seconds of training between two checkpoints
LATE = 4.0  # seconds that two steps, an epoch and a save may add to it; 2.0 seen at a load of 5
HEARTBEAT = 10  # seconds
STEPS = {"resident": 15 * 40, "stream": 10 * 6}

_KEPT = ("step", "examples", "train_loss", "train_top1", "eval_loss", "eval_top1")


@dataclasses.dataclass(frozen=True)
class Row:
  """One fault.

  Attributes:
    fault: what was done.
    printed: by the process that the row is about.
    codes: with which the processes ended, in their order; -9: killed by the test.
    seconds: from the fault to the end of the last process that was not killed.
    after: what became of the run.
  """

  fault: str
  printed: str
  codes: tuple[int, ...]
  seconds: float
  after: str


@dataclasses.dataclass(frozen=True)
class Finished:
  """A run that reached its end.

  Attributes:
    arrays: all that a checkpoint holds, by path, as bytes.
    rows: of its epochs, without times.
  """

  arrays: dict[str, bytes]
  rows: list[dict[str, float]]


class Lab:
  """Where runs are made, with the programs that they share and those that nothing happened to.

  Args:
    folder: which exists.
    programs: the cache of compiled programs; None: a folder of its own.
  """

  def __init__(self, folder: pathlib.Path, programs: pathlib.Path | None = None) -> None:
    self.folder = folder
    self._programs = programs or folder / "programs"
    self._undisturbed: dict[tuple, Finished] = {}
    self._made = 0

  def new_run(self, feed: str = "resident", *flags: str, name: str = "") -> "FaultyRun":
    self._made += 1
    return FaultyRun(self, feed, self.folder / f"{self._made}{name}", flags)

  def arguments(self, feed: str) -> list[str]:
    if feed == "stream":
      images = self.folder / "images"
      if not images.exists():
        write_folder(images, train=toy_stream_config.TRAIN, held_out=toy_stream_config.HELD_OUT)
      recipe = [f"--config=tests/toy_stream_config.py:{self.folder}"]
    else:
      recipe = ["--config=configs/quickstart.py", "--config.model.width=4", "--config.epochs=40"]
    return [
      *recipe,
      f"--config.compile_cache={self._programs}",
      f"--config.checkpoint.every_seconds={INTERVAL}",
      f"--config.heartbeat_seconds={HEARTBEAT}",
    ]

  def undisturbed(
    self, feed: str = "resident", count: int = 1, devices: int = 1, *flags: str
  ) -> Finished:
    """What a run ends with that nothing happens to; it is made once."""
    key = feed, count, devices, flags
    if key not in self._undisturbed:
      run = self.new_run(feed, *flags, name="-undisturbed")
      with run.started(count, devices=devices) as group:
        assert [e.code for e in group.wait(START)] == [DONE] * count, group[0].err
      self._undisturbed[key] = run.finished()
    return self._undisturbed[key]


class FaultyRun:
  """One run's folder, and the processes that are started for it.

  Args:
    lab: whose programs it uses.
    feed: resident or stream.
    workdir: of the run.
    flags: beside those of the feed.
  """

  def __init__(self, lab: Lab, feed: str, workdir: pathlib.Path, flags: Sequence[str]) -> None:
    self.lab, self.feed, self.workdir, self.flags = lab, feed, workdir, flags

  def started(
    self,
    count: int = 2,
    *flags: str,
    devices: int = 1,
    hosts: Sequence[Host] = (),
    variables: dict[str, str] | None = None,
  ) -> contextlib.AbstractContextManager[Processes]:
    return processes(
      *self.lab.arguments(self.feed),
      f"--workdir={self.workdir}",
      *self.flags,
      *flags,
      count=count,
      devices=devices,
      hosts=hosts,
      variables=variables,
    )

  def saved(self) -> int:
    """The step of the newest checkpoint; 0 without one."""
    names = [p.parent.name for p in self.workdir.glob(f"checkpoints/*/{MANIFEST}")]
    return max((int(name) for name in names if name.isdecimal()), default=0)

  def is_saving(self) -> bool:
    return any(self.workdir.glob("checkpoints/.part-*"))

  def is_done(self) -> bool:
    return (self.workdir / "result.json").exists()

  def wait_for_save(self, group: Processes, seconds: float = START) -> int:
    """Until there is a newer checkpoint than now."""
    before = self.saved()
    wait_until(lambda: self.saved() > before or not group[0].running(), seconds, "a checkpoint")
    assert self.saved() > before, group[0].err
    return self.saved()

  def whole(self) -> int:
    """The step of the newest checkpoint, which has to be whole in every byte; 0 without one."""
    step = self.saved()
    if step:
      path = self.workdir / "checkpoints" / str(step)
      stored = json.loads((path / MANIFEST).read_text())["arrays"]
      for name, content in arrays_of(path).items():
        assert stored[f"state{name.replace('/', '.')}"][1] == zlib.crc32(content)
    return step

  def finish(self, count: int = 2, devices: int = 1) -> str:
    """Goes on to the end; returns what was printed."""
    with self.started(count, devices=devices) as group:
      ended = group.wait(START)
      assert [e.code for e in ended] == [DONE] * count, ended[0].err + ended[-1].err
    return ended[0].out

  def finished(self) -> Finished:
    rows = [json.loads(line) for line in (self.workdir / "metrics.jsonl").read_text().splitlines()]
    path = self.workdir / "checkpoints" / str(STEPS[self.feed])
    return Finished(arrays_of(path), [{name: row[name] for name in _KEPT} for row in rows])

  def assert_as_undisturbed(self, count: int = 2, devices: int = 1) -> None:
    mine, other = self.finished(), self.lab.undisturbed(self.feed, count, devices)
    assert mine.rows == other.rows
    assert len(mine.arrays) > 20 and mine.arrays == other.arrays


def arrays_of(path: pathlib.Path) -> dict[str, bytes]:
  with ocp.StandardCheckpointer() as checkpointer:
    tree = checkpointer.restore(path.absolute())
  found: dict[str, bytes] = {}

  def walk(node, name):
    for key, value in node.items():
      if isinstance(value, dict):
        walk(value, f"{name}/{key}")
      elif value is not None:
        found[f"{name}/{key}"] = np.asarray(value).tobytes()

  walk(tree["state"], "")
  return found


def sentence(text: str, part: str) -> str:
  """The line of an output that holds `part`; it has to be one of ours and not in a traceback."""
  assert "Traceback" not in text, text
  lines = [line.strip() for line in text.splitlines() if part in line]
  assert lines, f"no line with {part!r} in:\n{text}"
  return re.sub(r"\s+", " ", lines[0])


def resumed_from(out: str) -> int:
  found = re.search(r"resumes from the checkpoint of step (\d+)", out)
  return int(found.group(1)) if found else 0


# Several processes, of which one is lost.


def lose_one(
  run: FaultyRun, victim: int, moment: str, *, how: signal.Signals = signal.SIGKILL, count: int = 2
) -> Row:
  """One process is killed, or stopped, in a step, while it starts or in a save; the others end."""
  with run.started(count) as group:
    # With no save to wait for, it is between the first meeting and the first step.
    if moment == "start":
      wait_until(lambda: (run.workdir / "owner.json").exists(), START, "the folder")
      group[0].wait_for("model ", START)
    else:
      run.wait_for_save(group)
    if moment == "save":
      wait_until(run.is_saving, 60, "a save")
    group[victim].signal(how)
    begun = time.monotonic()
    others = Processes(p for i, p in enumerate(group) if i != victim)
    ended = others.wait(WITHIN)
    seconds = time.monotonic() - begun
    codes = [LOST_PEER if i != victim else -int(how) for i in range(count)]
    assert [e.code for e in ended] == [LOST_PEER] * (count - 1), ended[0].err
    printed = sentence_of_loss(ended[0])
  assert not run.is_done()
  after = f"the checkpoint of step {run.whole()} is whole"
  verb = "kill -9 of" if how == signal.SIGKILL else "SIGSTOP to"
  where = {"start": "before the first step", "step": "in a step", "save": "in a save"}[moment]
  return Row(f"{verb} process {victim} of {count} {where}", printed, tuple(codes), seconds, after)


def sentence_of_loss(ended: Ended) -> str:
  line = sentence(ended.err, "has lost another process")
  assert "checkpoints are whole" in line and "same command resumes" in line
  return line


def hang_one(run: FaultyRun, victim: int) -> Row:
  """One process stands still while its heart would beat on; the other's watchdog ends the run."""
  seconds_of_dog = 8
  flags = ("--config.heartbeat_seconds=300", f"--config.watchdog_seconds={seconds_of_dog}")
  with run.started(2, *flags) as group:
    run.wait_for_save(group)
    group[victim].signal(signal.SIGSTOP)
    begun = time.monotonic()
    (ended,) = Processes([group[1 - victim]]).wait(WITHIN)
    seconds = time.monotonic() - begun
    assert ended.code == LOST_PEER and seconds > seconds_of_dog
    line = next(x for x in ended.err.splitlines() if "made no progress" in x)
    assert "perhaps another process hangs" in line and "trainer.py" in ended.err  # where it stands
  codes = [LOST_PEER, LOST_PEER]
  codes[victim] = -signal.SIGSTOP
  fault = f"SIGSTOP to process {victim} of 2, watchdog_seconds={seconds_of_dog}"
  return Row(fault, line, tuple(codes), seconds, f"the checkpoint of step {run.whole()} is whole")


# Signals that ask a run to end.


def ask_to_end(
  run: FaultyRun, number: signal.Signals, code: int, *, to: int = 0, count: int = 2, moment: str
) -> Row:
  """A signal to one process: all save the same step and end with the same code."""
  with run.started(count) as group:
    if moment == "start":
      group[0].wait_for("recipe ", START)
    else:
      run.wait_for_save(group)
    if moment == "save":
      wait_until(run.is_saving, 60, "a save")
    group[to].signal(number)
    begun = time.monotonic()
    # Before the first step all have their programs first.
    ended = group.wait(START if moment == "start" else WITHIN)
    seconds = time.monotonic() - begun
    assert [e.code for e in ended] == [code] * count, [e.err for e in ended]
    assert number.name in sentence(ended[to].err, f"jaxspeed: {number.name}")
    what = "before the first step" if moment == "start" else "saved step"
    printed = sentence(ended[0].err, what)
  saved = run.whole()
  if moment != "start":
    assert f"saved step {saved} of {STEPS[run.feed]}" in printed
  assert not run.is_done()
  where = {"start": "before the first step", "step": "in training", "save": "in a save"}[moment]
  fault = f"{number.name} to process {to} of {count} {where}"
  return Row(fault, printed, (code,) * count, seconds, f"step {saved} is saved")


def interrupt_twice(run: FaultyRun) -> Row:
  """Ctrl-C, which waits for a process that hangs, and a second one, which does not."""
  with run.started(2, "--config.heartbeat_seconds=300") as group:
    run.wait_for_save(group)
    group[1].signal(signal.SIGSTOP)
    time.sleep(1.0)
    group[0].signal(signal.SIGINT)
    group[0].wait_for("SIGINT: the run saves after this step", 10)
    time.sleep(1.0)
    assert group[0].running()
    group[0].signal(signal.SIGINT)
    begun = time.monotonic()
    (ended,) = Processes([group[0]]).wait(10)
    seconds = time.monotonic() - begun
    assert ended.code == INTERRUPTED
    printed = sentence(ended.err, "ended at once")
  fault = "SIGINT twice to process 0 of 2, of which process 1 hangs"
  after = f"the checkpoint of step {run.whole()} is whole"
  return Row(fault, printed, (ended.code, -signal.SIGSTOP), seconds, after)


# Disks.


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, megabytes: int = 8) -> Iterator[pathlib.Path]:
  """A file system of its own; skips the test where none can be mounted."""
  if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("mount"):
    pytest.skip("a small disk is mounted by root on Linux")
  folder.mkdir(parents=True, exist_ok=True)
  options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
  if subprocess.run(["mount", *options], capture_output=True).returncode:
    pytest.skip("tmpfs cannot be mounted")
  try:
    yield folder
  finally:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: pathlib.Path) -> pathlib.Path:
  """Takes all that is left of a disk."""
  filler = folder / "filler"
  with filler.open("ab", buffering=0) as file:
    for size in (1 << 16, 1 << 10, 1):
      with contextlib.suppress(OSError):
        while file.write(b"\0" * size):
          pass
  return filler


def fill_disk(lab: Lab, count: int, on_error: str) -> Row:
  """The disk of a run is full for a while."""
  run = lab.new_run("resident", f"--config.checkpoint.on_error={on_error}")
  with small_disk(run.workdir) as disk:
    with run.started(count) as group:
      run.wait_for_save(group)
      filler = fill(disk)
      begun = time.monotonic()
      if on_error == "stop":
        ended = group.wait(WITHIN)
        seconds = time.monotonic() - begun
        assert [e.code for e in ended] == [MISTAKE] * count
        printed = sentence(ended[0].err, "could not be written")
        assert "the run stops, the last whole checkpoint is of step" in printed
      else:
        group[0].wait_for("could not be written", WITHIN)
        seconds = time.monotonic() - begun
        time.sleep(1.0)  # of some epochs' rows
      kept = run.whole()
      filler.unlink()
      if on_error == "continue":
        ended = group.wait(START)
        assert [e.code for e in ended] == [DONE] * count, [e.err for e in ended]
        printed = sentence(ended[0].out, "the run continues")
        assert "(No space left on device)" in printed
        kept_in_words = f"step {kept} stayed; the run went on to its end"
    if on_error == "stop":
      assert resumed_from(run.finish(count)) == kept
      kept_in_words = f"step {kept} stayed; with room, the same command went on from it"
    assert not run.is_saving()
    run.assert_as_undisturbed(count)
  fault = f"disk full, {count} process{'es' * (count > 1)}, checkpoint.on_error={on_error}"
  return Row(fault, printed, tuple(e.code for e in ended), seconds, kept_in_words)


def make_unwritable(lab: Lab, count: int) -> Row:
  """The folder of the checkpoints turns read-only, and later back."""
  run = lab.new_run("resident")
  with small_disk(run.workdir / "checkpoints") as disk:

    def remount(mode: str) -> bool:
      command = ["mount", "-o", f"remount,{mode}", str(disk)]
      return subprocess.run(command, capture_output=True).returncode == 0

    with run.started(count) as group:
      run.wait_for_save(group)
      wait_until(lambda: remount("ro"), 30, "a moment in which nothing is written")
      begun = time.monotonic()
      group[0].wait_for("could not be written", WITHIN)
      seconds = time.monotonic() - begun
      kept = run.whole()
      assert remount("rw")
      ended = group.wait(START)
      assert [e.code for e in ended] == [DONE] * count, [e.err for e in ended]
      printed = sentence(ended[0].out, "the run continues")
    run.assert_as_undisturbed(count)
  fault = f"the folder turns read-only, {count} process{'es' * (count > 1)}"
  after = f"step {kept} stayed; the run went on to its end"
  return Row(fault, printed, tuple(e.code for e in ended), seconds, after)


def damage(run: FaultyRun, kind: str, count: int = 2) -> Row:
  """What is in the folder of a run that was asked to end is damaged; the same command goes on."""
  folder = run.workdir / "checkpoints"
  newest = run.saved()
  if kind == "truncated file":
    files = [p for p in (folder / str(newest)).rglob("d/*") if p.is_file()]
    file = max(files, key=lambda p: p.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    words, at = "cannot be read", newest
  elif kind == "missing manifest":
    (folder / str(newest) / MANIFEST).unlink()
    words, at = "there is no finished checkpoint", newest
  else:
    at = 999_999
    (folder / str(at)).mkdir()
    (folder / str(at) / "notes.txt").write_text("mine\n")
    words = "there is no finished checkpoint"
  expected = run.saved() if kind != "truncated file" else _older(folder, newest)
  with run.started(count) as group:
    begun = time.monotonic()
    group[0].wait_for("starting ", START)
    seconds = time.monotonic() - begun
    run.wait_for_save(group)
    group[0].signal(signal.SIGTERM)
    ended = group.wait(WITHIN)
    assert [e.code for e in ended] == [DONE] * count
  printed = sentence(ended[0].err, "is passed over")
  assert f"checkpoints/{at} is passed over" in printed and words in printed
  assert resumed_from(ended[0].out) == expected, ended[0].out
  if at == 999_999:
    assert (folder / str(at) / "notes.txt").exists()  # not ours to remove
    shutil.rmtree(folder / str(at))
  codes = tuple(e.code for e in ended)
  return Row(f"{kind} in a checkpoint", printed, codes, seconds, f"went on from step {expected}")


def _older(folder: pathlib.Path, step: int) -> int:
  steps = [int(p.parent.name) for p in folder.glob(f"*/{MANIFEST}")]
  return max(s for s in steps if s < step)


# Two starts of one run.


def start_a_second_job(run: FaultyRun, count: int = 1) -> Row:
  """Another job on the folder of one that runs is refused, and the first one is not disturbed."""
  with run.started(count) as group:
    run.wait_for_save(group)
    with run.started(1) as second:
      begun = time.monotonic()
      (refused,) = second.wait(START)
      seconds = time.monotonic() - begun
    assert refused.code == MISTAKE
    printed = sentence(refused.err, "is in use by start")
    assert all(p.running() for p in group) or run.is_done()
    group[0].signal(signal.SIGTERM)
    group.wait(WITHIN)
  after = "the first job is not disturbed"
  return Row("a second job on the same workdir", printed, (refused.code,), seconds, after)


def wake_an_older_start(lab: Lab) -> list[Row]:
  """A job is stopped and started again; a stranger comes; then the older start wakes up."""
  run = lab.new_run("resident", name="-fence")
  job = {"SLURM_JOB_ID": "7"}
  with (
    run.started(1, variables=job | {"SLURM_RESTART_COUNT": "0"}) as older,
    contextlib.ExitStack() as stack,
  ):
    run.wait_for_save(older)
    older[0].signal(signal.SIGSTOP)
    newer = stack.enter_context(run.started(1, variables=job | {"SLURM_RESTART_COUNT": "1"}))
    run.wait_for_save(newer)
    stranger = stack.enter_context(run.started(1))
    begun = time.monotonic()
    (refused,) = stranger.wait(START)
    rows = [
      Row(
        "another job, while a restarted one has the folder",
        sentence(refused.err, "is in use by start 2"),
        (refused.code,),
        time.monotonic() - begun,
        "the restarted job is not disturbed",
      )
    ]
    assert refused.code == MISTAKE
    (ended,) = newer.wait(START)
    assert ended.code == DONE and resumed_from(ended.out) > 0
    before = _contents(run.workdir)
    begun = time.monotonic()
    older[0].signal(signal.SIGCONT)
    (woken,) = older.wait(WITHIN)
    seconds = time.monotonic() - begun
    assert woken.code == SUPERSEDED
    printed = sentence(woken.err, "was taken over by start 2")
    assert "start 1, ends at once and writes nothing more there" in printed
    assert _contents(run.workdir) == before
  run.assert_as_undisturbed(1)
  fault = "SIGSTOP to a job, the job is started again and finishes, SIGCONT to the older start"
  after = "no file of the folder was touched"
  return [*rows, Row(fault, printed, (woken.code, ended.code), seconds, after)]


def _contents(folder: pathlib.Path) -> dict[str, bytes]:
  return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Another number of processes.


def go_on_with(lab: Lab, first: int, then: int, *, devices: int = 4) -> Row:
  """A run is stopped and goes on in another number of processes, on as many devices in all."""
  flags = ["--config.precision=float64"]
  run = lab.new_run("resident", *flags, name=f"-{first}-{then}")
  with run.started(first, devices=devices // first) as group:
    run.wait_for_save(group)
    group[-1].signal(signal.SIGTERM)
    assert [e.code for e in group.wait(WITHIN)] == [DONE] * first
  saved = run.whole()
  begun = time.monotonic()
  out = run.finish(then, devices=devices // then)
  seconds = time.monotonic() - begun
  assert resumed_from(out) == saved
  mine, other = run.finished(), lab.undisturbed("resident", first, devices // first, *flags)
  assert [r["examples"] for r in mine.rows] == [r["examples"] for r in other.rows]
  differences = [
    max(abs(a[name] - b[name]) for name in ("train_loss", "eval_loss"))
    for a, b in zip(mine.rows, other.rows, strict=True)
    if a["step"] > saved
  ]
  # Another order of sums, which training makes 1e5 times larger in 40 epochs (in float32, 2e-7 to
  # 3e-2); losses are about 2.3.
  near, worst = max(differences[:2]), max(differences)
  assert near < 1e-11 and worst < 1e-8, differences
  fault = f"{first} process{'es' * (first > 1)} stopped, goes on with {then} ({devices} devices)"
  after = (
    f"went on from step {saved}; losses differ from those of an undisturbed run by {near:.0e} in "
    f"the next two epochs, later by {worst:.0e} at most"
  )
  return Row(fault, sentence(out, "resumes from"), (DONE,) * then, seconds, after)


# Networks.


def pull_the_cable(lab: Lab) -> Row:
  """Two hosts, of which one's cable is pulled; plugged in again, the same command goes on."""
  run = lab.new_run("resident", name="-cable")
  with two_hosts() as hosts:
    with run.started(2, hosts=hosts) as group:
      run.wait_for_save(group)
      hosts[1].cable("down")
      begun = time.monotonic()
      ended = group.wait(WITHIN)
      seconds = time.monotonic() - begun
      assert [e.code for e in ended] == [LOST_PEER] * 2, [e.err for e in ended]
      printed = sentence_of_loss(ended[0])
      sentence_of_loss(ended[1])
    hosts[1].cable("up")
    saved = run.whole()
    with run.started(2, hosts=hosts) as group:
      again = group.wait(START)
      assert [e.code for e in again] == [DONE] * 2, [e.err for e in again]
    assert resumed_from(again[0].out) == saved
  run.assert_as_undisturbed(2)
  after = f"plugged in again, the same command went on from step {saved}; bits as undisturbed"
  return Row("cable of one of two hosts pulled", printed, (LOST_PEER,) * 2, seconds, after)


# Kills of the whole job.


@dataclasses.dataclass
class Kills:
  """What became of a job that was killed again and again.

  Attributes:
    moments: how many kills fell into which part of a start.
    ages: seconds from the last checkpoint, or the beginning of training, to each kill in training.
    runs: how many runs were needed.
  """

  moments: dict[str, int]
  ages: list[float]
  runs: int


def kill_often(lab: Lab, feed: str, count: int, kills: int, seed: int) -> Kills:
  """kill -9 of all processes at random moments, until so many kills are done; then to the end.

  A third of them at any moment of the start, a third of a second of training, a third of a save and
  what follows it. Each start has to go on from the newest checkpoint there was at the kill, and the
  end has to be, bit by bit, that of a run that nothing happened to.
  """
  rng = random.Random(f"{seed}-{feed}-{count}")
  undisturbed = lab.undisturbed(feed, count)
  result = Kills({"start": 0, "training": 0, "saving": 0}, [], 0)
  run, start_seconds = lab.new_run(feed), 10.0
  expected = 0  # the step from which the next start has to go on
  result.runs = 1
  while kills:
    if run.is_done() or expected > 0.9 * STEPS[feed]:
      _finish_after_kills(run, count, expected, undisturbed)
      run, expected = lab.new_run(feed), 0
      result.runs += 1
    with run.started(count) as group:
      begun = time.monotonic()
      moment = rng.choice(("start", "training", "save"))
      early = begun + rng.uniform(0.0, start_seconds) if moment == "start" else math.inf
      while time.monotonic() < early and "starting " not in group[0].out and group[0].running():
        time.sleep(0.02)
      trains_since = time.time()
      if time.monotonic() < early:
        start_seconds = time.monotonic() - begun
        if moment == "save":
          while not run.is_saving() and group[0].running():
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.1 if moment == "save" else 1.0))
      killed = time.time()
      for process in group:
        process.signal(signal.SIGKILL)
      ended = group.wait(WITHIN)
    if any(e.code == DONE for e in ended):
      expected = run.whole()
      continue  # over before the kill
    assert [e.code for e in ended] == [-signal.SIGKILL] * count, [e.err for e in ended]
    assert "is passed over" not in ended[0].err, ended[0].err
    if "starting " in ended[0].out:
      # What was being written or removed is still there.
      result.moments["saving" if run.is_saving() else "training"] += 1
      saves = [p.stat().st_ctime for p in (run.workdir / "checkpoints").glob("[0-9]*")]
      result.ages.append(killed - max([trains_since, *saves]))
      assert result.ages[-1] < INTERVAL + LATE, "steps of more than an interval are lost"
    else:
      result.moments["start"] += 1
    # A start that had come as far has gone on from where the one before was saved.
    assert resumed_from(ended[0].out) in (0, expected)
    assert run.whole() >= expected
    expected = run.whole()
    kills -= 1
  _finish_after_kills(run, count, expected, undisturbed)
  return result


def _finish_after_kills(run: FaultyRun, count: int, expected: int, undisturbed: Finished) -> None:
  # A kill may also have come behind the result.
  if not run.is_done():
    assert resumed_from(run.finish(count)) == expected
  assert run.finished() == undisturbed
