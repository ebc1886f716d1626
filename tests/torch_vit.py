"""timm's vision transformer with a class token, restated in torch: logits from a state dict."""

import torch
from torch.nn import functional


def random_state(*, width, depth, mlp, patch, tokens, classes):
  """Random float64 tensors under timm's names."""
  torch.manual_seed(0)
  shapes = {
    "cls_token": (1, 1, width),
    "pos_embed": (1, tokens + 1, width),
    "patch_embed.proj.weight": (width, 3, patch, patch),
    "patch_embed.proj.bias": (width,),
    "norm.weight": (width,),
    "norm.bias": (width,),
    "head.weight": (classes, width),
    "head.bias": (classes,),
  }
  for block in range(depth):
    linear = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
    linear |= {"mlp.fc1": (mlp, width), "mlp.fc2": (width, mlp)}
    for name, shape in linear.items():
      shapes[f"blocks.{block}.{name}.weight"] = shape
      shapes[f"blocks.{block}.{name}.bias"] = shape[:1]
    for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
      shapes[f"blocks.{block}.{name}"] = (width,)
  return {name: 0.3 * torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def logits_of(state, images, *, heads):
  """Logits of images [n, 3, h, w]."""

  def linear(name, x):
    return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

  def norm(name, x):
    return functional.layer_norm(
      x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-6
    )

  weight = state["patch_embed.proj.weight"]
  x = functional.conv2d(images, weight, state["patch_embed.proj.bias"], stride=weight.shape[-1])
  x = x.flatten(2).transpose(1, 2)
  x = torch.cat([state["cls_token"].expand(len(x), -1, -1), x], dim=1) + state["pos_embed"]
  for block in range(sum(name.endswith("norm1.bias") for name in state)):
    prefix = f"blocks.{block}"
    n, tokens, width = x.shape
    qkv = linear(f"{prefix}.attn.qkv", norm(f"{prefix}.norm1", x))
    q, k, v = qkv.reshape(n, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
    x = x + linear(f"{prefix}.attn.proj", y)
    y = functional.gelu(linear(f"{prefix}.mlp.fc1", norm(f"{prefix}.norm2", x)))
    x = x + linear(f"{prefix}.mlp.fc2", y)
  return linear("head", norm("norm", x)[:, 0])
