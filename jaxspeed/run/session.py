"""A call of train: signals, processes, folder, data, programs, one run after the other."""

import contextlib
import dataclasses
import errno
import functools
import pathlib
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from jaxspeed.cluster import processes
from jaxspeed.cluster.agreement import Agreement
from jaxspeed.cluster.folder_lock import read_owner
from jaxspeed.cluster.peers import Peers
from jaxspeed.cluster.signals import Signals, Stopped, Wish, catch_signals
from jaxspeed.cluster.watchdog import watchdog
from jaxspeed.config import checks, stored
from jaxspeed.data.disk.sets import ImageSets
from jaxspeed.data.formats.class_names import store_class_names
from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.devices import allreduce, precision
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import use_cache
from jaxspeed.errors import UserError
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.optim import averaging
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import left_out
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import Screen, images_of, make_console, silent_console
from jaxspeed.records.provenance import describe_device
from jaxspeed.records.results import write_result
from jaxspeed.records.statistics import summed_up
from jaxspeed.records.writer import read_metrics
from jaxspeed.run import folder as folder_lib
from jaxspeed.run.checkpoint import Checkpoints
from jaxspeed.run.control import RunControl
from jaxspeed.run.finish import finished_result
from jaxspeed.run.setup import FOLLOWING, Feed, claim, make_feed, open_data, plan_of, resolve
from jaxspeed.run.trainer import Trainer
from jaxspeed.steps.spec import Job, make_job


def _wants_warm_up(config: ConfigDict, feed: ResidentFeed) -> bool:
  return config.warmup == "on" or (config.warmup == "auto" and feed.wants_warm_up())


def _print_compiled(screen: Screen, job: Job, feed: Feed, clock: Clock) -> None:
  parameters = sum(leaf.size for leaf in jax.tree.leaves(feed.carry.state.params))
  # The body of a loop counts once, so this is a step in either case.
  flops = feed.programs[0].flops / job.plan.phases[0].batch_size * job.devices
  cold = sum(not program.cached for program in feed.programs)
  wall = clock.state()["compile"]
  seconds = sum(program.seconds for program in feed.programs)
  lines = {
    "model": f"{job.config.model.name}, {parameters:,} parameters"
    + (f", {flops / 1e6:,.0f} MFLOP an image and step" if flops else ""),
    "compiled": f"{len(feed.programs)} programs in {wall:.1f} s: {cold} compiled, "
    f"{len(feed.programs) - cold} from the cache ({seconds:.1f} s summed over threads)",
  }
  if job.devices > 1:
    lines["gradients"] = f"{allreduce.describe(feed.programs[0].text())} a step"
  screen.header(lines)


