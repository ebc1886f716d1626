"""The report of a run: a row for each epoch, lines below it, broken images; and whether it ends."""

import contextlib
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from jaxspeed.cluster import processes
from jaxspeed.config import registry, stored
from jaxspeed.errors import UserError, printable
from jaxspeed.feeds.broken import FILE, WORDS, describe, require_few
from jaxspeed.feeds.protocol import Broken
from jaxspeed.files import dump_json, parse_json, read_bytes, write_atomically
from jaxspeed.planning.plan import Plan, momenta
from jaxspeed.records import class_figures
from jaxspeed.records.meters import NetworkMeter, peak_memory
from jaxspeed.records.results import Result
from jaxspeed.records.rows import Row
from jaxspeed.records.trackers import make_loggers
from jaxspeed.records.writer import Records
from jaxspeed.run.checkpoint import ranked
from jaxspeed.run.evaluation import Evaluation
from jaxspeed.run.run import Run
from jaxspeed.steps.losses import has_top5
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry

# What to do about losses and weights that are not finite.
LOWER_PEAK = "lower --config.schedule.peak"
# Warn when devices waited for input longer than this share of the training time.
_MUCH_WAITING = 0.1
# Why a run ends before its last step, by the words of `reason_to_stop`.
_ENDS = {
  "target": "the target is reached (stop_at_target)",
  "patience": "the evaluations no longer improve (patience)",
}
# The optimizers that have `config.optimizer.momentum`.
_WITH_MOMENTUM = ("sgd", "muon", "lars")


class BrokenImages:
  """The broken images of one run, as all its processes find them; process 0 keeps `FILE`."""

  def __init__(self, run: Run) -> None:
    self._path, self._max_broken = run.folder / FILE, run.config.data.max_broken
    self._feed = run.feed
    self._images = {"train": run.plan.train_images, "eval": run.plan.eval_images}
    # All processes know those of earlier starts, and those that any has found in this one.
    self._earlier = _gather(_read(self._path) if processes.is_primary() else {})
    self._found: Broken = {}
    self._own: Broken = {}  # found by this process, not yet sent to the others
    self._written = len(self._earlier)

  def count(self, kind: str) -> int:
    """The number of "train" or "eval" images found broken in the run so far, each counted once."""
    return sum(split == kind for split, _ in self._earlier | self._found)

  def note(self) -> None:
    """Adds the images that this process found broken since the last call.

    Raises:
      UserError: too many images are broken. With several processes, `settle` raises this instead,
        so that all of them end.
    """
    read = self._feed.broken
    self._own |= {key: reason for key, reason in read.items() if key not in self._found}
    read.clear()
    if not processes.several():
      self._check(self._found | self._own)

  def settle(self) -> list[str]:
    """Tells all processes what any of them found, and writes it to `FILE`. All must call it.

    Returns:
      Lines on images found since the last call.

    Raises:
      UserError: too many images are broken; raised in all processes.
    """
    self.note()
    gathered, self._own = _gather(self._own), {}
    new = {key: reason for key, reason in gathered.items() if key not in self._found}
    self._found |= new
    lines = self._write(self._found)
    self._check(self._found)
    return describe(new, self._path.name) + lines

  def _write(self, found: Broken) -> list[str]:
    """Writes `FILE` in process 0 if it lacks something; returns a line if that fails."""
    everything = found | self._earlier
    if len(everything) == self._written or not processes.is_primary():
      return []
    rows = [(kind, printable(name), printable(why)) for (kind, name), why in everything.items()]
    lines = ["\t".join(row) + "\n" for row in [("split", "name", "reason"), *sorted(rows)]]
    try:
      write_atomically(self._path, "".join(lines))
    except OSError as error:
      reason = error.strerror or error
      return [f"{self._path} could not be written ({reason}): it will be tried again later"]
    self._written = len(everything)
    return []

  def _check(self, found: Broken) -> None:
    try:
      require_few(found, self._images, self._max_broken)
    except UserError:
      self._write(found)
      raise


def _gather(own: Broken) -> Broken:
  """The images of all processes; of two reasons the first process's. All must call it."""
  rows = [[*key, reason] for key, reason in own.items()]
  found: Broken = {}
  for part in processes.gather_bytes(dump_json(rows).encode()):
    found |= {
      (kind, name): why for kind, name, why in parse_json(part) if (kind, name) not in found
    }
  return found


