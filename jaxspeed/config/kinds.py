"""Types of values that several fields share, with their ranges.

The upper bounds are not advice: beyond them memory, an int32 or a float32 would overflow.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import Predicate
from pydantic import Field

from jaxspeed.config.registry import AUGMENTATIONS, LOSSES, OPTIMIZERS
from jaxspeed.config.schema import Says, is_plain


def _are_contiguous(segments: Sequence[tuple[float, ...]]) -> bool:
  begins, ends = [segment[0] for segment in segments], [0, *(segment[1] for segment in segments)]
  return begins == ends[:-1] and all(a < b for a, b in itertools.pairwise(ends))


Text = Annotated[
  str,
  Field(max_length=4096),
  Predicate(is_plain),
  Says("text of one line without control characters, at most 4,096 long"),
]
# TFDS takes names with any other colon, such as huggingface:NAME, from the network.
DataSetName = Annotated[
  Text,
  Field(pattern=r"^([^/.:][^/:]*(/[^/.:][^/:]*)*(:[\d*.]+)?)?$"),
  Says("a name NAME, NAME/CONFIG or NAME/CONFIG:VERSION, in which no part begins with a dot"),
]
# An image's side. The first layer of a ResNet has 17 GB of activations for one image of 8,192.
Side = Annotated[int, Field(ge=1, le=8192)]
Pixels = Annotated[int, Field(ge=0, le=8192)]
# Channels of a layer; the last of a model may have 32 times as many as its first.
Width = Annotated[int, Field(ge=1, le=4096)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Epochs = Annotated[float, Field(ge=0, le=100_000)]
Share = Annotated[float, Field(ge=0, le=1)]
# Adam divides by 1 minus a power of it; an average of decay 1 never moves; and labels that are
# smoothed by 1 say nothing.
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
# The product of a learning rate and three factors fits a float32.
NotNegative = Annotated[float, Field(ge=0, le=1e9)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Number = Annotated[float, Field(ge=-1e9, le=1e9)]
ColorRanges = Annotated[
  tuple[()] | tuple[NotNegative, NotNegative, NotNegative, Annotated[float, Field(ge=0, le=0.5)]],
  Says("four numbers of at least 0 (brightness, contrast, saturation, hue <= 0.5), or ()"),
]
OptimizerName = Annotated[str, Predicate(OPTIMIZERS.knows), Says(OPTIMIZERS.names)]
LossName = Annotated[str, Predicate(LOSSES.knows), Says(LOSSES.names)]
AugmentationName = Annotated[str, Predicate(AUGMENTATIONS.knows), Says(AUGMENTATIONS.names)]
Precision = Literal["auto", "float32", "tf32", "bfloat16", "float16", "float64"]
EvalMode = Literal["center", "flip", "six", "selective", "five", "rect", "rect_flip"]
_CHANNELS = "in units of 0 ... 255, or () for the training set's own"
ThreeNumbers = tuple[Number, Number, Number]
Mean = Annotated[tuple[()] | ThreeNumbers, Says(f"three numbers {_CHANNELS}")]
Std = Annotated[
  tuple[()] | tuple[Positive, Positive, Positive], Says(f"three numbers above 0 {_CHANNELS}")
]
Segments = Annotated[
  tuple[tuple[Epochs, Epochs, NotNegative, NotNegative], ...],
  Predicate(_are_contiguous),
  Says(
    "segments of four numbers of at least 0 (first epoch, end, value there, value at the end), the "
    "first from epoch 0 on and each from the end of the one before"
  ),
]
XlaOption = Annotated[Text, Field(pattern="="), Says("NAME=VALUE, an option of XLA")]
# NAME or NAME/VARIANT: also the name of a folder in runs/, with a dash for the slash.
Name = Annotated[
  Text,
  Field(max_length=100, pattern=r"^([^-./\\][^/\\]*(/[^-./\\][^/\\]*)*)?$"),
  Says("a name for a folder, NAME or NAME/VARIANT, in which no part begins with a dot or a dash"),
]
