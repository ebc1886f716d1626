"""Runs of several processes: one is lost, hangs or is asked to end; disks, starts and networks.

`pytest -m campaign tests/campaign --junitxml=faults.xml` keeps what each fault came to.
"""

import contextlib
import signal
import time

import faulty_disks
import faulty_runs
import pytest
from faulty_runs import START, WITHIN, Lab, came_to, resumed_from, sentence, sentence_of_loss
from local_cluster import two_hosts
from toy import contents

from jaxspeed.errors import DONE, INTERRUPTED, LOST_PEER, MISTAKE, REQUEUE, SUPERSEDED

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
  return Lab(tmp_path_factory.mktemp("faults"))


def test_whoever_is_lost_the_others_say_so_and_the_run_goes_on_with_the_same_bits(
  lab, record_property
):
  run = lab.new_run()
  for victim, moment in ((1, "step"), (0, "step"), (0, "save"), (1, "start")):
    seen = faulty_runs.lose_one(run, victim, moment)
    record_property(f"kill -9 of process {victim} of 2, {moment}", seen)
  # No error comes of a process that is stopped: its heartbeat, or the watchdog, tells.
  seen = faulty_runs.lose_one(run, 1, "step", how=signal.SIGSTOP)
  record_property("SIGSTOP to process 1 of 2", seen)
  for victim in (1, 0):
    record_property(f"process {victim} of 2 hangs", faulty_runs.hang_one(run, victim))
  run.finish()
  run.assert_as_undisturbed()


def test_a_signal_to_any_process_saves_the_same_step_in_all(lab, record_property):
  run = lab.new_run()
  for number, code, to, moment in (
    (signal.SIGTERM, DONE, 1, "start"),
    (signal.SIGTERM, DONE, 1, "step"),
    (signal.SIGTERM, DONE, 0, "save"),
    (signal.SIGUSR1, REQUEUE, 1, "step"),
    (signal.SIGINT, INTERRUPTED, 0, "step"),
  ):
    seen = faulty_runs.ask_to_end(run, number, code, to=to, moment=moment)
    record_property(f"{number.name} to process {to} of 2, {moment}", seen)
  record_property("SIGINT twice, process 1 hangs", faulty_runs.interrupt_twice(run))
  run.finish()
  run.assert_as_undisturbed()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
  "fault, on_error", [("full", "continue"), ("full", "stop"), ("read-only", "continue")]
)
def test_a_disk_that_takes_nothing(lab, record_property, count, fault, on_error):
  record_property("seen", faulty_disks.break_disk(lab, count, fault, on_error))


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
      seen = came_to(begun, " ".join(sentence_of_loss(each) for each in ended))
    hosts[1].cable("up")
    saved = run.whole()
    with run.started(2, hosts=hosts) as group:
      again = group.wait(START)
      assert [e.code for e in again] == [DONE] * 2, [e.err for e in again]
    assert resumed_from(again[0].out) == saved
  run.assert_as_undisturbed(2)
  record_property("seen", seen)
