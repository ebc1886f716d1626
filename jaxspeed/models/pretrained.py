"""Loading and saving of ResNet weights as .safetensors, with the names of torchvision and timm.

Both libraries use the same names: conv1, bn1, layer1.0.conv1 ..., downsample.0, downsample.1, fc.
Their kernels are OIHW, ours OHWI; their linear layers are [out, in].
"""

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util
from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.files import expanded, open_regular, write_atomically
from jaxspeed.models.resnet import STAGES, is_bottleneck

_Path = tuple[str, ...]  # keys of an array in the variables: ("params" or "batch_stats", ...)

_LEAVES = {
  "kernel": "weight",
  "scale": "weight",
  "bias": "bias",
  "mean": "running_mean",
  "var": "running_var",
}
_PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".tar")
_FLOATS = ("F64", "F32", "F16", "BF16")


def load_resnet(
  path: str | os.PathLike,
  variables: Mapping[str, Any],
  *,
  head: Literal["keep", "new"] = "keep",
) -> dict[str, Any]:
  """Load weights and running statistics from a file as NumPy arrays of the dtypes of `variables`.

  Args:
    path: a .safetensors file of torchvision's or timm's ResNet, also in float16 or bfloat16.
    variables: the result of `ResNet.init`, or its shapes (`jax.eval_shape`), as a template.
    head: "keep" uses the linear layer of the file; "new", for other classes, uses that of
      `variables`, which must then hold arrays.

  Raises:
    UserError: the file is missing, damaged or a pickle; its model has another depth, width or
      number of classes; or tensors are missing, unknown or not floats.
  """
  path = pathlib.Path(path)
  ours = traverse_util.flatten_dict(
    {"params": variables["params"], "batch_stats": variables["batch_stats"]}
  )
  places = {_torch_name(place): place for place in ours}
  loaded = dict(ours)
  with _open(path) as file:
    stored = {name for name in file.keys() if not name.endswith(".num_batches_tracked")}
    wanted = set(places)
    if head == "new":
      wanted, stored = ({n for n in names if not n.startswith("fc.")} for names in (wanted, stored))
    _check_names(path, stored, wanted)
    for name in sorted(wanted):
      tensor, place = file.get_slice(name), places[name]
      _check_tensor(path, name, tensor, _torch_shape(ours[place].shape))
      loaded[place] = _from_torch(file.get_tensor(name), ours[place].dtype)
  return traverse_util.unflatten_dict(loaded)


def save_resnet(path: str | os.PathLike, variables: Mapping[str, Any]) -> None:
  """Save variables as a .safetensors file that torchvision's and timm's ResNets can load.

  In torch: `model.load_state_dict(safetensors.torch.load_file(path))`. The logits of a model with
  `blurpool` agree only if the torch model blurs at the same places.

  Raises:
    UserError: the file cannot be written.
  """
  path = pathlib.Path(path)
  places = traverse_util.flatten_dict(
    {"params": variables["params"], "batch_stats": variables["batch_stats"]}
  )
  tensors = {_torch_name(place): _to_torch(np.asarray(x)) for place, x in places.items()}
  # PyTorch writes this mark, and other readers require it.
  content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
  try:
    write_atomically(path, content, sync=False)
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): choose another place."
    ) from error


def _torch_name(place: _Path) -> str:
  """Map ("params", "stage1", "block2", "conv3", "kernel") to "layer1.1.conv3.weight"."""
  _, *modules, leaf = place
  if modules[0] == "stem":
    prefix = {"conv": "conv1", "norm": "bn1"}[modules[1]]
  elif modules[0] == "head":
    prefix = "fc"
  else:
    stage, block, layer = modules
    layer = {"shortcut_conv": "downsample.0", "shortcut_norm": "downsample.1"}.get(layer, layer)
    number = int(block.removeprefix("block")) - 1
    prefix = f"{stage.replace('stage', 'layer')}.{number}.{layer.replace('norm', 'bn')}"
  return f"{prefix}.{_LEAVES[leaf]}"


def _torch_shape(shape):
  if len(shape) == 4:
    return [shape[0], shape[3], shape[1], shape[2]]
  return list(shape[::-1])


def _from_torch(x, dtype):
  x = x.astype(dtype)
  return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else np.ascontiguousarray(x.T)


def _to_torch(x):
  return np.ascontiguousarray(x.transpose(0, 3, 1, 2) if x.ndim == 4 else x.T)


def _open(path):
  if path.suffix.lower() in _PICKLES:
    raise UserError(
      f"{path} is a pickle, which may run any code when it is loaded; convert it with "
      f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), "
      f"{path.stem + '.safetensors'!r}) and name that file."
    )
  try:
    open_regular(path).close()  # refuses a pipe, on which safe_open would wait
    return safetensors.safe_open(path, framework="np")
  except FileNotFoundError as error:
    raise UserError(f"{path} does not exist: name a .safetensors file of weights.") from error
  except (OSError, safetensors.SafetensorError) as error:
    raise UserError(
      f"{path} cannot be read as .safetensors ({error}): copy or convert it again."
    ) from error


def _depth_of(names: Iterable[str]) -> int | None:
  """Return the depth of the ResNet with these tensor names; None if no ResNet has them."""
  names = set(names)
  bottleneck = "layer1.0.conv3.weight" in names
  for depth, stages in STAGES.items():
    blocks = {f"layer{s}.{b}.conv1.weight" for s, n in enumerate(stages, 1) for b in range(n)}
    found = {name for name in names if name.startswith("layer") and name.endswith(".conv1.weight")}
    if bottleneck == is_bottleneck(depth) and found == blocks:
      return depth
  return None


def _listed(names):
  names = sorted(names)
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return ", ".join(names[:3]) + more


def _check_names(path, stored, wanted):
  theirs, ours = _depth_of(stored), _depth_of(wanted)
  if theirs not in (None, ours):
    raise UserError(
      f"{path} holds a ResNet-{theirs}, but the model is a ResNet-{ours}: set "
      f"config.model.depth={theirs} or name another file."
    )
  for names, what in ((wanted - stored, "lacks"), (stored - wanted, "has unknown tensors:")):
    if names:
      raise UserError(
        f"{path} {what} {_listed(names)}; it must hold torchvision's or timm's ResNet-{ours}, "
        "with their tensor names."
      )


def _check_tensor(path, name, tensor, expected):
  shape = list(tensor.get_shape())
  if name.startswith("fc.") and len(shape) == len(expected) and shape[0] != expected[0]:
    raise UserError(
      f"{path} has {shape[0]} classes, but the model has {expected[0]}: choose the data set of "
      "these weights, or set config.pretrained.head='new' to train a new last layer."
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


def check_pretrained(config: ConfigDict) -> None:
  """Check that pretrained weights can be loaded into the model of a config.

  Raises:
    UserError: the model is not a ResNet.
  """
  if config.model.name != "resnet":
    raise UserError(
      f"config.pretrained.path={config.pretrained.path}: only a ResNet has weights to load; set "
      f"config.model.name='resnet'."
    )


def load_pretrained(config: ConfigDict, variables: dict[str, Any]) -> dict[str, Any]:
  """Return `variables` with the weights of `config.pretrained.path`, if that is set.

  Raises:
    UserError: the model is not a ResNet, or `load_resnet` rejects the file.
  """
  if not config.pretrained.path:
    return variables
  check_pretrained(config)
  path = expanded(config.pretrained.path, "config.pretrained.path")
  return load_resnet(path, jax.device_get(variables), head=config.pretrained.head)
