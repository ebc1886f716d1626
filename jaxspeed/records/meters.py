"""Meters of a run's machine: bytes over the network, memory of a device."""

import time
from collections.abc import Iterable

import jax
import psutil


def network_bytes() -> tuple[int, ...]:
  """Bytes that this host has received and transmitted since it started, without loopback.

  () if the system does not tell.
  """
  try:
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
  except (OSError, psutil.Error):  # as in a sandbox without /proc
    return ()
  parts = [each for name, each in counters.items() if name != "lo"]
  return sum(each.bytes_recv for each in parts), sum(each.bytes_sent for each in parts)


class NetworkMeter:
  """Mean transfer rates of the network since the meter was created."""

  def __init__(self) -> None:
    self._bytes, self._start = network_bytes(), time.monotonic()

  def rates(self) -> dict[str, float]:
    """net_recv_gbit and net_transmit_gbit in gigabits (10^9) per second; empty if unknown."""
    names, after = ("net_recv_gbit", "net_transmit_gbit"), network_bytes()
    per_rate = 1e9 / 8 * (time.monotonic() - self._start)
    ends = zip(names, self._bytes, after, strict=False)
    return {name: (new - old) / per_rate for name, old, new in ends}


def peak_memory(devices: Iterable[jax.Device]) -> dict[str, float]:
  """memory_gb: peak memory of the fullest device, in 10^9 bytes; empty if no device reports it."""
  stats = [device.memory_stats() or {} for device in devices]
  peaks = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
  return {"memory_gb": max(peaks) / 1e9} if peaks else {}
