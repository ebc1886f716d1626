"""timm's vision transformer; without a token, the plain baseline of Beyer et al. 2022."""

import math

import torch
from torch.nn import functional


def logits_of(state, images, heads):
  """Logits of images [n, 3, h, w], whose pixels beyond whole patches are left out."""

  def linear(name, x):
    return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

  def norm(name, x):
    weights = state[f"{name}.weight"], state[f"{name}.bias"]
    return functional.layer_norm(x, x.shape[-1:], *weights, eps=1e-6)

  def positions(rows, columns, width):
    quarter = width // 4
    omega = [10_000.0 ** (-i / (quarter - 1)) for i in range(quarter)]
    places = [(row, column) for row in range(rows) for column in range(columns)]
    return torch.tensor(
      [
        [f(at * w) for at in (x, y) for f in (math.sin, math.cos) for w in omega] for y, x in places
      ],
      dtype=torch.float64,
    )

  weight = state["patch_embed.proj.weight"]
  x = functional.conv2d(images, weight, state["patch_embed.proj.bias"], stride=weight.shape[-1])
  (n, width, rows, columns), x = x.shape, x.flatten(2).transpose(1, 2)
  timms = "cls_token" in state
  if timms:
    x = torch.cat([state["cls_token"].expand(n, -1, -1), x], dim=1) + state["pos_embed"]
  else:
    x = x + positions(rows, columns, width)
  for block in range(sum(name.endswith("norm1.bias") for name in state)):
    prefix = f"blocks.{block}"
    qkv = linear(f"{prefix}.attn.qkv", norm(f"{prefix}.norm1", x))
    q, k, v = qkv.reshape(n, -1, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, -1, width)
    x = x + linear(f"{prefix}.attn.proj", y)
    y = linear(f"{prefix}.mlp.fc1", norm(f"{prefix}.norm2", x))
    y = functional.gelu(y, approximate="none" if timms else "tanh")
    x = x + linear(f"{prefix}.mlp.fc2", y)
  x = norm("norm", x)
  x = x[:, 0] if timms else x.mean(1)
  if "pre_logits.fc.weight" in state:
    x = torch.tanh(linear("pre_logits.fc", x))
  return linear("head", x)
