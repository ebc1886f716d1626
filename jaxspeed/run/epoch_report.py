"""The report of a run: a row for each epoch, lines below it, and broken images."""

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from jaxspeed.cluster import processes
from jaxspeed.config import registry, stored
from jaxspeed.errors import UserError
from jaxspeed.planning.plan import momenta
from jaxspeed.records import class_figures
from jaxspeed.records.meters import NetworkMeter, peak_memory
from jaxspeed.records.rows import Row
from jaxspeed.records.trackers import make_loggers
from jaxspeed.records.writer import Records
from jaxspeed.run.best import reason_to_stop, said_to_stop
from jaxspeed.run.broken_images import BrokenImages
from jaxspeed.run.evaluation import Evaluation
from jaxspeed.run.run import Run
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry

# What to do about losses and weights that are not finite.
LOWER_PEAK = "lower --config.schedule.peak"
# Warn when devices waited for input longer than this share of the training time.
_MUCH_WAITING = 0.1
# The optimizers that have `config.optimizer.momentum`.
_WITH_MOMENTUM = ("sgd", "muon", "lars")


class EpochReport:
  """Writes and prints the epochs of one run.

  Attributes:
    records: the rows of its epochs, while `open` lasts.
  """

  def __init__(self, run: Run) -> None:
    self._run = run
    self._broken = BrokenImages(run)
    self._pace: dict[str, float] = {}  # of the last epoch trained
    for name, make in registry.SCALARS.items():
      if name in Row.model_fields:
        raise UserError(f"the scalar {name!r} has the name of another figure: choose another name.")
      if shape := jax.eval_shape(make, run.feed.carry.state).shape:
        raise UserError(f"the scalar {name!r} is an array of shape {shape}: it must be a number.")
    self.records: Records

  @contextlib.contextmanager
  def open(self, step: int, *, unreported: bool = False) -> Iterator[None]:
    """Opens the records of a run after `step` steps, and prints whether it resumes.

    Args:
      step: the number of steps done.
      unreported: whether an epoch ended there whose row is to come; one that an earlier start wrote
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
    self._begun = (step, self._run.clock.dawn_seconds, NetworkMeter())

  def end_training(self, end: int) -> None:
    """Measures the training of the epoch that ends with step `end`. All processes must call it."""
    step, before, network = self._begun
    seconds = self._run.clock.dawn_seconds - before
    plan = self._run.plan
    images_per_second = (plan.examples(end) - plan.examples(step)) / seconds
    self._pace = {
      "images_per_second": images_per_second,
      "images_per_second_per_device": images_per_second / self._run.spec.devices,
      "step_seconds": seconds / (end - step),
      "data_wait": self._data_wait(seconds),
      **network.rates(),
    }

  def _data_wait(self, seconds: float) -> float:
    """The share of `seconds` of training in which the devices waited for input.

    With several processes, it is the share of the one that waited longest: the others' devices wait
    for it in the all-reduce, and look busy.
    """
    millionths = processes.gather(round(1e6 * self._run.feed.take_waited_seconds() / seconds))
    return max(millionths) / 1e6

  def note_broken(self) -> None:
    """Records the images that this process could not read.

    Raises:
      UserError: there are too many.
    """
    self._broken.note(self._run.feed.take_broken())

  def settle_broken(self) -> None:
    """Reports images that any process could not read since the last call. All must call it.

    Raises:
      UserError: there are too many.
    """
    self.note_broken()
    self.lines(self._broken.settle())

  def epoch(self, step: int, carry: Carry, evaluation: Evaluation | None) -> None:
    """Reports the epoch that ended with `step`. All processes must call it.

    Raises:
      UserError: the run's last evaluation has a loss that is not finite, or too many images are
        broken.
    """
    config = self._run.config
    row = planned_row(self._run.spec, step) | self._pace
    row |= {f"train_{name}": value for name, value in carry.sums.means(config.data.classes).items()}
    row |= {name: float(jax.jit(make)(carry.state)) for name, make in registry.SCALARS.items()}
    if (loss_scale := carry.state.loss_scale) is not None:
      row["skipped_steps"] = int(loss_scale.skipped)
    if evaluation is not None:
      row["eval_seconds"] = evaluation.seconds
      row["evaluated_weights"] = self._run.plan.evaluated_weights(step)
    self.note_broken()
    lines = self._broken.settle()
    row["train_images_broken"] = self._broken.count("train")
    if evaluation is not None:
      evaluated, said = self._evaluated(step, evaluation)
      row, lines = row | evaluated, lines + said
      if reason := reason_to_stop([*self.rows, row], config):
        # Only now is it known to be the last evaluation.
        self._run.clock.rename_last("final_validate")
        if step < self._run.plan.total_steps:
          row["stopped_by"] = reason
          lines.append(said_to_stop(reason, config))
    row |= peak_memory(self._run.spec.mesh.local_devices) | {
      "train_seconds": self._run.clock.train_seconds,
      "dawn_seconds": self._run.clock.dawn_seconds,
    }
    self._run.control.check_owner()
    self.records.epoch(row)
    self.lines([*lines, *self._slow_input(step)])

  def _evaluated(self, step: int, evaluation: Evaluation) -> tuple[dict[str, Any], list[str]]:
    """What an evaluation adds to the row of its epoch, and lines to print."""
    plan, sums = self._run.plan, evaluation.result.sums
    count = int(sums.count)
    row = {"eval_images": count, "eval_images_skipped": plan.eval_images - count}
    config, classes = self._run.config, self._run.config.data.classes
    # Without accuracies an evaluation improves on nothing.
    last = step == plan.total_steps or bool(
      reason_to_stop([*self.rows, {"step": step, "eval_loss": None}], config)
    )
    means, said = check_evaluation(sums, step, classes=classes, last=last)
    if "top1" in means:
      means |= class_figures.summary(evaluation.predictions, classes)
    return row | {f"eval_{name}": value for name, value in means.items()}, said

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


def check_evaluation(
  sums: MetricSums, step: int, *, classes: int, last: bool
) -> tuple[dict[str, float], list[str]]:
  """The means of an evaluation after `step` steps, and lines to print.

  There are no accuracies if the loss is not finite.

  Raises:
    UserError: the last evaluation of a run has such a loss, so there is no result.
  """
  means = sums.means(classes)
  if math.isfinite(means["loss"]):
    return means, []
  said = f"the loss of the evaluation after step {step} is {means['loss']}"
  if last:
    raise UserError(
      f"{said}: the logits are not finite, and there is no result; {LOWER_PEAK}, or set another "
      "--config.precision."
    )
  return {"loss": means["loss"]}, [f"{said}: its accuracies do not count"]


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
