"""The story of a run: load, plan, compile, restore, epochs of steps, validate, save, result."""

import collections
import contextlib
import dataclasses
import datetime
import json
import logging
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from clu import parameter_overview
from ml_collections import ConfigDict

from jaxspeed import config as config_lib
from jaxspeed import mesh as mesh_lib
from jaxspeed import precision, records
from jaxspeed.build import Job, make_job
from jaxspeed.checkpoint import Checkpoints
from jaxspeed.clock import Clock, process_age
from jaxspeed.compile import nothing_compiles, use_cache
from jaxspeed.data.arrays import Arrays, hold_out, open_arrays
from jaxspeed.data.feed import WARMUP, purpose_key
from jaxspeed.dawnbench import write_dawnbench
from jaxspeed.errors import UserError
from jaxspeed.losses import Sums
from jaxspeed.plan import make_plan
from jaxspeed.programs import Programs, Resident, compile_programs, place
from jaxspeed.provenance import describe_device, versions
from jaxspeed.screen import Screen, make_console
from jaxspeed.state import Carry

_log = logging.getLogger("jaxspeed")


def open_data(config: ConfigDict) -> Arrays:
  """The in-memory set of a config, with a hold-out for evaluation where it tunes.

  Raises:
    UserError: as `open_arrays`, or its images have another size than the config says.
  """
  data = config.data
  arrays = open_arrays(name=data.name, path=data.path, cache=data.cache, classes=data.classes)
  height, width = arrays.train_images.shape[1:3]
  if (height, width) != (data.image_size, data.image_size):
    hint = f"set --config.data.image_size={height}" if height == width else "only squares will do"
    raise UserError(
      f"the images of {arrays.source} have {height} x {width} pixels but "
      f"config.data.image_size is {data.image_size}: {hint}."
    )
  return hold_out(arrays) if config.tune_on == "validation" else arrays


def resolve(config: ConfigDict, arrays: Arrays) -> ConfigDict:
  """The config with what machine and data decide filled in, as the run's folder has it."""
  resolved = config.copy_and_resolve_references()
  resolved.precision = precision.resolve(config.precision, jax.devices()[0])
  resolved.data.train_images = len(arrays.train_labels)
  resolved.data.eval_images = len(arrays.eval_labels)
  if not (len(config.data.mean) and len(config.data.std)):
    pixels = arrays.train_images.reshape(-1, 3)
    resolved.data.mean = tuple(float(x) for x in pixels.mean(axis=0))
    resolved.data.std = tuple(float(x) for x in np.maximum(pixels.std(axis=0), 1.0))
  return resolved


def claim(folder: pathlib.Path, config: ConfigDict) -> None:
  """Takes a folder for a resolved config, or makes sure that it was taken for this one.

  Raises:
    UserError: the folder holds a run of another config; the message lists the differences.
  """
  path = folder / "config.json"
  if not path.exists():
    config_lib.save(config, path)
    return
  stored = ConfigDict(config_lib.to_dict(config_lib.load(path)))
  rows = config_lib.differences(stored, ConfigDict(config_lib.to_dict(config)))
  if rows:
    raise UserError(
      f"{folder} holds a run of another config ({'; '.join(rows)}): "
      f"choose another --workdir, or take the changes back to go on with that run."
    )


def seed_key(seed: int) -> np.ndarray:
  """The key of `jax.random.key(seed)` as uint32 [2], made without compiling anything."""
  return np.array([0, seed], np.uint32)


