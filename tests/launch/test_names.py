"""Names of jobs: what recipe and overrides decide, safe as a folder's name."""

import pytest

from jaxspeed.errors import UserError
from jaxspeed.launch.names import job_name
from jaxspeed.launch.runs import NAME, check_name


@pytest.mark.parametrize(
  "recipe, overrides, name",
  [
    ("configs/quickstart.py", {}, "quickstart"),
    (
      "configs/imagenet18.py:4",
      {"seed": 1, "schedule.peak": 2.0},
      "imagenet18-4_peak=2.0_seed=1",
    ),
    # The last part alone would not tell these from each other.
    ("a.py", {"a.decay": 1, "b.decay": 2, "c": 3}, "a_a.decay=1_b.decay=2_c=3"),
    ("a.py", {"stop": True, "name": "adam w/2"}, "a_name=adam-w-2_stop=True"),
    ("a.py", {"mean": (1.0, 2), "std": []}, "a_mean=1.0-2_std=none"),
    ("a.py", {"data.path": "/data/sets/imagenet"}, "a_path=sets-imagenet"),
    ("a.py", {"peak": -1e-05}, "a_peak=-1e-05"),
    (
      "a.py",
      {"peak": 0.12345678901234568, "decay": 1e-17 / 3},
      "a_decay=3.33333e-18_peak=0.123457",
    ),
  ],
)
def test_names_say_what_is_trained(recipe, overrides, name):
  assert job_name(recipe, overrides) == name


@pytest.mark.parametrize("stem", [".a", "-a", "é", " ", "a b\nc", "x" * 300, "a;rm *"])
@pytest.mark.parametrize("value", ["$(ls)", "../..", "\x1b[0m", "ü" * 90, (), ""])
def test_any_name_is_safe(stem, value):
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
