"""ResNet-18, 34, 50 and 101 (He et al. 2015) in version 1.5: bottlenecks stride in their 3x3 layer.

The definition is torchvision's, paddings and initial values included, so that weights can be
exchanged; the head starts as torchvision's with `head_init` "uniform". Sources of the options:
`zero_init` and `head_init` "normal" Goyal et al. 2017 (1706.02677), imagenet18's --init-bn0;
`blurpool` Zhang 2019 (1904.11486) as in libffcv/ffcv-imagenet, train_imagenet.py; `whiten` airbench
(2404.00498), whose filters have a negative each, at ResNet's stride.
"""

import functools
import itertools
from collections.abc import Callable, Collection
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from jaxspeed.config import kinds, registry
from jaxspeed.devices.precision import accumulation
from jaxspeed.models.layers.activations import add_relu, relu
from jaxspeed.models.layers.conv import Conv, add_border, border_before_stride, uniform_init
from jaxspeed.models.layers.fused_norm import Conv1x1Kernel, Conv1x1Norm, NormReluMaxPool
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.models.layers.norm import Norm
from jaxspeed.models.layers.plain import Layers, with_layers
from jaxspeed.models.layers.pool import blur_pool, with_strided
from jaxspeed.models.layers.whiten import Whiten, init_whitening

# Blocks in each of the four stages; with 50 layers or more they are bottlenecks.
STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}

# Kaiming normal initialization by fan-out.
_conv_init = nn.initializers.variance_scaling(2.0, "fan_out", "normal", in_axis=-1, out_axis=0)


def is_bottleneck(depth: int) -> bool:
  """Whether a ResNet of `depth` layers has blocks of 1x1, 3x3, 1x1 instead of 3x3, 3x3."""
  return depth >= 50


class Block(nn.Module):
  """A residual block: [n, h, w, i] to [n, h / strides, w / strides, o].

  o is `features`, or four times as many with `bottleneck`. `conv` and `norm` are `Conv` and `Norm`
  with the arguments that all layers of the model share.
  """

  features: int
  strides: int
  bottleneck: bool
  zero_init: bool
  blurpool: bool
  conv: functools.partial[Conv]
  norm: functools.partial[Norm]
  conv_fusion: bool

  def _blurs(self, x):
    return self.blurpool and x.shape[-1] >= 16

  def _convolve(self, x, features, kernel_size, strides, name):
    if strides > 1 and self._blurs(x):
      # For a 1x1 convolution, blur only the pixels that it reads.
      blur_strides = strides if kernel_size == 1 else 1
      x, strides = blur_pool(x, blur_strides), strides // blur_strides
    padding = None
    if self.conv_fusion and strides > 1:
      # A graph of cuDNN does not pad more above than below: the kernel that writes x does.
      x, padding = add_border(x, border_before_stride(x)), 0
    return self.conv(features, kernel_size, strides, padding, name=name)(x)

  def _project(self, x, features, strides, conv, norm, shortcut=None, **fields):
    """Apply a 1x1 convolution and its norm; with a shortcut, add it and apply a ReLU."""
    shared = self.norm.keywords
    if shared["splits"] > 1:
      x = self.norm(name=norm, **fields)(self._convolve(x, features, 1, strides, conv))
      return x if shortcut is None else add_relu(x, shortcut, self.conv_fusion)
    if strides > 1:
      x = blur_pool(x, strides)
    kernel = Conv1x1Kernel(features, name=conv, **self.conv.keywords)(x.shape[-1])
    fused = Conv1x1Norm(name=norm, conv_fusion=self.conv_fusion, **fields, **shared)
    return fused(x, kernel, shortcut)

  @nn.compact
  def __call__(self, x: Float[Array, "n h w i"]) -> Float[Array, "n h2 w2 o"]:
    sizes = (1, 3, 1) if self.bottleneck else (3, 3)
    outputs = self.features * (4 if self.bottleneck else 1)
    last, strided = len(sizes), sizes.index(3) + 1

    y = x
    # The shortcut is first, so that a GPU adds its gradient of x in the kernel of conv1's gradient.
    if self.strides > 1 or x.shape[-1] != outputs:
      strides = self.strides
      if strides > 1 and not self._blurs(x):
        y, x, strides = *with_strided(x, strides), 1
      x = self._project(x, outputs, strides, "shortcut_conv", "shortcut_norm")
    for number, size in enumerate(sizes[:-1], 1):
      strides = self.strides if number == strided else 1
      y = self._convolve(y, self.features, size, strides, f"conv{number}")
      y = self.norm(activation=relu, name=f"norm{number}")(y)
    scale_init = nn.initializers.zeros_init() if self.zero_init else nn.initializers.ones_init()
    if self.bottleneck:
      return self._project(y, outputs, 1, f"conv{last}", f"norm{last}", x, scale_init=scale_init)
    y = self._convolve(y, outputs, sizes[-1], 1, f"conv{last}")
    y = self.norm(scale_init=scale_init, name=f"norm{last}")(y)
    return add_relu(y, x, self.conv_fusion)


