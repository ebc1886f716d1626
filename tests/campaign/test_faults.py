"""Runs that are killed, lose a process, are asked to end, or lose a disk or a network: same bits.

`pytest -m campaign tests/campaign --junitxml=faults.xml` keeps what each fault came to. KILLS=50 in
the environment makes that many kills instead of 20, divided over feeds and processes.
"""

import contextlib
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from faulty_runs import INTERVAL, START, STEPS, WITHIN, Lab, came_to, resumed_from, sentence
from local_cluster import Processes, two_hosts, wait_until
from toy import contents

from jaxspeed.errors import DONE, INTERRUPTED, LOST_PEER, MISTAKE, REQUEUE, SUPERSEDED

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

KILLS = int(os.environ.get("KILLS", 20))
LATE = 4.0  # seconds that two steps, an epoch and a save may add to INTERVAL; 2.0 seen at load 5
LANES = [(feed, count) for feed in ("resident", "stream") for count in (1, 2)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
  return Lab(tmp_path_factory.mktemp("faults"))


# Kills of all processes


def kill_often(lab, feed, count, kills):
  """kill -9 of all processes at random moments, until so many kills are done; then to the end.

  A third of them at any moment of the start, a third of a second of training, a third of a save and
  what follows it. Each start has to go on from the newest checkpoint there was at the kill, and the
  end has to be, bit by bit, that of a run that nothing happened to. Returns for each kill the part
  of a start that it fell into, and the seconds since the last save or the first step.
  """
  rng = random.Random(f"0-{feed}-{count}")
  run, start_seconds, seen = lab.new_run(feed), 10.0, []

  def finish():
    # A kill may also have come behind the result.
    assert run.is_done() or resumed_from(run.finish(count)) == expected
    run.assert_as_undisturbed(count)

  expected = 0  # the step from which the next start has to go on
  while kills:
    if run.is_done() or expected > 0.9 * STEPS[feed]:
      finish()
      run, expected = lab.new_run(feed), 0
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
      saves = [p.stat().st_ctime for p in (run.workdir / "checkpoints").glob("[0-9]*")]
      age = killed - max([trains_since, *saves])
      seen.append(("saving" if run.is_saving() else "training", age))
      assert age < INTERVAL + LATE, "steps of more than an interval are lost"
    else:
      seen.append(("start", 0.0))
    # A start that had come as far has gone on from where the one before was saved.
    assert resumed_from(ended[0].out) in (0, expected)
    assert run.whole() >= expected
    expected = run.whole()
    kills -= 1
  finish()
  return seen


def test_kills_change_no_bit(lab, record_property):
  moments = []
  for number, (feed, count) in enumerate(LANES):
    kills = (KILLS + number) // len(LANES)
    seen = kill_often(lab, feed, count, kills)
    record_property(f"{kills} kills, {feed}, {count} processes", seen)
    moments += [moment for moment, _ in seen]
  # By the seeds about half of the kills wait for the first step.
  assert len(moments) == KILLS and 3 <= moments.count("start") <= KILLS - 3


# A signal to one of two processes

LOST = "): checkpoints are whole, and the same command resumes from the newest"
STUCK = "(--config.watchdog_seconds; its threads are above): perhaps another process hangs"
HANGS = ("--config.heartbeat_seconds=300", "--config.watchdog_seconds=8")


def disturb(run, to, number, moment, code, words, *flags):
  """One process gets a signal in a step, in a save, or when a line of the start is printed.

  The others, and itself if the signal leaves it the time, end with a code and a sentence, in which
  {} is the step that is saved.
  """
  with run.started(2, *flags) as group:
    starts = moment not in ("step", "save")
    if starts:
      group[0].wait_for(moment, START)
    else:
      run.wait_for_save(group)
    if moment == "save":
      wait_until(run.is_saving, 60, "a save")
    group[to].signal(number)
    begun = time.monotonic()
    gone = number in (signal.SIGKILL, signal.SIGSTOP)
    left = Processes(each for i, each in enumerate(group) if not gone or i != to)
    # Before the first step all have their programs first.
    ended = left.wait(START if starts and not gone else WITHIN)
    assert [each.code for each in ended] == [code] * len(left), [each.err for each in ended]
    assert gone or sentence(ended[to].err, f"jaxspeed: {number.name}")
    seen = came_to(begun, sentence(ended[0].err, words.format(run.whole())))
  assert not run.is_done()
  return seen


def interrupt_twice(run):
  """Ctrl-C, which waits for a process that hangs, and a second one, which does not."""
  with run.started(2, HANGS[0]) as group:
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
    assert ended.code == INTERRUPTED and run.whole()
  return came_to(begun, sentence(ended.err, "ended at once"))


def test_whoever_is_lost_the_others_say_so_and_the_run_goes_on_with_the_same_bits(
  lab, record_property
):
  run, hangs = lab.new_run(), (STUCK, *HANGS)
  for to, number, moment, words, *flags in (
    (1, signal.SIGKILL, "step", LOST),
    (0, signal.SIGKILL, "step", LOST),
    (0, signal.SIGKILL, "save", LOST),
    (1, signal.SIGKILL, "model ", LOST),  # between the first meeting and the first step
    # No error comes of a process that is stopped: its heartbeat, or the watchdog, tells.
    (1, signal.SIGSTOP, "step", LOST),
    (1, signal.SIGSTOP, "step", *hangs),
    (0, signal.SIGSTOP, "step", *hangs),
  ):
    seen = disturb(run, to, number, moment, LOST_PEER, words, *flags)
    record_property(f"{number.name} to process {to} of 2, {moment} {flags}", seen)
  run.finish()
  run.assert_as_undisturbed()


def test_a_signal_to_any_process_saves_the_same_step_in_all(lab, record_property):
  run, saved = lab.new_run(), f"saved step {{}} of {STEPS['resident']}"
  for to, number, moment, code, words in (
    (1, signal.SIGTERM, "recipe ", DONE, "before the first step"),
    (1, signal.SIGTERM, "step", DONE, saved),
    (0, signal.SIGTERM, "save", DONE, saved),
    (1, signal.SIGUSR1, "step", REQUEUE, saved),
    (0, signal.SIGINT, "step", INTERRUPTED, saved),
  ):
    seen = disturb(run, to, number, moment, code, words)
    record_property(f"{number.name} to process {to} of 2, {moment}", seen)
  record_property("SIGINT twice, process 1 hangs", interrupt_twice(run))
  run.finish()
  run.assert_as_undisturbed()


# Disks


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


Mend = Callable[[], object]


def fill(folder: pathlib.Path) -> Mend:
  """Takes all that is left of a disk; returns what gives it back."""
  filler = folder / "filler"
  with filler.open("ab", buffering=0) as file:
    for size in (1 << 16, 1 << 10, 1):
      with contextlib.suppress(OSError):
        while file.write(b"\0" * size):
          pass
  return filler.unlink


def make_read_only(folder: pathlib.Path) -> Mend:
  """Lets nobody write to a disk; returns what lets them again."""

  def remount(mode: str) -> bool:
    command = ["mount", "-o", f"remount,{mode}", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0

  wait_until(lambda: remount("ro"), 30, "a moment in which nothing is written")
  return lambda: remount("rw")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
  "fault, on_error", [("full", "continue"), ("full", "stop"), ("read-only", "continue")]
)
def test_a_disk_that_takes_nothing(lab, record_property, count, fault, on_error):
  """The disk of a run is full for a while, or that of its checkpoints read-only."""
  run = lab.new_run("resident", f"--config.checkpoint.on_error={on_error}")
  full, stops = fault == "full", on_error == "stop"
  with small_disk(run.workdir if full else run.workdir / "checkpoints") as disk:
    with run.started(count) as group:
      run.wait_for_save(group)
      mend = (fill if full else make_read_only)(disk)
      begun = time.monotonic()
      if stops:
        ended = group.wait(WITHIN)
        assert [e.code for e in ended] == [MISTAKE] * count
        seen = came_to(begun, sentence(ended[0].err, "could not be written"))
        assert "the run stops, the last whole checkpoint is of step" in seen
      else:
        group[0].wait_for("could not be written", WITHIN)
        seen = came_to(begun, "")
        time.sleep(1.0)  # of some epochs' rows
      kept = run.whole()
      mend()
      if not stops:
        ended = group.wait(START)
        assert [e.code for e in ended] == [DONE] * count, [e.err for e in ended]
        seen += sentence(ended[0].out, "the run continues")
        assert not full or "(No space left on device)" in seen
    if stops:  # with room, the same command resumes
      assert resumed_from(run.finish(count)) == kept
    assert not run.is_saving()
    run.assert_as_undisturbed(count)
  record_property("seen", seen)


# Starts and networks


def test_an_older_start_wakes_up(lab, record_property):
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
    (refused,) = stranger.wait(START)
    assert refused.code == MISTAKE and sentence(refused.err, "is in use by start 2")
    (ended,) = newer.wait(START)
    assert ended.code == DONE and resumed_from(ended.out) > 0
    before = contents(run.workdir)
    older[0].signal(signal.SIGCONT)
    begun = time.monotonic()
    (woken,) = older.wait(WITHIN)
    assert woken.code == SUPERSEDED
    seen = came_to(begun, sentence(woken.err, "was taken over by start 2"))
    assert "start 1, ends at once and writes nothing more there" in seen
    assert contents(run.workdir) == before
  run.assert_as_undisturbed(1)
  record_property("seen", seen)


@pytest.mark.parametrize("first, then", [(2, 1), (1, 4)])
def test_another_number_of_processes(lab, record_property, first, then, devices=4):
  """A run is stopped and goes on in another number of processes, on as many devices in all."""
  flags = ["--config.precision=float64"]
  run = lab.new_run("resident", *flags, name=f"-{first}-{then}")
  with run.started(first, devices=devices // first) as group:
    run.wait_for_save(group)
    group[-1].signal(signal.SIGTERM)
    assert [e.code for e in group.wait(WITHIN)] == [DONE] * first
  saved = run.whole()
  assert resumed_from(run.finish(then, devices=devices // then)) == saved
  mine, other = run.finished()[1], lab.undisturbed("resident", first, devices // first, *flags)[1]
  assert [row["examples"] for row in mine] == [row["examples"] for row in other]
  differences = [
    max(abs(a[name] - b[name]) for name in ("train_loss", "eval_loss"))
    for a, b in zip(mine, other, strict=True)
    if a["step"] > saved
  ]
  # Another order of sums, which training makes 1e5 times larger in 40 epochs (in float32, 2e-7 to
  # 3e-2); losses are about 2.3.
  near, worst = max(differences[:2]), max(differences)
  assert near < 1e-11 and worst < 1e-8, differences
  record_property("seen", f"losses differ by {near:.0e} in two epochs, then by {worst:.0e} at most")


def test_a_pulled_cable(lab, record_property):
  """Two hosts, of which one's cable is pulled; plugged in again, the same command goes on."""
  run = lab.new_run("resident", name="-cable")
  with two_hosts() as hosts:
    with run.started(2, hosts=hosts) as group:
      run.wait_for_save(group)
      hosts[1].cable("down")
      begun = time.monotonic()
      ended = group.wait(WITHIN)
      assert [e.code for e in ended] == [LOST_PEER] * 2, [e.err for e in ended]
      seen = came_to(begun, " ".join(sentence(each.err, LOST) for each in ended))
    hosts[1].cable("up")
    saved = run.whole()
    with run.started(2, hosts=hosts) as group:
      again = group.wait(START)
      assert [e.code for e in again] == [DONE] * 2, [e.err for e in again]
    assert resumed_from(again[0].out) == saved
  run.assert_as_undisturbed(2)
  record_property("seen", seen)
