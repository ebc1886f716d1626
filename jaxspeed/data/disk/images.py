"""Decoding of one image: TensorFlow's graph, or the same operations one by one.

This is the only module that imports TensorFlow, when a stream is made.
"""

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import UInt8

from jaxspeed.config import decoder_lines
from jaxspeed.config.output import held
from jaxspeed.data.formats import pixels
from jaxspeed.errors import UserError

# The first bytes of the formats that are read, and their names.
_FORMATS = {
  b"\xff\xd8\xff": "JPEG",
  b"\x89PNG\r\n\x1a\n": "PNG",
  b"GIF8": "GIF",
  b"BM": "BMP",
  b"RIFF": "WebP",
  b"II*\0": "TIFF",
  b"MM\0*": "TIFF",
}


def import_tensorflow() -> Any:
  """TensorFlow, quiet, and kept from the GPUs, whose memory it would take from JAX.

  What it writes on machines without CUDA, before any level of its log counts, is dropped; what its
  decoders write is counted.

  Raises:
    UserError: it is not installed.
  """
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # of no use here, and it logs two lines
  try:
    with held(), _quiet():
      tf = importlib.import_module("tensorflow")
      _hide_gpus(tf)
    decoder_lines.catch()
  except ImportError as error:
    raise UserError(
      f"reading images from disk needs TensorFlow, which cannot be imported ({error}): "
      "pip install 'jaxspeed[imagenet]'."
    ) from error
  return tf


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """A level of TensorFlow's log, which it reads when it is loaded, without each broken image.

  It writes two lines on each, without a name; a stream names and counts them. JAX sets the level 1
  for itself when it is imported, which must not count for TensorFlow; another one is the user's.
  """
  name = "TF_CPP_MIN_LOG_LEVEL"
  before = os.environ.get(name)
  if before in (None, "1"):
    os.environ[name] = "3"
  try:
    yield
  finally:
    if before is None:
      os.environ.pop(name, None)
    else:
      os.environ[name] = before


@functools.cache
def _hide_gpus(tf: Any) -> None:
  """Once: TensorFlow refuses it after its first operation."""
  tf.config.set_visible_devices([], "GPU")


def _decode(tf: Any, encoded: Any, box: Any, *, mixed: bool, ratio: int = 1) -> Any:
  """Part of an image: uint8 [h, w, 3], both sides divided by `ratio` if it is a JPEG.

  Only the rows and columns of the box are decoded of a JPEG. A choice between formats costs 2 to
  4 % of an image, so there is one only in streams where it is needed (mixed). What TensorFlow
  does not decode, or not as Pillow does, Pillow decodes.
  """

  def jpeg() -> Any:
    # Division of a box loses up to a pixel at its edges, of twice the pixels asked for or more.
    window = box if ratio == 1 else box // ratio
    # Pillow's transform; TensorFlow's fast one saves at most 3 % and makes a grey level of error.
    return tf.io.decode_and_crop_jpeg(
      encoded, window, channels=3, ratio=ratio, dct_method="INTEGER_ACCURATE"
    )

  def other() -> Any:
    known = [
      tf.equal(tf.strings.substr(encoded, 0, len(signature)), signature)
      for signature in pixels.TENSORFLOW_SIGNATURES
    ]
    return tf.cond(tf.reduce_any(known), by_tensorflow, by_pillow)

  def by_tensorflow() -> Any:
    whole = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    zero, three = tf.constant([0]), tf.constant([3])
    return tf.slice(whole, tf.concat([box[:2], zero], 0), tf.concat([box[2:], three], 0))

  def by_pillow() -> Any:
    part = tf.numpy_function(_decode_with_pillow, [encoded, box], tf.uint8, stateful=False)
    part.set_shape((None, None, 3))
    return part

  return tf.cond(tf.io.is_jpeg(encoded), jpeg, other) if mixed else jpeg()


