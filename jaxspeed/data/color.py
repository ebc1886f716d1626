"""Colour jitter on images of 0 ... 255, before they are normalised."""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Weights of red, green and blue in the grey image of Pillow's mode L (ITU-R 601-2).
_GREY = (0.299, 0.587, 0.114)


def grey_of(images: Float[Array, "n h w 3"]) -> Float[Array, "n h w 1"]:
  """Return the images in grey."""
  return jnp.sum(images * jnp.asarray(_GREY, images.dtype), axis=-1, keepdims=True)


def blend(
  images: Float[Array, "n h w 3"],
  others: Float[Array, "n #h #w #c"] | float,
  factor: Float[Array, "n 1 1 1"],
) -> Float[Array, "n h w 3"]:
  """Return factor * images + (1 - factor) * others, cut to 0 ... 255."""
  return jnp.clip(factor * images + (1.0 - factor) * others, 0.0, 255.0)


def shift_hue(
  images: Float[Array, "n h w 3"], shift: Float[Array, "n 1 1"]
) -> Float[Array, "n h w 3"]:
  """Turn the hue of HSV by `shift` turns; the value and the saturation stay.

  A channel is v - c * clip(min(k, 4 - k), 0, 1) with k = (number + 6 * hue) mod 6, where v is the
  largest channel, c the difference to the smallest, and the number 5, 3 or 1 for red, green, blue.
  """
  red, green, blue = images[..., 0], images[..., 1], images[..., 2]
  largest = jnp.maximum(jnp.maximum(red, green), blue)
  chroma = largest - jnp.minimum(jnp.minimum(red, green), blue)
  per_chroma = 1.0 / jnp.where(chroma > 0.0, chroma, 1.0)
  sixths = jnp.where(
    largest == red,
    (green - blue) * per_chroma,
    jnp.where(largest == green, 2.0 + (blue - red) * per_chroma, 4.0 + (red - green) * per_chroma),
  )
  turned = sixths + 6.0 * shift

  def channel(number: float) -> Float[Array, "n h w"]:
    k = jnp.mod(number + turned, 6.0)
    return largest - chroma * jnp.clip(jnp.minimum(k, 4.0 - k), 0.0, 1.0)

  return jnp.stack([channel(5.0), channel(3.0), channel(1.0)], axis=-1)


def color_jitter(
  images: Float[Array, "n h w 3"],
  uniform: Float[Array, "4 n"],
  ranges: tuple[float, float, float, float],
) -> Float[Array, "n h w 3"]:
  """Change brightness, contrast, saturation and hue, as torchvision.transforms.ColorJitter.

  In this order for all images, where torchvision shuffles it for each. An operation with range 0 is
  left out. Nothing is rounded between two operations.

  Args:
    images: pixels in 0 ... 255.
    uniform: a number in [0, 1) for each operation and image.
    ranges: the factor of brightness, contrast or saturation is uniform in max(0, 1 - range) ...
      1 + range, and the shift of the hue in -range ... range, in turns.
  """
  brightness, contrast, saturation, hue = ranges

  def factor(number: int, most: float) -> Float[Array, "n 1 1 1"]:
    least = max(0.0, 1.0 - most)
    return (least + (1.0 + most - least) * uniform[number])[:, None, None, None]

  if brightness:
    images = blend(images, 0.0, factor(0, brightness))
  if contrast:
    images = blend(images, jnp.mean(grey_of(images), (1, 2, 3), keepdims=True), factor(1, contrast))
  if saturation:
    images = blend(images, grey_of(images), factor(2, saturation))
  if hue:
    images = shift_hue(images, (hue * (2.0 * uniform[3] - 1.0))[:, None, None])
  return images
