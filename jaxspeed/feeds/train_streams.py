"""The streams of training batches: that of the current phase, and the next, opened ahead."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from jaxspeed.data.balance import balanced_order
from jaxspeed.data.batch import Batch
from jaxspeed.data.disk.sets import ImageSets
from jaxspeed.data.disk.streams import TrainStream
from jaxspeed.feeds.evaluation import how_to_read
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
    self._streams: dict[tuple[int, int], TrainStream] = {}  # by seed and step of the next batch
    self._broken: Broken = {}

  def open(self, seed: int, step: int) -> None:
    """Opens the stream whose next batch is that of `step`, and closes others, unless it is open."""
    if (seed, step) not in self._streams:
      self.close()
      self._streams[seed, step] = self._make(seed, step)

  def take(self, seed: int, step: int) -> Batch:
    """The batch of a step."""
    self.open(seed, step)
    batch = next(self._streams[seed, step])
    stream = self._streams.pop((seed, step))
    if step + 1 < _end_of(self._spec.plan.phase_of(step), self._spec.plan):
      self._streams[seed, step + 1] = stream
    else:
      self._close(stream)
    return batch

  def look_ahead(self, seed: int, step: int) -> None:
    """Opens the next phase's stream in the last epoch before it, so that it has batches ready."""
    plan = self._spec.plan
    phase, (epoch, _) = plan.phase_of(step), plan.epoch_of(step)
    following = [each for each in plan.phases if each.first_epoch > phase.first_epoch]
    if following and epoch == phase.first_epoch + phase.epochs - 1:
      first = following[0].first_step
      if (seed, first) not in self._streams and first < plan.total_steps:
        self._streams[seed, first] = self._make(seed, first)

  def take_broken(self) -> Broken:
    """The images that could not be read since the last call."""
    for stream in self._streams.values():
      self._note_broken(stream)
    broken, self._broken = self._broken, {}
    return broken

  def first_images(self, seed: int, step: int, count: int) -> Batch:
    """The first `count` images of the epoch that begins with `step`, for a report."""
    plan = self._spec.plan
    phase = dataclasses.replace(plan.phase_of(step), batch_size=count)
    steps = iter([(plan.epoch_of(step)[0], 0)])
    stream = self._stream_of(phase, seed, steps, process=0, processes=1)
    try:
      batch = next(stream)
      return batch.replace(image=np.array(batch.image))
    finally:
      stream.close()

  def close(self) -> None:
    """Ends all streams."""
    for stream in self._streams.values():
      self._close(stream)
    self._streams = {}

  def _make(self, seed: int, step: int) -> TrainStream:
    """A stream of the batches of a phase, from `step` on."""
    plan = self._spec.plan
    phase = plan.phase_of(step)
    steps = (plan.epoch_of(number) for number in range(step, _end_of(phase, plan)))
    return self._stream_of(phase, seed, steps)

  def _stream_of(
    self, phase: Phase, seed: int, steps: Iterator[tuple[int, int]], **part: int
  ) -> TrainStream:
    """A stream of a phase's batches with these numbers of epoch and step."""
    config = self._spec.config
    split = self._sets.sets[phase.copies].train
    order = None
    if config.data.balance == "sampling":
      parts = dict(images=phase.images, flip=config.augment.flip)
      order = functools.partial(balanced_order, split.label, seed, **parts)
    return TrainStream(
      split,
      seed=seed,
      image_size=phase.image_size,
      batch_size=phase.batch_size,
      min_scale=phase.min_scale,
      flip=config.augment.flip,
      steps=steps,
      order=order,
      **how_to_read(self._spec) | part,
    )

  def _close(self, stream: TrainStream) -> None:
    self._note_broken(stream)
    stream.close()

  def _note_broken(self, stream: TrainStream) -> None:
    for number, reason in stream.broken.items():
      self._broken["train", stream.split.name(number)] = reason
    stream.broken.clear()


def _end_of(phase: Phase, plan: Plan) -> int:
  """The number of the first step after a phase."""
  return min(phase.first_step + phase.epochs * phase.steps_per_epoch, plan.total_steps)
