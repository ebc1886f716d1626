"""Vision transformers (Dosovitskiy et al. 2021, arXiv 2010.11929), ViT-S/16 by default.

Two forms of ViT-S/16 differ in four fields:

  the plain baseline of Beyer et al. 2022 (arXiv 2205.01580), google-research/big_vision:
    the defaults: no class token, fixed positions, norm and then mean, GELU by tanh, zero head
  timm's vit_small_patch16_224, 22,050,664 parameters for 1,000 classes:
    pool="token", posemb="learned", gelu="erf"; its weights load with `config.pretrained.path`
"""

import functools
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree
from pydantic import Field

from jaxspeed.config import kinds, registry
from jaxspeed.devices.precision import accumulation
from jaxspeed.errors import UserError
from jaxspeed.models.layers.groups import groups_by_name

# Of the sines and cosines of `sincos2d`, as in Vaswani et al. 2017.
_TEMPERATURE = 10_000.0

Blocks = Annotated[int, Field(ge=1, le=1000)]
Size = Annotated[int, Field(ge=1, le=65_536)]


def sincos2d(high: int, wide: int, width: int) -> Float[np.ndarray, "1 positions width"]:
  """Return fixed positions: sines and cosines of x, then of y, each at width / 4 frequencies.

  The frequencies fall geometrically from 1 to 1 / 10,000 (Chen et al. 2021, arXiv 2104.02057, and
  Beyer et al. 2022). Positions are row by row, in float64.
  """
  frequencies = _TEMPERATURE ** -np.linspace(0, 1, width // 4)
  y, x = np.divmod(np.arange(high * wide), wide)
  angles = [np.outer(place, frequencies) for place in (x, y)]
  return np.concatenate([wave(angle) for angle in angles for wave in (np.sin, np.cos)], 1)[None]


def _attention_init(width: int) -> nn.initializers.Initializer:
  """Xavier's uniform initialization of three [width, width] kernels, drawn as one."""
  bound = (3 / width) ** 0.5
  return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


def _norm(x: Float[Array, "..."], epsilon: float, name: str) -> Float[Array, "..."]:
  """Layer norm over the last axis, in the accumulation dtype; returns the dtype of its input."""
  masters = accumulation(x.dtype)
  norm = nn.LayerNorm(
    epsilon,
    masters,
    masters,
    use_fast_variance=False,
    force_float32_reductions=False,  # x is in it; flax would promote, which strict JAX refuses
    name=name,
  )
  return norm(x.astype(masters)).astype(x.dtype)


class Attention(nn.Module):
  """Multi-head self-attention, [n, tokens, width] to the same; softmax in the accumulation dtype.

  `qkv` maps to queries, keys and values of all heads, in this order, as in timm.
  """

  heads: int
  dtype: DTypeLike

  @nn.compact
  def __call__(self, x: Float[Array, "n t w"]) -> Float[Array, "n t w"]:
    n, tokens, width = x.shape
    masters = accumulation(self.dtype)
    dense = functools.partial(nn.Dense, dtype=self.dtype, param_dtype=masters)
    qkv = dense(3 * width, kernel_init=_attention_init(width), name="qkv")(x)
    q, k, v = jnp.moveaxis(qkv.reshape(n, tokens, 3, self.heads, -1), 2, 0)
    weights = jnp.einsum("nqhd,nkhd->nhqk", q, k, preferred_element_type=masters)
    weights = jax.nn.softmax(weights * (width // self.heads) ** -0.5).astype(self.dtype)
    y = jnp.einsum("nhqk,nkhd->nqhd", weights, v).reshape(n, tokens, width)
    return dense(width, kernel_init=nn.initializers.xavier_uniform(), name="out")(y)


class Block(nn.Module):
  """Norm, attention, norm and two linear layers with a GELU between, each pair with a shortcut."""

  heads: int
  mlp: int
  approximate: bool
  norm_epsilon: float
  dropout: float
  train: bool
  dtype: DTypeLike

  @nn.compact
  def __call__(self, x: Float[Array, "n t w"]) -> Float[Array, "n t w"]:
    norm = functools.partial(_norm, epsilon=self.norm_epsilon)
    dense = functools.partial(
      nn.Dense,
      dtype=self.dtype,
      param_dtype=accumulation(self.dtype),
      kernel_init=nn.initializers.xavier_uniform(),
      bias_init=nn.initializers.normal(1e-6),
    )

    def drop(y):
      return nn.Dropout(self.dropout, deterministic=not self.train)(y)

    x = x + drop(Attention(self.heads, self.dtype, name="attention")(norm(x, name="norm1")))
    y = dense(self.mlp, name="mlp1")(norm(x, name="norm2"))
    y = drop(jax.nn.gelu(y, approximate=self.approximate))
    return x + drop(dense(x.shape[-1], name="mlp2")(y))


@registry.model("vit")
class ViT(nn.Module):
  """[n, h, w, 3] to logits [n, classes] in the `accumulation` dtype of `dtype`.

  Squares of `patch_size` pixels are the tokens; pixels beyond the last whole square are left out.
  The parameters are patch, class_token, positions, block1 ..., norm, pre_logits and head. There are
  no running statistics.
  """

  classes: int = 1000
  patch_size: kinds.Side = 16
  """side of a patch in pixels"""
  width: kinds.Width = 384
  """numbers per token, a multiple of heads"""
  depth: Blocks = 12
  """number of blocks"""
  heads: Size = 6
  """attention heads of a block"""
  mlp: Size = 1536
  """numbers per token between the two linear layers of a block"""
  pool: Literal["gap", "token"] = "gap"
  """what the last layer sees: the mean over all tokens (gap), or a class token"""
  posemb: Literal["sincos2d", "learned"] = "sincos2d"
  """positions: fixed sines and cosines, for images of any size, or learned, for one size"""
  rep_size: Annotated[int, Field(ge=0, le=65_536)] = 0
  """numbers of a further linear layer with a tanh before the last layer; 0: none"""
  gelu: Literal["tanh", "erf"] = "tanh"
  """GELU approximated by a tanh, or exact"""
  norm_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-6
  """added to the variance in each norm"""
  dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
  """share of numbers that training sets to 0, after positions, attention and linear layers"""
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, "n h w 3"], *, train: bool) -> Float[Array, "n classes"]:
    masters = accumulation(self.dtype)
    high, wide = self._patches(x.shape)
    x = nn.Dense(self.width, dtype=self.dtype, param_dtype=masters, name="patch")(
      _patches_of(x, high, wide, self.patch_size)
    )
    x = self._with_positions(x, high, wide)
    x = nn.Dropout(self.dropout, deterministic=not train)(x)
    for number in range(1, self.depth + 1):
      x = Block(
        heads=self.heads,
        mlp=self.mlp,
        approximate=self.gelu == "tanh",
        norm_epsilon=self.norm_epsilon,
        dropout=self.dropout,
        train=train,
        dtype=self.dtype,
        name=f"block{number}",
      )(x)
    x = _norm(x, self.norm_epsilon, "norm")
    x = x[:, 0].astype(masters) if self.pool == "token" else jnp.mean(x, axis=1, dtype=masters)
    if self.rep_size:
      x = jnp.tanh(nn.Dense(self.rep_size, param_dtype=masters, name="pre_logits")(x))
    zeros = nn.initializers.zeros_init()
    return nn.Dense(self.classes, param_dtype=masters, kernel_init=zeros, name="head")(x)

  def _patches(self, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of patches.

    Raises:
      UserError: there are none, or the fields do not fit each other.
    """
    if self.width % self.heads or (self.posemb == "sincos2d" and self.width % 4):
      raise UserError(
        f"config.model.width={self.width}: it must be a multiple of config.model.heads="
        f"{self.heads}, and of 4 with config.model.posemb='sincos2d'."
      )
    high, wide = (side // self.patch_size for side in shape[1:3])
    if not high * wide:
      raise UserError(
        f"config.model.patch_size={self.patch_size}: images of {shape[1]} x {shape[2]} pixels have "
        "no whole patch: lower it, or enlarge the images."
      )
    return high, wide

  def _with_positions(self, x: Float[Array, "n p w"], high: int, wide: int) -> Array:
    """The tokens with the class token before them, if any, and with their positions added."""
    masters = accumulation(self.dtype)
    has_token, learned = self.pool == "token", self.posemb == "learned"
    if not learned:
      x = x + jnp.asarray(sincos2d(high, wide, self.width), self.dtype)
    if has_token:
      zeros = nn.initializers.zeros_init()
      token = self.param("class_token", zeros, (1, 1, self.width), masters)
      token = jnp.broadcast_to(token.astype(self.dtype), (x.shape[0], 1, self.width))
      x = jnp.concatenate([token, x], axis=1)
    if learned:
      # As in timm, the class token has a position too.
      count = x.shape[1]
      if self.has_variable("params", "positions"):
        trained: int = self.get_variable("params", "positions").shape[1]
        if trained != count:
          raise UserError(
            f"config.model.posemb='learned': the positions are those of {trained} tokens, and "
            f"images of {high} x {wide} patches have {count}: use one image size in all phases and "
            "evaluations, or config.model.posemb='sincos2d'."
          )
      init = nn.initializers.normal(self.width**-0.5)
      positions = self.param("positions", init, (1, count, self.width), masters)
      x = x + positions.astype(self.dtype)
    return x

  param_groups = staticmethod(groups_by_name)

  def param_layers(self, params: PyTree) -> PyTree:
    """The layer of each parameter, as timm counts them.

    The patches, positions and class token are layer 0, each block is one, the last norm belongs to
    the last block, and what follows it is the head.
    """

    def layer(path, _):
      part = path[0].key
      if part.startswith("block"):
        return int(part.removeprefix("block"))
      others = {"patch": 0, "positions": 0, "class_token": 0, "norm": self.depth}
      return others.get(part, self.depth + 1)

    return jax.tree_util.tree_map_with_path(layer, params)


def _patches_of(
  x: Float[Array, "n h w 3"], high: int, wide: int, side: int
) -> Float[Array, "n p d"]:
  """The pixels of each patch, row by row, in the order of a convolution's kernel [h, w, i]."""
  n, _, _, channels = x.shape
  x = x[:, : high * side, : wide * side].reshape(n, high, side, wide, side, channels)
  return x.transpose(0, 1, 3, 2, 4, 5).reshape(n, high * wide, side * side * channels)
