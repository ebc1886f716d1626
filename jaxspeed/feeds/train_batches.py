"""The training batches of a run of images on disk, from any step on."""

import dataclasses
import functools
from collections.abc import Generator, Iterable

import numpy as np

from jaxspeed.data.balance import balanced_order
from jaxspeed.data.batch import Batch
from jaxspeed.data.disk.sets import ImageSets
from jaxspeed.data.disk.streams import TrainStream
from jaxspeed.feeds.evaluation import how_to_read
from jaxspeed.feeds.protocol import Broken
from jaxspeed.planning.plan import Phase
from jaxspeed.steps.spec import TrainSpec


def train_batches(
  sets: ImageSets, spec: TrainSpec, seed: int, first_step: int, broken: Broken
) -> Generator[Batch]:
  """Yield the batch of each step from `first_step` on; closing the generator ends its threads.

  The stream of a phase opens in the last epoch before it, so that it has batches ready.

  Args:
    sets: the open image sets.
    spec: the run's specification.
    seed: the run's seed.
    first_step: the number of the first step.
    broken: takes the images that could not be read.
  """
  plan = spec.plan
  opened: dict[Phase, TrainStream] = {}

  def open_stream(phase: Phase, begin: int) -> None:
    end = min(phase.first_step + phase.epochs * phase.steps_per_epoch, plan.total_steps)
    if phase not in opened and begin < end:
      opened[phase] = _stream(sets, spec, phase, seed, map(plan.epoch_of, range(begin, end)))

  try:
    for step in range(first_step, plan.total_steps):
      phase, (epoch, _) = plan.phase_of(step), plan.epoch_of(step)
      for ended in [each for each in opened if each.first_epoch < phase.first_epoch]:
        opened.pop(ended).close()
      open_stream(phase, step)
      stream = opened[phase]
      batch = next(stream)
      broken |= {("train", stream.split.name(i)): why for i, why in stream.broken.items()}
      stream.broken.clear()
      yield batch
      for each in plan.phases:
        if each.first_epoch == epoch + 1:
          open_stream(each, each.first_step)
  finally:
    for stream in opened.values():
      stream.close()


def first_images(sets: ImageSets, spec: TrainSpec, seed: int, step: int, count: int) -> Batch:
  """The first `count` images of the epoch that begins with `step`, for a report."""
  phase = dataclasses.replace(spec.plan.phase_of(step), batch_size=count)
  steps = [(spec.plan.epoch_of(step)[0], 0)]
  stream = _stream(sets, spec, phase, seed, steps, process=0, processes=1)
  try:
    batch = next(stream)
    return batch.replace(image=np.array(batch.image))
  finally:
    stream.close()


def _stream(
  sets: ImageSets,
  spec: TrainSpec,
  phase: Phase,
  seed: int,
  steps: Iterable[tuple[int, int]],
  **part: int,
) -> TrainStream:
  """A stream of a phase's batches with these numbers of epoch and step."""
  config, split = spec.config, sets.sets[phase.copies].train
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
    **how_to_read(spec) | part,
  )
