"""Loading and saving of weights as .safetensors, with the names and layouts of other packages."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from jaxspeed.errors import UserError
from jaxspeed.files import open_regular, parse_json, write_atomically

Shapes = Mapping[str, tuple[int, ...]]  # of tensors, by name
Place = tuple[str, ...]  # keys of an array in the variables: ("params" or "batch_stats", ...)
_PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".tar")
# What a file of torch.save begins with: a .zip, or a pickle of protocols 2 to 5.
_PICKLED = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# The fields of `config.model` that weights may decide.
SIZES = ("depth", "width", "whiten", "mlp", "patch_size", "heads")
_IGNORED = ".num_batches_tracked"
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclasses.dataclass(frozen=True)
class Layout:
  """The names and layouts that other packages give to a model's arrays.

  Attributes:
    name_of: maps a place to the name of its tensor.
    to_torch: converts the array at a place to its tensor; it only moves numbers.
    head: what the names of the last layer's tensors begin with.
    what: the file that is wanted, in words.
    sizes: the fields of `config.model` that the names and shapes of tensors decide; {} if they are
      another model's.
  """

  name_of: Callable[[Place], str]
  to_torch: Callable[[Place, np.ndarray], np.ndarray]
  head: str
  what: str
  sizes: Callable[[Shapes], dict[str, int]]


def load_weights(
  path: str | os.PathLike,
  variables: Mapping[str, Any],
  layout: Layout,
  *,
  head: Literal["keep", "new"] = "keep",
) -> dict[str, Any]:
  """Load variables from a file as NumPy arrays of the dtypes of `variables`.

  Args:
    path: a .safetensors file, also in float16 or bfloat16.
    variables: the result of the model's `init`, or its shapes (`jax.eval_shape`), as a template.
    layout: the names of the file.
    head: "keep" uses the linear layer of the file; "new", for other classes, that of `variables`.

  Raises:
    UserError: the file is missing, damaged or a pickle; its model has another size or number of
      classes; or tensors are missing, unknown, not floats or not finite.
  """
  path = pathlib.Path(path)
  loaded = traverse_util.flatten_dict(dict(variables))
  places = {layout.name_of(place): place for place in loaded}
  wanted = {
    # A broadcast zero has the shape, but takes no memory.
    name: layout.to_torch(place, np.broadcast_to(np.int8(0), loaded[place].shape)).shape
    for name, place in places.items()
  }
  with _open(path) as file:
    stored = _shapes_in(file)
    _check_sizes(path, layout.sizes(stored), layout.sizes(wanted))
    if head == "new":
      stored, wanted = (
        {name: shape for name, shape in shapes.items() if not name.startswith(layout.head)}
        for shapes in (stored, wanted)
      )
    _check_names(path, stored, wanted, layout)
    for name, shape in sorted(wanted.items()):
      _check_shape(path, name, stored[name], shape, layout)
      place, tensor = places[name], _tensor(path, file, name)
      array = np.empty(loaded[place].shape, loaded[place].dtype)
      positions = layout.to_torch(place, np.arange(array.size).reshape(array.shape))
      array.reshape(-1)[positions.ravel()] = tensor.ravel()
      loaded[place] = array
  return traverse_util.unflatten_dict(loaded)


def save_weights(
  path: str | os.PathLike,
  variables: Mapping[str, Any],
  layout: Layout,
  *,
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Save variables as a .safetensors file that the other package can load.

  In torch: `model.load_state_dict(safetensors.torch.load_file(path))`.

  Args:
    path: the file.
    variables: the variables, or their arrays as NumPy's.
    layout: the names of the file.
    metadata: texts by name, beside the format's own.

  Raises:
    UserError: the file cannot be written.
  """
  path = pathlib.Path(path)
  tensors = {
    layout.name_of(place): np.ascontiguousarray(layout.to_torch(place, np.asarray(x)))
    for place, x in traverse_util.flatten_dict(dict(variables)).items()
  }
  # PyTorch writes this mark, and other readers require it.
  content = safetensors.numpy.save(tensors, metadata={**(metadata or {}), "format": "pt"})
  try:
    write_atomically(path, content, sync=False)
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): choose another place."
    ) from error


def class_names_in(path: str | os.PathLike) -> tuple[str, ...]:
  """The class names in the metadata of a file, as an export writes them; () without them.

  Raises:
    UserError: the file does not open, as in `load_weights`.
  """
  with _open(pathlib.Path(path)) as file:
    return tuple(_metadata(file, "class_names", list[str]) or ())