class Stem(nn.Module):
  """7x7 convolution of stride 2, norm, ReLU, 3x3 max pool of stride 2: the side shrinks to 1/4.

  After a whitening, which has the stride, the convolution is 3x3.
  """

  whitened: bool
  features: int
  conv: functools.partial[Conv]
  norm: functools.partial[Norm]

  @nn.compact
  def __call__(self, x: Float[Array, "n h w 3"]) -> Float[Array, "n h4 w4 o"]:
    size, strides = (3, 1) if self.whitened else (7, 2)
    x = self.conv(self.features, size, strides, name="conv")(x)
    return NormReluMaxPool(name="norm", **self.norm.keywords)(x)


class Stage(nn.Module):
  """A sequence of blocks; the first one has the stride."""

  blocks: int
  strides: int
  block: Callable[..., Block]

  @nn.compact
  def __call__(self, x: Float[Array, "n h w i"]) -> Float[Array, "n h2 w2 o"]:
    for number in range(1, self.blocks + 1):
      x = self.block(strides=self.strides if number == 1 else 1, name=f"block{number}")(x)
    return x


@registry.model("resnet")
class ResNet(nn.Module):
  """[n, h, w, 3] to logits [n, classes] in the `accumulation` dtype of `dtype`.

  Images may have any size. The parameters are stem, stage1 ... stage4 with block1 ..., and head,
  which takes the mean over the last map. Batch norm uses the statistics of one device.
  """

  depth: Literal[18, 34, 50, 101] = 50
  """number of layers with weights"""
  classes: int = 1000
  width: kinds.Width = 64
  """channels after the stem; a small model has depth 18, width 16"""
  zero_init: bool = False
  """starts the last norm of each block at scale 0, so that a block starts as its shortcut"""
  blurpool: bool = False
  """blurs the input of each strided convolution of 16 channels or more"""
  whiten: bool = False
  """replaces the first convolution with a frozen 3x3 whitening of stride 2, with both signs of each
  of its 27 numbers after a ReLU, and a 3x3 convolution"""
  head_init: Literal["normal", "uniform"] = "normal"
  """initial weights of the last layer: normal with standard deviation 0.01, or uniform within
  1 / sqrt(inputs)"""
  ghost_splits: kinds.Count = 1
  """parts of a device's batch that batch norm normalizes separately (ghost batches)"""
  norm_momentum: kinds.Share = 0.9
  """share that batch norm keeps of its running statistics: 1 - PyTorch's momentum"""
  layers: Layers = "auto"
  """forms of the layers: plain, fused for GPUs and CPUs, or auto: plain on TPUs"""
  dtype: DTypeLike = jnp.float32
  conv_fusion: bool = False  # whether blocks have the forms that `config.conv_fusion` compiles

  @nn.compact
  @with_layers
  def __call__(
    self, x: Float[Array, "n h w 3"], *, train: bool, frozen: Collection[str] = ()
  ) -> Float[Array, "n classes"]:
    """The logits; in training, the norms of the parts in `frozen` use their running statistics."""
    conv = functools.partial(Conv, kernel_init=_conv_init, dtype=self.dtype)

    def norm_of(part):
      return functools.partial(
        Norm,
        use_running_average=not train or part in frozen,
        momentum=self.norm_momentum,
        splits=self.ghost_splits,
      )

    if self.whiten:
      x = Whiten(strides=2, dtype=self.dtype, name="whiten")(x)
      x = relu(jnp.concatenate([x, -x], axis=-1))
    x = Stem(self.whiten, self.width, conv, norm_of("stem"), name="stem")(x)
    for number, blocks in enumerate(STAGES[self.depth], 1):
      part = f"stage{number}"
      block = functools.partial(
        Block,
        features=self.width * 2 ** (number - 1),
        bottleneck=is_bottleneck(self.depth),
        zero_init=self.zero_init,
        blurpool=self.blurpool,
        conv=conv,
        norm=norm_of(part),
        conv_fusion=self.conv_fusion,
      )
      x = Stage(blocks, 1 if number == 1 else 2, block, name=part)(x)
    masters = accumulation(self.dtype)
    x = jnp.mean(x, axis=(1, 2), dtype=masters)
    uniform = uniform_init(x.shape[-1])
    head = nn.Dense(
      self.classes,
      param_dtype=masters,
      kernel_init=uniform if self.head_init == "uniform" else nn.initializers.normal(0.01),
      bias_init=uniform,
      name="head",
    )
    return head(x)

  param_groups = staticmethod(groups_by_name)
  init_from_images = staticmethod(init_whitening)

  def param_layers(self, params: PyTree) -> PyTree:
    """The layer of each parameter, as timm counts them: the stem is 0, each block one, the head."""
    *firsts, head = itertools.accumulate(STAGES[self.depth], initial=1)

    def layer(path, _):
      part, block = path[0].key, path[1].key
      if part.startswith("stage"):
        return firsts[int(part[-1]) - 1] + int(block.removeprefix("block")) - 1
      return 0 if part in ("whiten", "stem") else head

    return jax.tree_util.tree_map_with_path(layer, params)
