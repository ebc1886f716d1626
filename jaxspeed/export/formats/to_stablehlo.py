"""StableHLO files by `jax.export`, which JAX alone can load and run, on CPUs, GPUs and TPUs.

    import jax
    program = jax.export.deserialize(bytearray(open("model.stablehlo", "rb").read()))
    probabilities = program.call(images)  # [n, h, w, 3], for any n

The format has no place for metadata: they are beside it, in FILE.json.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jaxtyping import Array, Float

from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.export.formats.network import Network, write
from jaxspeed.files import dump_json, parse_json, read_bytes

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def metadata_file(path: pathlib.Path) -> pathlib.Path:
  """The file with the metadata of a StableHLO file."""
  return path.with_name(f"{path.name}.json")


def check_metadata_file(path: pathlib.Path) -> None:
  """Makes sure that the metadata of a StableHLO file replace no file of another kind.

  Raises:
    UserError: a file of that name is there, and no export has written it.
  """
  beside = metadata_file(path)
  try:
    found = parse_json(read_bytes(beside), dict)
  except FileNotFoundError:
    return
  except ValueError:
    found = {}
  if not {"input_dtype", "class_names"} <= found.keys():
    raise UserError(
      f"{beside}, which the metadata of {path} would replace, was not written by an export: move "
      "it, or name another file to export to."
    )


def write_stablehlo(path: pathlib.Path, network: Network) -> None:
  """Writes a network as StableHLO, and its metadata beside it, both or neither.

  Raises:
    UserError: the model cannot be traced for a batch of any size, or a file cannot be written.
  """
  content, beside = _program(network).serialize(), metadata_file(path)
  before = beside.read_bytes() if beside.is_file() else None
  write(beside, dump_json(network.metadata, indent=2) + "\n")
  try:
    write(path, bytes(content))
  except BaseException:  # SIGTERM too
    if before is None:
      os.unlink(beside)
    else:
      write(beside, before)  # the metadata of the old program, which stays
    raise


def probabilities_of(network: Network) -> Callable[[Any], Float[Array, "n classes"]]:
  """The function from images to probabilities."""
  factor, offset = network.factor_and_offset

  def probabilities(images: Any) -> Float[Array, "n classes"]:
    normal = images.astype(jnp.float32) * factor + offset
    with precision.products("float32"):
      logits: Any = network.model.apply(network.variables, normal, train=False)
    return jax.nn.softmax(logits.astype(jnp.float32))

  return probabilities


def _program(network: Network) -> jax_export.Exported:
  """The exported program, for a batch of any size.

  Raises:
    UserError: the model needs to know the number of images.
  """
  size = network.image_size
  (n,) = jax_export.symbolic_shape("n")
  images = jax.ShapeDtypeStruct((n, size, size, 3), np.dtype(network.input_dtype))
  whole = probabilities_of(network)
  if not network.own:
    return _exported(whole, images)
  try:
    return _exported(whole, images)
  except Exception:
    pass
  # Such as len(images) or a batch in a shape's arithmetic: the model then sees one image at a time.
  single = jax.vmap(lambda image: whole(image[None])[0])
  try:
    return _exported(single, images)
  except Exception as error:
    reason = next(iter(str(error).splitlines()), "")[:200].rstrip(".")
    raise UserError(
      f"{type(network.model).__name__} cannot be exported for batches of any size "
      f"({type(error).__name__}: {reason}): have its shapes depend on images.shape alone."
    ) from error


def _exported(function: Callable[[Any], Any], images: jax.ShapeDtypeStruct) -> jax_export.Exported:
  return jax_export.export(jax.jit(function), platforms=PLATFORMS)(images)
