"""Trained models as files for other programs."""

import pathlib
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.export.formats import to_stablehlo
from jaxspeed.export.formats.choices import FORMATS
from jaxspeed.export.formats.network import Network
from jaxspeed.export.formats.to_onnx import write_onnx
from jaxspeed.export.formats.to_safetensors import write_safetensors
from jaxspeed.run.folder import check_output


def check_place(path: pathlib.Path, file_format: str) -> None:
  """Makes sure that a file of a format can be written, and the file beside it.

  Raises:
    UserError: as `check_output` and `check_metadata_file`.
  """
  check_output(path)
  if file_format == "stablehlo":
    check_output(to_stablehlo.metadata_file(path))
    to_stablehlo.check_metadata_file(path)


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
    to_stablehlo.write_stablehlo(path, network)
  else:
    write_safetensors(path, network)
    return network.metadata_of_weights
  return network.metadata
