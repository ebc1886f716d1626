"""The published CIFAR-10 nets in PyTorch, on trees of tensors under our names.

From KellerJordan/cifar10-airbench, hiverge/cifar10-speedrun, tysam-code/hlb-CIFAR10 and
davidcpage/cifar10-fast; parameters are laid out as ours are, kernels OHWI.
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


def drawn(shapes: Any, rng: np.random.Generator) -> Any:
  """Random variables of these shapes, none of them at its initial value."""

  def draw(path, leaf):
    name = path[-1].key
    if name == "kernel":
      fan_in = math.prod(leaf.shape[1:]) if leaf.ndim == 4 else leaf.shape[0]
      return rng.standard_normal(leaf.shape) / fan_in**0.5
    if name == "var":
      return rng.uniform(0.5, 1.5, leaf.shape)
    return 0.2 * rng.standard_normal(leaf.shape) + (name == "scale")

  return jax.tree_util.tree_map_with_path(draw, shapes)


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
