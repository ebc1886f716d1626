"""Loading and saving of weights as .safetensors, with the names and layouts of other packages."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from jaxspeed.errors import UserError
from jaxspeed.files import open_regular, parse_json, write_atomically

Place = tuple[str, ...]  # keys of an array in the variables: ("params" or "batch_stats", ...)
_PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".tar")
# What a file of torch.save begins with: a .zip, or a pickle of protocols 2 to 5.
_PICKLED = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# The fields of `config.model` that weights may decide.
SIZES = ("depth", "width", "mlp", "patch_size", "heads")
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclasses.dataclass(frozen=True)
class Layout:
  """The names and layouts that other packages give to a model's arrays.

  Attributes:
    name_of: maps a place to the name of its tensor.
    to_torch: converts the array at a place to its tensor.
    from_torch: converts a tensor to the array of a shape at a place.
    head: what the names of the last layer's tensors begin with.
    width: the name of a tensor whose first side is `config.model.width`.
    what: says what file is wanted, from the names of the model's tensors.
    sizes: the fields of `config.model` that the names and shapes of a file decide.
    mismatch: an error for a file with the first names and a model with the second; None: no error.
    ignored: the end of names that are passed over.
  """

  name_of: Callable[[Place], str]
  to_torch: Callable[[Place, np.ndarray], np.ndarray]
  from_torch: Callable[[Place, np.ndarray, tuple[int, ...]], np.ndarray]
  head: str
  width: str
  what: Callable[[Iterable[str]], str]
  sizes: Callable[[Mapping[str, tuple[int, ...]]], dict[str, int]]
  mismatch: Callable[[Iterable[str], Iterable[str]], str | None] = lambda stored, wanted: None
  ignored: str = ".num_batches_tracked"


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
    head: "keep" uses the linear layer of the file; "new", for other classes, uses that of
      `variables`, which must then hold arrays.

  Raises:
    UserError: the file is missing, damaged or a pickle; its model has another size or number of
      classes; or tensors are missing, unknown, not floats or not finite.
  """
  path = pathlib.Path(path)
  ours = traverse_util.flatten_dict(dict(variables))
  loaded = dict(ours)
  with _open(path) as file:
    for place, tensor in _tensors(path, file, ours, layout, head):
      template = ours[place]
      array = layout.from_torch(place, tensor.astype(template.dtype), template.shape)
      loaded[place] = np.ascontiguousarray(array)
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


def check_weights(
  path: pathlib.Path, shapes: Mapping[str, Any], layout: Layout, *, head: Literal["keep", "new"]
) -> None:
  """Makes sure that `load_weights` can load a file; raises a UserError as that."""
  with _open(path) as file:
    for _ in _tensors(path, file, traverse_util.flatten_dict(dict(shapes)), layout, head):
      pass


def class_names_in(path: pathlib.Path) -> tuple[str, ...]:
  """The class names in the metadata of a file, as an export writes them; () without them.

  Raises:
    UserError: the file does not open, as in `load_weights`.
  """
  with _open(path) as file:
    text = (file.metadata() or {}).get("class_names", "")
  try:
    return tuple(parse_json(text, list[str]))
  except ValueError:  # another program's
    return ()


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
    sizes = layout.sizes({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})
    text = (file.metadata() or {}).get("model", "")
  try:
    exported = parse_json(text, dict[str, Any])  # ours say what no shape tells
  except ValueError:
    exported = {}
  if sizes.get("width") == model["width"] and "heads" in model:
    exported = {"heads": model["heads"]} | exported
  return {name: found for name in sizes if type(found := exported.get(name, sizes[name])) is int}


def check_file(path: pathlib.Path) -> None:
  """Makes sure that a file of weights opens; raises a UserError as `load_weights`."""
  with _open(path):
    pass


def _tensors(path, file, ours, layout, head):
  """Yields the place and the tensor of each array to load."""
  for name, place in _checked(path, file, ours, layout, head).items():
    tensor = file.get_tensor(name)
    if not np.isfinite(tensor).all():
      raise UserError(
        f"{path}: {name} has numbers that are not finite (NaN or infinite): name other weights."
      )
    yield place, tensor


def _checked(path, file, ours, layout, head):
  """The places of the arrays to load, by name, after a check of all names, shapes and dtypes."""
  places = {layout.name_of(place): place for place in ours}
  stored = {name for name in file.keys() if not name.endswith(layout.ignored)}
  wanted = set(places)
  if head == "new":
    wanted, stored = (
      {name for name in names if not name.startswith(layout.head)} for names in (wanted, stored)
    )
  _check_names(path, stored, wanted, layout)
  # The first is that which tells the width, so that another width is known as such.
  for name in sorted(wanted, key=lambda name: (name != layout.width, name)):
    place = places[name]
    # The shape only: a broadcast zero takes no memory.
    shape = layout.to_torch(place, np.broadcast_to(np.int8(0), ours[place].shape)).shape
    _check_tensor(path, name, file.get_slice(name), list(shape), layout)
  return {name: places[name] for name in sorted(wanted)}


def _open(path):
  if path.suffix.lower() in _PICKLES:
    raise _pickled(path, f"{path.stem}.safetensors")
  begin = b""
  try:
    with open_regular(path) as file:  # refuses a pipe, on which safe_open would wait
      begin = file.read(8)
    return safetensors.safe_open(path, framework="np")
  except FileNotFoundError as error:
    raise UserError(f"{path} does not exist: name a .safetensors file of weights.") from error
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


def _listed(names):
  names = sorted(names)
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return ", ".join(names[:3]) + more


def _check_names(path, stored, wanted, layout):
  if mismatch := layout.mismatch(stored, wanted):
    raise UserError(f"{path} {mismatch}")
  for names, what in ((wanted - stored, "lacks"), (stored - wanted, "has unknown tensors:")):
    if names:
      raise UserError(
        f"{path} {what} {_listed(names)}; it must hold {layout.what(wanted)}, with their tensor "
        "names."
      )


def _check_tensor(path, name, tensor, expected, layout):
  shape = list(tensor.get_shape())
  if name.startswith(layout.head) and len(shape) == len(expected) and shape[0] != expected[0]:
    raise UserError(
      f"{path} has {shape[0]} classes, but the model has {expected[0]}: choose the data set of "
      f"these weights, or --config.data.classes={shape[0]} to predict without a data set, or set "
      "config.pretrained.head='new' to train a new last layer."
    )
  if name == layout.width and len(shape) == len(expected) and shape[0] != expected[0]:
    raise UserError(
      f"{path} holds a model of width {shape[0]}, but the model's is {expected[0]}: set "
      f"config.model.width={shape[0]} or name another file."
    )
  if shape != expected:
    raise UserError(
      f"{path}: {name} has shape {shape}, but the model's has {expected}: name the weights of a "
      "model of the same width."
    )
  if tensor.get_dtype() not in _FLOATS:
    raise UserError(
      f"{path}: {name} is stored as {tensor.get_dtype()}, but only {', '.join(_FLOATS)} are read: "
      "convert it to floats."
    )
