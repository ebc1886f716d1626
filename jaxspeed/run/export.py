"""Trained models of runs as files for other programs."""

import pathlib
from collections.abc import Sequence
from typing import Any

from jaxspeed.config import output
from jaxspeed.data.formats.class_names import stored_class_names
from jaxspeed.errors import UserError
from jaxspeed.export.formats import network as network_lib
from jaxspeed.export.formats.choices import FORMATS, INPUT_DTYPES
from jaxspeed.export.formats.network import Network
from jaxspeed.export.formats.to_onnx import write_onnx
from jaxspeed.export.formats.to_safetensors import write_safetensors
from jaxspeed.export.formats.to_stablehlo import (
  check_metadata_file,
  metadata_file,
  write_stablehlo,
)
from jaxspeed.records import provenance
from jaxspeed.run.best import CheckpointStep
from jaxspeed.run.folder import check_output
from jaxspeed.run.restore import Weights, for_images, load_config, run_weights


def check_place(path: pathlib.Path, file_format: str) -> None:
  """Makes sure that a file of a format can be written, and the file beside it.

  Raises:
    UserError: as `check_output` and `check_metadata_file`.
  """
  check_output(path)
  if file_format == "stablehlo":
    check_output(metadata_file(path))
    check_metadata_file(path)


def export(
  folder: pathlib.Path,
  path: pathlib.Path,
  *,
  file_format: str,
  step: CheckpointStep = None,
  input_dtype: str = "uint8",
  fold: bool = False,
) -> dict[str, Any]:
  """Writes the model of a run, with the weights that it is evaluated with, for other programs.

  Args:
    folder: the run's folder.
    path: the file to write; an existing one is replaced.
    file_format: as in `write_network`, like `fold`.
    step: the step of the checkpoint, or "best"; None: that of the newest whole one.
    input_dtype: the dtype of the images that go in, of "onnx" and "stablehlo".

  Returns:
    What `write_network` returns; errors as there and in `open_run`.
  """
  check_place(path, file_format)
  config = load_config(folder)
  with run_weights(folder, for_images(config), step) as weights:
    names = stored_class_names(folder, config.data.classes)
    network = network_of(weights, names, input_dtype=input_dtype)
  if (mode := config.eval.mode) not in ("center", "rect"):
    output.note(f"the run was evaluated with eval.mode={mode}; the file sees one view, center")
  return write_network(path, network, file_format=file_format, fold=fold)


def network_of(
  weights: Weights, class_names: Sequence[str], *, input_dtype: str = "uint8"
) -> Network:
  """A run's model, and how its images are prepared.

  Raises:
    UserError: `input_dtype` is not one of `choices.INPUT_DTYPES`.
  """
  if input_dtype not in INPUT_DTYPES:
    choices = " or ".join(INPUT_DTYPES)
    raise UserError(f"input={input_dtype!r}: the images that go in are {choices}.")
  spec, view = weights.spec, weights.view
  config, data = spec.config, spec.config.data
  model, arrays = network_lib.in_float32(spec.model, weights.variables)
  return Network(
    model=model,
    variables=arrays,
    image_size=view.size,
    mean=tuple(data.mean),
    std=tuple(data.std),
    class_names=tuple(class_names),
    input_dtype=input_dtype,
    own=not type(spec.model).__module__.startswith("jaxspeed.models."),
    facts={
      "resize": view.resize,
      "interpolation": "bilinear",
      "antialias": view.antialias,
      "model": config.given.model or dict(config.model.to_dict()),
      "recipe": config.name,
      "step": weights.step,
      "evaluated_weights": spec.plan.evaluated_weights(weights.step),
      "jaxspeed": provenance.versions()["jaxspeed"] or "",
    },
  )


def write_network(
  path: pathlib.Path, network: Network, *, file_format: str, fold: bool = False
) -> dict[str, Any]:
  """Writes a network in one of `FORMATS`, "onnx" with folded batch norms; returns its metadata.

  Raises:
    UserError: the format does not take the model, a package is missing, or the file cannot be
      written.
  """
  if file_format not in FORMATS:
    raise UserError(f"format={file_format!r}: choose one of {', '.join(FORMATS)}.")
  if fold and file_format != "onnx":
    raise UserError(f"fold={fold} has no effect beside format={file_format!r}: leave it out.")
  check_place(path, file_format)
  if file_format == "onnx":
    write_onnx(path, network, fold=fold)
  elif file_format == "stablehlo":
    write_stablehlo(path, network)
  else:
    write_safetensors(path, network)
    return network.metadata_of_weights
  return network.metadata
