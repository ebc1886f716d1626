"""One call of `train`: what surrounds its runs, and the runs one after the other."""

import contextlib
import dataclasses
import errno
import functools
import pathlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from jaxspeed.cluster import processes
from jaxspeed.cluster.agreement import Agreement
from jaxspeed.cluster.peers import Peers
from jaxspeed.cluster.signals import NOTHING_TO_SAVE, RunAction, Signals, Stopped
from jaxspeed.cluster.watchdog import watchdog
from jaxspeed.config import checks
from jaxspeed.data.formats.class_names import store_class_names
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.devices.compile import cache_settings_kept, use_cache
from jaxspeed.errors import UserError, mend
from jaxspeed.feeds.protocol import Feed
from jaxspeed.planning.make import lay_out
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import Screen, silent_console
from jaxspeed.records.loggers import ensure_installed
from jaxspeed.records.results import result_of, write_result
from jaxspeed.run import folder as folder_lib
from jaxspeed.run.control import RunControl
from jaxspeed.run.folder import RunFolder
from jaxspeed.run.headline import print_compiled, print_finished, print_header
from jaxspeed.run.hooks import COMMAND, Hooks
from jaxspeed.run.parts import NONE, Parts
from jaxspeed.run.profile import check_steps
from jaxspeed.run.run import Run
from jaxspeed.run.setup import Setup, feed_of, make_feed, pin_config, set_up
from jaxspeed.run.trainer import Trainer
from jaxspeed.steps.spec import TrainSpec


def run_name(index: int) -> str:
  """The folder of one of several runs."""
  return f"run_{index:03d}"


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
  clock = hooks.make_clock()
  config = checks.checked(parts.recorded(config).to_dict())
  feed_of(config)  # raises on an unknown feed
  lay_out(config)  # raises on mistakes, before data and folders take seconds
  ensure_installed(config.records.loggers)
  with Session.enter(config, workdir, peers, clock, hooks) as session:
    setup = set_up(
      config,
      session.folder,
      session.incarnation,
      clock=clock,
      console=session.screen.console,
      given=given,
      parts=parts,
    )
    if setup.finished is not None:
      print_finished(session.screen, setup.config, session.folder, setup.finished)
      if hooks.profile is not None:
        session.screen.line("no steps are left to trace (profile)")
      return setup.finished
    with clock.measure("model"):
      steps = setup.spec.plan.total_steps
    check_steps(hooks.profile, steps)
    session.stop_before_steps()
    print_header(session.screen, setup, session.folder)
    with (
      _ready_feed(setup, session.screen, clock) as feed,
      session.steps(setup.spec, clock) as make_control,
    ):
      with _explain_memory_errors(setup.config):
        rows = _run_all(setup, feed, session, clock, make_control)
      if not processes.is_primary():
        return result_of(rows, cost_per_hour=setup.config.cost_per_hour)
      result = write_result(session.folder, rows, cost_per_hour=setup.config.cost_per_hour)
      session.screen.result(result)
      return result