@contextlib.contextmanager
def _memory_errors_told(config: ConfigDict) -> Iterator[None]:
  """Says what to change where the devices have too little memory, as a UserError."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise UserError(
      f"the devices have too little memory for this run ({str(error).splitlines()[0]}): set "
      f"--config.accumulate to {2 * config.accumulate} or more, which computes a device's part of "
      f"the batch in as many pieces and keeps the recipe, and --config.eval.batch_size lower."
    ) from error


@contextlib.contextmanager
def _disk_errors_told(folder: pathlib.Path) -> Iterator[None]:
  """Says what to do where records or the result cannot be written, as a UserError."""
  try:
    yield
  except OSError as error:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    path = pathlib.Path(error.filename if isinstance(error.filename, str) else folder)
    if not (full or (error.filename and path.absolute().is_relative_to(folder.absolute()))):
      raise
    advice = "make room" if full else "mend that"
    raise UserError(
      f"{path} could not be written ({error.strerror or error}): {advice}; the same command "
      "goes on from the newest checkpoint."
    ) from error


def run_name(index: int) -> str:
  """The folder of one of several runs."""
  return f"run_{index:03d}"


def train(
  config: ConfigDict, workdir: str, peers: Peers | None = None, given: Collection[str] = ()
) -> dict[str, Any]:
  """Trains what `config` says into `workdir`, or goes on with what is there.

  Args:
    config: not yet resolved.
    workdir: the run's folder, the same one for all processes.
    peers: the processes of the run, which call this together; None: this one alone.
    given: names of fields that the command line sets, which one's own arrays do not overrule.

  Returns:
    What result.json holds.

  Raises:
    UserError: a mistake in the config, the data or the folder; a loss that is not finite.
    Stopped: a signal ended the run early, and it is saved.
  """
  clock = Clock()
  mesh_lib.keep_host_memory()
  checks.check(config)
  make_plan(config)  # its mistakes, before the seconds that data and folders take
  with contextlib.ExitStack() as stack:
    signals = stack.enter_context(catch_signals())
    stack.enter_context(precision.wide_enough(config.precision))
    if peers is not None:
      with clock.measure("connect"):
        processes.connect(peers, heartbeat_seconds=config.heartbeat_seconds)
    mesh_lib.find_devices()
    primary = processes.is_primary()
    console = make_console() if primary else silent_console()
    screen = Screen(console, total_epochs=config.epochs)
    folder, own = pathlib.Path(workdir), None
    with processes.together("taking the run's folder"):
      if primary:
        own = stack.enter_context(folder_lib.taken(workdir, data_path=config.data.path))
        stack.enter_context(_disk_errors_told(folder))
    incarnation = processes.gather(own.fence.incarnation if own else 0)[0]
    use_cache(config.compile_cache)
    with processes.together("opening the data"), clock.measure("load"):
      _ensure_shared(folder, incarnation)
      data = open_data(config, console, follow=FOLLOWING - set(given))
    resolved = resolve(config, data)
    with processes.together("the config"):
      if primary:
        claim(folder, resolved)
        read_metrics(folder)  # its damages, before the seconds that programs take
      _ensure_same(resolved)
    finished = finished_result(folder, resolved)
    if finished is not None:
      _print_finished(screen, resolved, folder, finished)
      return finished
    _stop_before_steps(signals)
    mesh = mesh_lib.make_mesh()
    job = make_job(resolved, plan_of(resolved, data, devices=mesh.size), mesh)
    _print_header(screen, job, data, folder)
    feed = stack.enter_context(_ready_feed(job, data, screen, clock))
    agreement = Agreement(mesh)
    # All have their programs then: from here on none waits long for another.
    with clock.measure("others"):
      _stop_before_steps(signals)
    signals.begun = True
    stack.enter_context(watchdog(config.watchdog_seconds))
    with _memory_errors_told(resolved):
      controls = functools.partial(RunControl, signals, agreement, own, incarnation)
      rows = _run_all(job, feed, folder, clock, data.class_names, controls, screen)
    if not primary:
      return summed_up(rows, cost_per_hour=resolved.cost_per_hour)
    result = write_result(folder, rows, cost_per_hour=resolved.cost_per_hour)
    screen.result(result)
    return result


@contextlib.contextmanager
def _ready_feed(job: Job, data: Arrays | ImageSets, screen: Screen, clock: Clock) -> Iterator[Feed]:
  """The feed of a job, its programs compiled and its images in place."""
  with _memory_errors_told(job.config), clock.measure("compile"):
    feed = make_feed(data, job)
  with contextlib.closing(feed):
    with _memory_errors_told(job.config), clock.measure("compile"):
      lines = feed.wait_for(0)
    _print_compiled(screen, job, feed, clock)
    for line in lines:
      screen.line(line)
    with clock.measure("load"):
      feed.place()
    # The first steps of a stream's long run need none.
    if isinstance(feed, ResidentFeed) and _wants_warm_up(job.config, feed):
      with clock.measure("warmup"):
        feed.warm_up()
    yield feed


def _print_finished(
  screen: Screen, config: ConfigDict, folder: pathlib.Path, result: dict[str, Any]
) -> None:
  """Prints the result of a run that needs no more steps."""
  screen.line(f"{folder} holds this run, finished:")
  screen.result(result)
  alone = config.runs == 1 and processes.is_primary()
  if alone and Checkpoints(folder / "checkpoints").newest() is None:
    screen.line(
      f"{folder} holds no whole checkpoint any more: remove {folder / 'result.json'} to train "
      "it again"
    )


def _stop_before_steps(signals: Signals) -> None:
  """Ends the run where a signal came to one of its processes before there was anything to save.

  Raises:
    Stopped: in all processes.
  """
  wish = Wish(max(processes.gather(signals.wish)))
  if wish >= Wish.STOP:
    sentence = "ended before the first step of this start; what was saved before stays."
    raise Stopped(sentence, wish.exit_code)


def _ensure_shared(folder: pathlib.Path, incarnation: int) -> None:
  """Makes sure that this process sees the folder that process 0 has taken."""
  owner = read_owner(folder)
  if owner is None or owner.incarnation != incarnation:
    raise UserError(
      f"{folder.absolute()} of {processes.whoami()} is not the folder of process 0: the "
      "--workdir of a run must lie on a disk that all its hosts share."
    )


def _ensure_same(resolved: ConfigDict) -> None:
  """Makes sure that all processes were started alike, on as many devices each."""
  fields = {
    name: value for name, value in stored.leaves(resolved) if not name.startswith(stored.PLACES)
  }
  for what, value in (
    ("another config or other data", zlib.crc32(repr(sorted(fields.items())).encode()) >> 1),
    ("another version of jax", zlib.crc32(jax.__version__.encode()) >> 1),
    ("another number of devices", jax.local_device_count()),
  ):
    values = processes.gather(value)
    if others := [number for number, other in enumerate(values) if other != values[0]]:
      raise UserError(f"process {others[0]} of the run has {what} than process 0: start all alike.")


def _print_header(screen: Screen, job: Job, data: Arrays | ImageSets, folder: pathlib.Path) -> None:
  config, plan = job.config, job.plan
  sizes = " -> ".join(dict.fromkeys(f"{p.batch_size}" for p in plan.phases))
  device = describe_device()
  if job.devices > 1:
    device += f"; {processes.describe()}, mesh {mesh_lib.AXIS}={job.devices}"
  screen.header(
    {
      "recipe": f"{config.name}, seed {config.seed}, {config.precision}",
      "device": device,
      "data": data.source,
      "plan": f"{plan.total_steps} steps of {sizes} images, "
      f"{config.epochs:g} epochs; evaluation of {plan.eval_images} {images_of(data.evaluated_on)}",
      "weights": f"evaluated are {averaging.describe(config.average)}",
      "programs": "; ".join(plan.programs()),
      "workdir": str(folder),
    }
  )
  for note in (*data.notes, *left_out(config, plan)):
    screen.line(note)


def _run_all(
  job: Job,
  feed: Feed,
  folder: pathlib.Path,
  clock: Clock,
  class_names: tuple[str, ...],
  make_control: Callable[[], RunControl],
  screen: Screen,
) -> list[dict[str, Any]]:
  """The result rows of `config.runs` seeds, one after the other."""
  resolved, rows = job.config, []
  for index in range(resolved.runs):
    run_config = resolved.copy_and_resolve_references()
    run_config.update(seed=resolved.seed + index, runs=1)
    if resolved.runs > 1:
      screen.line(f"run {index + 1} of {resolved.runs}, seed {run_config.seed}")
    run_folder = folder if resolved.runs == 1 else folder / run_name(index)
    if processes.is_primary():
      folder_lib.make(run_folder)
      if resolved.runs > 1:
        claim(run_folder, run_config)
      store_class_names(run_folder, class_names)
    if index:
      # What the runs share is on the first one's clock; a later one's process begins with it.
      clock = Clock(later=True)
    run_job = dataclasses.replace(job, config=run_config)
    rows.append(Trainer(run_job, run_folder, feed, make_control(), clock).run())
  return rows
