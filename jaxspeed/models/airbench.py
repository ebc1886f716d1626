"""The models of airbench, hlb-CIFAR10 and hiverge: whitening, three groups, one linear layer.

Sources: KellerJordan/cifar10-airbench, tysam-code/hlb-CIFAR10, hiverge/cifar10-speedrun.
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxspeed.config import kinds, registry
from jaxspeed.devices.precision import accumulation
from jaxspeed.models.layers.activations import Activation, gelu
from jaxspeed.models.layers.conv import (
  Conv,
  add_border,
  border_before_pool,
  conv_init,
  dense_init,
  uniform_init,
)
from jaxspeed.models.layers.fused_norm import MaxPoolNorm
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.models.layers.norm import Norm
from jaxspeed.models.layers.plain import Layers, with_layers
from jaxspeed.models.layers.pool import global_max_pool
from jaxspeed.models.layers.whiten import Whiten, init_whitening

ACTIVATIONS: dict[str, Activation] = {
  "gelu": gelu,
  "silu": jax.nn.silu,
}

# Added to the variance in each norm.
NORM_EPSILON = 1e-12

BIAS_INITS: dict[str, nn.initializers.Initializer | None] = {
  "none": None,
  "zero": nn.initializers.zeros_init(),
  "uniform": uniform_init(2 * 2 * 3),
}


def dirac(shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Float[Array, "o k k i"]:
  """Return OHWI filters that copy input channel j to output j; further outputs are zero."""
  middle = shape[1] // 2
  diagonal = jnp.eye(shape[0], shape[3], dtype=dtype)
  return jnp.zeros(shape, dtype).at[:, middle, middle].set(diagonal)


def dirac_init(
  key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> Float[Array, "o k k i"]:
  """PyTorch's default, except that the first filters copy one input channel each (airbench)."""
  passes = jnp.arange(shape[0])[:, None, None, None] < shape[3]
  return jnp.where(passes, dirac(shape, dtype), conv_init(key, shape, dtype))


def dirac_added_init(
  key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> Float[Array, "o k k i"]:
  """PyTorch's default plus `dirac`, rescaled to the mean and spread of the default (hlb)."""
  plain = conv_init(key, shape, dtype)
  added = plain + dirac(shape, dtype)
  return (added - added.mean()) / added.std() * plain.std() + plain.mean()


def unit_std_init(
  key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> Float[Array, "i o"]:
  """PyTorch's default for linear layers, scaled to a standard deviation of 1 over all weights."""
  plain = dense_init(key, shape, dtype)
  return plain / plain.std(ddof=1)


class Group(nn.Module):
  """Convolution, 2x2 max pool, norm, activation; convolution, norm, activation.

  With `depth` 3 a third convolution and norm follow, and the group's first activations are added
  before its last activation (airbench96). [n, h, w, i] to [n, h // 2, w // 2, features].

  The input has its `border_before_pool`, so that the first convolution needs no padding. The result
  has the next group's, unless the group is the `last`.
  """

  features: int
  activation: Activation
  train: bool
  last: bool
  depth: Literal[2, 3] = 2
  first_init: nn.initializers.Initializer = dirac_init
  norm_momentum: float = 0.6
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, "n h w i"]) -> Float[Array, "n h2 w2 o"]:
    shared: dict[str, Any] = dict(
      use_running_average=not self.train,
      momentum=self.norm_momentum,
      epsilon=NORM_EPSILON,
      train_scale=False,
    )
    norm = functools.partial(Norm, **shared)
    conv = functools.partial(Conv, self.features, dtype=self.dtype)

    x = conv(kernel_init=self.first_init, padding=0, name="conv1")(x)
    x = MaxPoolNorm(activation=self.activation, name="norm1", **shared)(x)
    border = None if self.last else border_before_pool(x)
    y = conv(kernel_init=dirac_init, name="conv2")(x)
    if self.depth == 2:
      return norm(activation=self.activation, border=border, name="norm2")(y)
    y = norm(activation=self.activation, name="norm2")(y)
    y = norm(name="norm3")(conv(kernel_init=dirac_init, name="conv3")(y))
    return add_border(self.activation(y + x), border)


@registry.model("airbench")
class Airbench(nn.Module):
  """[n, h, w, 3] to logits [n, classes] in the `accumulation` dtype of `dtype`.

  Seven convolutions (ten with `depth` 3): frozen 2x2 whitening filters and their negatives, with a
  bias; three `Group`s of `widths`; a maximum over the last map, which is 3x3 for images of 32
  pixels; a linear layer without bias. Norms have no scale.
  """

  least_side = 9  # of an image, in pixels
  classes: int = 10
  widths: tuple[kinds.Width, kinds.Width, kinds.Width] = (64, 256, 256)
  """channels of the three groups"""
  depth: Literal[2, 3] = 2
  """convolutions per group"""
  activation: Literal["gelu", "silu"] = "gelu"
  """what follows each norm"""
  init_method: Literal["dirac", "dirac_added"] = "dirac"
  """initial weights of a group's first convolution; dirac_added: hlb's"""
  norm_momentum: kinds.Share = 0.6
  """share that batch norm keeps of its running statistics: 1 - PyTorch's momentum"""
  whiten_bias: Literal["none", "zero", "uniform"] = "zero"
  """bias of the whitening filters: none (hlb), initially zero (airbench94), or PyTorch's uniform
  initialization (Muon, hiverge)"""
  head_scale: kinds.Number = 1 / 9
  """factor on the logits"""
  head_unit_std: bool = False
  """scales the last layer's initial weights to a standard deviation of 1"""
  layers: Layers = "auto"
  """forms of the layers: plain, fused for GPUs and CPUs, or auto: plain on TPUs"""
  dtype: DTypeLike = jnp.float32

  @nn.compact
  @with_layers
  def __call__(self, x: Float[Array, "n h w 3"], *, train: bool) -> Float[Array, "n classes"]:
    x = Whiten(
      features=24,
      patch=2,
      padding=0,
      bias_init=BIAS_INITS[self.whiten_bias],
      dtype=self.dtype,
      name="whiten",
    )(x)
    x = gelu(x)
    x = add_border(x, border_before_pool(x))
    for number, features in enumerate(self.widths, 1):
      x = Group(
        features,
        activation=ACTIVATIONS[self.activation],
        train=train,
        last=number == len(self.widths),
        depth=self.depth,
        first_init=dirac_init if self.init_method == "dirac" else dirac_added_init,
        norm_momentum=self.norm_momentum,
        dtype=self.dtype,
        name=f"group{number}",
      )(x)
    masters = accumulation(self.dtype)
    x = global_max_pool(x).astype(masters)
    head = nn.Dense(
      self.classes,
      use_bias=False,
      param_dtype=masters,
      kernel_init=unit_std_init if self.head_unit_std else dense_init,
      name="head",
    )
    return head(x) * self.head_scale

  param_groups = staticmethod(groups_by_name)
  init_from_images = staticmethod(init_whitening)
