"""The streams of training batches: that of the current phase, and the next, opened ahead."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxspeed.data.balance import BalancedSampler
from jaxspeed.data.batch import Batch
from jaxspeed.data.disk.sets import ImageSets
from jaxspeed.data.disk.streams import TrainStream
from jaxspeed.feeds.evaluation import read_threads
from jaxspeed.feeds.protocol import Broken
from jaxspeed.planning.plan import Phase, Plan
from jaxspeed.steps.spec import TrainSpec


class TrainStreams:
  """The training batches of a run, one for each step, from any step on.

  Args:
    sets: the open image sets.
    spec: the run's specification.
  """

  def __init__(self, sets: ImageSets, spec: TrainSpec) -> None:
    self._sets, self._spec = sets, spec
    self._stream: TrainStream | None = None
    self._position: tuple[int, int] | None = None  # seed and step of the next batch
    self._next: tuple[Phase, int, TrainStream] | None = None
    self._broken: Broken = {}

  def seek(self, seed: int, step: int) -> None:
    """Makes the batch of `step` the next one; opens nothing if it already is."""
    if self._position != (seed, step) or self._stream is None:
      self._open(self._spec.plan.phase_of(step), seed, step)
      self._position = (seed, step)

  def take(self) -> Batch:
    """The next batch."""
    assert self._stream is not None and self._position is not None
    batch = next(self._stream)
    seed, step = self._position
    self._position = (seed, step + 1)
    return batch

  def look_ahead(self) -> None:
    """Closes the stream of an ended phase; opens the next phase's in the last epoch before it."""
    assert self._position is not None
    plan, (seed, step) = self._spec.plan, self._position
    phase, (epoch, _) = plan.phase_of(step - 1), plan.epoch_of(step - 1)
    if step == _end_of(phase, plan):
      self._close_stream()
    elif epoch == phase.first_epoch + phase.epochs - 1 and self._next is None:
      # Its first batches are then ready when the phase begins.
      self._open_next(phase, seed)

  def take_broken(self) -> Broken:
    """The images that could not be read since the last call."""
    self._note_broken()
    broken, self._broken = self._broken, {}
    return broken

  def first_images(self, seed: int, step: int, count: int) -> Batch:
    """The first `count` images of the epoch that begins with `step`, for a report."""
    plan = self._spec.plan
    phase = dataclasses.replace(plan.phase_of(step), batch_size=count)
    alone = dict(process=0, processes=1)
    stream = self._stream_of(phase, seed, iter([(plan.epoch_of(step)[0], 0)]), alone)
    try:
      batch = next(stream)
      return batch.replace(image=np.array(batch.image), index=None)
    finally:
      stream.close()

  def close(self) -> None:
    """Ends both streams."""
    self._close_stream()
    if self._next is not None:
      self._next[2].close()
      self._next = None

  def _make_stream(self, phase: Phase, seed: int, first_step: int) -> Any:
    """The stream of a phase's batches, from `first_step` on."""
    plan = self._spec.plan
    numbers = range(first_step, _end_of(phase, plan))
    steps = (plan.epoch_of(number) for number in numbers)
    part = dict(process=jax.process_index(), processes=jax.process_count())
    return self._stream_of(phase, seed, steps, part)

  def _stream_of(
    self, phase: Phase, seed: int, steps: Iterator[tuple[int, int]], part: dict[str, int]
  ) -> Any:
    """The stream of a phase's batches with these numbers of epoch and step."""
    config = self._spec.config
    split = self._sets.sets[phase.copies].train
    order = None
    if config.data.balance == "sampling":
      sampler = BalancedSampler(split.label)
      parts = dict(images=phase.images, flip=config.augment.flip)
      order = functools.partial(sampler.order, seed, **parts)
    return TrainStream(
      split,
      seed=seed,
      image_size=phase.image_size,
      batch_size=phase.batch_size,
      min_scale=phase.min_scale,
      flip=config.augment.flip,
      steps=steps,
      on_error=config.data.on_error,
      antialias=config.data.antialias,
      read_threads=read_threads(self._spec),
      order=order,
      **part,
    )

  def _open(self, phase: Phase, seed: int, first_step: int) -> None:
    self._close_stream()
    if self._next is not None:
      ahead, ahead_seed, stream = self._next
      self._next = None
      if (ahead, ahead_seed, phase.first_step) == (phase, seed, first_step):
        self._stream = stream
        return
      stream.close()
    self._stream = self._make_stream(phase, seed, first_step)

  def _open_next(self, phase: Phase, seed: int) -> None:
    following = [p for p in self._spec.plan.phases if p.first_epoch > phase.first_epoch]
    if following:
      stream = self._make_stream(following[0], seed, following[0].first_step)
      self._next = (following[0], seed, stream)

  def _note_broken(self) -> None:
    for stream in (self._stream, self._next and self._next[2]):
      if stream is not None:
        names = {i: stream.split.name(i) for i in stream.broken}
        self._broken |= {("train", names[i]): reason for i, reason in stream.broken.items()}
        stream.broken.clear()

  def _close_stream(self) -> None:
    if self._stream is not None:
      self._note_broken()
      self._stream.close()
    self._stream = self._position = None


def _end_of(phase: Phase, plan: Plan) -> int:
  """The number of the first step after a phase."""
  return min(phase.first_step + phase.epochs * phase.steps_per_epoch, plan.total_steps)
