"""The row of an epoch: its fields, each with its column on the screen and its tag in TensorBoard.

A new field of `Row` is stored, checked, printed and logged from its one declaration here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import Field


class Column(NamedTuple):
  """A column on the screen: format, width in characters, title, and when narrow terminals drop it.

  Those with the lowest `dropped` go first; those with 0 stay. Without a title, the field's name is.
  """

  format: str
  width: int
  title: str = ""
  dropped: int = 0


class Tag(NamedTuple):
  """A tag in TensorBoard, and the factor from the row's unit to the tag's."""

  name: str
  factor: float = 1


# Of larger numbers, squares and differences are not finite.
_Figure = Annotated[float, Field(ge=-1e100, le=1e100)] | None
_Seconds = Annotated[float, Field(ge=0, le=1e100)]
_Positive = _Seconds | None
_Pace = Annotated[float, Field(gt=0, le=1e100)] | None
_Share = Annotated[float, Field(ge=0, le=1 + 1e-6)] | None  # a weighted mean of ones may round up
_Count = Annotated[int, Field(ge=1)]
_Size = _Count | None


class Row(pydantic.BaseModel, extra="allow"):
  """A line of metrics.jsonl; a metric of the user's own is one more key.

  Accuracies are fractions, times seconds. `step`, `examples` and the seconds count since the start
  of the run; paces are means over the epoch's training.

  The tags, their units and the x axis (examples seen) are imagenet18's, to compare with its
  published event files (cybertronai/imagenet18_old, training/logger.py): accuracies in percent,
  steps in milliseconds. Here a value belongs to an epoch, not to a step, and epochs count from 1.
  """

  # From 1; fractional if training ends inside one.
  epoch: Annotated[_Seconds, Column(".4g", 5), Tag("epoch")]
  step: _Count
  examples: _Count
  world: Annotated[_Count, Tag("sizes/world")]  # devices
  dawn_seconds: Annotated[_Seconds, Tag("times/dawn_seconds")]
  # Learning rate and momentum are those of the last step.
  learning_rate: Annotated[_Figure, Column(".3g", 8, "lr", 5), Tag("sizes/lr")] = None
  momentum: Annotated[_Figure, Tag("sizes/momentum")] = None
  image_size: Annotated[_Size, Column(".0f", 4, "px", 1), Tag("sizes/image")] = None
  batch_size: Annotated[_Size, Column(".0f", 5, "batch", 2), Tag("sizes/batch_total")] = None
  train_loss: Annotated[_Figure, Column(".4f", 10), Tag("losses/xent")] = None
  train_top1: Annotated[_Share, Column(".2%", 10, dropped=3), Tag("losses/train_1", 100)] = None
  train_top5: Annotated[_Share, Tag("losses/train_5", 100)] = None
  eval_loss: Annotated[_Figure, Column(".4f", 9, dropped=4), Tag("losses/test_xent")] = None
  eval_top1: Annotated[_Share, Column(".2%", 9), Tag("losses/test_1", 100)] = None
  eval_top5: Annotated[_Share, Column(".2%", 9), Tag("losses/test_5", 100)] = None
  # As in `class_figures.summary`.
  eval_macro_top1: Annotated[_Share, Tag("losses/test_macro_1", 100)] = None
  eval_ece: Annotated[_Share, Tag("losses/test_ece")] = None
  eval_seconds: Annotated[_Positive, Tag("times/eval_sec")] = None
  # Images in the accuracies, and images left out; images replaced by others in the run so far.
  eval_images: int | None = None
  eval_images_skipped: int | None = None
  train_images_broken: int | None = None
  skipped_steps: Annotated[int, Tag("losses/skipped_steps")] = 0  # of float16, in the run so far
  # None for an epoch that an earlier process finished.
  images_per_second: Annotated[_Pace, Column(".0f", 7, "img/s"), Tag("times/images_per_sec")] = None
  images_per_second_per_device: Annotated[_Positive, Tag("times/1gpu_images_per_sec")] = None
  step_seconds: Annotated[_Positive, Tag("times/step", 1000)] = None
  # The share of the training time in which the devices waited for a batch.
  data_wait: Annotated[_Seconds, Tag("times/data_wait")] = 0.0
  train_seconds: Annotated[
    _Positive, Column(".2f", 13, "total train s"), Tag("times/train_seconds")
  ] = None
  memory_gb: Annotated[_Positive, Tag("memory/max_allocated_gb")] = None  # peak of a device
  net_recv_gbit: Annotated[_Figure, Tag("net/recv_gbit")] = None
  net_transmit_gbit: Annotated[_Figure, Tag("net/transmit_gbit")] = None


def _declared(kind: type) -> dict[str, Any]:
  """The fields of `Row` with a piece of metadata of a kind, in their order."""
  return {
    name: each
    for name, field in Row.model_fields.items()
    for each in field.metadata
    if isinstance(each, kind)
  }


# 99 characters in all.
COLUMNS: dict[str, Column] = {
  name: column._replace(title=column.title or name.replace("_", " "))
  for name, column in _declared(Column).items()
}
TAGS: dict[str, Tag] = _declared(Tag)


def scalars_of(row: Mapping[str, Any]) -> dict[str, float]:
  """The values of a row by their tags, in the tags' units."""
  found = {
    tag.name: tag.factor * row[name] for name, tag in TAGS.items() if row.get(name) is not None
  }
  found |= {
    f"own/{name}": value
    for name, value in row.items()
    if name not in Row.model_fields and isinstance(value, float)
  }
  if row.get("data_wait") is not None and row.get("step_seconds") is not None:
    found["times/data"] = 1000 * row["data_wait"] * row["step_seconds"]
  if row.get("batch_size") is not None:
    found["sizes/batch"] = row["batch_size"] / row["world"]  # of one device
  return found
