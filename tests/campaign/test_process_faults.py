"""Runs of several processes of which one is lost, hangs or is asked to end; disks and hosts.

`pytest -m campaign tests/campaign --junitxml=faults.xml` keeps what each fault came to.
"""

import dataclasses
import json
import signal

import faulty_disks
import faulty_runs
import faulty_starts
import pytest
from faulty_runs import Lab

from jaxspeed.errors import DONE, INTERRUPTED, REQUEUE

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
  return Lab(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def keep(record_property):
  """Keeps the rows of faults as properties of the test."""

  def keep(*rows):
    for row in rows:
      seen = dataclasses.asdict(row)
      record_property(seen.pop("fault"), json.dumps(seen))

  return keep


def test_whoever_is_lost_the_others_say_so_and_the_run_goes_on_with_the_same_bits(lab, keep):
  run = lab.new_run()
  for victim, moment in ((1, "step"), (0, "step"), (0, "save"), (1, "start")):
    keep(faulty_runs.lose_one(run, victim, moment))
  # No error comes of a process that is stopped: its heartbeat, or the watchdog, tells.
  keep(faulty_runs.lose_one(run, 1, "step", how=signal.SIGSTOP))
  keep(faulty_runs.hang_one(run, 1), faulty_runs.hang_one(run, 0))
  run.finish()
  run.assert_as_undisturbed()


def test_a_signal_to_any_process_saves_the_same_step_in_all(lab, keep):
  run = lab.new_run()
  for number, code, to, moment in (
    (signal.SIGTERM, DONE, 1, "start"),
    (signal.SIGTERM, DONE, 1, "step"),
    (signal.SIGTERM, DONE, 0, "save"),
    (signal.SIGUSR1, REQUEUE, 1, "step"),
    (signal.SIGINT, INTERRUPTED, 0, "step"),
  ):
    keep(faulty_runs.ask_to_end(run, number, code, to=to, moment=moment))
  keep(faulty_runs.interrupt_twice(run))
  run.finish()
  run.assert_as_undisturbed()


def test_a_signal_to_a_run_of_one_process(lab, keep):
  run = lab.new_run()
  for moment in ("start", "step"):
    keep(faulty_runs.ask_to_end(run, signal.SIGTERM, DONE, count=1, moment=moment))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
  "fault, on_error", [("full", "continue"), ("full", "stop"), ("read-only", "continue")]
)
def test_a_disk_that_takes_nothing(lab, keep, count, fault, on_error):
  keep(faulty_disks.break_disk(lab, count, fault, on_error))


def test_an_older_start_wakes_up(lab, keep):
  keep(*faulty_starts.wake_an_older_start(lab))


@pytest.mark.parametrize("first, then", [(2, 1), (1, 4)])
def test_another_number_of_processes(lab, keep, first, then):
  keep(faulty_starts.go_on_with(lab, first, then))


def test_a_pulled_cable(lab, keep):
  keep(faulty_starts.pull_the_cable(lab))


def test_one_bit_is_a_difference(lab):
  finished = lab.undisturbed("resident", 1)
  name, content = next(iter(finished.arrays.items()))
  changed = bytes([content[0] ^ 1]) + content[1:]
  assert dataclasses.replace(finished, arrays=finished.arrays | {name: changed}) != finished