@dataclasses.dataclass(frozen=True)
class Session:
  """What surrounds the runs of one call of `train`; made by `enter`.

  Attributes:
    signals: the signals caught so far.
    folder: the run's folder.
    owned: the folder as owned by this start; None except in process 0.
    incarnation: the number of this start of the run, the same in all processes.
    screen: where the session and its runs print.
    hooks: what the caller of `train` wants.
  """

  signals: Signals
  folder: pathlib.Path
  owned: RunFolder | None
  incarnation: int
  screen: Screen
  hooks: Hooks = COMMAND

  @classmethod
  @contextlib.contextmanager
  def enter(
    cls,
    config: ConfigDict,
    workdir: str,
    peers: Peers | None,
    clock: Clock,
    hooks: Hooks = COMMAND,
  ) -> Iterator["Session"]:
    """Catches signals, connects the processes and takes the folder; arguments as in `train`."""
    with contextlib.ExitStack() as stack:
      signals = stack.enter_context(hooks.signals())
      stack.enter_context(precision.wide_enough(config.precision))
      if peers is not None:
        with clock.measure("connect"):
          processes.connect(peers, heartbeat_seconds=config.heartbeat_seconds)
      with clock.measure("devices"):
        mesh_lib.find_devices()
      folder, owned = pathlib.Path(workdir), None
      screen = hooks.make_screen() if processes.is_primary() else Screen(silent_console())
      with processes.all_or_none("taking the run's folder"):
        if processes.is_primary():
          taken = folder_lib.taken(workdir, data_path=config.data.path, superseded=hooks.superseded)
          owned = stack.enter_context(taken)
          stack.enter_context(_explain_disk_errors(folder))
      incarnation = processes.gather(owned.lock.incarnation if owned else 0)[0]
      stack.enter_context(cache_settings_kept())
      use_cache(config.compile_cache)
      yield cls(signals, folder, owned, incarnation, screen, hooks)

  def stop_before_steps(self) -> None:
    """Ends the run if a signal reached any of its processes before there was anything to save.

    Raises:
      Stopped: a signal came; raised in all processes.
    """
    action = RunAction(max(processes.gather(self.signals.action)))
    if action >= RunAction.STOP:
      raise Stopped(NOTHING_TO_SAVE, action.exit_code)

  @contextlib.contextmanager
  def steps(self, spec: TrainSpec, clock: Clock) -> Iterator[Callable[[], RunControl]]:
    """Runs the watchdog over the steps of all runs; yields the factory of each run's control."""
    agreement = Agreement(spec.mesh)
    # After this, all have their programs, and none waits long for another.
    with clock.measure("others"):
      self.stop_before_steps()
    self.signals.begun = True
    with watchdog(spec.config.watchdog_seconds if self.hooks.watched else 0):
      parts = (self.signals, agreement, self.owned, self.incarnation)
      yield functools.partial(RunControl, *parts)


@contextlib.contextmanager
def _ready_feed(setup: Setup, screen: Screen, clock: Clock) -> Iterator[Feed]:
  """Yields the feed of a run, with its programs compiled and its images in place."""
  spec = setup.spec
  with _explain_memory_errors(spec.config), clock.measure("compile"):
    feed = make_feed(setup.data, spec)
  with contextlib.closing(feed):
    with _explain_memory_errors(spec.config), clock.measure("compile"):
      lines = feed.wait_for(0)
    print_compiled(screen, spec, feed, clock)
    for line in lines:
      screen.line(line)
    with clock.measure("load"):
      feed.place()
    if feed.needs_warm_up:
      with clock.measure("warmup"):
        feed.warm_up()
    yield feed


def _run_all(
  setup: Setup, feed: Feed, session: Session, clock: Clock, make_control: Callable[[], RunControl]
) -> list[dict[str, Any]]:
  """Trains `config.runs` seeds one after the other; returns their result rows."""
  config, rows = setup.config, []
  for index in range(config.runs):
    run_config = config.copy_and_resolve_references()
    run_config.update(seed=config.seed + index, runs=1)
    folder = session.folder
    if config.runs > 1:
      session.screen.line(f"run {index + 1} of {config.runs}, seed {run_config.seed}")
      folder = folder / run_name(index)
    if processes.is_primary():
      folder_lib.make(folder)
      if config.runs > 1:
        pin_config(folder, run_config)
      store_class_names(folder, setup.data.class_names)
    if index:
      # The first run's clock has the seconds that the runs share; a later clock starts here.
      clock = Clock(later=True)
    spec = dataclasses.replace(setup.spec, config=run_config)
    # The runs take the same steps: a trace of the first one serves all.
    hooks = dataclasses.replace(session.hooks, profile=None) if index else session.hooks
    names = setup.data.class_names
    run = Run(spec, folder, feed, clock, make_control(), hooks, session.screen, names)
    rows.append(Trainer(run).run())
  return rows


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


@contextlib.contextmanager
def _explain_disk_errors(folder: pathlib.Path) -> Iterator[None]:
  """Turns a failure to write records or the result into a UserError that says what to do."""
  try:
    yield
  except OSError as error:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    path = pathlib.Path(error.filename if isinstance(error.filename, str) else folder)
    if not (full or (error.filename and path.absolute().is_relative_to(folder.absolute()))):
      raise
    raise UserError(
      f"{path} could not be written ({error.strerror or error}): {mend(error)}; the same command "
      "resumes from the newest checkpoint."
    ) from error
