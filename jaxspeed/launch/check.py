"""Checks of jobs before any is submitted: recipe, overrides, devices, data, memory."""

from collections.abc import Sequence

from ml_collections import ConfigDict

from jaxspeed.config import effects, stored
from jaxspeed.config.overrides import with_overrides
from jaxspeed.config.recipe import load_recipe
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json
from jaxspeed.launch.executor import Executor, Planned
from jaxspeed.models import make  # noqa: F401  registers the models, whose fields a recipe may set
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Plan
from jaxspeed.run.planned import planned
from jaxspeed.run.setup import feed_of
from jaxspeed.scaling.hardware import DEVICES
from jaxspeed.scaling.work import work_of

_NAMED = 3  # jobs named in a message with each mistake
_NO_DATA = {"seed", "schedule", "optimizer", "model"}  # fields that change nothing of the data


def check_jobs(jobs: Sequence[Planned], *, data: bool = True) -> dict[str, ConfigDict]:
  """The configs of jobs by name, each checked as `jaxspeed.plan` does.

  Args:
    jobs: the jobs.
    data: whether to open the data of jobs that read them from disks which this machine sees.

  Raises:
    UserError: some jobs cannot run; the message has every mistake, with the jobs that make it.
  """
  checker = _Checker()
  configs: dict[str, ConfigDict] = {}
  mistakes: dict[str, list[str]] = {}
  for job in jobs:
    try:
      configs[job.name] = checker.check(job, data=data)
    except UserError as error:
      mistakes.setdefault(str(error), []).append(job.name)
  if mistakes:
    wrong = sum(map(len, mistakes.values()))
    listed = " ".join(f"[{_names(names)}] {reason}" for reason, names in mistakes.items())
    verb = "cannot run, and nothing was submitted"
    raise UserError(f"{wrong} of {len(jobs)} job{'s' * (len(jobs) > 1)} {verb}: {listed}")
  return configs


def _names(names: Sequence[str]) -> str:
  more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
  return ", ".join(names[:_NAMED]) + more


class _Checker:
  """Checks jobs one after the other; reads each recipe and each data set once."""

  def __init__(self) -> None:
    self._recipes: dict[str, ConfigDict | UserError] = {}
    self._plans: dict[str, Plan | UserError] = {}

  def check(self, job: Planned, *, data: bool) -> ConfigDict:
    config = with_overrides(self._recipe(job.recipe), job.overrides)
    effects.check(config, [*job.overrides], command="train")
    if data and job.executor.sees_data():
      plan = self._planned(config, job)
    else:
      feed_of(config)
      plan = make_plan(config, devices=job.executor.devices())
    _check_memory(plan, job.executor, config)
    return config

  def _recipe(self, recipe: str) -> ConfigDict:
    if recipe not in self._recipes:
      try:
        self._recipes[recipe] = load_recipe(recipe)
      except UserError as error:
        self._recipes[recipe] = error
    found = self._recipes[recipe]
    if isinstance(found, UserError):
      raise found
    return found

  def _planned(self, config: ConfigDict, job: Planned) -> Plan:
    """The plan with the data that are there, which many jobs share."""
    found = stored.to_dict(config)
    others = {name: found[name] for name in found.keys() - _NO_DATA}
    devices = job.executor.devices()
    key = dump_json([others, devices, sorted(job.overrides)], sort_keys=True)
    if key not in self._plans:
      try:
        self._plans[key] = planned(config, devices=devices, given=job.overrides).plan
      except UserError as error:
        self._plans[key] = error
    plan = self._plans[key]
    if isinstance(plan, UserError):
      raise plan
    return plan


def _check_memory(plan: Plan, executor: Executor, config: ConfigDict) -> None:
  """Refuses a recipe that does not fit the executor's GPUs, where their memory is known.

  Raises:
    UserError: a phase needs more memory than a GPU has.
  """
  device = DEVICES.get(executor.accelerator().lower().replace("-", "_"))
  if device is None:
    return
  work = work_of(config)
  for phase in plan.phases:
    images = phase.batch_size / executor.devices() / config.accumulate
    needed = work.memory_gb(config, plan, phase, executor.devices())
    if needed > device.memory_gb:
      times = -(-needed // device.memory_gb)
      raise UserError(
        f"config.batch_size={phase.batch_size}: {images:.0f} images of {phase.image_size} px need "
        f"{needed:.0f} GB on each of {executor.devices()} GPUs ({executor.accelerator()}, "
        f"{device.memory_gb:g} GB): set "
        f"accumulate={config.accumulate * times:.0f}, or use more GPUs."
      )
