import types

import jax
import pytest

from jaxspeed.records.meters import NetworkMeter, network_bytes, peak_memory

TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:    9579      87    0    0    0     0          0         0     9579      87    0    0    0
  eth0: 1000 96225    3    4    5     6          7         8  20    9    1    2    3
long10:30000 1    0    0    0     0          0         0        400       0    0    0    0
"""


def test_network_bytes_are_those_of_all_interfaces_but_loopback(tmp_path):
  (tmp_path / "dev").write_text(TABLE)
  assert network_bytes(tmp_path / "dev") == (1000 + 30000, 20 + 400)


def test_without_the_table_of_interfaces_there_are_no_rates(tmp_path):
  assert network_bytes(tmp_path / "none") is None
  meter = NetworkMeter(lambda: network_bytes(tmp_path / "none"), iter((0.0, 1.0)).__next__)
  assert meter.rates() == {}


def test_rates_are_gigabits_a_second_since_the_meter_was_made():
  reads = iter([(5, 7), (5 + 10**9, 7 + 5 * 10**8), (5 + 3 * 10**9, 7 + 5 * 10**8)])
  seconds = iter([100.0, 104.0, 106.0])
  meter = NetworkMeter(reads.__next__, seconds.__next__)
  # 8 bits times 10^9 bytes over 4 s, and half as many bytes out.
  assert meter.rates() == pytest.approx({"net_recv_gbit": 2.0, "net_transmit_gbit": 1.0})
  assert meter.rates() == pytest.approx({"net_recv_gbit": 4.0, "net_transmit_gbit": 4 / 6})


def test_peak_memory_is_that_of_the_fullest_device_and_unknown_on_a_cpu():
  def device(stats):
    return types.SimpleNamespace(memory_stats=lambda: stats)

  fullest = [device({"peak_bytes_in_use": n, "bytes_in_use": 7e9}) for n in (2 * 10**9, 3 * 10**9)]
  assert peak_memory([*fullest, device(None), device({})]) == {"memory_gb": 3.0}
  assert peak_memory(jax.devices("cpu")) == {}
