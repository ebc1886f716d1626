"""Meters of a run's machine: bytes over the network, memory of a device."""

import os
import pathlib
import time
from collections.abc import Callable, Iterable

import jax


def network_bytes(path: str | os.PathLike[str] = "/proc/net/dev") -> tuple[int, int] | None:
  """Bytes that this host has received and transmitted since it started, without loopback.

  Args:
    path: Linux's table of network interfaces (proc_net(5)).

  Returns:
    Bytes received and bytes transmitted; None if there is no such table.
  """
  try:
    lines = pathlib.Path(path).read_text().splitlines()
  except OSError:
    return None
  received = transmitted = 0
  for line in lines[2:]:  # after two lines of titles
    # In old kernels a long number follows the colon without a space.
    name, _, counts = line.partition(":")
    if name.strip() != "lo":
      fields = counts.split()
      received, transmitted = received + int(fields[0]), transmitted + int(fields[8])
  return received, transmitted


class NetworkMeter:
  """Mean transfer rates of the network since the meter was created.

  Args:
    read: returns bytes received and transmitted so far; None if unknown.
    now: returns the seconds of a monotonic clock.
  """

  def __init__(
    self,
    read: Callable[[], tuple[int, int] | None] = network_bytes,
    now: Callable[[], float] = time.monotonic,
  ) -> None:
    self._read, self._now = read, now
    self._bytes, self._start = read(), now()

  def rates(self) -> dict[str, float]:
    """net_recv_gbit and net_transmit_gbit in gigabits (10^9) per second; empty if unknown."""
    after, seconds = self._read(), self._now() - self._start
    if self._bytes is None or after is None or seconds <= 0:
      return {}
    names = ("net_recv_gbit", "net_transmit_gbit")
    return {
      name: 8 * (new - old) / seconds / 1e9
      for name, old, new in zip(names, self._bytes, after, strict=True)
    }


def peak_memory(devices: Iterable[jax.Device]) -> dict[str, float]:
  """memory_gb: peak memory of the fullest device, in 10^9 bytes; empty if no device reports it."""
  stats = [device.memory_stats() or {} for device in devices]
  peaks = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
  return {"memory_gb": max(peaks) / 1e9} if peaks else {}
