"""What a run predicts for its evaluation images: predictions.npz in its folder."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxspeed.records.arrays import StoredArrays


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions(StoredArrays):
  """The evaluation images that could be read, in the order of their split.

  Attributes:
    step: the number of steps trained before the evaluation.
    index: the image's number in its split, from 0; in memory, the row of the evaluation's array.
    label: its class.
    predicted: the class of the largest logit, the first of equals; -1 if logits are not finite.
    probability: the softmax probability of the predicted class.
    loss: the cross entropy; exp(-loss) is the probability of the label.
    names: the paths of image files below the folder that was read, `data.path` or its resized
      copies, in a shard followed by ", byte" and the place of the image; () for data in memory.
  """

  FILE: ClassVar = "predictions.npz"

  step: int
  index: Int[np.ndarray, "n"]
  label: Int[np.ndarray, "n"]
  predicted: Int[np.ndarray, "n"]
  probability: Float[np.ndarray, "n"]
  loss: Float[np.ndarray, "n"]
  names: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    if len(self.names) not in (0, len(self.index)):
      raise ValueError(f"it names {len(self.names)} of {len(self.index)} images")

  @property
  def right(self) -> Bool[np.ndarray, "n"]:
    """Whether each prediction is right."""
    return self.label == self.predicted

  def named(self, names: Sequence[str]) -> "Predictions":
    """These predictions with the names of their images, given those of the whole split."""
    chosen = tuple(names[i] for i in self.index.tolist()) if names else ()
    return dataclasses.replace(self, names=chosen)
