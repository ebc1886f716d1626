"""What a script states of a run: overrides, names, mistakes; and the examples of the docs."""

import re

import pytest
from commands import ROOT
from fake_jobs import QUICKSTART, facts_of

from jaxspeed.errors import UserError
from jaxspeed.launch import Local, Run, Sky, check, grid
from jaxspeed.launch.runs import NAME, check_name
from jaxspeed.launch.sweep import job_name


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


def test_an_error_in_the_block_is_not_covered_by_that_of_no_jobs(make):
  with pytest.raises(UserError, match="^the run run has no jobs: add some with run.job.RECIPE."):
    make("").start()
  with pytest.raises(KeyError), make(""):
    raise KeyError("a")


def test_scripts_write_nothing(make, root):
  found = make("ab").scripts()
  assert [*found] == [f"{root}/run/{name}" for name in "ab"] and not root.exists()
  words = f"--config={QUICKSTART} --workdir={root}/run/a --config.seed=0"
  assert found[f"{root}/run/a"] == f"# a\n# which runs: python -m jaxspeed.train {words}\n"


def test_fields_of_all_jobs_refuse_own_fields(make):
  run = make("a")
  name = run.job(QUICKSTART, {"epochs": 5.0})
  with pytest.raises(UserError, match=f"^config.epochs is set by the job {name} itself"):
    run.override({"epochs": 4.0})
  with pytest.raises(UserError, match="the jobs so far, and there is none"):
    make("").override({"epochs": 4.0})


def test_values_of_a_run_or_a_job_that_are_refused(make, tmp_path):
  run = make("a")
  for call, values, message in (
    (Run, {"executor": "slurm"}, r"executor='slurm': give Local\(...\), Slurm\(...\) or Sky"),
    (Run, {"root": ""}, "root='' is no local folder: name one that all jobs' machines share."),
    (Run, {"root": "gs://b"}, "root='gs://b' is no local folder"),
    (Run, {"root": 3}, "root=3: it must be the path of a"),
    (run.job, {"name": "a b"}, "the name 'a b' of a job is no folder's name"),
    (run.job, {"name": "A"}, "two jobs of the run run have the name A: give each its own"),
  ):
    fixed = {"executor": Local(gpus=0), "root": tmp_path} if call is Run else {}
    with pytest.raises(UserError, match=f"^{message}"):
      call("a.py", **fixed | values)
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


# Overrides and names


def test_every_combination_the_last_field_fastest():
  found = grid(**{"schedule.peak": [1.0, 2.0], "seed": range(2)})
  pairs = [(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1)]
  assert found == [{"schedule.peak": peak, "seed": seed} for peak, seed in pairs]
  assert grid() == [{}] and grid(a=iter("xy")) == [{"a": "x"}, {"a": "y"}]
  for axis in (3, "ab"):
    with pytest.raises(UserError, match=f"^a={axis!r} is one value: give a list of values"):
      grid(a=axis)
  with pytest.raises(UserError, match="^a has no values: give at least one.$"):
    grid(a=range(0))


@pytest.mark.parametrize(
  "recipe, overrides, name",
  [
    ("configs/quickstart.py", {}, "quickstart"),
    ("imagenet18.py:4", {"seed": 1, "schedule.peak": 2.0}, "imagenet18-4_peak=2.0_seed=1"),
    # The last part alone would not tell these from each other.
    ("a.py", {"a.decay": 1, "b.decay": 2, "c": 3}, "a_a.decay=1_b.decay=2_c=3"),
    ("a.py", {"stop": True, "name": "adam w/2"}, "a_name=adam-w-2_stop=True"),
    ("a.py", {"mean": (1.0, 2), "std": []}, "a_mean=1.0-2_std=none"),
    ("a.py", {"data.path": "/data/sets/imagenet"}, "a_path=sets-imagenet"),
    ("a.py", {"peak": 0.12345678901234568, "x": -1e-17 / 3}, "a_peak=0.123457_x=-3.33333e-18"),
  ],
)
def test_names_say_what_is_trained(recipe, overrides, name):
  assert job_name(recipe, overrides) == name


def test_any_name_is_safe():
  for stem in (".a", "-a", "é", " ", "a b\nc", "x" * 300, "a;rm *"):
    for value in ("$(ls)", "../..", "\x1b[0m", "ü" * 90, (), ""):
      name = job_name(f"configs/{stem}.py", {"a.b": value})
      assert NAME.fullmatch(name) and len(name) <= 100


def test_long_names_differ_where_their_jobs_do():
  fields = {f"group.a_long_name_of_a_field_{i}": 0.123456789 for i in range(9)}
  names = {job_name("a.py", fields | {"seed": seed}) for seed in range(50)}
  assert len(names) == 50 and all(len(name) == 100 for name in names)
  assert len({job_name(recipe, fields) for recipe in ("a.py", "b/a.py", "a.py:1")}) == 3
  # Only the last 8 characters tell them from each other.
  assert len({name[:91] for name in names}) == 1


@pytest.mark.parametrize(
  "name", ["", ".a", "-a", "a/b", "a b", "é", "a\n", "x" * 121, 3, None, "run.json"]
)
def test_names_that_are_no_folders(name):
  assert check_name("run", "a.b=c+d,e-f_0") == "a.b=c+d,e-f_0"
  with pytest.raises(UserError, match="^the name .* of a job is no folder's name: use up to 120"):
    check_name("job", name)


# The examples of README and docs/launch.md run as they stand, but for where, and with what.

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def blocks(page):
  found = BLOCK.findall((ROOT / page).read_text())
  return [code for code in found if "jaxspeed.launch" in code]


@pytest.fixture
def started(monkeypatch, tmp_path):
  """Runs that were started: their jobs are checked, and nothing is submitted."""
  runs = []
  monkeypatch.chdir(ROOT)
  monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
  monkeypatch.setattr(Run, "start", lambda run: runs.append(run))
  monkeypatch.setattr(Run, "status", lambda run: "table")
  return runs


@pytest.mark.parametrize("page, jobs", [("README.md", 6), ("docs/launch.md", 9)])
def test_the_first_example_checks_its_jobs(page, jobs, started):
  exec(blocks(page)[0], {})
  (run,) = started
  assert run.name == "lr-sweep" and len(run.scripts()) == jobs


def test_the_example_of_clouds_is_a_valid_executor(monkeypatch):
  names = {}
  exec(blocks("docs/launch.md")[1], names)
  assert isinstance(names["sky"], Sky) and names["sky"].devices() == 16
