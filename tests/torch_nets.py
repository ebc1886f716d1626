"""Published nets in PyTorch: CIFAR-10's on trees of tensors under our names, timm's ViT; and Muon.

From KellerJordan/cifar10-airbench, hiverge/cifar10-speedrun, tysam-code/hlb-CIFAR10 and
davidcpage/cifar10-fast: parameters are laid out as ours are, kernels OHWI.
"""

import math
from typing import Any

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def tensors(tree: Any, *, gradients: bool = False) -> Any:
  """A tree of arrays as one of tensors of their own."""
  return jax.tree.map(lambda x: torch.tensor(np.array(x), requires_grad=gradients), tree)


def arrays(tree: Any) -> Any:
  return jax.tree.map(lambda x: x.detach().numpy(), tree)


def nchw(x: Any) -> Any:
  return torch.tensor(np.asarray(x).transpose(0, 3, 1, 2).copy())


def convolve(x, kernel, features, size, padding):
  assert kernel.shape == (features, size, size, x.shape[1])
  return functional.conv2d(x, kernel.permute(0, 3, 1, 2), padding=padding)


def batch_norm(x, params, stats, *, train, momentum, epsilon):
  """Batch norm that moves its running statistics in place; `momentum` is PyTorch's."""
  bias = params["bias"]
  scale = params.get("scale", torch.ones_like(bias))
  return functional.batch_norm(
    x, stats["mean"], stats["var"], scale, bias, train, momentum, epsilon
  )


def celu(x, alpha):
  """As its definition: PyTorch's own gradient rounds alpha to float32, also in float64."""
  return functional.relu(x) + alpha * torch.expm1(x.clamp(max=0) / alpha)


def airbench_logits(model, params, stats, x, *, train):
  """`stats` are moved in place."""
  act = functional.gelu if model.activation == "gelu" else functional.silu

  def norm(x, group, name):
    return batch_norm(
      x,
      params[group][name],
      stats[group][name],
      train=train,
      momentum=1 - model.norm_momentum,
      epsilon=1e-12,
    )

  def conv(x, group, name):
    return convolve(x, params[group][name]["kernel"], model.widths[int(group[-1]) - 1], 3, 1)

  x = convolve(x, params["whiten"]["kernel"], 24, 2, 0)
  if model.whiten_bias != "none":
    x = x + params["whiten"]["bias"][:, None, None]
  x = functional.gelu(x)
  for group in ("group1", "group2", "group3"):
    x = functional.max_pool2d(conv(x, group, "conv1"), 2)
    x = first = act(norm(x, group, "norm1"))
    x = act(norm(conv(x, group, "conv2"), group, "norm2"))
    if model.depth == 3:
      x = act(norm(conv(x, group, "conv3"), group, "norm3") + first)
  x = functional.max_pool2d(x, x.shape[-1]).flatten(1)
  return x @ params["head"]["kernel"] * model.head_scale


def resnet9_logits(model, params, stats, x, *, train):
  """With a list of running statistics in `stats`, one a ghost batch, each moved in place."""

  def norm(x, name):
    y = torch.empty_like(x)
    for ghost in range(model.ghost_splits):
      y[ghost :: model.ghost_splits] = batch_norm(
        x[ghost :: model.ghost_splits],
        params[name]["norm"],
        stats[ghost][name]["norm"],
        train=train,
        momentum=0.1,
        epsilon=1e-5,
      )
    return y

  def block(x, name, factor, pool=False, size=3):
    kernel = params[name]["conv"]["kernel"]
    x = convolve(x, kernel, factor * model.width, size, size // 2)
    if pool and model.pool_position == "before_norm":
      x = functional.max_pool2d(x, 2)
    x = norm(x, name)
    if pool and model.pool_position == "before_activation":
      x = functional.max_pool2d(x, 2)
    x = functional.relu(x) if model.activation == "relu" else celu(x, model.celu_alpha)
    return functional.max_pool2d(x, 2) if pool and model.pool_position == "after_activation" else x

  if model.whiten:
    x = convolve(x, params["whiten"]["kernel"], 27, 3, 1)
  x = block(x, "prep", 1, size=1 if model.whiten else 3)
  x = block(x, "layer1", 2, pool=True)
  x = x + block(block(x, "layer1_residual1", 2), "layer1_residual2", 2)
  x = block(block(x, "layer2", 4, pool=True), "layer3", 8, pool=True)
  x = x + block(block(x, "layer3_residual1", 8), "layer3_residual2", 8)
  x = functional.max_pool2d(x, x.shape[-1]).flatten(1)
  return x @ params["head"]["kernel"] * model.head_scale


def orthogonal(u, coefficients, epsilon=1e-7):
  """The published iteration on one matrix, without stack and padding."""
  a, b, c = coefficients
  x = u / (torch.linalg.norm(u) + epsilon)
  x = x.T if u.shape[0] > u.shape[1] else x
  for _ in range(3):
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.T if u.shape[0] > u.shape[1] else x


class Muon:
  """Muon on filters OHWI, whose matrices have rows of i, h and w, and on kernels [i, o]."""

  def __init__(self, filters, *, momentum, coefficients, epsilon, decay=0.0, nesterov=True):
    self.filters, self.momentum, self.decay = filters, momentum, decay
    self.iteration, self.nesterov = (coefficients, epsilon), nesterov
    self.buffers = [torch.zeros_like(w) for w in filters]

  def step(self, rate, *, renormalize=True):
    with torch.no_grad():
      for w, buffer in zip(self.filters, self.buffers, strict=True):
        buffer.mul_(self.momentum).add_(w.grad)
        update = w.grad + self.momentum * buffer if self.nesterov else buffer
        order = (1, 0) if w.ndim == 2 else (0, 3, 1, 2)
        rows = update.permute(order)
        if renormalize:
          w.mul_(len(rows) ** 0.5 / torch.linalg.norm(w))
        u = orthogonal(rows.reshape(len(rows), -1), *self.iteration).reshape(rows.shape)
        back = (1, 0) if w.ndim == 2 else (0, 2, 3, 1)
        w.sub_(rate * u.permute(back)).mul_(1 - rate * self.decay)
        w.grad = None


def vit_logits(state, images, heads):
  """timm's vision transformer; without a token, the plain baseline of Beyer et al. 2022.

  Logits of images [n, 3, h, w], whose pixels beyond whole patches are left out.
  """

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
