"""ResNet-9 of myrtle.ai (cifar10-fast: dawn.py, bag_of_tricks.ipynb), for CIFAR-sized images."""

import functools
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from pydantic import Field

from jaxspeed.config import kinds, registry
from jaxspeed.config.schema import only
from jaxspeed.devices.precision import accumulation
from jaxspeed.models.layers.activations import Activation, celu
from jaxspeed.models.layers.conv import Conv, dense_init
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.models.layers.norm import Norm
from jaxspeed.models.layers.plain import Layers, with_layers
from jaxspeed.models.layers.pool import global_max_pool, max_pool
from jaxspeed.models.layers.whiten import Whiten, init_whitening

PoolPosition = Literal["after_activation", "before_activation", "before_norm"]


class ConvNorm(nn.Module):
  """Convolution, norm and activation, with a 2x2 max pool at `pool_position` (None: no pool)."""

  features: int
  activation: Activation
  train: bool
  kernel_size: int = 3
  pool_position: PoolPosition | None = None
  ghost_splits: int = 1
  train_norm_scale: bool = True
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, "n h w i"]) -> Float[Array, "n h2 w2 o"]:
    x = Conv(self.features, self.kernel_size, dtype=self.dtype, name="conv")(x)
    if self.pool_position == "before_norm":
      x = max_pool(x, 2)
    x = Norm(
      use_running_average=not self.train,
      splits=self.ghost_splits,
      train_scale=self.train_norm_scale,
      activation=None if self.pool_position == "before_activation" else self.activation,
      name="norm",
    )(x)
    if self.pool_position == "before_activation":
      x = self.activation(max_pool(x, 2))
    if self.pool_position == "after_activation":
      x = max_pool(x, 2)
    return x


@registry.model("resnet9")
class ResNet9(nn.Module):
  """Eight convolutions and a linear layer; [n, h, w, 3] to logits [n, classes].

  Logits have the `accumulation` dtype of `dtype`. After three 2x2 pools comes the maximum over the
  last map, which for 32 pixels is the original's 4x4 pool. Batch norm uses the statistics of one
  device.

  The defaults are the first rung of myrtle.ai's ladder. When the original does not train norm
  scales, it has a `celu_alpha` of 0.3 instead of 0.075 and a `head_scale` of 1/16 instead of 1/8.
  """

  least_side = 8  # of an image, in pixels
  classes: int = 10
  width: kinds.Width = 64
  """channels of the first layer; the last has 8 times as many"""
  pool_position: PoolPosition = "after_activation"
  """position of the pool after a convolution"""
  activation: Literal["relu", "celu"] = "relu"
  """what follows each norm"""
  celu_alpha: Annotated[float, Field(gt=0, le=1000), only("model.activation", "celu")] = 0.075
  """alpha of celu, whose lower limit is -alpha"""
  ghost_splits: kinds.Count = 1
  """parts of a device's batch that batch norm normalizes separately (ghost batches)"""
  train_norm_scale: bool = True
  """whether the scales of batch norm are trained or stay at 1"""
  whiten: bool = False
  """replaces the first convolution with a frozen 3x3 whitening and a 1x1 convolution"""
  head_scale: kinds.Number = 0.125
  """factor on the logits"""
  layers: Layers = "auto"
  """forms of the layers: plain, fused for GPUs and CPUs, or auto: plain on TPUs"""
  dtype: DTypeLike = jnp.float32

  @nn.compact
  @with_layers
  def __call__(self, x: Float[Array, "n h w 3"], *, train: bool) -> Float[Array, "n classes"]:
    block = functools.partial(
      ConvNorm,
      activation=jax.nn.relu
      if self.activation == "relu"
      else functools.partial(celu, alpha=self.celu_alpha),
      train=train,
      ghost_splits=self.ghost_splits,
      train_norm_scale=self.train_norm_scale,
      dtype=self.dtype,
    )
    pooled = functools.partial(block, pool_position=self.pool_position)

    if self.whiten:
      x = Whiten(dtype=self.dtype, name="whiten")(x)
    x = block(self.width, kernel_size=1 if self.whiten else 3, name="prep")(x)
    x = pooled(2 * self.width, name="layer1")(x)
    y = block(2 * self.width, name="layer1_residual1")(x)
    x = x + block(2 * self.width, name="layer1_residual2")(y)
    x = pooled(4 * self.width, name="layer2")(x)
    x = pooled(8 * self.width, name="layer3")(x)
    y = block(8 * self.width, name="layer3_residual1")(x)
    x = x + block(8 * self.width, name="layer3_residual2")(y)

    masters = accumulation(self.dtype)
    x = global_max_pool(x).astype(masters)
    head = nn.Dense(
      self.classes, use_bias=False, param_dtype=masters, kernel_init=dense_init, name="head"
    )
    return head(x) * self.head_scale

  param_groups = staticmethod(groups_by_name)
  init_from_images = staticmethod(init_whitening)
