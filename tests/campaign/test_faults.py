"""A job that is killed at any moment goes on and ends with the same bits, in both feeds.

KILLS=50 in the environment makes that many kills instead of 20, divided over feeds and processes.
"""

import dataclasses
import math
import os
import random
import signal
import time

import pytest
from faulty_runs import INTERVAL, LATE, STEPS, WITHIN, FaultyRun, Finished, Lab, resumed_from

from jaxspeed.errors import DONE

KILLS = int(os.environ.get("KILLS", 20))
LANES = [(feed, count) for feed in ("resident", "stream") for count in (1, 2)]


@dataclasses.dataclass
class Kills:
  """What became of a job that was killed again and again."""

  moments: dict[str, int]  # how many kills fell into which part of a start
  ages: list[float]  # seconds from the last save, or the first step, to each kill in training


def kill_often(lab: Lab, feed: str, count: int, kills: int, seed: int) -> Kills:
  """kill -9 of all processes at random moments, until so many kills are done; then to the end.

  A third of them at any moment of the start, a third of a second of training, a third of a save and
  what follows it. Each start has to go on from the newest checkpoint there was at the kill, and the
  end has to be, bit by bit, that of a run that nothing happened to.
  """
  rng = random.Random(f"{seed}-{feed}-{count}")
  undisturbed = lab.undisturbed(feed, count)
  result = Kills({"start": 0, "training": 0, "saving": 0}, [])
  run, start_seconds = lab.new_run(feed), 10.0
  expected = 0  # the step from which the next start has to go on
  while kills:
    if run.is_done() or expected > 0.9 * STEPS[feed]:
      _finish_after_kills(run, count, expected, undisturbed)
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
