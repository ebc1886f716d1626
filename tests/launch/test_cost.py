"""The cost of a job: the price of its nodes, times the hours in which it had them."""

import os

import pytest
from fake_jobs import NOW, at_now, event, write_job

from jaxspeed.launch import cost

HOUR = 3600


@pytest.mark.parametrize(
  "notes, hours",
  [
    ([], 0),
    ([event("started", 5 * HOUR), event("failed", 3 * HOUR)], 2),
    ([event("started", 5 * HOUR), event("done", 4.5 * HOUR)], 0.5),
    (
      [
        event("started", 9 * HOUR),
        event("requeued", 8 * HOUR),
        event("started", 6 * HOUR, 1),
        event("done", 3 * HOUR, 1),
      ],
      4,
    ),
    # Submitted again: what was spent before counts too.
    (
      [
        event("started", 9 * HOUR, token="old"),
        event("failed", 8 * HOUR, token="old"),
        event("started", 2 * HOUR),
        event("done", 1 * HOUR),
      ],
      2,
    ),
    # The clocks of two hosts differ.
    ([event("started", 3 * HOUR), event("requeued", 4 * HOUR)], 0),
    ([event("requeued", 4 * HOUR)], 0),
  ],
)
def test_whole_intervals_are_added(tmp_path, notes, hours):
  facts = write_job(tmp_path, notes=notes)
  assert cost.hours_of(facts, running=False) == pytest.approx(hours)
  assert cost.hours_of(facts, running=True, now=NOW) == pytest.approx(hours)


def test_a_running_job_costs_until_now(tmp_path):
  facts = write_job(tmp_path, notes=[event("started", 3 * HOUR)])
  assert cost.hours_of(facts, running=True, now=NOW) == pytest.approx(3)
  assert cost.hours_of(facts, running=True, now=NOW - HOUR) == pytest.approx(2)


def test_a_start_that_was_cut_off_costs_to_its_tasks_last_sign(tmp_path):
  notes = [event("started", 9 * HOUR), event("started", 3 * HOUR, 1), event("done", HOUR, 1)]
  tasks = {0: [event("ended", 7 * HOUR)], 1: [event("ended", 8 * HOUR), event("ended", HOUR, 1)]}
  facts = write_job(tmp_path, notes=notes, tasks=tasks)
  assert cost.hours_of(facts, running=False) == pytest.approx(2 + 2)
  facts = write_job(tmp_path, "b", notes=notes)
  assert cost.hours_of(facts, running=False) == pytest.approx(2)


def test_a_job_that_vanished_costs_to_the_last_change_of_its_logs(tmp_path):
  facts = write_job(tmp_path, notes=[event("started", 9 * HOUR)], logs={"0.log": "x"})
  os.utime(facts.folder / "launch" / "logs" / "0.log", (0, NOW - 5 * HOUR))
  assert cost.hours_of(facts, running=False) == pytest.approx(4)
  assert cost.hours_of(write_job(tmp_path, "b", notes=facts.notes), running=False) == 0


def test_price_and_nodes(tmp_path, monkeypatch):
  at_now(monkeypatch)
  executor = {"kind": "slurm", "price_per_hour": 1.5, "nodes": 4}
  notes = [event("started", 2 * HOUR)]
  facts = write_job(tmp_path, notes=notes, executor=executor)
  assert cost.of_job(facts, running=True) == pytest.approx(12.0)
  free = write_job(tmp_path, "b", notes=notes)
  assert cost.of_job(free, running=True) == 0.0