def sizes_in(path: pathlib.Path, layout: Layout, model: Mapping[str, Any]) -> dict[str, int]:
  """The fields of `config.model` that a file decides; {} if it holds another model.

  Args:
    path: the file.
    layout: the names of the file.
    model: `config.model`, whose number of heads stays if its width is the file's, and the file,
      unlike an export, does not tell the heads.

  Raises:
    UserError: the file does not open, as in `load_weights`.
  """
  with _open(path) as file:
    sizes = layout.sizes(_shapes_in(file))
    exported = _metadata(file, "model", dict[str, Any]) or {}  # ours say what no shape tells
  if sizes.get("width") == model["width"] and "heads" in model:
    exported = {"heads": model["heads"]} | exported
  found = {name: exported.get(name, sizes[name]) for name in sizes}
  return {name: value for name, value in found.items() if isinstance(value, int)}


def _open(path):
  if path.suffix.lower() in _PICKLES:
    raise _pickled(path, f"{path.stem}.safetensors")
  if path.is_dir():
    raise UserError(f"{path} is a folder, and no run's: name a .safetensors file of weights.")
  begin = b""
  try:
    with open_regular(path) as file:  # refuses a pipe, on which safe_open would wait
      begin = file.read(8)
    return safetensors.safe_open(path, framework="np")
  except FileNotFoundError as error:
    raise UserError(
      f"{path} does not exist: name the weights with --config.pretrained.path=FILE.safetensors, a "
      "run's folder or the hub's, as hf://timm/resnet50.a1_in1k, or train from random ones with "
      "--config.pretrained.path= (nothing behind it)."
    ) from error
  except (OSError, safetensors.SafetensorError) as error:
    # Only now: the length of a header may have the same first bytes, and zeros after them.
    if begin.startswith(_PICKLED) and any(begin[2:]):
      raise _pickled(path, f"{path.stem}_converted.safetensors") from None
    raise UserError(
      f"{path} cannot be read as .safetensors ({error}): copy or convert it again."
    ) from error


def _pickled(path, converted):
  return UserError(
    f"{path} is a pickle, which may run any code when it is loaded; convert it with "
    f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), {converted!r}) and "
    "name that file."
  )


def _metadata(file, name, kind):
  try:
    return parse_json((file.metadata() or {}).get(name, ""), kind)
  except ValueError:  # another program's
    return None


def _shapes_in(file) -> Shapes:
  shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
  return {name: shape for name, shape in shapes.items() if not name.endswith(_IGNORED)}


def _check_sizes(path, theirs, ours):
  differing = [name for name in theirs if theirs[name] != ours[name]]
  have, wanted = (
    " and ".join(f"{name} {sizes[name]}" for name in differing) for sizes in (theirs, ours)
  )
  if differing:
    fields = " and ".join(f"config.model.{name}={theirs[name]}" for name in differing)
    raise UserError(
      f"{path} holds a model of {have}, but the config's has {wanted}: set {fields} or name "
      "another file."
    )


def _check_names(path, stored, wanted, layout):
  lacking, unknown = sorted(wanted.keys() - stored), sorted(stored.keys() - wanted)
  if names := lacking or unknown:
    what = "lacks" if lacking else "has unknown tensors:"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise UserError(
      f"{path} {what} {', '.join(names[:3])}{more}; it must hold {layout.what}, with their tensor "
      "names."
    )


def _check_shape(path, name, shape, wanted, layout):
  if name.startswith(layout.head) and len(shape) == len(wanted) and shape[0] != wanted[0]:
    raise UserError(
      f"{path} has {shape[0]} classes, but the model has {wanted[0]}: choose the data set of "
      f"these weights, or --config.data.classes={shape[0]} to predict without a data set, or set "
      "config.pretrained.head='new' to train a new last layer."
    )
  if shape != wanted:
    raise UserError(
      f"{path}: {name} has shape {list(shape)}, but the model's has {list(wanted)}: name the "
      "weights of a model of the same width."
    )


def _tensor(path, file, name):
  """A tensor of floats, once its numbers are known to be possible."""
  if (dtype := file.get_slice(name).get_dtype()) not in _FLOATS:
    raise UserError(
      f"{path}: {name} is stored as {dtype}, but only {', '.join(_FLOATS)} are read: convert it to "
      "floats."
    )
  tensor = file.get_tensor(name)
  wrong = "" if np.isfinite(tensor).all() else "numbers that are not finite (NaN or infinite)"
  if name.endswith("running_var") and (tensor < 0).any():
    wrong = "negative variances"
  if wrong:
    raise UserError(f"{path}: {name} has {wrong}: name other weights.")
  return tensor
