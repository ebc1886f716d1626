"""A job that is killed at any moment goes on and ends with the same bits, in both feeds."""

import pytest
from faulty_runs import Lab, kill_often

SEEDS = {"resident": 0, "stream": 1}
KILLS = 10  # of each feed


@pytest.mark.slow
@pytest.mark.campaign
def test_twenty_kills_change_no_bit(tmp_path):
  lab = Lab(tmp_path)
  moments = {"start": 0, "training": 0, "saving": 0}
  for feed, seed in SEEDS.items():
    done = kill_often(lab, feed, 1, KILLS, seed)
    moments = {name: n + done.moments[name] for name, n in moments.items()}
  assert sum(moments.values()) == 2 * KILLS
  # By the seeds about half of the kills wait for the first step.
  assert moments["start"] >= 3 and moments["training"] + moments["saving"] >= 3
