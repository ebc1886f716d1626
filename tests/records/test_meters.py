import types

import jax
import pytest

from jaxspeed.records import meters
from jaxspeed.records.meters import NetworkMeter, peak_memory


def test_a_system_that_counts_no_bytes_has_no_rates(monkeypatch):
  def refuse(**how):
    raise FileNotFoundError("/proc/net/dev")

  monkeypatch.setattr("psutil.net_io_counters", refuse)
  assert NetworkMeter().rates() == {}


def test_rates_are_gigabits_a_second_since_the_meter_was_made(monkeypatch):
  reads = iter([(5, 7), (5 + 10**9, 7 + 5 * 10**8), (5 + 3 * 10**9, 7 + 5 * 10**8)])
  seconds = iter([100.0, 104.0, 106.0])
  monkeypatch.setattr(meters, "network_bytes", reads.__next__)
  monkeypatch.setattr(meters.time, "monotonic", seconds.__next__)
  meter = NetworkMeter()
  # 8 bits times 10^9 bytes over 4 s, and half as many bytes out.
  assert meter.rates() == pytest.approx({"net_recv_gbit": 2.0, "net_transmit_gbit": 1.0})
  assert meter.rates() == pytest.approx({"net_recv_gbit": 4.0, "net_transmit_gbit": 4 / 6})


def test_peak_memory_is_that_of_the_fullest_device_and_unknown_on_a_cpu():
  def device(stats):
    return types.SimpleNamespace(memory_stats=lambda: stats)

  fullest = [device({"peak_bytes_in_use": n, "bytes_in_use": 7e9}) for n in (2 * 10**9, 3 * 10**9)]
  assert peak_memory([*fullest, device(None), device({})]) == {"memory_gb": 3.0}
  assert peak_memory(jax.devices("cpu")) == {}