class Run:
  """One seed from wherever its folder stands to its result."""

  def __init__(
    self,
    job: Job,
    programs: Programs,
    resident: Resident,
    folder: pathlib.Path,
    clock: Clock,
    class_names: tuple[str, ...],
  ) -> None:
    self._job = job
    self._programs = programs
    self._resident = resident
    self._folder = folder
    self._clock = clock
    self._config = job.config
    self._plan = job.plan
    self._key = mesh_lib.replicate(seed_key(job.config.seed), job.mesh)
    self._checkpoints = Checkpoints(folder / "checkpoints", keep=job.config.checkpoint.keep)
    self._save_due = math.inf
    self._progress_from = (0, time.monotonic())
    self._images_per_second = 0.0
    claim(folder, job.config)
    records.write_atomically(folder / "classes.txt", "".join(f"{n}\n" for n in class_names))

  def to_the_end(self) -> dict[str, Any]:
    """Trains what is left of the run and returns its result row, also written to result.json."""
    finished = read_result(self._folder)
    if finished is not None:
      return {key: finished[key] for key in records.RESULT_KEYS}
    step = self._restore_or_start()
    self._schedule_save()
    with records.open_records(
      self._folder, resume_step=step, total_epochs=self._config.epochs
    ) as self._records:
      self._records.screen.header({"starting": f"{process_age():.1f} s after the process began"})
      while step < self._plan.total_steps and not self._stopped_at_target():
        step = self._train_epoch(step)
        self._validate_and_record(step)
        if time.monotonic() >= self._save_due:
          self._save(step)
      self._save(step)
    return self._finish()

  def _restore_or_start(self) -> int:
    """Sets the carry; returns the number of steps done."""
    restored = self._checkpoints.restore(self._programs.carry)
    if restored is not None:
      self._clock.restore(restored.clock)
      self._carry = restored.tree
      _log.info("goes on from the checkpoint of step %d", restored.step)
      return restored.step
    with self._measure("init"):
      state = self._programs.init.call(self._key, self._resident.train.image)
      self._carry = jax.block_until_ready(
        Carry(state, mesh_lib.replicate(Sums.zero(), self._job.mesh))
      )
    return 0

  def _train_epoch(self, step: int) -> int:
    """Steps to the end of the epoch that `step` is in, with a checkpoint where one is due."""
    epoch, within = self._plan.epoch_of(step)
    first = self._plan.first_step_of(epoch)
    steps = self._plan.steps_in_epoch(epoch)
    before, started = self._clock.dawn_seconds, within
    while within < steps:
      with self._measure("train"):
        within = self._advance(epoch, first, within, steps)
      if within < steps:
        self._save(first + within)
    seconds = self._clock.dawn_seconds - before
    self._images_per_second = (steps - started) * self._config.batch_size / seconds
    return first + steps

  def _advance(self, epoch: int, first: int, within: int, steps: int) -> int:
    """Steps until the epoch ends or a checkpoint is due; returns the step in the epoch."""
    order = self._programs.order.call(
      self._key, mesh_lib.replicate(np.int32(epoch), self._job.mesh)
    )
    data, table = self._resident.train, self._resident.table
    if self._programs.whole_epochs:
      if within:
        raise UserError(
          f"{self._folder}: the newest checkpoint lies inside an epoch, where a CPU saved it; "
          f"an accelerator goes on from the end of an epoch only: finish the epoch on a CPU."
        )
      self._carry, losses = self._programs.train[self._plan.segments(epoch)].call(
        self._carry, data, order, table
      )
      for number, loss in enumerate(np.asarray(losses)):
        self._check_loss(first + number, float(loss))
      self._show_progress(epoch, steps, steps, float(losses[-1]))
      return steps
    # Looked at two steps late: the device always has work while the host waits for a number.
    unseen: collections.deque[tuple[int, jax.Array]] = collections.deque()
    while within < steps and (time.monotonic() < self._save_due or not unseen):
      program = self._programs.train[((1, (self._plan.kind_of(first + within),)),)]
      self._carry, loss = program.call(self._carry, data, order, table)
      unseen.append((within, loss))
      within += 1
      while len(unseen) > (2 if within < steps else 0):
        number, loss = unseen.popleft()
        self._check_loss(first + number, float(loss))
        self._show_progress(epoch, number + 1, steps, float(loss))
    for number, loss in unseen:
      self._check_loss(first + number, float(loss))
    jax.block_until_ready(self._carry)
    return within

  def _check_loss(self, step: int, loss: float) -> None:
    if not math.isfinite(loss):
      newest = self._checkpoints.newest()
      kept = "there is no checkpoint yet" if newest is None else f"the checkpoint of {newest} stays"
      raise UserError(
        f"the training loss is {loss} at step {step + 1} of {self._plan.total_steps}: "
        f"the run stops, {kept}; lower --config.schedule.peak."
      )

  def _show_progress(self, epoch: int, step: int, steps: int, loss: float) -> None:
    if self._records.screen.progress_due():
      done, now = self._plan.first_step_of(epoch) + step, time.monotonic()
      since_step, since = self._progress_from
      self._records.screen.progress(
        epoch=epoch + 1,
        step=step,
        steps=steps,
        loss=loss,
        images_per_second=(done - since_step) * self._config.batch_size / max(now - since, 1e-9),
      )
      self._progress_from = (done, now)

  def _validate_and_record(self, step: int) -> None:
    """The row of the epoch that ended with `step`; afterwards the carry's sums are zero."""
    plan, config = self._plan, self._config
    epoch, _ = plan.epoch_of(step - 1)
    phase = plan.phase_of(step - 1)
    last = step == plan.total_steps
    row = {
      "epoch": epoch + plan.steps_in_epoch(epoch) / phase.steps_per_epoch,
      "step": step,
      "examples": plan.examples(step),
      "learning_rate": float(plan.table["learning_rate"][step - 1]),
      "image_size": phase.image_size,
      "batch_size": phase.batch_size,
      "images_per_second": self._images_per_second,
    }
    row["epoch"] = int(row["epoch"]) if row["epoch"] == int(row["epoch"]) else row["epoch"]
    train_means = self._carry.sums.means()
    row |= {"train_loss": train_means["loss"], "train_top1": train_means["top1"]}
    if last or (epoch + 1) % config.eval.every_epochs == 0:
      with self._measure("final_validate" if last else "validate"):
        sums = jax.block_until_ready(
          self._programs.evaluate.call(self._carry.state.evaluated(), self._resident.eval)
        )
      row |= {f"eval_{name}": value for name, value in sums.means().items()}
    row |= {
      "train_seconds": self._clock.train_seconds,
      "dawn_seconds": self._clock.dawn_seconds,
    }
    self._records.epoch(row)
    self._carry = self._carry.replace(sums=mesh_lib.replicate(Sums.zero(), self._job.mesh))

  def _stopped_at_target(self) -> bool:
    rows = self._records.rows
    return bool(
      self._config.stop_at_target
      and rows
      and (rows[-1].get("eval_top1") or 0.0) >= self._config.target
    )

  def _save(self, step: int) -> None:
    with self._clock.measure("checkpoint"):
      self._checkpoints.save(step, self._carry, self._clock.state())
    self._schedule_save()

  def _schedule_save(self) -> None:
    self._save_due = time.monotonic() + self._config.checkpoint.every_seconds

  @contextlib.contextmanager
  def _measure(self, name: str) -> Iterator[None]:
    """Measures a part that may not compile anything."""
    with self._clock.measure(name), nothing_compiles(name):
      yield

  def _finish(self) -> dict[str, Any]:
    config, rows = self._config, self._records.rows
    last = rows[-1]
    reached = (r for r in rows if (r.get("eval_top1") or 0.0) >= config.target)
    first = next(reached, None)
    row = records.result_row(
      config=config_lib.to_dict(config),
      evaluated_on=config.tune_on,
      top1=last["eval_top1"],
      top5=last["eval_top5"] if config.data.classes > 5 else None,
      seconds=self._clock.summary() | {"to_target": first["dawn_seconds"] if first else None},
      seed=config.seed,
    )
    records.write_result(self._folder, [row])
    if config.tune_on == "test":
      self._write_dawnbench()
    return row

  def _write_dawnbench(self) -> None:
    """DAWNBench's entry, which is of the test set."""
    config = self._config
    write_dawnbench(
      self._folder / "dawnbench",
      task="CIFAR10",
      epochs=self._records.rows,
      author=config.records.author,
      author_email=config.records.author_email,
      model=config.model.name,
      hardware=describe_device(),
      framework=f"JAX {jax.__version__}",
      cost_per_hour=config.records.cost_per_hour,
      code_url=config.records.code_url,
      misc={"config": config_lib.to_dict(config), "versions": versions()},
      timestamp=datetime.date.today(),
    )


