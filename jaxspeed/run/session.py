"""One call of `train`: what surrounds its runs, and the runs one after the other."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from jaxspeed.cluster import folder_lock, processes, signals
from jaxspeed.cluster.peers import Peers
from jaxspeed.cluster.watchdog import watchdog
from jaxspeed.config import checks
from jaxspeed.data.formats.class_names import store_class_names
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.devices.compile import cache_settings_kept, use_cache
from jaxspeed.errors import UserError
from jaxspeed.feeds.protocol import Feed, OpenData
from jaxspeed.planning.make import make_plan
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import Screen, silent_console
from jaxspeed.records.results import result_of, write_result
from jaxspeed.records.trackers import ensure_installed
from jaxspeed.run import folder as folder_lib
from jaxspeed.run.control import RunControl
from jaxspeed.run.finish import finished_result
from jaxspeed.run.headline import print_compiled, print_header
from jaxspeed.run.profile import check_steps
from jaxspeed.run.run import COMMAND, NONE, Hooks, Parts, Run
from jaxspeed.run.setup import feed_of, pin_config, set_up, spec_of
from jaxspeed.run.trainer import Trainer
from jaxspeed.steps.spec import TrainSpec


def train(
  config: ConfigDict,
  workdir: str,
  peers: Peers | None = None,
  given: Collection[str] = (),
  *,
  parts: Parts = NONE,
  hooks: Hooks = COMMAND,
) -> dict[str, Any]:
  """Trains `config` in `workdir`, or resumes the run that is there.

  Args:
    config: the config, not yet resolved.
    workdir: the run's folder, the same one for all processes.
    peers: the processes of the run, which all must call this; None: this one alone.
    given: the fields that the command line sets, which the data do not override.
    parts: the objects that the run is given in place of fields.
    hooks: what the caller wants; a call from Python leaves the process as it was.

  Returns:
    The content of result.json.

  Raises:
    UserError: a mistake in the config, the data or the folder; a loss that is not finite.
    Stopped: a signal ended the run early, after saving it.
  """
  clock = Clock(later=hooks.call is not None)
  config = checks.checked(parts.recorded(config).to_dict())
  feed_of(config)  # raises on an unknown feed
  make_plan(config)  # raises on mistakes, before data and folders take seconds
  ensure_installed(config.records.loggers)
  folder = pathlib.Path(workdir)
  with contextlib.ExitStack() as stack:
    catch = signals.catch_interrupt if hooks.call else signals.catch_signals
    caught = stack.enter_context(catch())
    stack.enter_context(precision.wide_enough(config.precision))
    if peers is not None:
      with clock.measure("connect"):
        processes.connect(peers, heartbeat_seconds=config.heartbeat_seconds)
    elif hooks.call is None:
      processes.connect_tpu_hosts(heartbeat_seconds=config.heartbeat_seconds)
    with clock.measure("devices"):
      mesh_lib.find_devices()
    screen = hooks.make_screen() if processes.is_primary() else Screen(silent_console())
    with processes.all_or_none("taking the run's folder"):
      end = folder_lock.raise_superseded if hooks.call else folder_lock.end_superseded
      taken = folder_lib.taken(workdir, superseded=end)
      lock = stack.enter_context(taken) if processes.is_primary() else None
    stack.enter_context(cache_settings_kept())
    use_cache()
    incarnation = processes.gather(lock.incarnation if lock else 0)[0]
    config, data, notes = set_up(
      config, folder, incarnation, clock=clock, console=screen.console, given=given, parts=parts
    )
    if (finished := finished_result(folder)) is not None:
      screen.result(finished, finished_in=str(folder))
      if hooks.profile is not None:
        screen.line("no steps are left to trace (profile)")
      return finished
    with clock.measure("model"):
      spec = spec_of(config, data, parts)
    check_steps(hooks.profile, spec.plan.total_steps)
    _stop_before_steps(caught)
    print_header(screen, spec, data, notes, folder)
    stack.enter_context(_explain_memory_errors(config))
    feed = stack.enter_context(_ready_feed(data, spec, screen, clock))
    control = RunControl(caught, lock, spec.mesh)
    # After this, all have their programs, and none waits long for another.
    with clock.measure("others"):
      _stop_before_steps(caught)
    caught.begun = True
    stack.enter_context(watchdog(0 if hooks.call else config.watchdog_seconds))
    first = Run(spec, folder, feed, clock, control, hooks, screen, data.class_names)
    rows = [Trainer(run).run() for run in _seeds(first)]
    if not processes.is_primary():
      return result_of(rows)
    result = write_result(folder, rows)
    screen.result(result)
    return result


def _stop_before_steps(caught: signals.Signals) -> None:
  """Ends the run if a signal reached any of its processes before there was anything to save.

  Raises:
    Stopped: a signal came; raised in all processes.
  """
  action = signals.RunAction(max(processes.gather(caught.action)))
  if action >= signals.RunAction.STOP:
    raise signals.Stopped(signals.NOTHING_TO_SAVE, action.exit_code)


@contextlib.contextmanager
def _ready_feed(data: OpenData, spec: TrainSpec, screen: Screen, clock: Clock) -> Iterator[Feed]:
  """Yields the feed of a run, with its programs compiled and its images in place."""
  with clock.measure("compile"):
    feed = feed_of(spec.config)(data, spec)
  with contextlib.closing(feed):
    with clock.measure("compile"):
      feed.wait_for(0)
    print_compiled(screen, spec, feed, clock)
    with clock.measure("load"):
      feed.place()
    with clock.measure("warmup"):
      feed.warm_up()
    yield feed


def _seeds(run: Run) -> Iterator[Run]:
  """The runs of `config.runs` seeds, each in a folder of its own if there are several.

  Args:
    run: all of them, in the folder of all.
  """
  several = run.config.runs > 1
  for index in range(run.config.runs):
    config = run.config.copy_and_resolve_references()
    config.update(seed=run.config.seed + index, runs=1)
    folder = run.folder / f"run_{index:03d}" if several else run.folder
    if several:
      run.screen.line(f"run {index + 1} of {run.config.runs}, seed {config.seed}")
    if processes.is_primary():
      folder_lib.make(folder)
      if several:
        pin_config(folder, config)
      store_class_names(folder, run.class_names)
    one = dataclasses.replace(run, spec=dataclasses.replace(run.spec, config=config), folder=folder)
    if index:
      # The first run's clock has the seconds that the runs share; a later clock starts here. The
      # runs take the same steps: a trace of the first one serves all.
      hooks = dataclasses.replace(run.hooks, profile=None)
      one = dataclasses.replace(one, clock=Clock(later=True), hooks=hooks)
    yield one


@contextlib.contextmanager
def _explain_memory_errors(config: ConfigDict) -> Iterator[None]:
  """Turns an error of too little device memory into a UserError that says what to change."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise UserError(
      f"the devices have too little memory for this run ({str(error).splitlines()[0]}): set "
      f"--config.accumulate to {2 * config.accumulate} or more, which computes a device's part of "
      "the batch in as many micro-batches and keeps the recipe, and --config.eval.batch_size lower."
    ) from error
