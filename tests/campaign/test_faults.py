"""A job that is killed at any moment goes on and ends with the same bits, in both feeds.

KILLS=50 in the environment makes that many kills instead of 20, divided over feeds and processes.
"""

import os

import pytest
from faulty_runs import Lab, kill_often

KILLS = int(os.environ.get("KILLS", 20))
LANES = [(feed, count) for feed in ("resident", "stream") for count in (1, 2)]


@pytest.mark.slow
@pytest.mark.campaign
def test_kills_change_no_bit(tmp_path, record_property):
  lab, moments = Lab(tmp_path), dict.fromkeys(("start", "training", "saving"), 0)
  for number, (feed, count) in enumerate(LANES):
    kills = (KILLS + number) // len(LANES)
    done = kill_often(lab, feed, count, kills, seed=0)
    record_property(f"{kills} kills, {feed}, {count} processes", f"{done.moments} {done.ages}")
    moments = {name: n + done.moments[name] for name, n in moments.items()}
  assert sum(moments.values()) == KILLS
  # By the seeds about half of the kills wait for the first step.
  assert moments["start"] >= 3 and moments["training"] + moments["saving"] >= 3
