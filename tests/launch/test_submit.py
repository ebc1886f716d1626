"""Submission: nothing is lost, asked twice or half-written, whatever ends it in between."""

import json

import pytest
from fake_jobs import QUICKSTART, event, facts_of, lock_elsewhere, result_of, write_events
from toy import contents

from jaxspeed.errors import UserError
from jaxspeed.launch import Local, Run, record, runs
from jaxspeed.launch.executor import Found


def requests_of(folder):
  return [request.what for request in facts_of(folder).requests]


def submitted(fake):
  return [ask[1] for ask in fake.asked if ask[0] == "submit"]


def finish(folder):
  folder.mkdir(exist_ok=True)
  (folder / "result.json").write_text(json.dumps(result_of()))


# Starts


def test_a_start_writes_all_down_before_it_asks_the_scheduler(make, fake, root, capsys):
  run = make()
  run.start()
  assert fake.asked == [("check", root), *(("submit", name) for name in "abc")]
  for i, facts in enumerate(record.read_jobs(root / "run")):
    assert [request.what for request in facts.requests] == ["submit"]
    words = f"-m jaxspeed.train --config={QUICKSTART} --workdir={root}/run/{'abc'[i]}"
    assert facts.job.command("python") == ["python", *words.split(), f"--config.seed={i}"]
  lines = capsys.readouterr().out.splitlines()
  assert lines[:3] == [f"submitted {name}" for name in "abc"]
  tail = f"look at them with: python -m jaxspeed.launch status {root}/run"
  assert lines[3:] == [f"3 jobs submitted; {tail}"]
  make("abcd").start()
  assert submitted(fake) == [*"abcd"]
  lines = capsys.readouterr().out.splitlines()
  assert lines == ["submitted d", f"1 job submitted, 3 were there before; {tail}"]


def test_a_submission_that_dies_is_repeated_and_submits_only_what_is_missing(make, fake, root):
  fake.dies_after = 1
  with pytest.raises(UserError, match="^it refused .no more jobs..$"):
    make().start()
  assert [requests_of(root / "run" / name) for name in "abc"] == [["submit"]] * 3
  # The scheduler has two of the three, of one of which it did not say so.
  fake.dies_after = None
  fake.said["b"] = Found(False, "55")
  fake.asked.clear()
  make().start()
  # One question for all.
  assert fake.asked == [("check", root), ("states", "a", "b", "c"), ("submit", "c")]
  tokens = {name: [r.token for r in facts_of(root / "run" / name).requests] for name in "abc"}
  assert tokens["a"] == tokens["b"] == tokens["c"][:1] and len({*tokens["c"]}) == 2
  # Nothing is submitted while the scheduler does not answer.
  fake.said = None
  with pytest.raises(UserError, match="^fake does not answer: repeat the command when"):
    make("abcd").start()
  assert submitted(fake) == ["c"]


def test_after_a_refusal_other_jobs_take_the_names_unless_one_has_begun(make, fake, root):
  fake.dies_after = 0
  with pytest.raises(UserError, match="it refused"):
    make("ab").start()
  fake.dies_after = None
  make("b", overrides={"epochs": 3.0}).start()
  assert submitted(fake) == ["b"] and facts_of(root / "run" / "b").job.epochs == 3.0
  note = event("started", token=facts_of(root / "run" / "a").token, detail="77")
  write_events(root / "run" / "a" / "launch" / "job.jsonl", [note])
  make("a").start()
  assert submitted(fake) == ["b"]
  assert {status.name: status.id for status in Run.load(root / "run").status()}["a"] == "77"


def test_a_run_that_has_lost_its_file_keeps_what_it_has_trained(make, root):
  make("ab").start()
  (root / "run" / "a").mkdir()
  path = root / "run" / "a" / "array"
  path.write_text("trained")
  (root / "run" / "run.json").unlink()
  with pytest.raises(UserError, match="holds no run of jaxspeed.launch"):
    Run.load(root / "run")
  make("ab").start()
  # What was asked is still known.
  assert path.read_text() == "trained" and requests_of(root / "run" / "a") == ["submit"]


def test_executors_that_differ_are_asked_each_and_for_no_more_jobs_than_they_take(
  make, fake, root, monkeypatch
):
  monkeypatch.setattr(fake, "most_at_once", 2)
  run = make("abc")
  run.job(QUICKSTART, name="d", executor=fake(gpus=2))
  run.start()
  found = record.read_jobs(root / "run")
  assert [facts.submission.jobs for facts in found] == [["a", "b"], ["a", "b"], ["c"], ["d"]]
  assert found[3].job.executor["gpus"] == 2