def read_result(folder: pathlib.Path) -> dict[str, Any] | None:
  """What result.json of a finished run holds; None for one that is not finished."""
  path = folder / "result.json"
  return json.loads(path.read_text()) if path.exists() else None


def warm_up(job: Job, programs: Programs, resident: Resident) -> None:
  """Runs every program once on random labels, from which nothing can be learned.

  The first call of a program on a GPU loads its kernels and makes cuDNN's plans; airbench leaves
  that out of its clock in the same way. The state it ends with is thrown away.
  """
  key = mesh_lib.replicate(np.asarray(purpose_key(seed_key(0), WARMUP, 0)), job.mesh)
  labels = np.random.default_rng(0).integers(job.config.data.classes, size=job.plan.train_images)
  train = resident.train.replace(label=mesh_lib.replicate(labels.astype(np.int32), job.mesh))
  state = programs.init.call(key, train.image)
  carry = Carry(state, mesh_lib.replicate(Sums.zero(), job.mesh))
  order = programs.order.call(key, mesh_lib.replicate(np.int32(0), job.mesh))
  for program in programs.train.values():
    carry, _ = program.call(carry, train, order, resident.table)
  jax.block_until_ready(programs.evaluate.call(carry.state.evaluated(), resident.eval))


def _wants_warm_up(config: ConfigDict, programs: Programs) -> bool:
  return config.warmup == "on" or (config.warmup == "auto" and programs.whole_epochs)