def _read(path: pathlib.Path) -> Broken:
  """The images that `FILE` lists from earlier starts; malformed lines are left out."""
  try:
    lines = read_bytes(path).decode(errors="replace").splitlines()[1:]
  except (FileNotFoundError, ValueError):
    return {}
  rows = [line.split("\t") for line in lines]
  return {(row[0], row[1]): row[2] for row in rows if len(row) == 3 and row[0] in WORDS}


class EpochReport:
  """Writes and prints the epochs of one run.

  Attributes:
    records: the rows of its epochs, while `open` lasts.
    broken: the images that could not be read.
  """

  def __init__(self, run: Run) -> None:
    self._run = run
    self.broken = BrokenImages(run)
    self._pace: dict[str, float] = {}  # of the last epoch trained
    for name, make in registry.SCALARS.items():
      if name in {**Row.model_fields, **Result.model_fields}:
        raise UserError(f"the scalar {name!r} has the name of another figure: choose another name.")
      if shape := jax.eval_shape(make, run.feed.carry.state).shape:
        raise UserError(f"the scalar {name!r} is an array of shape {shape}: it must be a number.")
    self.records: Records

  @contextlib.contextmanager
  def open(self, step: int, *, unreported: bool = False) -> Iterator[None]:
    """Opens the records of a run after `step` steps, and prints whether it resumes.

    With `unreported`, an epoch ended there whose row is to come; one that an earlier start wrote
    after its checkpoint is dropped.
    """
    config, plan = self._run.config, self._run.plan
    with Records(
      self._run.folder,
      resume_step=step - unreported,
      screen=self._run.screen,
      primary=processes.is_primary(),
      loggers=(*make_loggers(config), *self._run.hooks.loggers),
      config=stored.to_dict(config),
    ) as self.records:
      screen = self._run.screen
      screen.header({"starting": self._run.clock.starting()})
      epoch, step_in_epoch = plan.epoch_of(step)
      done = epoch + step_in_epoch / plan.phase_of(step).steps_per_epoch
      screen.begin(done, config.epochs)
      if step:
        screen.line(f"resumes from the checkpoint of step {step}")
      yield

  @property
  def rows(self) -> list[dict[str, Any]]:
    """Every epoch of the run so far."""
    return self.records.rows

  def lines(self, lines: Iterable[str]) -> None:
    """Prints lines."""
    for line in lines:
      self._run.screen.line(line)

  def begin_training(self, step: int) -> None:
    """Starts measuring the training of an epoch, after `step` steps."""
    waited = self._run.feed.waited_seconds
    self._begun = (step, self._run.clock.dawn_seconds, waited, NetworkMeter())

  def end_training(self, end: int) -> None:
    """Measures the training of the epoch that ends with step `end`. All processes must call it."""
    step, before, waited, network = self._begun
    seconds = self._run.clock.dawn_seconds - before
    plan = self._run.plan
    images_per_second = (plan.examples(end) - plan.examples(step)) / seconds
    self._pace = {
      "images_per_second": images_per_second,
      "images_per_second_per_device": images_per_second / self._run.spec.devices,
      "step_seconds": seconds / (end - step),
      "data_wait": self._data_wait(waited, seconds),
      **network.rates(),
    }

  def _data_wait(self, before: float, seconds: float) -> float:
    """The share of `seconds` of training in which the devices waited for input.

    With several processes, it is the share of the one that waited longest: the others' devices wait
    for it in the all-reduce, and look busy.
    """
    waited = self._run.feed.waited_seconds - before
    millionths = processes.gather(round(1e6 * waited / seconds))
    return max(millionths) / 1e6

  def epoch(self, step: int, carry: Carry, evaluation: Evaluation | None) -> None:
    """Reports the epoch that ended with `step`. All processes must call it.

    Raises:
      UserError: too many images are broken.
    """
    config = self._run.config
    row = planned_row(self._run.spec, step) | self._pace
    row |= {f"train_{name}": value for name, value in carry.sums.means(config.data.classes).items()}
    row |= {name: float(jax.jit(make)(carry.state)) for name, make in registry.SCALARS.items()}
    if (loss_scale := carry.state.loss_scale) is not None:
      row["skipped_steps"] = int(loss_scale.skipped)
    lines = self.broken.settle()
    row["train_images_broken"] = self.broken.count("train")
    if evaluation is not None:
      row |= evaluated_row(evaluation, config, self._run.plan)
      if "eval_top1" not in row:
        lines.append(
          f"the loss of the evaluation after step {step} is {row['eval_loss']}: its accuracies do "
          "not count"
        )
      if reason := reason_to_stop([*self.rows, row], config):
        if step < self._run.plan.total_steps:
          # Only now is it known to be the last evaluation.
          self._run.clock.add("validate", -evaluation.seconds)
          self._run.clock.add("final_validate", evaluation.seconds)
          row["stopped_by"] = reason
          lines.append(f"{_ENDS[reason]}: the run ends here")
    row |= peak_memory(self._run.spec.mesh.local_devices) | {
      "train_seconds": self._run.clock.train_seconds,
      "dawn_seconds": self._run.clock.dawn_seconds,
    }
    self._run.control.check_owner()
    self.records.epoch(row)
    self.lines([*lines, *self._slow_input(step)])

  def _slow_input(self, step: int) -> Iterator[str]:
    """A line on what to do when the devices wait for input; once a phase."""
    phase = self._run.plan.phase_of(step - 1)
    rows = [row for row in self.rows if row["step"] > phase.first_step]
    slow = [row.get("data_wait", 0.0) > _MUCH_WAITING for row in rows]
    if not slow[-1] or any(slow[:-1]):
      return
    copies = "train on resized copies (python -m jaxspeed.prepare resize), or " * (not phase.copies)
    yield (
      f"the devices waited for input {rows[-1]['data_wait']:.0%} of this epoch's training: "
      f"{copies}use more cores; --config.data.synthetic=True shows the machine without its disk"
    )

  def stops_early(self) -> bool:
    """Whether the run ends after its last row, whatever steps are left."""
    return bool(reason_to_stop(self.rows, self._run.config))


