"""The names and layouts of timm's vision transformers, as in vit_small_patch16_224.

timm's names: patch_embed.proj, cls_token, pos_embed, blocks.0.norm1, blocks.0.attn.qkv ..., norm,
head. Their patch kernel is OIHW, ours [h * w * i, o]; their linear layers are [out, in].
"""

import numpy as np

from jaxspeed.models.exchange import Layout, Place, Shapes

_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_MODULES = {
  "patch": "patch_embed.proj",
  "pre_logits": "pre_logits.fc",
  "attention.qkv": "attn.qkv",
  "attention.out": "attn.proj",
  "mlp1": "mlp.fc1",
  "mlp2": "mlp.fc2",
}
_PATCHES = ("params", "patch", "kernel")


def _torch_name(place: Place) -> str:
  """Map ("params", "block2", "attention", "qkv", "kernel") to "blocks.1.attn.qkv.weight"."""
  if len(place) == 2:
    return {"class_token": "cls_token", "positions": "pos_embed"}[place[1]]
  _, first, *modules, leaf = place
  prefix = ""
  if first.startswith("block"):
    prefix = f"blocks.{int(first.removeprefix('block')) - 1}."
  else:
    modules = [first]
  module = ".".join(modules)
  return f"{prefix}{_MODULES.get(module, module)}.{_LEAVES[leaf]}"


def _to_torch(place: Place, x: np.ndarray) -> np.ndarray:
  if place == _PATCHES:
    side = round((x.shape[0] / 3) ** 0.5)
    return x.reshape(side, side, 3, -1).transpose(3, 2, 0, 1)
  return x.T if x.ndim == 2 else x


def _sizes(shapes: Shapes) -> dict[str, int]:
  names = ("patch_embed.proj.weight", "blocks.0.mlp.fc1.weight")
  patches, mlp = (shapes.get(name, ()) for name in names)
  if len(patches) != 4 or len(mlp) != 2:
    return {}
  depth = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
  width = patches[0]
  # No shape tells the heads; timm's have 64 channels each.
  heads = max(width // 64, 1)
  return dict(depth=depth, width=width, mlp=mlp[0], patch_size=patches[2], heads=heads)


VIT = Layout(_torch_name, _to_torch, "head.", "timm's vision transformer", _sizes)
