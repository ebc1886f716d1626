"""How many CPUs a process may use, on systems with and without an affinity."""

import os

from jaxspeed.devices.host import usable_cpus


def test_the_affinity_counts(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8}, raising=False)
  assert usable_cpus() == 3


def test_without_an_affinity_the_machine_counts(monkeypatch):
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  monkeypatch.setattr(os, "cpu_count", lambda: None)
  assert usable_cpus() == 1
  monkeypatch.setattr(os, "cpu_count", lambda: 8)
  assert usable_cpus() == 8
