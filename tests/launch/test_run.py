"""What a script states of a run: every mistake is told before anything is written."""

import pytest
from fake_jobs import QUICKSTART, facts_of

from jaxspeed.errors import UserError
from jaxspeed.launch import Local, Run, Slurm, check, grid


def test_all_mistakes_of_nine_jobs_at_once(make, fake, root, tmp_path):
  with pytest.raises(UserError) as error:
    with make("") as run:
      for overrides in grid(**{"schedule.peak": [0.1, 0.2, 0.3], "batch_size": [100, 150, 250]}):
        mistakes = {(0.2, 150): {"lr": 1.0}, (0.1, 250): {"epochs": -1.0}}
        key = (overrides["schedule.peak"], overrides["batch_size"])
        run.job(QUICKSTART, overrides | mistakes.get(key, {}), executor=fake(gpus=4))
      run.job(str(tmp_path / "none.py"))
  text = str(error.value)
  assert text.startswith("7 of 10 jobs cannot run, and nothing was submitted: [")
  assert "the config has no field lr: did you mean schedule.peak?" in text
  assert "config.epochs=-1.0" in text and "none.py" in text and "batch_size=150" in text
  assert text.count("[") == 5 and not root.exists() and not fake.asked


def test_data_that_many_jobs_share_are_opened_once(tmp_path, root, monkeypatch):
  opened = []
  plan = check.planned
  run = Run("run", executor=Local(gpus=0), root=root)
  for overrides in grid(**{"schedule.peak": [0.1, 0.2], "seed": range(3)}):
    run.job(QUICKSTART, overrides | {"data.path": str(tmp_path), "batch_size": 160})

  def planned(config, **values):
    opened.append(config.data.path)
    config.data.path = ""
    return plan(config, **values)

  monkeypatch.setattr(check, "planned", planned)
  assert len(run.check()) == 6 and opened == [str(tmp_path)]


def test_a_run_without_jobs_and_an_error_in_the_block(make):
  with pytest.raises(UserError, match="^the run run has no jobs: add some with run.job.RECIPE."):
    make("").start()
  # It is not covered by that.
  with pytest.raises(KeyError), make(""):
    raise KeyError("a")


def test_scripts_write_nothing(make, root):
  found = make("ab").scripts()
  assert [*found] == [f"{root}/run/{name}" for name in "ab"] and not root.exists()
  words = f"--config={QUICKSTART} --workdir={root}/run/a --config.seed=0"
  assert found[f"{root}/run/a"] == f"# a\n# which runs: python -m jaxspeed.train {words}\n"


def test_fields_of_all_jobs_leave_names_and_refuse_own_fields(make, root):
  run = make("a")
  run.override({"epochs": 3.0})
  run.start()
  assert facts_of(root / "run" / "a").job.epochs == 3.0
  run = make("a")
  name = run.job(QUICKSTART, {"epochs": 5.0})
  with pytest.raises(UserError, match=f"^config.epochs is set by the job {name} itself"):
    run.override({"epochs": 4.0})
  with pytest.raises(UserError, match="the jobs so far, and there is none"):
    make("").override({"epochs": 4.0})


@pytest.mark.parametrize(
  "values, message",
  [
    ({"executor": "slurm"}, "executor='slurm': give Local(...), Slurm(...) or Sky(...)."),
    ({"exist": "maybe"}, "exist='maybe': choose one of continue, new, error."),
    ({"root": ""}, "root='' is no local folder: name one that all jobs' machines share."),
    ({"root": 3}, "root=3: it must be the path of a"),
  ],
)
def test_values_of_a_run_that_are_refused(tmp_path, values, message):
  given = {"name": "run", "executor": Local(gpus=0), "root": tmp_path} | values
  with pytest.raises(UserError) as error:
    Run(given.pop("name"), **given)
  assert str(error.value).startswith(message)


@pytest.mark.parametrize(
  "arguments, values, message",
  [
    (("a.py",), {"executor": Slurm()}, "executor=Slurm("),
    (("a.py",), {"name": "a b"}, "the name 'a b' of a job is no folder's name"),
    (("b.py",), {"name": "A"}, "two jobs of the run run have the name A: give each its own"),
  ],
)
def test_values_of_a_job_that_are_refused(make, arguments, values, message):
  run = make("a")
  with pytest.raises(UserError) as error:
    run.job(*arguments, **values)
  assert str(error.value).startswith(message)
  run.check()


def test_two_local_queues_in_one_run_are_refused(make, root):
  run = make("", executor=Local(gpus=0))
  run.job(QUICKSTART, name="a")
  run.job(QUICKSTART, name="b", executor=Local(gpus=0, parallel=2))
  with pytest.raises(UserError, match=r"^the jobs of one run share one Local\(...\)"):
    run.start()
  assert not root.exists()
  root.touch()
  with pytest.raises(OSError, match="runs"):
    make("a").start()


def test_numbers_of_numpy_are_numbers(make, fake, root):
  import numpy as np

  run = make("")
  name = run.job(QUICKSTART, {"schedule.peak": np.float64(0.5), "seed": np.int64(3)})
  run.start()
  assert name == "quickstart_peak=0.5_seed=3"
  assert facts_of(root / "run" / name).job.overrides == {"schedule.peak": 0.5, "seed": 3}
