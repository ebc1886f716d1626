"""Protocol buffers and TFRecords as bytes: event files of TensorBoard and shards of images."""

import struct
from collections.abc import Iterable

import google_crc32c

_MASK_DELTA = 0xA282EAD8


def varint(value: int) -> bytes:
  """Encode an integer >= 0 in base 128, low groups first."""
  groups = bytearray()
  while value > 0x7F:
    groups.append(value & 0x7F | 0x80)
    value >>= 7
  groups.append(value)
  return bytes(groups)


def field(number: int, content: bytes) -> bytes:
  """Encode a length-delimited field of a protocol buffer."""
  return b"".join((varint(number << 3 | 2), varint(len(content)), content))


def make_frames(records: Iterable[bytes]) -> bytes:
  """Encode TFRecords: length (8 bytes), its checksum (4), data, its checksum (4)."""
  return b"".join(
    part
    for record in records
    for content in (struct.pack("<Q", len(record)), record)
    for part in (content, struct.pack("<I", masked_checksum(content)))
  )


def masked_checksum(part: memoryview | bytes) -> int:
  """Return the CRC32C of some bytes, masked as in a TFRecord (record_writer.h)."""
  checksum = google_crc32c.value(bytes(part))
  rotated = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
  return (rotated + _MASK_DELTA) & 0xFFFFFFFF