def reaches_target(row: Mapping[str, Any], config: ConfigDict) -> bool:
  """Whether the epoch of `row` was evaluated and reached the target; without one none does."""
  reached = row.get(f"eval_{config.target_metric}")
  return reached is not None and 0 < config.target <= reached


def reason_to_stop(rows: Sequence[Mapping[str, Any]], config: ConfigDict) -> str:
  """Why the run ends after its last row, whatever steps are left: "target", "patience" or ''.

  Both are read from the rows alone, so a resumed run decides as the one before it. Patience counts
  as Keras's EarlyStopping does (min_delta 0): an equal value is no improvement.
  """
  if not rows or "eval_loss" not in rows[-1]:
    return ""
  if config.target_metric == "top5" and not has_top5(config.data.classes):
    return ""  # a note of `setup` says that nothing follows it
  if config.stop_at_target and reaches_target(rows[-1], config):
    return "target"
  best = next((row["step"] for row in ranked(rows, config.target_metric)), -1)
  without_gain = sum("eval_loss" in row and row["step"] > best for row in rows)
  return "patience" if 0 < config.patience <= without_gain else ""


def evaluated_row(evaluation: Evaluation, config: ConfigDict, plan: Plan) -> dict[str, Any]:
  """What an evaluation adds to the row of its epoch: accuracies only if its loss is finite."""
  sums, classes = evaluation.result.sums, config.data.classes
  means, count = sums.means(classes), int(sums.count)
  if math.isfinite(means["loss"]):
    means |= class_figures.summary(evaluation.predictions, classes)
  else:
    means = {"loss": means["loss"]}
  return {
    "eval_seconds": evaluation.seconds,
    "evaluated_weights": plan.evaluated_weights(evaluation.step),
    "eval_images": count,
    "eval_images_skipped": plan.eval_images - count,
    **{f"eval_{name}": value for name, value in means.items()},
  }


def planned_row(spec: TrainSpec, step: int) -> dict[str, Any]:
  """The plan's part in the row of the epoch that ends with `step`."""
  plan = spec.plan
  epoch, _ = plan.epoch_of(step - 1)
  phase = plan.phase_of(step - 1)
  done = epoch + plan.steps_in_epoch(epoch) / phase.steps_per_epoch
  row = {
    "epoch": int(done) if done == int(done) else done,
    "step": step,
    "examples": plan.examples(step),
    "learning_rate": float(plan.table["learning_rate"][step - 1]),
    "image_size": phase.image_size,
    "batch_size": phase.batch_size,
    "world": spec.devices,
  }
  if spec.config.optimizer.name in _WITH_MOMENTUM and not spec.config.given.optimizer:
    row["momentum"] = float(momenta(spec.config, plan)[step - 1])
  return row