def _print_compiled(screen: Screen, job: Job, programs: Programs) -> None:
  parameters = parameter_overview.count_parameters(programs.carry.state.params)
  # XLA counts the body of a loop once, so this is a step in either case.
  flops = next(iter(programs.train.values())).flops / job.config.batch_size * job.devices
  cold = sum(not program.cached for program in programs.all())
  seconds = sum(program.seconds for program in programs.all())
  screen.header(
    {
      "model": f"{job.config.model.name}, {parameters:,} parameters, "
      f"{flops / 1e6:,.0f} MFLOP an image and step",
      "compiled": f"{len(programs.all())} programs, {cold} of them anew, in {seconds:.1f} s",
    }
  )


def run_name(index: int) -> str:
  """The folder of one of several runs."""
  return f"run_{index:03d}"


def train(config: ConfigDict, workdir: str) -> dict[str, Any]:
  """Trains what `config` says into `workdir`, or goes on with what is there.

  Returns:
    What result.json holds.

  Raises:
    UserError: a mistake in the config, the data or the folder; a loss that is not finite.
  """
  clock = Clock()
  mesh_lib.keep_host_memory()
  screen = Screen(make_console(), total_epochs=config.epochs)
  make_plan(config)  # its mistakes, before the seconds that data and folders take
  folder = records.prepare_workdir(workdir)
  use_cache(config.compile_cache)
  with clock.measure("load"):
    arrays = open_data(config)
  resolved = resolve(config, arrays)
  claim(folder, resolved)
  finished = read_result(folder)
  if finished is not None:
    screen.line(f"{folder} holds this run, finished:")
    screen.result(finished)
    return finished
  mesh = mesh_lib.make_mesh()
  plan = make_plan(
    resolved,
    devices=mesh.size,
    train_images=len(arrays.train_labels),
    eval_images=len(arrays.eval_labels),
  )
  job = make_job(resolved, plan, mesh)
  screen.header(
    {
      "recipe": f"{resolved.name}, seed {resolved.seed}, {resolved.precision}",
      "device": describe_device(),
      "data": arrays.source,
      "plan": f"{plan.total_steps} steps of {resolved.batch_size} images, "
      f"{resolved.epochs:g} epochs; evaluation of {plan.eval_images} {resolved.tune_on} images",
      "programs": "; ".join(plan.programs()),
      "workdir": str(folder),
    }
  )
  with clock.measure("compile"):
    programs = compile_programs(job)
  for program in programs.all():
    clock.add("compile_cached" if program.cached else "compile_cold", program.seconds)
  _print_compiled(screen, job, programs)
  with clock.measure("load"):
    resident = jax.block_until_ready(place(arrays, job))
  if _wants_warm_up(resolved, programs):
    with clock.measure("warmup"):
      warm_up(job, programs, resident)

  rows = []
  for index in range(resolved.runs):
    run_config = resolved.copy_and_resolve_references()
    run_config.update(seed=resolved.seed + index, runs=1)
    if resolved.runs > 1:
      screen.line(f"run {index + 1} of {resolved.runs}, seed {run_config.seed}")
    run_folder = folder if resolved.runs == 1 else records.prepare_workdir(folder / run_name(index))
    if index:
      # What the runs share is on the first one's clock; a later one's process begins with it.
      clock = Clock()
      clock.restore({"process": -clock.process_seconds})
    run = Run(
      dataclasses.replace(job, config=run_config),
      programs,
      resident,
      run_folder,
      clock,
      arrays.class_names,
    )
    rows.append(run.to_the_end())
  result = records.write_result(folder, rows)
  screen.result(result)
  return result
