"""The row of an epoch: its fields, each with its column on the screen and its tag in TensorBoard.

A new field of `Row` is stored, checked, printed and logged from its one declaration here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import Field


class Column(NamedTuple):
  """A column on the screen: title, width in characters, format, and when narrow terminals drop it.

  Those with the lowest `dropped` go first; those with 0 stay.
  """

  title: str
  width: int
  format: str
  dropped: int = 0


class Tag(NamedTuple):
  """A tag in TensorBoard, and the factor from the row's unit to the tag's."""

  name: str
  factor: float = 1


# Of larger numbers, squares and differences are not finite.
_Figure = Annotated[float, Field(ge=-1e100, le=1e100)]
_Positive = Annotated[float, Field(ge=0, le=1e100)]
_Pace = Annotated[float, Field(gt=0, le=1e100)]
_Share = Annotated[float, Field(ge=0, le=1 + 1e-6)]  # a weighted mean of ones may round up
_Count = Annotated[int, Field(ge=1)]


class Row(pydantic.BaseModel):
  """A line of metrics.jsonl; a metric of the user's own is one more key.

  Accuracies are fractions, times seconds. `step`, `examples` and the seconds count since the start
  of the run; paces are means over the epoch's training.

  The tags, their units and the x axis (examples seen) are imagenet18's, to compare with its
  published event files (cybertronai/imagenet18_old, training/logger.py): accuracies in percent,
  steps in milliseconds. Here a value belongs to an epoch, not to a step, and epochs count from 1.
  """

  model_config = pydantic.ConfigDict(extra="allow")

  # From 1; fractional if training ends inside one.
  epoch: Annotated[_Positive, Column("epoch", 5, ".4g"), Tag("epoch")]
  step: _Count
  examples: _Count
  world: Annotated[_Count, Tag("sizes/world")]  # devices
  dawn_seconds: Annotated[_Positive, Tag("times/dawn_seconds")]
  # Learning rate and momentum are those of the last step.
  learning_rate: Annotated[_Figure | None, Column("lr", 8, ".3g", 5), Tag("sizes/lr")] = None
  momentum: Annotated[_Figure | None, Tag("sizes/momentum")] = None
  image_size: Annotated[_Count | None, Column("px", 4, ".0f", 1), Tag("sizes/image")] = None
  batch_size: Annotated[_Count | None, Column("batch", 5, ".0f", 2), Tag("sizes/batch_total")] = (
    None
  )
  train_loss: Annotated[_Figure | None, Column("train loss", 10, ".4f"), Tag("losses/xent")] = None
  train_top1: Annotated[
    _Share | None, Column("train top1", 10, ".2%", 3), Tag("losses/train_1", 100)
  ] = None
  train_top5: Annotated[_Share | None, Tag("losses/train_5", 100)] = None
  eval_loss: Annotated[
    _Figure | None, Column("eval loss", 9, ".4f", 4), Tag("losses/test_xent")
  ] = None
  eval_top1: Annotated[_Share | None, Column("eval top1", 9, ".2%"), Tag("losses/test_1", 100)] = (
    None
  )
  eval_top5: Annotated[_Share | None, Column("eval top5", 9, ".2%"), Tag("losses/test_5", 100)] = (
    None
  )
  # As in `class_figures.summary`.
  eval_macro_top1: Annotated[_Share | None, Tag("losses/test_macro_1", 100)] = None
  eval_ece: Annotated[_Share | None, Tag("losses/test_ece")] = None
  eval_seconds: Annotated[_Positive | None, Tag("times/eval_sec")] = None
  # Images in the accuracies, and images left out; images replaced by others in the run so far.
  eval_images: int | None = None
  eval_images_skipped: int | None = None
  train_images_broken: int | None = None
  skipped_steps: Annotated[int, Tag("losses/skipped_steps")] = 0  # of float16, in the run so far
  # None for an epoch that an earlier process finished.
  images_per_second: Annotated[
    _Pace | None, Column("img/s", 7, ".0f"), Tag("times/images_per_sec")
  ] = None
  images_per_second_per_device: Annotated[_Positive | None, Tag("times/1gpu_images_per_sec")] = None
  step_seconds: Annotated[_Positive | None, Tag("times/step", 1000)] = None
  # The share of the training time in which the devices waited for a batch.
  data_wait: Annotated[_Positive, Tag("times/data_wait")] = 0.0
  train_seconds: Annotated[
    _Positive | None, Column("total train s", 13, ".2f"), Tag("times/train_seconds")
  ] = None
  memory_gb: Annotated[_Positive | None, Tag("memory/max_allocated_gb")] = None  # peak of a device
  net_recv_gbit: Annotated[_Figure | None, Tag("net/recv_gbit")] = None
  net_transmit_gbit: Annotated[_Figure | None, Tag("net/transmit_gbit")] = None


def _declared(kind: type) -> dict[str, Any]:
  """The fields of `Row` with a piece of metadata of a kind, in their order."""
  found = {
    name: next((each for each in field.metadata if isinstance(each, kind)), None)
    for name, field in Row.model_fields.items()
  }
  return {name: each for name, each in found.items() if each is not None}


COLUMNS: dict[str, Column] = _declared(Column)  # 99 characters in all
TAGS: dict[str, Tag] = _declared(Tag)


def scalars_of(row: Mapping[str, Any]) -> dict[str, float]:
  """The values of a row by their tags, in the tags' units."""
  found = {
    tag.name: tag.factor * row[name] for name, tag in TAGS.items() if row.get(name) is not None
  }
  if row.get("data_wait") is not None and row.get("step_seconds") is not None:
    found["times/data"] = 1000 * row["data_wait"] * row["step_seconds"]
  if row.get("batch_size") is not None:
    found["sizes/batch"] = row["batch_size"] / row["world"]  # of one device
  return found