def _decode_with_pillow(encoded: Any, box: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
  """A box of an image; `encoded` is bytes, outside of a graph an array of them.

  Raises:
    ValueError: it is no image, or a damaged one.
  """
  y, x, height, width = box.tolist()
  try:
    whole = pixels.decode(np.asarray(encoded, object).item())
    return whole[y : y + height, x : x + width]
  except Exception as error:  # Pillow raises almost anything
    raise ValueError(pixels.reason_of(error)) from error


def turn(tf: Any, image: Any, orientation: Any) -> Any:
  """A decoded part of an image as it is shown: turned by EXIF's orientation, a number."""
  table = tf.constant([pixels.TURNS.get(number, pixels.TURNS[1]) for number in range(9)])
  swap, upside_down, mirror = tf.unstack(tf.gather(table, orientation))
  image = tf.cond(swap, lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
  # Reading an axis backwards where its step is -1, forwards where it is 1.
  steps = [1 - 2 * tf.cast(each, tf.int32) for each in (upside_down, mirror)]
  return image[:: steps[0], :: steps[1]]


def _to_uint8(tf: Any, images: Any) -> Any:
  """float32 [1, h, w, 3] to uint8 [h, w, 3]."""
  return tf.cast(tf.round(tf.squeeze(images, 0)), tf.uint8)


def _resize(tf: Any, part: Any, scale: Any, translation: Any, shape: Any) -> Any:
  """ScaleAndTranslate by Pillow's bilinear filter: uint8 [h, w, 3] to uint8 [*shape, 3].

  The operation is fast along the first axis only, where a whole row is a pixel of many channels;
  along the second it takes three numbers at a time. So this takes the first axis twice, and turns
  the image between: 1.24 to 1.31 instead of 1.28 to 1.58 times the CPU time of a crop without
  antialiasing. Decoding JPEGs to half where that is still twice as large gains nothing. As in
  Pillow, what is between the passes has 8 bits.
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


def random_crop(
  tf: Any, encoded: Any, box: Any, *, size: int, halve: bool, mixed: bool, antialias: bool
) -> Any:
  """A box of an image, resized to uint8 [size, size, 3] by bilinear interpolation."""
  whole = functools.partial(_decode, tf, encoded, box, mixed=mixed)
  if antialias:
    scale = float(size) / tf.cast(box[2:], tf.float32)
    return _resize(tf, whole(), scale, (0.0, 0.0), (size, size))
  half = functools.partial(whole, ratio=2)
  part = tf.cond(tf.reduce_min(box[2:]) >= 2 * size, half, whole) if halve else whole()
  resized = tf.raw_ops.ResizeBilinear(
    images=tf.expand_dims(part, 0), size=[size, size], half_pixel_centers=True
  )
  return _to_uint8(tf, resized)


def central_crop(
  tf: Any,
  encoded: Any,
  box: Any,
  scale: Any,
  translation: Any,
  shape: Any,
  *,
  mixed: bool,
  antialias: bool,
) -> Any:
  """A box of an image, resized and cut or padded to uint8 [*shape, 3]."""
  part = _decode(tf, encoded, box, mixed=mixed)
  if antialias:
    return _resize(tf, part, scale, translation, shape)
  resized = tf.raw_ops.ScaleAndTranslate(
    images=tf.expand_dims(part, 0),
    size=shape,
    scale=scale,
    translation=translation,
    kernel_type="triangle",
    antialias=False,
  )
  return _to_uint8(tf, resized)


def describe_failure(encoded: bytes) -> str:
  """Why bytes that are not decoded are no image."""
  if not encoded:
    return "it is empty"
  if not encoded.startswith(tuple(_FORMATS)):
    *formats, last = dict.fromkeys(_FORMATS.values())
    return f"it is no {', '.join(formats)} or {last}"
  # Of the formats that Pillow reads there are kinds that it does not, and it says which.
  if not encoded.startswith(pixels.TENSORFLOW_SIGNATURES):
    try:
      pixels.decode(encoded)
    except ValueError as error:
      return pixels.reason_of(error)
    except Exception:
      return "its data are damaged or cut off"
  return "its data are damaged or cut off"


def describe_unreadable(error: OSError) -> str:
  return f"it cannot be read: {error.strerror or error}"
