"""The data sets of a streamed run: originals, resized copies, held-out images, noise."""

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32
from ml_collections import ConfigDict

from jaxspeed.data.disk.index import Show
from jaxspeed.data.disk.sources import ImageSet, open_images
from jaxspeed.data.table import fingerprint, noise_table
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded
from jaxspeed.planning.plan import Phase


@dataclasses.dataclass(frozen=True)
class ImageSets:
  """The data sets of a streamed run, by the short side of their images; 0: the originals."""

  sets: dict[int, ImageSet]
  notes: tuple[str, ...] = ()
  decider = "the data set decides"  # the fields in `decides`

  @property
  def first(self) -> ImageSet:
    """The data set of the first phase."""
    return next(iter(self.sets.values()))

  @property
  def class_names(self) -> tuple[str, ...]:
    return self.first.train.class_names

  @property
  def evaluated_on(self) -> str:
    return self.first.evaluated_on

  @property
  def source(self) -> str:
    return "; ".join(dict.fromkeys(each.train.source for each in self.sets.values()))

  @property
  def counts(self) -> tuple[dict[int, int], int]:
    """Numbers of training images, by the short side of their copies, and of evaluation images."""
    train = {side: len(each.train) for side, each in self.sets.items()}
    return train, max(len(each.eval) for each in self.sets.values())

  @functools.cached_property
  def fingerprint(self) -> str:
    """The kind and the checksum of the first phase's images (`table.fingerprint`)."""
    return fingerprint(self.first.train, self.first.eval)

  @property
  def train_labels(self) -> Int32[np.ndarray, "n"]:
    return self.first.train.label

  @property
  def decides(self) -> dict[str, int]:
    """Fields of `config.data` that the data set decides; its images may have any size."""
    return {"classes": len(self.class_names)}

  def to_evaluate_training(self) -> "ImageSets":
    sets = {side: each._replace(eval=each.train) for side, each in self.sets.items()}
    return dataclasses.replace(self, sets=sets)

  def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Fail: the config of a stream always has them (`config.checks`)."""
    raise NotImplementedError("config.data.mean and config.data.std of a stream are never empty")


def open_sets(
  config: ConfigDict, phases: Sequence[Phase], show: Show | None = None, *, follow: bool = False
) -> ImageSets:
  """Open every data set that the phases read.

  Missing copies are replaced by the originals, with a note: this costs time but no accuracy.

  Args:
    config: the run's config; `data` and `tune_on` are used.
    phases: the phases of the config's plan.
    show: progress function, as in `open_images`.
    follow: whether the number of classes may differ from the config's.

  Raises:
    UserError: as in `open_images`; the data sets have different classes, only one class, or
      another number of classes than the config; copies or shards are incomplete, or do not fit
      their originals.
  """
  data, tune = config.data, config.tune_on == "validation"
  if data.synthetic:
    train, evaluation = (
      noise_table(n, data.classes) for n in (data.train_images, data.eval_images)
    )
    noise = ImageSet(train, evaluation, config.tune_on)
    return ImageSets(dict.fromkeys([phase.copies for phase in phases], noise))
  sets: dict[int, ImageSet] = {}
  opened: dict[str, ImageSet] = {}
  notes: list[str] = []
  for side in dict.fromkeys(phase.copies for phase in phases):
    path = data.path
    if side:
      copies = os.path.join(data.copies or f"{path.rstrip('/')}-sz", str(side))
      if expanded(copies, "config.data.copies").is_dir():
        path = copies
      else:
        notes.append(
          f"no copies of {side} px at {copies}: the originals are read instead, which takes 1.5 to "
          "4 times the CPU time; python -m jaxspeed.prepare resize makes copies of folders"
        )
    if path not in opened:
      options = dict(name=data.name, cache=data.cache, share=data.hold_out)
      opened[path] = open_images(path=path, show=show, tune=tune, **options)
    found = sets[side] = opened[path]
    notes += found.train.notes
  names = {each.train.class_names for each in sets.values()}
  if len(names) > 1:
    raise UserError(
      f"{data.path} and its resized copies have different classes: make the copies again with "
      "python -m jaxspeed.prepare resize."
    )
  (classes,) = names
  where = data.path or data.name
  if len(classes) < 2:
    raise UserError(f"{where} has one class, {printable(classes[0])}: at least two are needed.")
  if len(classes) != data.classes and not follow:
    raise UserError(
      f"{where} has {len(classes)} classes, but config.data.classes is {data.classes}: "
      f"set --config.data.classes={len(classes)}, or leave that field out."
    )
  return ImageSets(sets, tuple(dict.fromkeys(notes)))  # those of copies say the same