def test_another_config_below_the_same_name_is_refused(make, root):
  make().start()
  before = contents(root)
  with pytest.raises(UserError) as error:
    make(overrides={"epochs": 3.0}).start()
  assert str(error.value) == (
    f"{root}/run/a was submitted with another config (config.epochs: absent -> 3.0): give the new "
    "job, or the run, a name of its own."
  )
  assert contents(root) == before


def test_jobs_of_another_executor_are_refused(make, root):
  make("a").start()
  other = Run("run", executor=Local(gpus=0), root=root)
  other.job(QUICKSTART, {"batch_size": 96}, name="b")
  with pytest.raises(UserError, match="would have jobs of fake, local: make a run for each"):
    other.start()
  assert [facts.job.name for facts in record.read_jobs(root / "run")] == ["a"]


def test_a_new_command_is_for_jobs_that_have_ended(make, fake, root, capsys):
  make("abcd").start()
  finish(root / "run" / "a")
  Run.load(root / "run").cancel(["b"])
  fake.said |= {"c": Found(True, "7")}
  capsys.readouterr()
  make("abcd", executor=fake(python="/opt/python")).start()
  lines = capsys.readouterr().out.splitlines()
  kept = "was submitted with another command or executor, and keeps it"
  new = "b has a new command or executor, with which retry starts it"
  assert lines[:3] == [new, f"c {kept}", f"d {kept}"]
  pythons = [facts.job.executor["python"] for facts in record.read_jobs(root / "run")]
  assert pythons == ["", "/opt/python", "", ""]


def test_a_second_process_is_refused(make, fake, root, monkeypatch):
  make("a").start()
  before = contents(root)
  monkeypatch.setattr(runs, "_PATIENCE", 0.1)
  with lock_elsewhere(root / "run" / ".launch" / "lock"):
    with pytest.raises(UserError, match="run is being submitted or changed by .*: wait for it.$"):
      make("ab").start()
  assert contents(root) == before
  make("ab").start()


# Later


def refuse(*_):
  raise UserError("Slurm did not cancel.")


def test_cancellation(make, fake, root, monkeypatch):
  make().start()
  finish(root / "run" / "a")
  monkeypatch.chdir(root)
  run = Run.load("run")
  assert (run.name, run.root, run.executor) == ("run", root, fake())
  fake.asked.clear()
  with monkeypatch.context() as patch, pytest.raises(UserError, match="did not cancel"):
    patch.setattr(fake, "cancel", refuse)
    run.cancel(["b"])
  # What the scheduler refuses is not written down.
  assert run.status()[1].state == "pending"
  assert run.cancel(["a", "b"]) == ["b"]
  assert ("cancel", "101") in fake.asked
  assert [status.state for status in run.status()] == ["done", "cancelled", "pending"]
  assert run.cancel(every=True) == ["c"] and run.cancel(every=True) == []
  for act in (run.cancel, run.retry):
    with pytest.raises(UserError, match="every=True"):
      act()
  # The same script does not submit what was cancelled.
  fake.asked.clear()
  make().start()
  assert submitted(fake) == []


def test_a_job_of_a_submission_that_died_is_found_to_be_cancelled(make, fake, root):
  fake.dies_after = 0
  with pytest.raises(UserError):
    make("ab").start()
  fake.said = {"a": Found(False, "55")}
  fake.asked.clear()
  assert Run.load(root / "run").cancel(every=True) == ["a", "b"]
  assert [ask for ask in fake.asked if ask[0] == "cancel"] == [("cancel", "55")]
  assert requests_of(root / "run" / "b") == ["submit", "cancel"]
  fake.said = None
  Run.load(root / "run").cancel(every=True)


def test_waiting_prints_each_change_once(make, fake, root, capsys, monkeypatch):
  make("ab").start()
  run = Run.load(root / "run")
  capsys.readouterr()
  looks = []

  def look(seconds):
    looks.append(seconds)
    if len(looks) == 2:
      finish(root / "run" / "a")
    if len(looks) == 3:
      run.cancel(["b"])

  monkeypatch.setattr("jaxspeed.launch.run.time.sleep", look)
  found = run.wait()
  assert [status.state for status in found] == ["done", "cancelled"]
  assert capsys.readouterr().out == "a: pending\nb: pending\na: done\nb: cancelled\n"
  # A scheduler is asked twice a minute at most.
  assert looks == [30.0] * 3
