"""What every format is written from: a model, its weights, and what a caller must know of both."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspeed.config.registry import AnyModel
from jaxspeed.errors import UserError
from jaxspeed.export.formats.choices import INPUT_DTYPES
from jaxspeed.files import dump_json, write_atomically
from jaxspeed.models.make import in_dtype
from jaxspeed.records import provenance
from jaxspeed.steps.spec import TrainSpec

# The factor that brings the values of the images to 0 to 255.
LEVELS = {"uint8": 1.0, "float32": 255.0}


@dataclasses.dataclass(frozen=True)
class Network:
  """A trained model that computes in float32.

  Attributes:
    model: the Flax module.
    variables: its variables as NumPy arrays; floats are float32.
    image_size: both sides of the images in pixels.
    mean: the mean of each channel, in units of 0 to 255.
    std: its standard deviation.
    class_names: the names of the classes, by label.
    input_dtype: that of the images, one of `choices.INPUT_DTYPES`.
    own: whether the model is the user's own, not one of the package.
    facts: what else a caller must know; values that JSON can hold.
  """

  model: AnyModel
  variables: dict[str, Any]
  image_size: int
  mean: tuple[float, ...]
  std: tuple[float, ...]
  class_names: tuple[str, ...]
  input_dtype: str
  own: bool
  facts: dict[str, Any]

  @property
  def factor_and_offset(self) -> tuple[np.ndarray, np.ndarray]:
    """Normalised pixels are pixels * factor + offset; float32 vectors of three channels."""
    std, mean = (np.asarray(each, np.float64) for each in (self.std, self.mean))
    factor = LEVELS[self.input_dtype] / std
    return factor.astype(np.float32), (-mean / std).astype(np.float32)

  @property
  def metadata(self) -> dict[str, Any]:
    """What a caller must know: how to prepare images, and what comes out."""
    limits = {"uint8": [0, 255], "float32": [0, 1]}[self.input_dtype]
    return {
      "input": "images",
      "input_dtype": self.input_dtype,
      "input_range": limits,
      "input_shape": ["n", self.image_size, self.image_size, 3],
      "channels": "RGB",
      "output": "probabilities",
      "image_size": self.image_size,
      "mean": list(self.mean),
      "std": list(self.std),
      "class_names": list(self.class_names),
      **self.facts,
    }

  @property
  def metadata_of_weights(self) -> dict[str, Any]:
    """`metadata` of weights alone, for torchvision's and timm's models: they give logits."""
    taken = {
      "input": "images, in [0, 1], minus mean / 255, divided by std / 255",
      "input_dtype": "float32",
      "input_shape": ["n", 3, self.image_size, self.image_size],
      "output": "logits",
    }
    both = self.metadata | taken
    del both["input_range"]
    return both


def network_of(
  spec: TrainSpec,
  variables: dict[str, Any],
  step: int,
  class_names: Sequence[str],
  *,
  view: tuple[int, int, bool],
  input_dtype: str,
) -> Network:
  """The model that was trained for `step` steps, and how its images are prepared (`View`).

  Raises:
    UserError: `input_dtype` is not one of `choices.INPUT_DTYPES`.
  """
  if input_dtype not in INPUT_DTYPES:
    choices = " or ".join(INPUT_DTYPES)
    raise UserError(f"input={input_dtype!r}: the images that go in are {choices}.")
  (size, resize, antialias), config = view, spec.config
  model, arrays = in_float32(spec.model, variables)
  return Network(
    model=model,
    variables=arrays,
    image_size=size,
    mean=tuple(config.data.mean),
    std=tuple(config.data.std),
    class_names=tuple(class_names),
    input_dtype=input_dtype,
    own=not type(spec.model).__module__.startswith("jaxspeed.models."),
    facts={
      "resize": resize,
      "interpolation": "bilinear",
      "antialias": antialias,
      "model": config.given.model or dict(config.model.to_dict()),
      "recipe": config.name,
      "step": step,
      "evaluated_weights": spec.plan.evaluated_weights(step),
      "jaxspeed": provenance.versions()["jaxspeed"] or "",
    },
  )


def in_float32(model: AnyModel, variables: dict[str, Any]) -> tuple[AnyModel, dict[str, Any]]:
  """A model that computes in float32, and its variables as NumPy arrays."""

  def host(x: Any) -> np.ndarray:
    array = np.asarray(x)
    return array.astype(np.float32) if jnp.issubdtype(array.dtype, jnp.floating) else array

  return in_dtype(model, jnp.float32), jax.tree.map(host, jax.device_get(variables))


def as_text(metadata: dict[str, Any]) -> dict[str, str]:
  """Metadata for a format that holds only text: each value as JSON."""
  return {name: dump_json(value) for name, value in metadata.items()}


def write(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file, or leaves the old one.

  Raises:
    UserError: the file cannot be written.
  """
  try:
    write_atomically(path, content)
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): choose another place."
    ) from error
