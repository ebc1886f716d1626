"""Runs of several processes of which one is lost, hangs or is asked to end; disks and hosts.

`pytest -m campaign tests/campaign --junitxml=faults.xml` keeps what each fault came to.
"""

import dataclasses
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


def test_a_signal_to_a_run_of_one_process(lab, record_property):
  run = lab.new_run()
  for moment in ("start", "step"):
    seen = faulty_runs.ask_to_end(run, signal.SIGTERM, DONE, count=1, moment=moment)
    record_property(f"SIGTERM, {moment}", seen)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
  "fault, on_error", [("full", "continue"), ("full", "stop"), ("read-only", "continue")]
)
def test_a_disk_that_takes_nothing(lab, record_property, count, fault, on_error):
  record_property("seen", faulty_disks.break_disk(lab, count, fault, on_error))


def test_an_older_start_wakes_up(lab, record_property):
  record_property("seen", faulty_starts.wake_an_older_start(lab))


@pytest.mark.parametrize("first, then", [(2, 1), (1, 4)])
def test_another_number_of_processes(lab, record_property, first, then):
  record_property("seen", faulty_starts.go_on_with(lab, first, then))


def test_a_pulled_cable(lab, record_property):
  record_property("seen", faulty_starts.pull_the_cable(lab))


def test_one_bit_is_a_difference(lab):
  finished = lab.undisturbed("resident", 1)
  name, content = next(iter(finished.arrays.items()))
  changed = bytes([content[0] ^ 1]) + content[1:]
  assert dataclasses.replace(finished, arrays=finished.arrays | {name: changed}) != finished
