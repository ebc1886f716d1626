"""Runs of several processes of which one is lost, hangs or is asked to end; disks and hosts."""

import dataclasses
import signal

import faulty_runs
import pytest
from faulty_runs import Lab

from jaxspeed.errors import DONE, REQUEUE

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
  return Lab(tmp_path_factory.mktemp("faults"))


def test_whoever_is_lost_the_others_say_so_and_the_run_goes_on_with_the_same_bits(lab):
  run = lab.new_run()
  faulty_runs.lose_one(run, 1, "step")
  faulty_runs.lose_one(run, 0, "save")
  # No error comes of a process that is stopped: its heartbeat, or the watchdog, tells.
  faulty_runs.lose_one(run, 1, "step", how=signal.SIGSTOP)
  faulty_runs.hang_one(run, 0)
  run.finish()
  run.assert_as_undisturbed()


def test_a_signal_to_any_process_saves_the_same_step_in_all(lab):
  run = lab.new_run()
  faulty_runs.ask_to_end(run, signal.SIGTERM, DONE, to=1, moment="start")
  faulty_runs.ask_to_end(run, signal.SIGTERM, DONE, to=1, moment="step")
  faulty_runs.ask_to_end(run, signal.SIGUSR1, REQUEUE, to=0, moment="save")
  faulty_runs.interrupt_twice(run)
  run.finish()
  run.assert_as_undisturbed()


@pytest.mark.parametrize("count, on_error", [(1, "stop"), (2, "continue")])
def test_a_full_disk(lab, count, on_error):
  faulty_runs.fill_disk(lab, count, on_error)


def test_a_folder_that_turns_read_only(lab):
  faulty_runs.make_unwritable(lab, 1)


def test_damaged_checkpoints_and_a_second_job(lab):
  run = lab.new_run()
  faulty_runs.ask_to_end(run, signal.SIGTERM, DONE, count=1, moment="step")
  faulty_runs.damage(run, "truncated file", 1)
  faulty_runs.damage(run, "junk", 1)
  faulty_runs.start_a_second_job(run)
  run.finish(1)
  run.assert_as_undisturbed(1)


def test_an_older_start_wakes_up(lab):
  faulty_runs.wake_an_older_start(lab)


@pytest.mark.parametrize("first, then", [(2, 1), (1, 4)])
def test_another_number_of_processes(lab, first, then):
  faulty_runs.go_on_with(lab, first, then)


def test_a_pulled_cable(lab):
  faulty_runs.pull_the_cable(lab)


def test_one_bit_is_a_difference(lab):
  finished = lab.undisturbed("resident", 1)
  name, content = next(iter(finished.arrays.items()))
  changed = bytes([content[0] ^ 1]) + content[1:]
  assert dataclasses.replace(finished, arrays=finished.arrays | {name: changed}) != finished
