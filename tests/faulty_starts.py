"""Two starts of one run, other numbers of processes, and networks that fail (`faulty_runs.py`)."""

import contextlib
import pathlib
import signal
import time

from faulty_runs import (
  START,
  WITHIN,
  Lab,
  came_to,
  resumed_from,
  sentence,
  sentence_of_loss,
)
from local_cluster import two_hosts

from jaxspeed.errors import DONE, LOST_PEER, MISTAKE, SUPERSEDED


def wake_an_older_start(lab: Lab) -> str:
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
    before = _contents(run.workdir)
    older[0].signal(signal.SIGCONT)
    begun = time.monotonic()
    (woken,) = older.wait(WITHIN)
    assert woken.code == SUPERSEDED
    seen = came_to(begun, sentence(woken.err, "was taken over by start 2"))
    assert "start 1, ends at once and writes nothing more there" in seen
    assert _contents(run.workdir) == before
  run.assert_as_undisturbed(1)
  return seen


def _contents(folder: pathlib.Path) -> dict[str, bytes]:
  return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Another number of processes.


def go_on_with(lab: Lab, first: int, then: int, *, devices: int = 4) -> str:
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
  return f"losses differ by {near:.0e} in the next two epochs, later by {worst:.0e} at most"


# Networks.


def pull_the_cable(lab: Lab) -> str:
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
  return seen
