"""Checks of jobs before any is submitted: recipe, overrides, devices, data."""

import functools
from collections.abc import Sequence

from ml_collections import ConfigDict

from jaxspeed.config import checks, stored
from jaxspeed.config.checks import with_overrides
from jaxspeed.config.recipe import load_recipe
from jaxspeed.errors import UserError, plural, some
from jaxspeed.files import dump_json
from jaxspeed.launch.executor import Planned
from jaxspeed.models import make  # noqa: F401  registers the models, whose fields a recipe may set
from jaxspeed.planning.make import make_plan
from jaxspeed.run.planned import planned
from jaxspeed.run.setup import feed_of

_NO_DATA = {"seed", "schedule", "optimizer", "model"}  # fields that change nothing of the data


def check_jobs(jobs: Sequence[Planned], *, data: bool = True) -> dict[str, ConfigDict]:
  """The configs of jobs by name, each checked as `jaxspeed.plan` does.

  Args:
    jobs: all jobs of a run.
    data: whether to open their data, where they lie on disks that this machine sees.

  Raises:
    UserError: some jobs cannot run; the message has every mistake, with the jobs that make it.
  """
  configs: dict[str, ConfigDict] = {}
  mistakes: dict[str, list[str]] = {}
  recipe_of = functools.cache(load_recipe)
  opened = set[str]()  # what decides the data, which many jobs share
  for job in jobs:
    try:
      config = with_overrides(recipe_of(job.recipe), job.overrides)
      checks.check_effects(config, [*job.overrides], command="train")
      devices, found = job.executor.devices(), stored.to_dict(config)
      others = {name: found[name] for name in found.keys() - _NO_DATA}
      key = dump_json([others, devices, sorted(job.overrides)], sort_keys=True)
      if not (data and job.executor.sees_data):
        feed_of(config)
        make_plan(config, devices=devices)
      elif key not in opened:
        planned(config, devices=devices, given=job.overrides)
        opened.add(key)
      configs[job.name] = config
    except UserError as error:
      mistakes.setdefault(str(error), []).append(job.name)
  if mistakes:
    wrong = sum(map(len, mistakes.values()))
    listed = " ".join(f"[{some(names, 3)}] {reason}" for reason, names in mistakes.items())
    which = f"{wrong} of {plural(len(jobs), 'job')}"
    raise UserError(f"{which} cannot run, and nothing was submitted: {listed}")
  return configs
