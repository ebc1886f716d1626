"""Functions that decode, crop and resize one image in TensorFlow's graph.

Only this module imports TensorFlow, when a stream is made.
"""

import contextlib
import importlib.util
import os
from typing import Any

import numpy as np
from jaxtyping import UInt8

from jaxspeed.config.output import held
from jaxspeed.data.formats import pixels
from jaxspeed.errors import UserError

_ADVICE = "pip install 'jaxspeed[images]'."


def missing_tensorflow() -> str:
  """A sentence if TensorFlow is not installed, found without importing it; '' if it is."""
  there = importlib.util.find_spec("tensorflow") is not None
  return "" if there else f"reading images from disk needs TensorFlow: {_ADVICE}"


def import_tensorflow() -> Any:
  """Import TensorFlow, quietly and without GPUs, whose memory it would take from JAX.

  Lines that it writes on machines without CUDA, before its log level applies, are dropped.

  Raises:
    UserError: TensorFlow cannot be imported.
  """
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # not used here, and logs two lines
  # Two lines for each broken image, without its name; streams name and count these images. JAX sets
  # level 1 for itself on import; another level was set by the user and stays.
  if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
  try:
    with held():
      tf = importlib.import_module("tensorflow")
      with contextlib.suppress(RuntimeError):  # after its first operation; they are hidden by then
        tf.config.set_visible_devices([], "GPU")
  except ImportError as error:
    raise UserError(
      f"reading images from disk needs TensorFlow, which cannot be imported ({error}): {_ADVICE}"
    ) from error
  return tf


def _decode(tf: Any, encoded: Any, box: Any, decoder: Any, *, mixed: bool) -> Any:
  """Decode part of an image as it is shown: uint8 [h, w, 3].

  Only the box of a JPEG is decoded. A choice costs 2 to 4 % of an image's time, so only `mixed`
  streams make it. Pillow decodes what TensorFlow cannot decode, or would decode differently, and
  what EXIF turns; `prepare resize` leaves none of those.
  """

  def jpeg() -> Any:
    # Pillow's transform; TensorFlow's fast one saves at most 3 % and is a grey level off.
    return tf.io.decode_and_crop_jpeg(encoded, box, channels=3, dct_method="INTEGER_ACCURATE")

  def other() -> Any:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    zero, three = tf.constant([0]), tf.constant([3])
    return tf.slice(image, tf.concat([box[:2], zero], 0), tf.concat([box[2:], three], 0))

  def by_pillow() -> Any:
    part = tf.numpy_function(_decode_with_pillow, [encoded, box], tf.uint8, stateful=False)
    part.set_shape((None, None, 3))
    return part

  decoders = {pixels.JPEG: jpeg, pixels.TENSORFLOW: other, pixels.PILLOW: by_pillow}
  return tf.switch_case(decoder, decoders) if mixed else jpeg()


def _decode_with_pillow(encoded: bytes, box: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
  """Decode a box of an image as it is shown; raises as `pixels.decode` does."""
  y, x, height, width = box.tolist()
  part = pixels.decode(encoded)[y : y + height, x : x + width]
  if part.shape[:2] != (height, width):
    raise ValueError("it is smaller than when it was indexed")
  return part


def _resize(tf: Any, part: Any, scale: Any, translation: Any, shape: Any) -> Any:
  """Resize uint8 [h, w, 3] to uint8 [*shape, 3] with Pillow's bilinear filter.

  ScaleAndTranslate is fast along the first axis only, with each row as one pixel of many channels.
  So both passes resize the first axis; between them the image is transposed and, as in Pillow,
  rounded to 8 bits. This takes 1.24 to 1.31 times the CPU time of a crop without antialiasing,
  instead of 1.28 to 1.58.
  """

  def along_rows(image: Any, number: int) -> Any:
    rows, columns = tf.unstack(tf.shape(image))
    resized = tf.raw_ops.ScaleAndTranslate(
      images=tf.reshape(image, [1, rows, 1, columns]),
      size=tf.stack([shape[number], 1]),
      scale=tf.stack([scale[number], 1.0]),
      translation=tf.stack([translation[number], 0.0]),
      kernel_type="triangle",
      antialias=True,
    )
    return tf.cast(tf.round(tf.reshape(resized, [shape[number], columns])), tf.uint8)

  size = tf.shape(part)
  tall = tf.transpose(along_rows(tf.reshape(part, [size[0], size[1] * 3]), 0))
  flat = along_rows(tf.reshape(tall, [size[1], 3 * shape[0]]), 1)
  turned = tf.transpose(tf.reshape(flat, [shape[1] * 3, shape[0]]))
  return tf.reshape(turned, [shape[0], shape[1], 3])


def crop(
  tf: Any,
  encoded: Any,
  *window: Any,
  mixed: bool,
  antialias: bool,
  filled: tuple[int, int] | None = None,
) -> Any:
  """Decode a box of an image, resize it, and crop or pad it to uint8 [*shape, 3].

  The window is the box, the scale and translation to the shape, the shape, and the decoder. If
  boxes fill their results, `filled` is the shape of all of them.
  """
  box, scale, translation, shape, decoder = window
  shape = filled or shape
  part = _decode(tf, encoded, box, decoder, mixed=mixed)
  if antialias:
    return _resize(tf, part, scale, translation, shape)
  if filled:
    resized = tf.raw_ops.ResizeBilinear(
      images=tf.expand_dims(part, 0), size=shape, half_pixel_centers=True
    )
  else:
    resized = tf.raw_ops.ScaleAndTranslate(
      images=tf.expand_dims(part, 0),
      size=shape,
      scale=scale,
      translation=translation,
      kernel_type="triangle",
      antialias=False,
    )
  return tf.cast(tf.round(tf.squeeze(resized, 0)), tf.uint8)
